"""Library functions that are called or modelled, not traced: those that only ask about their arguments, and copies."""

from __future__ import annotations

import _thread
import collections
import copy
import enum
import functools
import importlib.metadata
import importlib.util
import inspect
import operator
import os
import re
import sys
import textwrap
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bytejit.compat.class_versions import HEAP_TYPE
from bytejit.guards.kinds import Expr
from bytejit.guards.sources import Called
from bytejit.tracer.builtins.argument_counts import describe
from bytejit.tracer.core.signals import Break
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
    SetVar,
    SliceVar,
    TensorVar,
    Var,
)
from bytejit.tracer.core.versions import NAMESPACE_ARGUMENTS
from bytejit.tracer.core.words import words
from bytejit.tracer.objects.instantiation import solid_base
from bytejit.tracer.torch import parameters

from .calls import CALLED, HANDLERS, models
from .containers import NotConstant, is_constant, to_python
from .reachable import lets_go

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
    re.sub,
    re.subn,
    re.split,
    re.findall,
    re.escape,
    importlib.util.find_spec,
    importlib.metadata.version,
    textwrap.dedent,
    textwrap.indent,
    textwrap.fill,
    os.path.join,
    os.path.basename,
    os.path.dirname,
    os.path.splitext,
    os.path.normpath,
    os.path.abspath,
    os.path.isabs,
    sys.getrecursionlimit,
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
        return v.real
    if isinstance(v, Known):
        return v.obj
    return to_python(t, v, classes=True)


def fold_call(t: Tracer, function: Callable, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """function(*args, **kwargs) on real objects, at trace time. Raises: Break, Raised."""
    try:
        real_args = [real_object(t, a) for a in args]
        real_kwargs = {k: real_object(t, v) for k, v in kwargs.items()}
    except NotConstant as e:
        raise Break(f"a call of {describe(function)} with {e}") from None
    try:
        result = function(*real_args, **real_kwargs)
    except Exception as e:
        raise t.raised(e) from None
    return t.calls.model(result)


def _folded(function: Callable) -> None:
    HANDLERS[function] = lambda t, args, kwargs: fold_call(t, function, args, kwargs)


for _function in PURE_FUNCTIONS:
    _folded(_function)
_folded(torch._C._nn._parse_to)
for _cls in PURE_C_TYPES:
    for _method in vars(_cls).values():
        if isinstance(_method, types.MethodDescriptorType):
            _folded(_method)


# ---- C objects that are called ---------------------------------------------------------------------------------------------
def _weak_call(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    lost = t.lost or t.effects.globals_written or any(v.source is not None and lets_go(v) for v in t.effects.dirty.values())
    if fn.real() is not None and lost:
        raise Break("a weak reference read after the region let go of something")  # which may have been the last to hold it
    return Lazy(fn.real(), Called(fn.origin))


CALLED[weakref.ReferenceType] = _weak_call


@models(weakref.ref)
def weak_ref(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A weak reference made in the region: what it refers to is in its slot `of`."""
    if (
        len(args) != 1
        or kwargs
        or not isinstance(args[0], (InstanceVar, DictVar, TensorVar))
        or not hasattr(t.type_of(args[0]), "__weakref__")
        and t.type_of(args[0]) is not collections.OrderedDict
    ):
        raise Break("a weak reference with a callback, or to a value that takes none")
    made = InstanceVar(weakref.ReferenceType, step=t.limits.steps)
    made.ns, made.slots["of"] = None, args[0]
    t.effects.mutations += 1
    return made


def _parts(fn: InstanceVar) -> list:
    """The arguments that an itemgetter, attrgetter or methodcaller was made with."""
    made = fn.real.__reduce__()
    if not isinstance(made[0], type) or made[0] is functools.partial:  # a methodcaller with keywords
        raise Break("an operator.methodcaller with keywords")
    return list(made[1])


def _itemgetter(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    found = [t.subscripts.getitem(args[0], t.values.constant(key)) for key in _parts(fn)]
    return t.values.real(found[0]) if len(found) == 1 else SeqVar(found, tuple)


def _attrgetter(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    found = [functools.reduce(t.attributes.getattr, path.split("."), args[0]) for path in _parts(fn)]
    return t.values.real(found[0]) if len(found) == 1 else SeqVar(found, tuple)


def _methodcaller(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    name, *rest = _parts(fn)
    return t.calls.call(t.attributes.getattr(args[0], name), [t.values.constant(a) for a in rest], {})


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
        t.subscripts.dict_set(made.namespace, Known(name), value)
    return made


# ---- locks -------------------------------------------------------------------------------------------------------------
LOCK = type(_thread.allocate_lock())


def _lock_taken(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A free lock from outside: its writes are made under it when the region ends. A held one is waited for by Python."""
    lock = args[0]
    if (
        not isinstance(lock, InstanceVar)
        or lock.source is None
        or len(args) > 1
        or kwargs
        or lock.real.locked()
        or lock in t.holding
    ):
        raise Break("a lock that is held, or made in the region")
    t.guard("EXPR", lock.source, Expr("not lock.locked()", (("lock", lock.source),)))
    t.effects.mutations += 1
    t.holding.append(lock)
    t.locked.append(lock)
    return TRUE


def _lock_given_back(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if args[0] not in t.holding:
        raise Break("a lock given back that was taken before the region")
    t.holding.remove(args[0])
    t.effects.mutations += 1
    return NONE


for _names, _handler in ((("acquire", "__enter__"), _lock_taken), (("release", "__exit__"), _lock_given_back)):
    for _name in _names:
        HANDLERS[getattr(LOCK, _name)] = _handler


# ---- copies ------------------------------------------------------------------------------------------------------------
@models(copy.deepcopy)
def deepcopy(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """copy.deepcopy: containers and instances are copied as modelled values, each once."""
    if len(args) > 1 or kwargs:
        memo = args[1] if len(args) > 1 else kwargs.get("memo")
        if not (isinstance(memo, DictVar) and getattr(memo, "real", None) is None):
            raise Break("copy.deepcopy with a memo from outside")
    return _deep(t, args[0], t.memo.setdefault("deepcopy", {}) if len(args) > 1 else {})


@models(copy.copy)
def shallow_copy(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return _copied(t, args[0], lambda v: v, "__copy__", [])


def _deep(t: Tracer, v: Var, seen: dict) -> Var:
    v = t.values.real(v)
    if id(v) not in seen:
        # the memo of a class's own __deepcopy__ is opaque to it: it is only handed on
        memo = DictVar({})
        seen[id(v)] = None, v
        seen[id(v)] = _copied(t, v, lambda part: _deep(t, part, seen), "__deepcopy__", [memo], seen), v
    if seen[id(v)][0] is None:
        raise Break("copy.deepcopy of an object that holds itself")
    return seen[id(v)][0]


def _copied(t: Tracer, v: Var, part: Callable, hook: str, args: list[Var], seen: dict | None = None) -> Var:
    """A copy whose parts went through `part`. Raises: Break for objects that copy themselves in C."""
    if isinstance(v, TensorVar):
        if seen is not None and (v.fake.requires_grad or t.type_of(v) is torch.nn.Parameter):
            return parameters.copied(t, v)
        return t.tensors.call_tensor_op(torch.Tensor.clone, [v], {}) if seen is not None else _no_copy(v)
    if isinstance(v, (Known, FuncVar)):
        real = getattr(v, "obj", None) if isinstance(v, Known) else v.real
        if isinstance(v, FuncVar) or is_constant(real) or isinstance(real, (type, types.BuiltinFunctionType, enum.Enum)):
            return v
        return _no_copy(v)
    if isinstance(v, SeqVar):
        made = SeqVar([], v.cls, maxlen=v.maxlen)
        if seen is not None:
            seen[id(v)] = made, v
        made.items.extend(part(item) for item in v.items)
        return v if issubclass(v.cls, tuple) and all(a is t.values.real(b) for a, b in zip(made.items, v.items)) else made
    if isinstance(v, DictVar):
        t.values.complete(v)
        table = DictVar({}, v.cls, factory=part(v.factory) if v.factory is not None else None)
        if seen is not None:
            seen[id(v)] = table, v
        for key, item in list(v.items.values()):
            t.subscripts.dict_set(table, t.values.real(part(key)), part(item))
        table.attrs = {name: part(value) for name, value in t.attributes.ordered_dict_attributes(v).items()}
        return table
    if isinstance(v, SetVar):
        return SetVar({k: t.values.real(part(item)) for k, item in v.items.items()}, v.cls)
    if isinstance(v, SliceVar):
        return v
    if isinstance(v, InstanceVar):
        return _copied_instance(t, v, part, hook, args, seen)
    return _no_copy(v)


def _copied_instance(t: Tracer, v: InstanceVar, part: Callable, hook: str, args: list[Var], seen: dict | None) -> Var:
    if isinstance(t.attributes.of_class(v.cls, hook), types.FunctionType):
        return t.values.real(t.calls.call(t.attributes.special(v, hook), args, {}))
    get, put = (t.attributes.of_class(v.cls, n) for n in ("__getstate__", "__setstate__"))
    if (
        seen is not None
        and v.base is None
        and (isinstance(get, types.FunctionType) or isinstance(put, types.FunctionType))
        and t.attributes.of_class(v.cls, "__reduce_ex__") is object.__reduce_ex__
        and not _slot_names(v)
        and v.ns is not None
    ):
        return _copied_by_state(t, v, part, seen, get, put)
    own = [
        n
        for n in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
        if t.attributes.of_class(v.cls, n) not in (None, getattr(object, n, None))
    ]
    if own and not (issubclass(v.cls, (dict, list, set, collections.OrderedDict)) and own == ["__reduce__"]):
        raise Break(f"a copy of a {v.cls.__name__}, which has its own {own[0]}")
    if v.real is not None and (v.cls.__flags__ & HEAP_TYPE == 0 or v.base is None and solid_base(v.cls) is not object):
        _no_copy(v)
    made = t.instantiation.object_new(v.cls)
    if seen is not None:
        seen[id(v)] = made, v
    if v.base is not None:
        made.base = part(v.base) if seen is not None else _copied(t, v.base, part, hook, [])
    made.new_args = v.new_args
    if v.ns is not None:
        t.values.complete(v.ns)
        for key, item in list(v.ns.items.values()):
            t.subscripts.dict_set(made.namespace, key, part(item))
    for name in _slot_names(v):
        if (value := t.attributes.getattr(v, name, None) if v.real is not None else v.slots.get(name)) is not None:
            made.slots[name] = part(value)
    return made


def _copied_by_state(t: Tracer, v: InstanceVar, part: Callable, seen: dict, get: Callable, put: Callable) -> Var:
    """A deep copy of an instance whose class says what its state is, or takes it."""
    if any(
        t.attributes.of_class(v.cls, n) not in (None, getattr(object, n, None))
        for n in ("__reduce__", "__getnewargs__", "__getnewargs_ex__")
    ):
        raise Break(f"a copy of a {v.cls.__name__}, which has its own __reduce__")
    made = t.instantiation.object_new(v.cls)
    seen[id(v)] = made, v
    state = (
        t.values.real(t.calls.call(t.attributes.special(v, "__getstate__"), [], {}))
        if isinstance(get, types.FunctionType)
        else v.ns
    )
    state = t.values.real(part(state))
    if isinstance(put, types.FunctionType):
        t.calls.call(t.attributes.special(made, "__setstate__"), [state], {})
    elif isinstance(state, DictVar):
        for key, item in state.items.values():
            t.subscripts.dict_set(made.namespace, key, item)
    else:
        raise Break(f"a copy of a {v.cls.__name__}, whose state is no dict")
    return made


def _slot_names(v: InstanceVar) -> list[str]:
    if v.real is None:
        return list(v.slots)
    return [
        n
        for c in v.cls.__mro__
        for n, d in vars(c).items()
        if isinstance(d, types.MemberDescriptorType) and (n in v.slots or hasattr(v.real, n))
    ]


def _no_copy(v: Var) -> Var:
    raise Break(f"a copy of {words(v)}")
