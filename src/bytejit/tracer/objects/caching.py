"""Functions under functools.lru_cache: their caches are asked while tracing, and again by the guard of the result.

A first call with some arguments is traced if it changes nothing that anyone else sees. If it returns a constant, the exit
calls the function. If it returns an object, the object is created while tracing, because the cache must hold that very
object. Other first calls are left to the original code.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Collection

from bytejit.guards.iterator_sources import MISSING, CachedCall, FirstCall, NotSeen, cached
from bytejit.guards.sources import Attr, CallOf, Ref
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.library_code import is_library
from bytejit.tracer.core.models import CALLED
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, InstanceVar, Known, Lazy, SeqVar, SymVar, Var

from .code_reach import lookup_has_effects
from .library import real_object


def cached_call(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Call a cached function: with constant arguments the cache is asked."""
    inner = fn.real.__wrapped__
    library = is_library(inner.__module__)
    plainly = Lazy(inner, Attr(fn.origin, "__wrapped__"))
    if fn.real.cache_parameters()["maxsize"] == 0:
        return t.calls.call(plainly, args, kwargs)
    if any(_symbolic(t, a) for a in (*args, *kwargs.values())) and not _pending(t):
        return _uncached(t, fn, plainly, args, kwargs)
    try:
        real_args = [real_object(t, a) for a in args]
        real_kwargs = {k: real_object(t, v) for k, v in kwargs.items()}
        given = (*real_args, *real_kwargs.values())
        tells = lookup_has_effects(given)
        if not tells:
            hash(given)
        if library and not tells:
            result = fn.real(*real_args, **real_kwargs)
    except Exception:  # of the library's function: not kept by the cache, it raises anew in each call
        if not library:  # what is known only when it runs, or has no hash: the cache raises itself
            raise Break(f"a call of {inner.__qualname__}, whose cache gets a key that is known only at run time") from None
        return t.calls.call(plainly, args, kwargs)
    if tells:
        raise Break(f"a call of {inner.__qualname__}, whose cache asks for a __hash__ that has effects")
    t.guard("ID_IS", fn.source, fn.real)
    if library and is_constant(result):
        return t.values.constant(result)
    parts = tuple(a if _plain(a) else Ref(a) for a in real_args)
    named = tuple((k, a if _plain(a) else Ref(a)) for k, a in real_kwargs.items())
    if library:
        return Lazy(result, CallOf(fn.origin, parts, named))
    return _of_user(t, fn, CachedCall(fn.origin, parts, named), plainly, (args, kwargs), (real_args, real_kwargs))


def _symbolic(t: Tracer, v: Var) -> bool:
    """Whether a number in an argument is symbolic."""
    v = t.values.real(v)
    return type(v) is SymVar or isinstance(v, SeqVar) and any(_symbolic(t, i) for i in v.items)


def _uncached(t: Tracer, fn: InstanceVar, plainly: Lazy, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A call with symbolic numbers (shapes as keys): the body is traced once for each, and the cache asked at the exit, with the
    numbers of the call. A body that changes anything is called with the numbers of now. Raises: Specialise."""
    t.guard("ID_IS", fn.source, fn.real)
    key = (id(fn.real), *(_key(t, a) for a in args), *((k, _key(t, v)) for k, v in kwargs.items()))
    outermost, known = t.inside_cached == 0, t.symbolic_results.get(key)
    if known is None:
        count = len(t.cached_calls)
        t.inside_cached += 1
        try:
            known = t.symbolic_results[key] = t.calls.call(plainly, args, kwargs)
        finally:
            t.inside_cached -= 1
        if _pending(t) or not all(isinstance(c, (SeqVar, DictVar)) for c in _containers(t, known)):
            t.size_inference.refuse_symbols(_all_numbers(t, args, kwargs))
        if outermost:
            del t.cached_calls[count:]  # made by the body, where the cache holds no result
    if outermost:
        held = [(c, _items(c)) for c in _containers(t, known) if isinstance(c, (SeqVar, DictVar))]
        t.effects.mutations += 1
        t.symbolic_calls.append((fn, args, kwargs, held, t.tensors.where()))
    return known


def _key(t: Tracer, v: Var) -> tuple:
    """A key for the arguments of a call: numbers and plain values by value, others by identity."""
    v = t.values.real(v)
    if type(v) is SymVar:
        return "symbol", str(v.value.node.public)
    if isinstance(v, SeqVar):
        return (v.cls, *(_key(t, i) for i in v.items))
    return (type(v.obj), v.obj) if isinstance(v, Known) else ("object", id(v))


def check_symbolic(t: Tracer, leaving: Collection[int]) -> None:
    """What a cache returned is the same object each time: lists of it that were changed, or leave, are known by numbers only.
    leaving: ids of Vars that the exit makes. Raises: Specialise."""
    for _, args, kwargs, held, where in t.symbolic_calls:
        if any(id(c) in leaving or _items(c) != items for c, items in held):
            t.size_inference.refuse_symbols(_all_numbers(t, args, kwargs), where)


def _items(v: SeqVar | DictVar) -> list[Var]:
    """Returns the contents of a list or a dict; Vars are equal where they are the same."""
    return list(v.items) if isinstance(v, SeqVar) else [i for _, i in v.items.values()]


def _containers(t: Tracer, v: Var) -> list[Var]:
    """The lists, dicts and other parts of a result that the program may change."""
    v = t.values.real(v)
    if isinstance(v, SeqVar):
        return [*([] if v.cls is tuple else [v]), *(c for i in v.items for c in _containers(t, i))]
    if isinstance(v, DictVar):
        return [v, *(c for _, i in v.items.values() for c in _containers(t, i))]
    return [] if isinstance(v, Known) else [v]


def _all_numbers(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> list:
    return [n for a in (*args, *kwargs.values()) for n in _numbers(t, a)]


def _numbers(t: Tracer, v: Var) -> list:
    """The symbolic numbers in an argument."""
    v = t.values.real(v)
    return [v.value] if type(v) is SymVar else [n for i in v.items for n in _numbers(t, i)] if isinstance(v, SeqVar) else []


def _of_user(t: Tracer, fn: InstanceVar, source: CachedCall, plainly: Lazy, given: tuple, real: tuple) -> Var:
    """Returns what the cache of the program's own function has, or gets from a first call. Raises: Break."""
    if t.trying is not None:  # the body of another one, run to see what it does
        if source not in t.trying:
            t.trying[source] = t.calls.call(plainly, *given)
        return t.trying[source]
    try:
        value = cached(fn.real, *real)
    except NotSeen as e:
        raise Break(str(e)) from None
    if value is MISSING and isinstance(first := t.job.cached.get(source), FirstCall):
        value = first.made.get()[0]
    elif value is MISSING:
        if _pending(t):
            raise Break(f"a first call of {plainly.obj.__qualname__} after the region changed something")
        found = t.values.real(_try(t, plainly, given))
        if type(found) is Known and is_constant(found.obj):
            value = found.obj
            t.job.cached[source] = FirstCall(source.base, source.args, source.named, made=Ref([value]))
        else:  # the very object that the cache will hold
            value = fn.real(*real[0], **real[1])
            t.job.cached[source] = [True]
    made = t.job.cached.get(source)
    t.effects.mutations += 1
    if isinstance(made, FirstCall):
        t.cached_calls.append((made, None))
        return t.values.memo_lazy(("cached", source), value, lambda: made)
    t.cached_calls.append((source, made if ("cached", source) not in t.memo else None))
    return t.values.memo_lazy(("cached", source), value, lambda: source)


def _try(t: Tracer, plainly: Lazy, given: tuple) -> Var:
    """Run the function's body in the trace to see what it does and returns; nodes are forgotten. Raises: Break if it changes
    anything."""
    nodes = len(t.graph.nodes)
    t.trying = {}
    try:
        found = t.calls.call(plainly, *given)
    finally:
        t.trying = None
    if _pending(t):
        raise Break(f"a first call of {plainly.obj.__qualname__}, which changes something besides its cache")
    t.sizes.erase(node for node in list(t.graph.nodes)[nodes:] if node.op != "placeholder")
    return found


def _pending(t: Tracer) -> bool:
    """Whether the region has changed an object that it did not make; cells of its own functions do not count."""
    outside = any(v.source is not None or getattr(v, "real", None) is not None for v in t.effects.dirty.values())
    return bool(
        outside or t.effects.globals_written or t.effects.classes_written or t.deferred.count or t.effects.state_set or t.holding
    )


def _plain(value: object) -> bool:
    """Whether a value may be held by a source: one that refers to nothing of the user's."""
    if type(value) is tuple:
        return all(map(_plain, value))
    return is_constant(value) and not isinstance(value, enum.Enum)


CALLED[functools._lru_cache_wrapper] = cached_call
