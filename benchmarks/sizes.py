"""Figures for whoever reviews: what is long, wide or untyped under src/. `make sizes`.

python benchmarks/sizes.py            # counts and the worst of each
python benchmarks/sizes.py guards     # all that are over, of the files whose path contains one of the words
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src" / "bytejit"
WIDTH = 130
Found = tuple[int, str]  # how long or how many, and where


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef, method: bool) -> Iterator[ast.arg]:
    """All parameters but a method's first."""
    args = function.args
    given = [*args.posonlyargs, *args.args]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    yield from given[1:] if method and not static else given
    yield from (*args.kwonlyargs, *(a for a in (args.vararg, args.kwarg) if a is not None))


def measure(path: Path) -> Iterator[tuple[str, Found]]:
    """What is counted of a file, by title."""
    text, name = path.read_text(), str(path.relative_to(SRC))
    yield "lines of a file", (text.count("\n"), name)
    for i, line in enumerate(text.splitlines(), 1):
        yield "letters of a line", (len(line), f"{name}:{i}")
    tree = ast.parse(text)
    methods = {id(n) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for n in c.body}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            at = f"{name}:{node.lineno} {node.name}"
            yield "lines of a function", (node.end_lineno - node.lineno + 1, at)
            yield "untyped parameters", (sum(a.annotation is None for a in parameters(node, id(node) in methods)), at)
        elif isinstance(node, ast.ClassDef):
            count = sum(isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) for n in node.body)
            yield "methods of a class", (count, f"{name}:{node.lineno} {node.name}")


LIMITS = {
    "lines of a file": 400,
    "lines of a function": 60,
    "methods of a class": 25,
    "letters of a line": WIDTH,
    "untyped parameters": 0,
}


def main() -> None:
    words = sys.argv[1:]
    found: dict[str, list[Found]] = {title: [] for title in LIMITS}
    for path in sorted(SRC.rglob("*.py")):
        if not words or any(w in str(path.relative_to(SRC)) for w in words):
            for title, item in measure(path):
                found[title].append(item)
    files, functions = found["lines of a file"], found["lines of a function"]
    print(f"{sum(n for n, _ in files)} lines in {len(files)} files, {len(functions)} functions")
    for title, limit in LIMITS.items():
        over = sorted((f for f in found[title] if f[0] > limit), reverse=True)
        total = f", {sum(n for n, _ in over)} in all" if not limit else ""
        print(f"{title}: {len(over)} over {limit}{total}")
        for n, name in over if words else over[:8]:
            print(f"  {n:5}  {name}")


if __name__ == "__main__":
    main()
