"""Layouts of sums between kernels. Eager gives a sum the strides of its first operand. So a whole stream of residual sums gets
the layout of the convolution at its beginning, and every norm and product reads it with a stride. Such values become row-major
where more of their producers and readers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import fx

from bytejit.codegen.aten.rewrite import aten, contiguous, is_static, order_of, spec_of, spec_or_none
from bytejit.codegen.ops.calls import is_tagged, row_of
from bytejit.common.dtypes import FLOAT_DTYPES
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec
from bytejit.fake.rules.core import is_dense

from .choices import Choices

COPIES = frozenset({aten.clone.default, aten._to_copy.default})
PRODUCTS = frozenset({aten.linear.default, aten.addmm.default})  # with rows as their left operand
LAST = ("layer_norm", "rms_norm")  # in the names of ops that walk the last dim
WALKED = frozenset({"reduce", "composite", "scan"})  # kinds that read a tensor as it lies


@light_dataclass(frozen=True)
class ReadingCall:
    """A call that reads a value, possibly through transposed views: dims[i] is the value's dim that the call sees as its dim
    i."""

    node: fx.Node
    dims: tuple[int, ...]


def lay_out_streams(graph: fx.Graph, choices: Choices) -> None:
    """Restride groups of pointwise values that are not row-major and that the program does not see. Changes `graph`."""
    group: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        if not _lies_across(node):
            continue
        members = group[node] = {node}
        for before in node.all_input_nodes:
            if before in group and spec_of(before) == spec_of(node) and group[before] is not members:
                fewer, members = sorted((members, group[before]), key=len)
                members |= fewer
                group.update(dict.fromkeys(fewer, members))
    for members in {id(m): m for m in group.values()}.values():
        votes = _votes(members)
        if votes is not None and votes["rows"] > votes["as they lie"]:
            for m in members:
                _restride(m, contiguous(spec_of(m)))


def _fastest(spec: Spec) -> int | None:
    """The dim along which memory is walked step by step."""
    return next((d for d in reversed(range(len(spec.shape))) if spec.stride[d] == 1 and spec.shape[d] > 1), None)


def _lies_across(node: fx.Node) -> bool:
    """Whether a pointwise call's result is dense with another dim than the last innermost."""
    spec = spec_or_none(node)
    if node.op != "call_function" or spec is None or not is_static(spec) or not _is_pointwise(node):
        return False
    return is_dense(spec) and len(spec.shape) > 1 and spec.shape[-1] > 1 and _fastest(spec) not in (None, len(spec.shape) - 1)


def _is_pointwise(node: fx.Node) -> bool:
    """Whether a call is an expression of floats in a kernel, also one that copies on its device."""
    row, spec = row_of(node), spec_or_none(node)
    if spec is None or spec.dtype not in FLOAT_DTYPES:
        return False
    if node.target in COPIES:
        return spec_of(node.all_input_nodes[0]).device == spec.device
    return row is not None and (row.kind == "pointwise" or is_tagged(node))


def _readers(node: fx.Node, dims: tuple[int, ...]) -> Iterator[ReadingCall]:
    """The nodes that read a value, also through views that only change the order of its dims."""
    for user in node.users:
        order = order_of(user, len(dims))
        if order is None:
            yield ReadingCall(user, dims)
        else:
            yield from _readers(user, tuple(dims[d] for d in order))


def _votes(members: set[fx.Node]) -> Counter | None:
    """Returns how much of the members' operands and readers walks memory in rows, and how much in the present layout; None where
    something needs the present layout."""
    votes: Counter = Counter()
    spec = spec_of(next(iter(members)))
    rank, across = len(spec.shape), _fastest(spec)

    def vote(dim: int | None) -> None:
        votes["rows" if dim == rank - 1 else "as they lie" if dim == across else "neither"] += 1

    for m in members:
        for given in m.all_input_nodes:
            beside = spec_or_none(given)
            if given not in members and beside is not None and beside.shape == spec.shape:
                vote(_fastest(beside))
        for reader in _readers(m, tuple(range(rank))):
            dims = _walked(reader)
            if dims is None:
                return None
            if reader.node not in members:
                for d in dims:
                    vote(reader.dims[d])
    return votes


def _walked(reader: ReadingCall) -> list[int] | None:
    """The dims that should be dense for a reader; None for a reader that needs the present strides."""
    node, rank = reader.node, len(reader.dims)
    row = row_of(node)
    if node.op != "call_function":
        return None
    if node.target in PRODUCTS:
        return [rank - 1] if rank == len(spec_of(node).shape) else None
    if _is_pointwise(node):
        spec = spec_or_none(node)
        fastest = _fastest(spec) if spec is not None and len(spec.shape) == rank and is_static(spec) else None
        return [] if fastest is None else [fastest]
    if row is None or row.kind not in WALKED:
        return None
    if any(word in row.name for word in LAST):
        return [rank - 1]
    dims = node.args[1] if len(node.args) > 1 else None
    dims = [dims] if isinstance(dims, int) else dims
    if not isinstance(dims, list | tuple) or not all(type(d) is int for d in dims):
        return []
    return [rank - 1] if rank - 1 in {d % rank for d in dims} else []


def _restride(node: fx.Node, spec: Spec) -> None:
    """Give a value, and its transposed views, other strides."""
    node.meta["spec"] = spec
    for user in node.users:
        order = order_of(user, len(spec.shape))
        if order is not None:
            shape, stride = (tuple(of[d] for d in order) for of in (spec.shape, spec.stride))
            _restride(user, Spec(shape, stride, spec.dtype, spec.device))
