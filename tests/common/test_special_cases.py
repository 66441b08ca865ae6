"""What is known by a name stands in one table, with a reason."""

from __future__ import annotations

import ast
import collections
import enum
from pathlib import Path

import pytest
import torch

from bytejit.common import special_cases
from bytejit.common.special_cases import Origin

SRC = Path(special_cases.__file__).parent.parent
NAMES = {"__name__", "__module__", "__qualname__"}
ROWS = {name: row for name, row in vars(special_cases).items() if isinstance(row, Origin)}


def reads_a_name(node: ast.AST) -> bool:
    """Whether an expression is the name, or the module's name, of an object."""
    for n in ast.walk(node):
        if isinstance(n, ast.Attribute) and n.attr in NAMES:
            return True
        if isinstance(n, ast.Call) and any(isinstance(a, ast.Constant) and a.value in NAMES for a in n.args):
            return True
    return False


def has_text(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value not in NAMES for n in ast.walk(node))


def comparisons_of_names(tree: ast.Module) -> list[int]:
    """Lines that compare the name of an object with a text."""
    found = []
    for n in ast.walk(tree):
        if isinstance(n, ast.Compare):
            sides = [n.left, *n.comparators]
            if any(reads_a_name(a) and has_text(b) for a in sides for b in sides if a is not b):
                found.append(n.lineno)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in ("startswith", "endswith"):
            if reads_a_name(n.func.value):
                found.append(n.lineno)
    return found


def test_the_scan_finds_them() -> None:
    text = (
        'a = c.__name__ == "Counter"\nb = f.__module__.startswith("x")\nc = g.get("__name__", "") in ("x",)\nd = n == "__name__"'
    )
    assert comparisons_of_names(ast.parse(text)) == [1, 2, 3]


def test_names_are_compared_in_one_place() -> None:
    texts = {path: path.read_text() for path in sorted(SRC.rglob("*.py")) if path.name not in ("special_cases.py", "__main__.py")}
    wrong = [
        f"{path.relative_to(SRC)}:{line}"
        for path, text in texts.items()
        if any(name in text for name in NAMES)
        for line in comparisons_of_names(ast.parse(text))
        if "if __name__ ==" not in text.splitlines()[line - 1]
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("name", ROWS)
def test_each_has_a_reason(name: str) -> None:
    row = ROWS[name]
    assert row.modules and len(row.reason) > 20
    assert all(row.named(m.removesuffix("*")) for m in row.modules) and not row.named(None) and not row.named("")


def test_a_name_that_only_begins_alike_is_another_module() -> None:
    assert special_cases.TORCH.made(torch.nn.Linear) and not special_cases.TORCH.named("torchvision.ops")
    assert special_cases.COVERAGE.named("coverage.tracer") and not special_cases.COVERAGE.named("coverages")
    assert special_cases.NAMED_TUPLES.made(collections.namedtuple("Point", "x y").__new__)
    assert special_cases.ENUM.made(enum.Enum) and not special_cases.ENUM.made(enum.Enum("Mine", "a b"))
    assert special_cases.OWN.runs({"__name__": "bytejit.api"}) and not special_cases.OWN.runs({})
