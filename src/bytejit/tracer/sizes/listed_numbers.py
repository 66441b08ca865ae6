"""Tensors of lists of numbers from outside, whose numbers or lengths change between calls: each call makes the tensor anew,
before the graph runs, and it is an input like any other. So 300 other numbers cost no compile, and are no 300 symbols."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from bytejit.guards.changing_sources import length_of
from bytejit.guards.references import Ref
from bytejit.guards.sources import Computed, Item
from bytejit.tracer.core.values import Known, SeqVar, TensorVar, Var, expect

if TYPE_CHECKING:
    from bytejit.tracer.core.tracer import Tracer


@functools.cache
def _made_of(dtype: torch.dtype | None) -> Ref:
    return Ref.strong(functools.partial(torch.tensor, dtype=dtype), "torch.tensor")


def tensor_made_anew(t: Tracer, v: Var, options: dict[str, Var], *only: type) -> TensorVar | None:
    """torch.tensor(v, **options) of a list that the region has not written; None where it is an operation of the graph. only: of
    these numbers."""
    if not isinstance(v, SeqVar) or v.source is None or type(v.real) is not list or id(v) in t.effects.dirty:
        return None
    kinds, changed = set(map(type, v.real)), t.sizes.dynamic.changed
    if len(kinds) != 1 or not kinds <= {*(only or (int, float))} or options.keys() - {"dtype", "device"}:
        return None
    if length_of(v.origin) not in changed and not any(Item(v.origin, i) in changed for i in range(len(v.real))):
        return None
    modes = t.devices or t.overrides.outer_device or t.overrides.modes or t.overrides.entered
    if modes or torch.is_inference_mode_enabled() or ("tensor of", id(v)) in t.memo:  # each is a tensor of its own
        return None
    dtype = options.get("dtype", Known(None))
    if not isinstance(dtype, Known) or not isinstance(dtype.obj, torch.dtype | None):
        return None
    function = _made_of(dtype.obj)
    try:
        made = function.get()(v.real)
    except (RuntimeError, TypeError, ValueError):
        return None
    t.memo["tensor of", id(v)] = v
    found = expect(t.values.wrap(made, Computed(function, (v.origin,))), TensorVar)
    device = options.get("device")
    return found if device is None else expect(t.calls.call_python(torch.Tensor.to, [found, device]), TensorVar)
