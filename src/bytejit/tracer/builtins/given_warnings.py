"""`warnings.warn` of the program's: the region gives its warnings where it ends, in their order. Guarded: that none is an
error, and what becomes of them (common/given_warnings.py)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import NoneType

from bytejit.common import given_warnings, special_cases
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, InstanceVar, Var
from bytejit.tracer.objects.class_facts import class_lookup

TAKES = ("message", "category", "stacklevel")
TEXTS = ("__new__", "__init__", "__str__", "__repr__", "__getattribute__")  # what giving one calls


@models(warnings.warn)
def warn(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    given = dict(zip(TAKES, args)) | kwargs
    if len(args) > len(TAKES) or "message" not in given or any(name not in TAKES for name in kwargs):
        raise Break("warnings.warn with these arguments")
    message, cls = given["message"], t.type_of(given["message"])
    if issubclass(cls, Warning):
        category: type = cls
        if not isinstance(t.values.real(message), InstanceVar) or t.values.real(message).source is not None:
            raise Break("a warning given that was made outside of the region")
    else:
        named = given.get("category", NONE)
        category = UserWarning if t.type_of(named) is NoneType else t.class_of(named, "warnings.warn with these arguments")
    if not is_plain(t, category) or not (cls is str or issubclass(cls, Warning)):
        raise Break("a warning whose text is made by the program, or of no such class")
    check_written(t)
    state = given_warnings.manner()
    if state == given_warnings.OTHERWISE:
        raise Break("a warning that may be an error, or is shown by the program")
    t.guards.add_state("warnings")
    t.deferred.warns = True
    t.deferred.recorded |= state == given_warnings.RECORDED
    t.deferred.defer(NoneType, place(t, given.get("stacklevel")), [message, t.values.constant(category)])
    return NONE


def check_written(t: Tracer) -> None:
    """Raises: Break where the region has set what the module `warnings` holds: the exit writes that after its calls."""
    if id(vars(warnings)) in t.effects.globals_written:
        raise Break("a warning, or a filter of them, in a region that has changed the module warnings")


def is_plain(t: Tracer, category: type) -> bool:
    """Whether it is a class of warnings that runs no code of the program's when one is given."""
    if not issubclass(category, Warning) or type(category) is not type or category in t.made_classes:
        return False
    return all(t.cannot_change(class_lookup(category, name)[1]) for name in TEXTS)


def place(t: Tracer, level: Var | None) -> Callable:
    """Returns the function that gives a warning in the name of the frame so many levels up. Raises: Break."""
    levels = 1 if level is None else t.const(level)
    if type(levels) is not int:
        raise Break("warnings.warn with these arguments")
    frame = t.present_frame
    if given_warnings.is_imports_own(frame.code):
        raise Break("a warning given while a module is imported")
    for above in range(max(levels, 1) - 1, -1, -1):
        if special_cases.BYTEJIT.runs(frame.globals):
            raise Break("a warning in the name of code that stands for C")
        if above == 0:
            break
        if frame.parent in t.calls.frameless:
            raise Break("a warning in the name of a function that the trace calls without a frame")
        if frame.parent is None:
            return given_warnings.Above(t.job.rewritten.code, above)
        frame = frame.parent
    return given_warnings.Place(frame.code.co_filename, frame.line, frame.globals)
