"""Finds the nodes of an ATen graph that together are a write into a part of a tensor.

    v = select(cache, 0, layer);  w = index_put(v, [None, i], k);  cache' = select_scatter(cache, w, 0, layer)

Where cache' is what an input holds afterwards, all three stand for one write into it (codegen/ops/rows/scatter.py,
codegen/loops/passes/inplace.py). So they do on a CPU where a tensor is written part by part: computing all of it again for each
part would cost the square of the number of parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "select.int",
        "slice.Tensor",
        "view.default",
        "permute.default",
        "transpose.int",
        "unsqueeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "t.default",
        "alias.default",
    )
)
WINDOWS = frozenset({"aten.slice_scatter.default", "aten.select_scatter.default"})
WRITES = WINDOWS | frozenset(
    f"aten.{name}"
    for name in (
        "index_put.default",
        "index_copy.default",
        "index_add.default",
        "index_fill.int_Scalar",
        "index_fill.int_Tensor",
        "scatter.src",
        "scatter.value",
        "scatter_add.default",
    )
)


MANY = 4  # parts of a tensor that a program writes one after another


def written(outputs: tuple, mutations: tuple, nodes: Iterable[Any] = ()) -> frozenset[Any]:
    """Nodes that stand for writes into an input, or into a tensor of which at least MANY parts are written. nodes: those among
    which to look for the latter."""
    found: set[Any] = set()
    stack = [outputs[m.position] for m in mutations] + [n for n in nodes if str(n.target) in WINDOWS and _parts(n) >= MANY]
    while stack:
        node = stack.pop()
        if getattr(node, "op", "") != "call_function" or node in found:
            continue
        target = str(node.target)
        if target in WRITES:
            found.add(node)
            stack += node.args[:2] if target in WINDOWS else node.args[:1]
        elif target in VIEWS:
            stack.append(node.args[0])
    return frozenset(found)


def _parts(node: Any) -> int:
    """How many parts of a tensor are written one after another, this node's the last: MANY for more."""
    count = 0
    while count < MANY and getattr(node, "op", "") == "call_function" and str(node.target) in WINDOWS:
        node, count = node.args[0], count + 1
    return count


def viewed(node: Any) -> Any:
    """The base of a view. A write in between counts as the value that it writes to."""
    while getattr(node, "op", "") == "call_function" and str(node.target) in VIEWS | WRITES:
        node = node.args[0]
    return node


def goes_back(node: Any) -> bool:
    """Whether a node's result, made from a view, is put back to where that view comes from."""
    return any(str(u.target) in WINDOWS and u.args[1] is node and viewed(u.args[0]) is viewed(node.args[0]) for u in node.users)
