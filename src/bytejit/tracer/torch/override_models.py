"""Models of torch's own functions around `__torch_function__`: the default override, questions, modes and their managers."""

from __future__ import annotations

import torch
from torch.overrides import get_default_nowrap_functions
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from bytejit.common.overriding import DEFAULT
from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, NONE, InstanceVar, Known, SeqVar, TensorVar, Var, expect
from bytejit.tracer.objects.class_facts import MISSING, class_lookup

from .overrides import NOT_IMPLEMENTED, OFF_ALL, OFF_SUBCLASSES, by_precedence


@models(TorchDispatchMode.__enter__)
def enter_dispatch_mode(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Code of a mode sees each ATen operation as it runs: a graph runs others."""
    raise Break(f"a {t.type_of(args[0]).__name__}, whose __torch_dispatch__ sees the operations as they run")


# ---- torch's own functions around overrides --------------------------------------------------------------------------------
@models(DEFAULT)
def default_override(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """torch.Tensor.__torch_function__."""
    names = ("cls", "func", "types", "args", "kwargs")
    given = dict(zip(names, args)) | kwargs
    cls = t.class_of(given["cls"], "torch.Tensor.__torch_function__ of what is no class")
    types = [t.as_class(c) for c in t.iteration.iterate(given["types"])]
    if not all(c is not None and issubclass(cls, c) for c in types):
        return Known(NOT_IMPLEMENTED)
    named = t.values.real(given.get("kwargs", NONE))
    pairs = () if t.comparisons.is_same(named, NONE) else t.iteration.mapping_items(named)
    if pairs is None:
        raise Break("torch.Tensor.__torch_function__ with keywords that are no mapping")
    with t.overrides.without_overrides():
        result = t.calls.call(
            given["func"], list(t.iteration.iterate(given["args"])) if "args" in given else [], {t.const(k): v for k, v in pairs}
        )
    func = t.values.real(given["func"])
    if isinstance(func, Known) and func.obj in get_default_nowrap_functions():
        return result
    return t.overrides.wrapped(result, cls)


def _has_torch_function(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    values = t.iteration.iterate(args[0]) if len(args) == 1 and isinstance(args[0], SeqVar) else args
    off = t.overrides.all_off or bool(t.overrides.functions_off)
    if t.overrides.modes and not (t.overrides.all_off or any(m.cls is OFF_ALL for m in t.overrides.functions_off)):
        return t.values.constant(True)
    return FALSE if off else t.values.constant(bool(t.overrides.overriders(values)))


for _name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
    for _holder in (torch.overrides, torch._C, torch):
        for _spelled in (_name, "_" + _name):
            if hasattr(_holder, _spelled):
                MODELS[getattr(_holder, _spelled)] = _has_torch_function


@models(torch.overrides.handle_torch_function)
def handle_torch_function(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    function, relevant, *rest = args
    found = by_precedence(t.overrides.overriders(t.iteration.iterate(relevant)), t.type_of)
    func = t.values.real(function)
    real = getattr(func, "real", None) or getattr(func, "obj", None)
    if real is None:
        raise Break("an overridable function made in the region")
    return t.overrides.ask(found, real, rest, kwargs)


@models(torch.overrides.is_tensor_like)
def is_tensor_like(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = args[0]
    return t.values.constant(
        isinstance(v, TensorVar) or isinstance(v, InstanceVar) and class_lookup(v.cls, "__torch_function__")[0] is not MISSING
    )


@models(torch._C._is_torch_function_enabled)
def is_torch_function_enabled(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.values.constant(not (t.overrides.all_off or t.overrides.functions_off))


@models(torch.Tensor.as_subclass)
def as_subclass(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    # torch tells overrides nothing of it
    cls = t.class_of([*args[1:], *kwargs.values()][0], "Tensor.as_subclass of what is no class")
    return t.overrides.as_subclass(expect(args[0], TensorVar, "Tensor.as_subclass of a value that is not a tensor"), cls)


# ---- modes and managers ---------------------------------------------------------------------------------------------------
@models(torch._C._push_on_torch_function_stack)
def push_mode(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not isinstance(args[0], InstanceVar) or args[0].cls is DeviceContext or t.devices:
        raise Break("a device set as the default within the region, or a mode within a device manager")
    t.effects.mutations += 1
    t.overrides.modes.append(args[0])
    t.overrides.entered.append(args[0])
    return NONE


@models(torch._C._pop_torch_function_stack)
def pop_mode(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not t.overrides.entered or t.overrides.modes[-1] is not t.overrides.entered[-1]:
        raise Break("the end of a mode that was entered before the region")
    t.effects.mutations += 1
    t.overrides.entered.pop()
    return t.overrides.modes.pop()


def _managers() -> None:
    for cls in (OFF_SUBCLASSES, OFF_ALL):

        @models(cls)
        def make(t: Tracer, args: list[Var], kwargs: dict[str, Var], cls: type = cls) -> Var:
            made = InstanceVar(cls, step=t.limits.steps)
            made.ns = None
            t.effects.mutations += 1
            return made

        @models(cls.__dict__["__enter__"])
        def enter(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
            if not isinstance(args[0], InstanceVar) or args[0].source is not None:
                raise Break("a context manager made before the graph")
            t.effects.mutations += 1
            t.overrides.functions_off.append(args[0])
            return NONE

        @models(cls.__dict__["__exit__"])
        def leave(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
            if not isinstance(args[0], InstanceVar) or args[0] not in t.overrides.functions_off:
                raise Break("the end of a context manager that was entered before the graph")
            t.effects.mutations += 1
            t.overrides.functions_off.remove(args[0])
            return NONE


_managers()
