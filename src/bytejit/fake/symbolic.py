"""Inference of ops without a row on fakes whose sizes are symbols.

torch's Python references and decompositions run on the fakes themselves, down to rows. Where an op has none, or it fails, the
symbols become constants, and the meta kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library import simple_registry
from torch.utils._pytree import tree_leaves, tree_map

from bytejit.common.warned import silently, warnings_to
from bytejit.fake.rules.core import Meta, differ, new, numel
from bytejit.fake.rules.elementwise import eager_stride

from .meta_inference import Ways, common_device, reshape_in_place, through_kernel
from .refusals import refused_at_hand
from .rules.errors import DataDependent, NoFake

_TABLES = (torch._decomp.meta_table, torch._decomp.decomposition_table)


def through_reference(func: torch._ops.OpOverload, args: tuple, kwargs: dict, ways: Ways) -> Any:
    """The result of an op. Raises: DataDependent, NoFake, and what eager raises on bad arguments."""
    size = _SIZES.get(func.name())
    if size is not None:
        return size(args[0].m, *args[1:])
    if func.name() in _SQUEEZES:
        seen = _SQUEEZES[func.name()](*args, **kwargs).m
        reshape_in_place(args[0], seen.shape, seen.stride, seen.offset)
        return args[0]
    for reference in () if refused_at_hand(func, args, kwargs, ways) else references(func):
        try:
            with ways.mode(), warnings_to(silently):  # its words are not eager's
                result = reference(*own_lists(args), **own_lists(kwargs))
        except (DataDependent, NoFake):
            raise
        except Exception:
            # a reference that cannot take symbols; what eager refuses raises again below, in eager's words
            continue
        if _all_fake(result, ways.kind):
            return _laid_out(func, args, kwargs, _where_arguments_are(result, (args, kwargs), ways), ways)
    known = ConstantArguments(ways)
    result = through_kernel(func, known(args), known(kwargs), ways)
    known.reshape_written()
    return known.back(result)


def own_lists(x: Any) -> Any:
    """`x` with lists of its own: some references write into the lists that they are given."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(own_lists, x))
    return {k: own_lists(v) for k, v in x.items()} if isinstance(x, dict) else x


def references(func: torch._ops.OpOverload) -> list[Callable]:
    """Implementations of an op in terms of others, the most likely to work first."""
    found = _registered_fake(func)
    found += [func.decompose] if _is_composite(func) else []
    found += [table[func] for table in _TABLES if func in table]
    meta = getattr(func, "prim_meta_impl", None)
    return [*found, meta] if meta is not None else found


def _registered_fake(func: torch._ops.OpOverload) -> list[Callable]:
    """What `torch.library.register_fake` was given for a user's op."""
    if func.namespace in ("aten", "prims"):
        return []
    kernel = simple_registry.singleton.find(func.name().partition(".")[0]).fake_impl.kernel
    return [] if kernel is None else [kernel]


def _is_composite(func: torch._ops.OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _same_storage_numel(m: Meta, other: Any) -> bool:
    """Whether the storages of two tensors hold the same number of elements."""
    mine, its = (x.store.nbytes // x.dtype.itemsize for x in (m, other.m))
    return bool(mine == its)


# ops that return numbers, or nothing
_SIZES: dict[str, Callable] = {
    "aten::size": lambda m: list(m.shape),
    "aten::sym_size": lambda m: list(m.shape),
    "aten::size.int": lambda m, d: m.shape[d],
    "aten::sym_size.int": lambda m, d: m.shape[d],
    "aten::stride": lambda m: list(m.stride),
    "aten::sym_stride": lambda m: list(m.stride),
    "aten::stride.int": lambda m, d: m.stride[d],
    "aten::sym_stride.int": lambda m, d: m.stride[d],
    "aten::numel": lambda m: numel(m.shape),
    "aten::sym_numel": lambda m: numel(m.shape),
    "aten::storage_offset": lambda m: m.offset,
    "aten::sym_storage_offset": lambda m: m.offset,
    "aten::is_same_size": lambda m, other: bool(m.shape == other.m.shape),
    "aten::_has_same_storage_numel": _same_storage_numel,
    "aten::_linalg_check_errors": lambda m, name: None,
}


# ops that make of a tensor what this view of it is
_SQUEEZES: dict[str, Callable] = {
    "aten::squeeze_": torch.ops.aten.squeeze.default,
    "aten::squeeze_.dim": torch.ops.aten.squeeze.dim,
    "aten::squeeze_.dims": torch.ops.aten.squeeze.dims,
}


def _all_fake(result: object, kind: type) -> bool:
    if isinstance(result, torch.Tensor):
        return type(result) is kind
    return all(_all_fake(r, kind) for r in result) if isinstance(result, (list, tuple)) else True


def _where_arguments_are(result: Any, given: tuple, ways: Ways) -> Any:
    """The result of a meta kernel written in Python: some put it on the meta device, whatever their arguments are on."""
    leaves = tree_leaves(result)
    if not any(isinstance(r, torch.Tensor) and r.m.device.type == "meta" for r in leaves):
        return result
    device = common_device([x for x in tree_leaves(given) if isinstance(x, ways.kind)])

    def moved(r: Any) -> Any:
        if not isinstance(r, torch.Tensor) or r.m.device.type != "meta":
            return r
        return ways.make(Meta(r.m.shape, r.m.stride, r.m.offset, r.m.dtype, device, r.m.store))

    return tree_map(moved, result)


def _laid_out(func: torch._ops.OpOverload, args: tuple, kwargs: dict, result: Any, ways: Ways) -> Any:
    """A new result of an elementwise op, with the strides of eager's kernel: a reference composes it of ops with others."""
    if not isinstance(result, torch.Tensor) or func._schema.is_mutable or kwargs.get("memory_format") is not None:
        return result
    m = result.m
    stride = eager_stride(func, args, tuple(m.shape), m.dtype)
    if stride is None or not any(map(differ, stride, m.stride)):
        return result
    return ways.make(new(m.shape, stride, m.dtype, m.device))


class ConstantArguments:
    """Replaces symbols among arguments by constants, each with a condition, and maps results back to the fakes."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self.replaced: list[tuple[Any, Any]] = []

    def __call__(self, x: Any) -> Any:
        if type(x) is self.ways.kind:
            m = x.m
            if any(isinstance(n, torch.SymInt) for n in (*m.shape, *m.stride, m.offset)):
                for mine, constant in self.replaced:
                    if mine is x:
                        return constant
                constant = self.ways.make(Meta(ints(m.shape), ints(m.stride), int(m.offset), m.dtype, m.device, m.store))
                self.replaced.append((x, constant))
                return constant
        if isinstance(x, (list, tuple)):
            return type(x)(map(self, x))
        if isinstance(x, dict):
            return {k: self(v) for k, v in x.items()}
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}.get(type(x))
        return kind(x) if kind is not None else x

    def reshape_written(self) -> None:
        """Give the arguments the shape that an in-place or out= op gave the constants in their place."""
        for mine, constant in self.replaced:
            new = constant.m
            if new.shape != ints(mine.m.shape) or new.stride != ints(mine.m.stride) or new.offset != int(mine.m.offset):
                reshape_in_place(mine, new.shape, new.stride, new.offset)

    def back(self, result: Any) -> Any:
        """The result with the op's own arguments where it returned the constants for them."""
        if isinstance(result, (list, tuple)):
            return type(result)(map(self.back, result))
        return next((mine for mine, constant in self.replaced if constant is result), result)


def ints(sizes: tuple) -> tuple[int, ...]:
    """Sizes as constants."""
    return tuple(map(int, sizes))
