"""Writes in functional form: the op without a write for in-place and out= ops, and the new value of a base after a write into
its view.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from bytejit.codegen.loops.sizes import same
from bytejit.common.spec import Spec, contiguous_stride
from bytejit.fake.rules.core import is_dense
from bytejit.fake.rules.view_shapes import viewed_stride
from bytejit.shapes import symbols

from .rewrite import contiguous

aten = torch.ops.aten


class CannotNormalise(Exception):
    """This graph has no functional form here; it runs through torch as it is. The message says what and why."""


# In-place ops that change only what the tensor looks like, and the view op that makes the same.
RESHAPING = {f"aten::{name}_": name for name in ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze", "as_strided")}
REFUSED = {"aten::set_", "aten::resize_as_", "aten::resize_as_sparse_", "aten::rename_"}


def _arguments(schema: Any, skip: int = 0) -> list[str]:
    return [str(a.type) for a in schema.arguments[skip:] if not a.is_out]


FACTORY = frozenset({"dtype", "layout", "device", "pin_memory"})  # what a factory takes from out= where that is given


def _arguments_of_factory(schema: Any) -> list[str] | None:
    """The types of a factory's arguments without those that out= stands for; None for what is no factory."""
    if not {a.name for a in schema.arguments} >= FACTORY or any("Tensor" in str(a.type) for a in schema.arguments):
        return None
    return [str(a.type) for a in schema.arguments if a.name not in FACTORY]


def as_out(func: OpOverload, dtype: torch.dtype, device: torch.device) -> dict[str, object]:
    """The options with which a factory makes a tensor like its out=; none for an operator that is no factory."""
    return {} if _arguments_of_factory(func._schema) is None else {"dtype": dtype, "device": device}


@cache
def functional_of(func: OpOverload) -> OpOverload:
    """The op that returns what `func` (in-place, or with out=) writes. Raises: CannotNormalise when torch
    has none.
    """
    schema = func._schema
    namespace, _, name = schema.name.partition("::")
    packets = getattr(torch.ops, namespace)
    stem = name.removesuffix("_") if not name.endswith("__") else name
    wanted = _arguments(schema)
    # of `__ilshift__` it is `__lshift__`
    named = stem.replace("__i", "__", 1) if name.startswith("__i") else stem.removesuffix("_impl").removeprefix("_")
    for candidate in (stem, f"{stem}_functional", named):
        packet = getattr(packets, candidate, None)
        if packet is None:
            continue
        names = packet.overloads()
        for overload in sorted(names, key=lambda n: n != schema.overload_name):
            op = getattr(packet, overload)
            if not op._schema.is_mutable and wanted in (_arguments(op._schema), _arguments_of_factory(op._schema)):
                return op
    raise CannotNormalise(f"{func}: torch has no functional form of it")


def with_defaults(func: OpOverload, op: OpOverload, args: tuple, kwargs: dict) -> tuple:
    """`args` of `func` completed by its defaults where its functional form `op` has none, as `bernoulli_(p=0.5)`."""
    theirs = op._schema.arguments
    for i, argument in enumerate(func._schema.arguments[len(args) :], len(args)):
        if argument.kwarg_only or argument.name in kwargs or theirs[i].has_default_value():
            break
        args += (argument.default_value,)
    return args


def same_stride(shape: tuple, a: tuple, b: tuple) -> bool:
    """Whether two strides mean the same layout: sizes of 1 do not count, nor does anything in an empty tensor."""
    return same(a, b) or any(same(n, 0) for n in shape) or all(same(n, 1) or same(x, y) for n, x, y in zip(shape, a, b))


def overlaps(spec: Spec) -> bool:
    """Whether two elements of a tensor may lie in the same place: an expanded one, windows."""
    reach = 0
    for stride, size in sorted((symbols.hint(s), symbols.hint(n)) for s, n in zip(spec.stride, spec.shape)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def relayout(rec: Any, node: torch.fx.Node, spec: Spec) -> torch.fx.Node:
    """`node` (of spec's shape) copied into spec's dense strides; itself when it has them."""
    have = node.meta["spec"]
    if same_stride(spec.shape, have.stride, spec.stride) or not is_dense(spec):
        return node
    if same_stride(spec.shape, spec.stride, contiguous_stride(spec.shape)):
        return rec.emit(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    order = sorted(range(len(spec.shape)), key=lambda d: (-symbols.hint(spec.stride[d]), same(spec.shape[d], 1)))
    back = [order.index(d) for d in range(len(order))]
    permuted = rec.emit(aten.permute.default, (node, order))
    dense = rec.emit(aten.clone.default, (permuted,), {"memory_format": torch.contiguous_format})
    return rec.emit(aten.permute.default, (dense, back))


def fitted(rec: Any, node: torch.fx.Node, spec: Spec, layout: bool = True) -> torch.fx.Node:
    """`node` cast, broadcast and (layout) laid out as a tensor of `spec` holds it after `copy_`."""
    have = node.meta["spec"]
    if have.dtype != spec.dtype or have.device != spec.device:
        kwargs = {"dtype": spec.dtype} if have.device == spec.device else {"dtype": spec.dtype, "device": spec.device}
        node = rec.emit(aten._to_copy.default, (node,), kwargs)
    if not same(have.shape, spec.shape):
        node = rec.emit(aten.expand.default, (node, list(spec.shape)))
    return relayout(rec, node, spec) if layout else node


def reshaped(rec: Any, node: torch.fx.Node, shape: tuple) -> torch.fx.Node:
    """`node` viewed as another shape, copied first where its strides do not allow a view."""
    spec = node.meta["spec"]
    if same(spec.shape, shape):
        return node
    if viewed_stride(spec.shape, spec.stride, shape) is None:
        node = rec.emit(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    return rec.emit(aten.view.default, (node, list(shape)))


def put_back(rec: Any, func: OpOverload, args: tuple, base: torch.fx.Node, new: torch.fx.Node) -> torch.fx.Node:
    """The value of `base` after `func(base, *args)`, a view of it, took the value `new`. Raises: CannotNormalise."""
    name = func._schema.name.removeprefix("aten::")
    spec = base.meta["spec"]
    rank = len(spec.shape)
    if name == "slice":
        return rec.emit(aten.slice_scatter.default, (base, new, *args))
    if name == "select":
        return rec.emit(aten.select_scatter.default, (base, new, *args))
    if name == "diagonal":
        return rec.emit(aten.diagonal_scatter.default, (base, new, *args))
    if name == "as_strided":
        return rec.emit(aten.as_strided_scatter.default, (base, new, *args))
    if name in ("squeeze", "unsqueeze", "_reshape_alias") or (name == "view" and func._overloadname == "default"):
        return reshaped(rec, new, spec.shape)
    if name == "view":
        return rec.emit(aten.view.dtype, (new, spec.dtype))
    if name == "permute":
        dims = [d % rank for d in args[0]]
        return rec.emit(aten.permute.default, (new, [dims.index(d) for d in range(rank)]))
    if name in ("transpose", "t", "swapaxes", "swapdims", "_conj", "_neg_view"):
        return rec.emit(func, (new, *args))
    if name in ("alias", "detach", "expand") and same(new.meta["spec"].shape, spec.shape):
        return new
    if name == "view_as_real":
        dense = contiguous(new.meta["spec"])  # a filled one has stride 0
        return rec.emit(aten.view_as_complex.default, (relayout(rec, new, dense),))
    if name == "view_as_complex":
        return rec.emit(aten.view_as_real.default, (new,))
    raise CannotNormalise(f"{func}: a write through this kind of view")
