"""Objects of torch's C++ classes as arguments of operators: the packed weights of quantised layers."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common.packed_objects import PackedCall
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import InstanceVar, SeqVar, Var


def is_script_object(t: Tracer, v: Var) -> bool:
    """Whether a value is such an object from outside, or a sequence of nothing else."""
    v = t.values.real(v)
    if isinstance(v, SeqVar):
        return bool(v.items) and all(is_script_object(t, item) for item in v.items)
    return isinstance(v, InstanceVar) and v.cls is torch.ScriptObject and v.real is not None and v.source is not None


def packed(t: Tracer, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> tuple[Any, list[Var], dict[str, Var]]:
    """The call without such objects among its arguments. The callable holds them, and a guard checks the identity of each."""
    held = {i: _object(t, a) for i, a in enumerate(args) if is_script_object(t, a)}
    named = {k: _object(t, v) for k, v in kwargs.items() if is_script_object(t, v)}
    if not held and not named:
        return fn, args, kwargs
    rest = [a for i, a in enumerate(args) if i not in held]
    return PackedCall(fn, held, named), rest, {k: v for k, v in kwargs.items() if k not in named}


def _object(t: Tracer, v: Var) -> object:
    v = t.values.real(v)
    if isinstance(v, SeqVar):
        return [_object(t, item) for item in v.items]
    assert isinstance(v, InstanceVar)
    t.guard("ID_IS", v.source, v.real)
    return v.real
