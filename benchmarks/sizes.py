"""Figures for whoever reviews: lines, the longest files and functions, classes with many methods, lines too long."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src" / "bytejit"


def main() -> None:
    files, functions, classes, wide = [], [], [], []
    for path in sorted(SRC.rglob("*.py")):
        text, name = path.read_text(), str(path.relative_to(SRC))
        files.append((text.count("\n"), name))
        wide += [f"{name}:{i}" for i, line in enumerate(text.splitlines(), 1) if len(line) > 120]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions.append((node.end_lineno - node.lineno + 1, f"{name}:{node.lineno} {node.name}"))
            elif isinstance(node, ast.ClassDef):
                classes.append(
                    (sum(isinstance(n, ast.FunctionDef) for n in node.body), f"{name}:{node.lineno} {node.name}")
                )
    print(f"{sum(n for n, _ in files)} lines in {len(files)} files, {len(functions)} functions")
    for title, found, limit in (
        ("lines of a file", files, 500),
        ("lines of a function", functions, 60),
        ("methods of a class", classes, 25),
    ):
        over = [f for f in found if f[0] > limit]
        print(f"{title}: {len(over)} over {limit}; the most:")
        for n, name in sorted(found, reverse=True)[: max(3, min(len(over), 15))]:
            print(f"  {n:5}  {name}")
    print(f"lines over 120 characters: {len(wide)}", *wide[:5])


if __name__ == "__main__":
    main()
