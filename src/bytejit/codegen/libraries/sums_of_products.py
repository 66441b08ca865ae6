"""Sums of products: a @ b + c @ d + ... becomes one product of concatenated matrices.

The gradient of a weight that is used many times (each step of a recurrent network) is such a sum. One product reads and
writes the result once; the single products and their additions would do so each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from bytejit.codegen.aten.rewrite import (
    aten,
    call_before,
    contiguous,
    drop_dead,
    is_static,
    plain_cpu,
    replace,
    sole_user,
    spec_of,
    specs_of,
)
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .choices import Choices, choose_each

LEAST = 4  # products that are worth it


@light_dataclass(frozen=True)
class Sum:
    """A sum of which some parts are products. is_transposed: the transposes of the products are added."""

    node: fx.Node
    products: tuple[fx.Node, ...]
    is_transposed: bool
    others: tuple[fx.Node, ...]


def join_sums(graph: fx.Graph, choices: Choices) -> None:
    """Make sums of float32 products on the CPU one product, where their operands are smaller than their results."""
    choose_each(graph, match_sum, lambda found: pays(found.products) or None, lambda found, _: join(graph, found))
    drop_dead(graph)


def match_sum(node: fx.Node) -> Sum | None:
    """A tree of additions, at its root, with enough products among its parts; None for other nodes."""
    user = sole_user(node)
    if not is_sum(node) or user is not None and is_sum(user):
        return None
    parts = addends(node)
    found = {part: untransposed(part) for part in parts}
    plain, is_transposed = ([p for p in parts if is_product(found[p][0]) and found[p][1] is way] for way in (False, True))
    chosen = max(plain, is_transposed, key=len)
    if len(chosen) < LEAST:
        return None
    return Sum(node, tuple(found[p][0] for p in chosen), chosen is is_transposed, tuple(p for p in parts if p not in chosen))


def is_sum(node: fx.Node) -> bool:
    """An addition of two matrices of one shape and layout."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
        return False
    specs = specs_of(node, *node.args)
    if specs is None or not plain_cpu(*specs):
        return False
    return is_static(specs[0]) and len(specs[0].shape) == 2 and specs[0] == specs[1] == specs[2]


def is_product(node: fx.Node) -> bool:
    """A product that is read once, of sizes that are known."""
    return node.target is aten.mm.default and sole_user(node) is not None and all(is_static(spec_of(a)) for a in node.args)


def untransposed(node: fx.Node) -> tuple[fx.Node, bool]:
    """(what a node is the transpose of, or itself; whether it is the transpose), through transposes that nothing else reads. A
    weight's gradient is that of its transpose, transposed."""
    is_transposed = False
    while node.target is aten.t.default and sole_user(node) is not None:
        node, is_transposed = node.args[0], not is_transposed
    return node, is_transposed


def addends(node: fx.Node) -> list[fx.Node]:
    """The summands of a tree of additions that nothing else reads, in order."""
    found, stack = [], list(reversed(node.args))
    while stack:
        part = stack.pop()
        if is_sum(part) and sole_user(part) is not None:
            stack += reversed(part.args)
        else:
            found.append(part)
    return found


def pays(products: Sequence[fx.Node]) -> bool:
    """Whether copying the operands moves fewer bytes than the results do."""
    rows, columns = spec_of(products[0]).shape
    inner = sum(spec_of(p.args[0]).shape[1] for p in products)
    return 0 < inner * (rows + columns) < len(products) * rows * columns


def join(graph: fx.Graph, found: Sum) -> None:
    """Replace a sum by one product and the remaining summands."""
    node, products, spec = found.node, found.products, spec_of(found.node)
    left = beside(graph, node, [p.args[0] for p in products], 1)
    right = beside(graph, node, [p.args[1] for p in products], 0)
    total = call_before(graph, node, aten.mm.default, (left, right), contiguous(spec_of(products[0])))
    if found.is_transposed:
        total = transposed(graph, node, total)
    if spec != spec_of(total):
        total = call_before(graph, node, aten.clone.default, (total,), spec)
    for other in found.others:
        total = call_before(graph, node, aten.add.Tensor, (total, other), spec)
    replace(node, total)


def transposed(graph: fx.Graph, node: fx.Node, matrix: fx.Node) -> fx.Node:
    """The transpose of a matrix, made before `node`."""
    spec = spec_of(matrix)
    return call_before(graph, node, aten.t.default, (matrix,), Spec(spec.shape[::-1], spec.stride[::-1], spec.dtype, spec.device))


def beside(graph: fx.Graph, node: fx.Node, parts: Sequence[fx.Node], dim: int) -> fx.Node:
    """The concatenation of matrices; of transposed ones, the transpose of the concatenated originals."""
    is_transposed = all(p.target is aten.t.default for p in parts)
    parts, dim = ([p.args[0] for p in parts], 1 - dim) if is_transposed else (list(parts), dim)
    specs = [spec_of(p) for p in parts]
    shape = [specs[0].shape[0], specs[0].shape[1]]
    shape[dim] = sum(s.shape[dim] for s in specs)
    made = contiguous(Spec(tuple(shape), specs[0].stride, specs[0].dtype, specs[0].device))
    whole = call_before(graph, node, aten.cat.default, (parts, dim), made)
    return transposed(graph, node, whole) if is_transposed else whole
