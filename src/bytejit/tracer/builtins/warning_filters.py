"""`warnings.catch_warnings` and filters of warnings: what the program does to them is done where the region ends, in the order of
the warnings that it gives there (given_warnings.py).

Operations run before that. So one that warns while it is traced, behind a change of the filters, breaks the graph.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from types import NoneType
from typing import Any

from bytejit.common import given_warnings
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, InstanceVar, Known, Var

from .given_warnings import check_written, is_plain

ACTIONS = ("ignore", "always", "default", "module", "once")  # with "error", the exit would raise
MANAGER = warnings.catch_warnings


def _defer(t: Tracer, function: Callable, args: list[Var]) -> Var:
    """Call a function where the region ends."""
    t.guards.add_state("warnings")
    t.deferred.warns = t.deferred.filtered = True
    t.deferred.defer(NoneType, function, args)
    return NONE


def _check_state() -> None:
    """Raises: Break where warnings are errors, or the program's own business."""
    if given_warnings.manner() == given_warnings.OTHERWISE:
        raise Break("filters of warnings where one may be an error, or is shown by the program")


def _checked(t: Tracer, function: Callable, given: tuple, named: dict[str, Any]) -> list[Any]:
    """The arguments of simplefilter or filterwarnings, in order. Raises: Break where the call would raise, or makes errors."""
    try:
        bound = inspect.signature(function).bind(*given, **named)
    except TypeError:
        raise Break(f"warnings.{function.__name__} with these arguments") from None
    bound.apply_defaults()
    values = bound.arguments
    texts = [values[n] for n in ("message", "module") if n in values]
    fits = (
        values["action"] in ACTIONS
        and all(type(text) is str for text in texts)
        and isinstance(values["category"], type)
        and is_plain(t, values["category"])
        and type(values["lineno"]) is int
        and values["lineno"] >= 0
        and type(values["append"]) is bool
    )
    if not fits:
        raise Break(f"warnings.{function.__name__} with these arguments")
    try:
        for text in texts:
            re.compile(text)
    except re.error:
        raise Break(f"warnings.{function.__name__} with these arguments") from None
    return list(values.values())


def _filter(function: Callable) -> None:
    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        _check_state()
        check_written(t)
        values = _checked(t, function, tuple(map(t.const, args)), {k: t.const(v) for k, v in kwargs.items()})
        if not t.deferred.filters:  # outside of a block of the region's: it stays
            t.deferred.filters.append(NONE)
        return _defer(t, function, [t.values.constant(v) for v in values])


_filter(warnings.simplefilter)
_filter(warnings.filterwarnings)


def _manager(v: Var) -> InstanceVar:
    if not isinstance(v, InstanceVar) or v.cls is not MANAGER:
        raise Break("a subclass of warnings.catch_warnings")
    return v


@models(MANAGER.__enter__)
def enter(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Raises: Break for one that records: its list is for the program to read."""
    v = _manager(args[0])
    _check_state()
    check_written(t)
    read = lambda name: t.values.real(t.attributes.getattr(v, name))  # noqa: E731
    module = read("_module")
    if not isinstance(module, Known) or module.obj is not warnings or t.const(read("_record")) or t.const(read("_entered")):
        raise Break("warnings.catch_warnings that records, or was entered before")
    if v in t.deferred.filters or v in t.deferred.left:
        raise Break("warnings.catch_warnings that was entered before")
    given = t.const(read("_filter"))
    if given is not None:
        _checked(t, warnings.simplefilter, given, {})
    t.deferred.filters.append(v)
    return _defer(t, MANAGER.__enter__, [v])


@models(MANAGER.__exit__)
def leave(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = _manager(args[0])
    _check_state()
    check_written(t)
    if v in t.deferred.filters:
        t.deferred.filters.remove(v)
    elif v in t.deferred.left or not t.const(t.attributes.getattr(v, "_entered")):
        raise Break("the end of a warnings.catch_warnings that was not entered")
    else:  # before the region: others hold from here on
        t.deferred.filters.append(NONE)
    t.deferred.left.append(v)
    return _defer(t, MANAGER.__exit__, [v])
