"""Library functions that are called or modelled, not traced: those that only ask about their arguments."""

from __future__ import annotations

import _thread
import collections
import functools
import importlib.metadata
import importlib.util
import inspect
import operator
import os
import re
import textwrap
import threading
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.guards.conditions import SizeCondition
from bytejit.guards.references import Ref
from bytejit.guards.sources import Attr, Called, CallOf, Computed, KnownSource
from bytejit.tracer.core.constants import NotConstant, is_constant, to_python
from bytejit.tracer.core.library_code import is_library
from bytejit.tracer.core.models import CALLED, MODELS, models
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    NONE,
    TRUE,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    SeqVar,
    SliceVar,
    TensorVar,
    Var,
)
from bytejit.tracer.core.versions import NAMESPACE_ARGUMENTS, newer

from .argument_counts import describe
from .reachable import lost

# Python functions without effects that return the same as long as their arguments are the same objects
PURE_FUNCTIONS: list[Callable] = [
    inspect.signature,
    inspect.Signature.from_callable,
    inspect.getfullargspec,
    inspect.unwrap,
    inspect.getdoc,
    inspect.getmodule,
    inspect.getsource,
    inspect.getfile,
    inspect.isabstract,
    inspect.getattr_static,
    typing.get_type_hints,
    typing.get_origin,
    typing.get_args,
    re.compile,
    re.match,
    re.fullmatch,
    re.search,
    re.split,
    re.findall,
    re.escape,
    textwrap.dedent,
    textwrap.indent,
    textwrap.fill,
    os.path.join,
    os.path.basename,
    os.path.dirname,
    os.path.splitext,
    os.path.normpath,
    os.path.isabs,
    *newer(os.path, "splitroot"),
]
# C functions whose results hold for as long as the process runs
PURE_C_TYPES = (re.Pattern, re.Match, inspect.Signature)


def real_object(t: Tracer, v: Var) -> Any:
    """The real object behind a Var that the trace has not changed. Raises: NotConstant."""
    v = t.values.real(v)
    if isinstance(v, MethodVar):
        return types.MethodType(real_object(t, v.func), real_object(t, v.self))
    if isinstance(v, FuncVar) and v.real is not None and not v.attrs:
        return v.real
    if isinstance(v, InstanceVar) and v.real is not None and (v.ns is None or id(v.ns) not in t.effects.dirty):
        t.guard("ID_IS", v.source, v.real)
        return v.real
    if isinstance(v, Known):
        return v.obj
    return to_python(t, v, classes=True)


OF_OBJECTS = ("inspect", "typing", "operator", "_operator", "torch._C._nn")  # these ask about what they get, or keep it


def _asks_nothing(obj: Any) -> bool:
    """Whether a library function that takes an object runs no code of the program's."""
    if type(obj) in (list, tuple, set, frozenset):
        return all(map(_asks_nothing, obj))
    return is_constant(obj) or not isinstance(obj, types.FunctionType) and is_library(type(obj).__module__)


def said_signature(function: types.FunctionType) -> Any:
    """The signature that a function was given in place of its own."""
    return function.__dict__.get("__signature__")


def fold_call(t: Tracer, function: Callable, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """function(*args, **kwargs) on real objects, at trace time. Raises: Break, Raised."""
    try:
        real_args = [real_object(t, a) for a in args]
        real_kwargs = {k: real_object(t, v) for k, v in kwargs.items()}
    except NotConstant as e:
        raise Break(f"a call of {describe(function)} with {e}") from None
    given: tuple[Any, ...] = (*real_args, *real_kwargs.values())
    plain = special_cases.module_of(function) in OF_OBJECTS or all(map(_asks_nothing, given))
    if not plain or function is inspect.unwrap and given[1:]:
        raise Break(f"a call of {describe(function)}, which may run code of the program's")
    for v in map(t.values.real, (*args, *kwargs.values())):
        if isinstance(v, FuncVar) and v.real is not None and v.source is not None:
            for name in ("__defaults__", "__kwdefaults__"):
                t.guard("ID_IS", Attr(v.source, name), getattr(v.real, name))
            t.guard("ID_IS", Computed(Ref(said_signature), (v.source,)), said_signature(v.real))
    return t.calls.folded(function, real_args, real_kwargs)


def _folded(function: Callable) -> None:
    MODELS[function] = lambda t, args, kwargs: fold_call(t, function, args, kwargs)


for _function in PURE_FUNCTIONS:
    _folded(_function)


def is_absent(function: Callable, *args: Any, **kwargs: Any) -> bool:
    """Whether a function that asks what is installed finds nothing."""
    try:
        return function(*args, **kwargs) is None
    except ModuleNotFoundError:
        return True


def _of_installed(function: Callable) -> None:
    """Registers a function that asks what is installed. That may change, so the guard asks again in each call."""

    def asked(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        def guard(absent: bool) -> None:
            named = tuple((k, t.const(v)) for k, v in kwargs.items())
            t.guard("EQUALS", CallOf(KnownSource.of(is_absent), (Ref(function), *map(t.const, args)), named), absent)

        try:
            found = fold_call(t, function, args, kwargs)
        except Raised as e:
            if issubclass(e.exc.cls, ModuleNotFoundError):
                guard(True)
            raise
        guard(t.comparisons.is_same(found, NONE))
        return found

    MODELS[function] = asked


_of_installed(importlib.util.find_spec)
_of_installed(importlib.metadata.version)
_folded(torch._C._nn._parse_to)
for _cls in PURE_C_TYPES:
    for _method in vars(_cls).values():
        # each call of a scanner goes on from the last
        if isinstance(_method, types.MethodDescriptorType) and _method is not vars(re.Pattern)["scanner"]:
            _folded(_method)
_folded(re.Match.__getitem__)


# ---- C objects that are called ---------------------------------------------------------------------------------------------
def _weak_call(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if fn.real() is not None and lost(t):
        raise Break("a weak reference read after an object was dropped")  # it may have been the last reference
    if args or kwargs:
        raise t.fold_error(fn.real, *[None for _ in args], **dict.fromkeys(kwargs))
    return Lazy(fn.real(), Called(fn.origin))


CALLED[weakref.ReferenceType] = CALLED[weakref.KeyedRef] = _weak_call


@models(weakref.ref)
def weak_ref(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A weak reference made in the region. Its slot `of` holds the object, its slot `callback` the function to call when
    the object dies. With a callback the object must come from outside: it then cannot die within the region."""
    args = [t.values.real(a) for a in args]
    callback = args.pop() if len(args) == 2 else NONE
    if (
        len(args) != 1
        or kwargs
        or callback is not NONE
        and not (callback.source is not None and isinstance(args[0], InstanceVar) and args[0].real is not None)
        or not isinstance(args[0], (InstanceVar, DictVar, TensorVar))
        or not hasattr(t.type_of(args[0]), "__weakref__")
        and t.type_of(args[0]) is not collections.OrderedDict
    ):
        raise Break("a weak reference with a callback to an object made in the graph, or to one that has no weak references")
    made = InstanceVar(weakref.ReferenceType, step=t.limits.steps)
    made.ns, made.slots["of"], made.slots["callback"] = None, args[0], callback
    t.effects.mutations += 1
    return made


def _parts(fn: InstanceVar) -> tuple[tuple, dict[str, Any]]:
    """The arguments that an itemgetter, attrgetter or methodcaller was made with; those with keywords only in the last."""
    maker, args = fn.real.__reduce__()
    return ((*maker.args, *args), maker.keywords) if isinstance(maker, functools.partial) else (args, {})


def _itemgetter(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    found = [t.subscripts.getitem(args[0], t.values.constant(key)) for key in _parts(fn)[0]]
    return t.values.real(found[0]) if len(found) == 1 else SeqVar(found, tuple)


def _attrgetter(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    found = [functools.reduce(t.attributes.getattr, path.split("."), args[0]) for path in _parts(fn)[0]]
    return t.values.real(found[0]) if len(found) == 1 else SeqVar(found, tuple)


def _methodcaller(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    (name, *rest), named = _parts(fn)
    given = {k: t.values.constant(v) for k, v in named.items()}
    return t.calls.call(t.attributes.getattr(args[0], name), [t.values.constant(a) for a in rest], given)


def _getter(cls: type, handler: Callable) -> None:
    def call_of(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
        t.guard("ID_IS", fn.source, fn.real)  # what it looks up is inside
        return handler(t, fn, args, kwargs)

    CALLED[cls] = call_of
    _folded(cls)


_getter(operator.itemgetter, _itemgetter)
_getter(operator.attrgetter, _attrgetter)
_getter(operator.methodcaller, _methodcaller)


@models(slice.indices)
def slice_indices(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not isinstance(args[0], SliceVar):
        return fold_call(t, slice.indices, args, kwargs)
    return t.operators.fold(t.subscripts.real_slice(args[0]).indices, t.subscripts.index(args[1]))


@models(types.SimpleNamespace)
def simple_namespace(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if len(args) > NAMESPACE_ARGUMENTS:
        raise t.fold_error(types.SimpleNamespace, *[None for _ in args])
    made = InstanceVar(types.SimpleNamespace, step=t.limits.steps)
    if args:
        t.calls.call_python(dict.update, [made.namespace, args[0]])
    for name, value in kwargs.items():
        t.subscript_writes.dict_set(made.namespace, Known(name), value)
    return made


# ---- locks -------------------------------------------------------------------------------------------------------------
LOCK, REENTRANT = type(_thread.allocate_lock()), type(threading.RLock())
# of a lock: nobody holds it, or of one that its holder may take again, this thread does
FREE = {LOCK: "not lock.locked()", REENTRANT: "lock.acquire(False) and lock.release() is None"}


def _lock_taken(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A free lock from outside: its writes are made under it when the region ends. A held one is waited for by Python."""
    lock = args[0]
    if not isinstance(lock, InstanceVar) or lock.source is None or len(args) > 1 or kwargs:
        raise Break("a lock that is made in the region, or taken with arguments")
    if lock not in t.holding:
        free = FREE[type(lock.real)]
        if not eval(free, {"lock": lock.real}):
            raise Break("a lock that is held")
        t.guard("EXPR", lock.source, SizeCondition(free, (("lock", lock.source),)))
    elif type(lock.real) is LOCK:
        raise Break("a lock that is held")
    t.effects.mutations += 1
    t.holding.append(lock)
    t.locked.append(lock)
    return TRUE


def _lock_given_back(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if args[0] not in t.holding:
        raise Break("the release of a lock that was acquired outside of the graph")
    t.holding.remove(args[0])
    t.effects.mutations += 1
    return NONE


for _names, _handler in ((("acquire", "__enter__"), _lock_taken), (("release", "__exit__"), _lock_given_back)):
    for _name in _names:
        MODELS[getattr(LOCK, _name)] = MODELS[getattr(REENTRANT, _name)] = _handler
