"""functools.singledispatch: its registry is behind weak references, so its own dispatch() is asked, again by the guard."""

from __future__ import annotations

import functools
import types
from typing import Any
from weakref import WeakKeyDictionary

from bytejit.compat import closures
from bytejit.guards.sources import Attr, CallOf, Ref, Source
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FuncVar, Lazy, Var

_made: Any = functools.singledispatch(lambda x: x)
WRAPPER, DISPATCH = _made.__code__, _made.dispatch.__code__  # all that singledispatch makes share these


def is_dispatch(fn: FuncVar) -> bool:
    """Whether it is a function of functools.singledispatch, or its `dispatch`."""
    return fn.code in (WRAPPER, DISPATCH)


def dispatched(t: Tracer, fn: FuncVar, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
    """Traces a call of a function of functools.singledispatch, or of its `dispatch`; None for other calls.

    Raises: Raised, Break where the cache of what was found is the program's.
    """
    if fn.code is WRAPPER and args:
        found = _chosen(t, fn.real.dispatch, Attr(fn.origin, "dispatch"), t.type_of(args[0]))
        return t.calls.call(found, args, kwargs)
    if fn.code is DISPATCH and len(args) == 1 and not kwargs and (cls := t.as_class(args[0])) is not None:
        return _chosen(t, fn.real, fn.origin, cls)
    return None


def _chosen(t: Tracer, ask: types.FunctionType, source: Source, cls: type) -> Var:
    """The function for a class."""
    kept = closures.variables(ask, closures.SINGLE_DISPATCH)
    if not kept:
        raise Break("a function of functools.singledispatch, of a Python that keeps what is registered elsewhere")
    if any(getattr(v, "real", None) is kept["registry"] for v in t.effects.dirty.values()):
        raise Break("a function of functools.singledispatch that is called after the region has registered another")
    cache = kept["dispatch_cache"]
    if type(cache) is not WeakKeyDictionary:
        raise Break("a function of functools.singledispatch whose cache is the program's")
    try:
        return Lazy(ask(cls), CallOf(source, (Ref(cls),)))
    except RuntimeError as e:  # no order among the classes registered
        raise t.raised(e) from None
