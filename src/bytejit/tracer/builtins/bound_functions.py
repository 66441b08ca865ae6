"""Models of what binds a function to arguments or to an object: functools.partial, methods."""

from __future__ import annotations

import functools
import types
from typing import Any

from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, DictVar, InstanceVar, Known, MethodVar, SeqVar, Var
from bytejit.tracer.core.versions import PLACEHOLDER
from bytejit.tracer.objects.partials import filled, has_attributes, is_placeholder, parts_of


@models(functools.partial)
def partial(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not args or not t.comparisons.truth(t.calls.call_python(callable, args[:1])):
        raise t.fold_error(functools.partial, *[None for _ in args[:1]])
    if any(map(is_placeholder, (*args[-1:], *kwargs.values()))):  # not the last one, and none by name
        by_name = {k: PLACEHOLDER for k, v in kwargs.items() if is_placeholder(v)}
        raise t.fold_error(functools.partial, max, *[PLACEHOLDER for v in args[-1:] if is_placeholder(v)], **by_name)
    made = InstanceVar(functools.partial, step=t.limits.steps)
    inner = t.values.real(args[0])
    if isinstance(inner, InstanceVar) and inner.cls is functools.partial and not has_attributes(inner):
        function, given, named = parts_of(t, inner)
        args, kwargs = [function, *filled(t, given, args[1:])], {**named, **kwargs}
    made.slots.update(
        func=args[0], args=SeqVar(list(args[1:]), tuple), keywords=DictVar({k: (Known(k), v) for k, v in kwargs.items()})
    )
    return made


@models(types.MethodType)
def method_type(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    stand_ins: list[Any] = [None if t.comparisons.is_same(v, NONE) else len for v in args]
    try:
        types.MethodType(*stand_ins, **kwargs)
    except TypeError as e:
        raise t.raised(e) from None
    return MethodVar(args[0], args[1])


@models(types.FunctionType.__get__)
def function_get(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    none = [t.comparisons.is_same(v, NONE) for v in args[1:3]]
    if kwargs or len(args) not in (2, 3) or none in ([True], [True, True]):
        raise Break("a function's __get__ with arguments that it does not take")
    return args[0] if none[0] else MethodVar(args[0], args[1])
