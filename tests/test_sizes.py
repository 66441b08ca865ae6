"""Files, functions and classes that one can take in at a glance, with every parameter typed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "bytejit"
ROOT = "the root"
HELD = [ROOT, *sorted(path.name for path in SRC.iterdir() if path.is_dir() and path.name != "__pycache__")]
LINES, FUNCTION, METHODS = 400, 60, 25
FILES = 12  # of the root


def files(room: str) -> list[Path]:
    return sorted(SRC.glob("*.py") if room == ROOT else (SRC / room).rglob("*.py"))


def untyped(fn: ast.FunctionDef, method: bool) -> list[str]:
    """Parameters without an annotation; of a method, but for the first."""
    a = fn.args
    plain = [*a.posonlyargs, *a.args]
    first = plain[:1] if method and plain and plain[0].arg in ("self", "cls") else []
    every = [*plain[len(first) :], *a.kwonlyargs, *(p for p in (a.vararg, a.kwarg) if p)]
    return [p.arg for p in every if p.annotation is None]


def defined(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements of a class, those under `if`, `for`, `with` and `try` too."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from defined([n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.stmt, ast.ExceptHandler))])


def faults(text: str) -> Iterator[str]:
    """What in a module's text is too large, or untyped."""
    if text.count("\n") > LINES:
        yield f"{text.count(chr(10))} lines"
    tree = ast.parse(text)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    methods = {n for c in classes for n in defined(c.body) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.end_lineno - node.lineno >= FUNCTION:
                yield f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
            if names := untyped(node, node in methods):
                yield f"{node.name}: {', '.join(names)} untyped"
        elif isinstance(node, ast.ClassDef):
            own = sum(n in methods for n in defined(node.body))
            if own > METHODS:
                yield f"{node.name}: {own} methods"


@pytest.mark.parametrize("room", HELD)
def test_sizes(room: str) -> None:
    found = [f"{path.relative_to(SRC)}: {fault}" for path in files(room) for fault in faults(path.read_text())]
    assert not found, "\n".join(found)


def test_the_root_is_seen_at_a_glance() -> None:
    names = [path.name for path in files(ROOT)]
    assert len(names) <= FILES, names


def test_headers_are_of_a_size() -> None:
    long = [str(path.relative_to(SRC)) for path in SRC.rglob("*.h") if path.read_text().count("\n") > LINES]
    assert not long


def test_only_tables_are_formatted_by_hand() -> None:
    """Lines that the formatter leaves alone could hide long functions."""
    off = {str(path.relative_to(SRC)) for path in SRC.rglob("*.py") if "# fmt:" in path.read_text()}
    assert off == {"rewriter/opcodes.py", "rewriter/resume_points.py", "runtime/dispatch.py"}


def test_what_is_too_large_is_found() -> None:
    body = "\n".join(f"    x{i} = {i}" for i in range(60))
    methods = "\n".join(f"    def m{i}(self): ..." for i in range(25))
    text = (
        f"def f(a, *b: int):\n{body}\nclass C:\n{methods}\n    if True:\n        def more(self): ...\ndef g(self): ...\n"
        + "\n" * 400
    )
    assert sorted(faults(text)) == ["490 lines", "C: 26 methods", "f: 61 lines", "f: a untyped", "g: self untyped"]


# classes that are the same thing of two devices or of two algebras
ALIKE = {"IndexText", "KernelPrinter", "Mod"}


def test_a_name_of_a_class_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in SRC.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SRC)))
    assert not {name: where for name, where in places.items() if len(where) > 1 and name not in ALIKE}
    assert all(len(places[name]) == 2 for name in ALIKE)
