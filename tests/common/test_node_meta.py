"""Keys of `node.meta` are declared, with their types, in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import bytejit
from bytejit.common.node_meta import NodeMeta


def keys(tree: ast.AST) -> Iterator[str]:
    """The constant keys by which code reads or writes the `meta` of something."""
    for n in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(n, ast.Subscript) and is_meta(n.value):
            found = [n.slice]
        elif isinstance(n, ast.Compare) and is_meta(n.comparators[0]) and isinstance(n.ops[0], (ast.In, ast.NotIn)):
            found = [n.left]
        elif isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and is_meta(n.func.value):
            yield from (k.arg for k in n.keywords if k.arg and n.func.attr == "update")
            found = n.args[:1] if n.func.attr in ("get", "pop", "setdefault") else []
        elif isinstance(n, ast.AugAssign) and is_meta(n.target) and isinstance(n.value, ast.Dict):
            found = n.value.keys
        yield from (k.value if isinstance(k, ast.Constant) else ast.unparse(k) for k in found if k is not None)


def is_meta(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "meta"


def test_every_key_is_declared_and_used() -> None:
    root = Path(bytejit.__file__).parent
    texts = [text for path in root.rglob("*.py") if "meta" in (text := path.read_text())]
    used = {key for text in texts for key in keys(ast.parse(text))}
    assert used - {"INFO", "REPORT"} == set(NodeMeta.__annotations__)  # those two are keys of a graph: common/graph_info.py
