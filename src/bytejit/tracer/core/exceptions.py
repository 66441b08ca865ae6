"""Exceptions of the traced program as InstanceVars: making, matching, chaining."""

from __future__ import annotations

import types
from typing import Any

from bytejit.common.quiet_reads import derives

from .signals import Break
from .values import NONE, TRUE, InstanceVar, Known, SeqVar, Var


def exception_var(real: BaseException) -> InstanceVar:
    """A real exception, just raised by a folded operation, as a value of the trace."""
    v = InstanceVar(type(real), base=None)
    v.slots["args"] = SeqVar([Known(a) for a in real.args], tuple)
    if isinstance(real, StopIteration):
        v.slots["value"] = Known(real.value)
    for cls in type(real).__mro__[:-2]:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType) and getattr(real, name, None) is not None:
                v.slots[name] = Known(getattr(real, name))
    return v


def name_missed(exc: InstanceVar, of: Var, name: str) -> None:
    """Sets the object and the name of an AttributeError that leaves a lookup, whoever raised it, as the interpreter does."""
    if not issubclass(exc.cls, AttributeError) or exc.real is not None:
        return
    of_real = exc.slots.get("obj")  # a real lookup, which Python has told
    if type(of_real) is Known and of_real.obj is getattr(of, "real", None):
        exc.slots["obj"] = of
    elif not any(n in exc.slots for n in ("name", "obj")):
        exc.slots.update(name=Known(name), obj=of)


def with_context(exc: InstanceVar, context: InstanceVar | None) -> None:
    """Set __context__ as a raise inside a handler does."""
    if context is not None and context is not exc and "__context__" not in exc.slots:
        exc.slots["__context__"] = context


def chain(exc: InstanceVar, context: Var | None) -> None:
    """Set __context__ as the statement `raise exc` does: anew, without a circle of what was its own context."""
    if not isinstance(context, InstanceVar) or context is exc:
        return
    seen, at = set(), context
    while isinstance(inner := at.slots.get("__context__"), InstanceVar) and id(at) not in seen:
        if inner is exc:
            at.slots["__context__"] = NONE
            break
        seen.add(id(at))
        at = inner
    exc.slots["__context__"] = context


def left_generator(stop: InstanceVar) -> InstanceVar:
    """The RuntimeError that replaces a StopIteration leaving a generator's code."""
    new = exception_var(RuntimeError("generator raised StopIteration"))
    new.slots.update(__cause__=stop, __context__=stop, __suppress_context__=TRUE)
    return new


def matches(t: Any, exc: Var, cls: Var) -> bool:
    """`except cls`: a class or a tuple of classes."""
    if not isinstance(exc, InstanceVar):
        raise Break("an exception from outside the region matched in a handler")
    classes = cls.items if isinstance(cls, SeqVar) else [cls]
    for c in classes:
        c = t.values.real(c)
        if isinstance(c, SeqVar):
            if matches(t, exc, c):
                return True
            continue
        real = t.as_class(c)
        if real is None or not derives(real, BaseException):
            raise Break("a handler that catches something that is no exception class")
        if derives(exc.cls, real):
            return True
    return False
