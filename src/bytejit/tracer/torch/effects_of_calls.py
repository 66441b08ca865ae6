"""Decides whether a part of the trace has side effects. Such a part must not run again, or at another time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.guards.sources import Cell
from bytejit.tracer.core.iterator_values import IterVar
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar, Var


def has_external_effects(t: Tracer) -> bool:
    """Whether the region has changed what code outside of it can see, other than tensors' data."""
    return bool(changed_outside(t) or t.effects.globals_written or t.effects.classes_written)


def changed_outside(t: Tracer) -> set[int]:
    """The ids of the values of the objects from outside that the region has changed, other than tensors' data."""
    own = t.root_frame.code.co_cellvars

    def is_own(v: Var) -> bool:  # `.grad` can be seen only where it is read: see `Backward.looked_at`
        return isinstance(v.source, Cell) and v.source.var in own or isinstance(v, TensorVar) and v.attrs.keys() == {"grad"}

    return {i for i, v in t.effects.dirty.items() if v.source is not None and not (is_own(v) or isinstance(v, IterVar))}


def without_gradients(t: Tracer, run: Callable[[], Any]) -> tuple[Any, bool]:
    """What run() returns, traced as autograd calls a function's passes, and whether it changes more than what it returns. It
    sees nothing that the region has changed."""
    values, deferred, outside = t.by_value, t.deferred.count, changed_outside(t)
    before = {v: v.fake._version for v in t.by_fake.values() if not v.fake.is_inference()}
    looked_at = t.backward.looked_at
    states, held = dict(t.effects.state_set), (len(t.locked), len(t.devices), len(t.inference), t.nesting)
    grad = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        with t.deferred.part():
            result = run()
    finally:
        torch._C._set_grad_enabled(grad)
    for key, value in list(t.effects.state_set.items()):  # set within the forward and restored at its end
        if key not in states and value == t.state_first[key][0]:
            del t.effects.state_set[key]
    wrote = any(v.fake._version != version for v, version in before.items())
    written = changed_outside(t) != outside or t.effects.globals_written or t.effects.classes_written
    effects = written or t.deferred.count != deferred or t.by_value != values
    changes = (
        wrote
        or looked_at != t.backward.looked_at
        or effects
        or states != t.effects.state_set
        or held != (len(t.locked), len(t.devices), len(t.inference), t.nesting)
    )
    return result, bool(changes)
