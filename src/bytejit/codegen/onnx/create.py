"""Rows of operators that make tensors from no other tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen.loops.sizes import Real
from bytejit.common.dtypes import INDEX_DTYPES
from bytejit.common.spec import Spec

from .table import EVERY, row
from .writer import Cannot, ModelWriter, Tensor

aten = torch.ops.aten


@row(aten.full.default, aten.new_full.default, aten.full_like.default, dtypes=EVERY)
def full(w: ModelWriter, out: Spec, first: Any, second: Any, third: Any = None, **settings: Any) -> Tensor:
    """A tensor of one number."""
    return filled(w, out, second if third is None else third)


def filled(w: ModelWriter, out: Spec, value: Any) -> Tensor:
    """A tensor of the shape and dtype of `out`, filled with one number."""
    return w.op("Expand", w.to(value, out.dtype), w.ints(out.shape))


def _all(value: int) -> Callable:
    return lambda w, out, *args, **settings: filled(w, out, value)


for _name, _value in (("zeros", 0), ("ones", 1)):
    _new, _like = getattr(aten, f"new_{_name}"), getattr(aten, f"{_name}_like")
    row(getattr(aten, _name).default, _new.default, _like.default, dtypes=EVERY)(_all(_value))


@row(aten.scalar_tensor.default, dtypes=EVERY)
def scalar_tensor(w: ModelWriter, out: Spec, value: Any, **settings: Any) -> Tensor:
    """A 0-dim tensor of one number."""
    return filled(w, out, value)


@row(aten.arange.start_step, dtypes=INDEX_DTYPES)
def arange(w: ModelWriter, out: Spec, start: Any, end: Any, step: Any = 1, **settings: Any) -> Tensor:
    """The numbers from `start` to `end`, `step` apart."""
    if any(isinstance(n, (float, Real)) for n in (start, end, step)):
        raise Cannot("it is a range of floats")
    return w.op("Range", *(w.to(n, out.dtype) for n in (start, end, step)))


@row(aten.arange.default, dtypes=INDEX_DTYPES)
def arange_end(w: ModelWriter, out: Spec, end: Any, **settings: Any) -> Tensor:
    """The integers from 0 to `end`."""
    return arange(w, out, 0, end)


@row(aten.arange.start, dtypes=INDEX_DTYPES)
def arange_start(w: ModelWriter, out: Spec, start: Any, end: Any, **settings: Any) -> Tensor:
    """The integers from `start` to `end`."""
    return arange(w, out, start, end)
