"""Ops on lists of tensors (`aten._foreach_*`) become one call for each tensor, as in eager's slow path. So an optimizer's
update is inferred, recorded and fused tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

aten = torch.ops.aten
Call = tuple[Any, tuple, dict]

PREFIX = "aten::_foreach_"
BOUNDS = {"clamp_min": "clamp_min", "clamp_max": "clamp_max", "maximum": "clamp_min", "minimum": "clamp_max"}


def calls_of(func: Any, args: tuple, kwargs: dict) -> list[Call] | None:
    """The call (op, arguments, options) for each tensor, without a write; None for lists that torch refuses, or a form that is
    not known here."""
    schema = func._schema
    name, overload = schema.name.removeprefix(PREFIX).removesuffix("_"), schema.overload_name
    given = dict(zip((a.name for a in schema.arguments), args)) | kwargs
    lists = [v for v in given.values() if isinstance(v, (list, tuple))]
    if not lists or not lists[0] or len({len(v) for v in lists}) != 1:
        return None
    try:
        make = _maker(name, overload)
    except AttributeError:
        return None
    return None if make is None else [make(*parts) for parts in _each(len(lists[0]), schema, given)]


def _each(n: int, schema: Any, given: dict[str, Any]) -> Iterator[list]:
    """The arguments of each tensor's call; a tensor of numbers counts as their list."""
    numbers = {a.name for a in schema.arguments if a.name == "scalars" and str(a.type) == "Tensor"}
    for i in range(n):
        parts = []
        for a in schema.arguments:
            value = given.get(a.name, a.default_value)
            if a.name in numbers:
                value = value.select(0, i)
            parts.append(value[i] if isinstance(value, (list, tuple)) else value)
        yield parts


def _maker(name: str, overload: str) -> Callable[..., Call] | None:
    """Returns the function that makes the call for one tensor of its arguments. Raises: AttributeError when torch has no such op
    for one tensor."""
    of_tensors = overload in ("List", "Tensor")
    if name in ("add", "sub"):
        op = getattr(getattr(aten, name), "Tensor" if of_tensors else "Scalar")
        return lambda x, y, alpha=1: (op, (x, y), {} if alpha == 1 and alpha is not True else {"alpha": alpha})
    if name in ("mul", "div"):
        op = getattr(getattr(aten, name), "Tensor" if of_tensors else "Scalar")
        return lambda x, y: (op, (x, y), {})
    if name in BOUNDS:
        op = getattr(getattr(aten, BOUNDS[name]), "Tensor" if of_tensors else "default")
        return lambda x, y: (op, (x, y), {})
    if name == "pow":
        op = getattr(aten.pow, {"List": "Tensor_Tensor", "ScalarAndTensor": "Scalar"}.get(overload, "Tensor_Scalar"))
        return lambda x, y: (op, (x, y), {})
    if name == "lerp":
        op = aten.lerp.Tensor if overload == "List" else aten.lerp.Scalar
        return lambda x, end, weight: (op, (x, end, weight), {})
    if name in ("addcmul", "addcdiv"):
        op = getattr(aten, name).default
        if overload == "Tensor":
            return lambda x, a, b, value: (op, (x, a * value, b), {})
        return lambda x, a, b, value=1: (op, (x, a, b), {} if value == 1 else {"value": value})
    if name == "norm":
        return lambda x, order=2, dtype=None: (
            aten.linalg_vector_norm.default,
            (x, order),
            {} if dtype is None else {"dtype": dtype},
        )
    if name == "copy":
        return lambda x, source, *_: (aten.copy.default, (x, source), {})
    if name == "clone":
        return lambda x, layout=None: (aten.clone.default, (x,), {} if layout is None else {"memory_format": layout})
    if overload:
        return None
    op = getattr(aten, {"zero": "zeros_like"}.get(name, name)).default
    return lambda x: (op, (x,), {})
