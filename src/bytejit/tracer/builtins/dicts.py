"""Models of dict, its kinds and their views: making them and their methods."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from typing import Any

from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, TRUE, DictVar, DictView, InstanceVar, Known, ProxyVar, SeqVar, Var
from bytejit.tracer.core.versions import NAMES_THE_KEY
from bytejit.tracer.objects.changing_keys import keys_change, lacks, picked
from bytejit.tracer.objects.containers import base_of, key_of
from bytejit.tracer.objects.made_dicts import MadeDict


def fill_dict(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var], owner: Var | None = None) -> Var:
    """Take the entries of a mapping or of pairs, then the keywords. owner: what sets them, where that is not `d` itself."""
    if len(args) > 1:
        raise Break(f"a {d.cls.__name__} made of {len(args)} arguments")
    put = t.subscript_writes.dict_set if owner is None else t.subscript_writes.setitem
    to: Any = d if owner is None else owner
    if args:
        ordered = issubclass(d.cls, collections.OrderedDict)
        pairs = t.iteration.mapping_items(args[0], ordered)
        for k, v in pairs if pairs is not None else pairs_of(t, args[0], ordered):
            put(to, k, v)
    for name, v in kwargs.items():
        put(to, Known(name), v)
    return d


def pairs_of(t: Tracer, v: Var, ordered: bool) -> Iterator[tuple[Var, Var]]:
    """The entries that a dict is made of, one by one. ordered: of an OrderedDict, whose errors have words of their own.
    Raises: Raised, Break."""
    for n, entry in enumerate(t.iteration.each(v)):
        pair = _pair(t, entry)
        if ordered and (pair is None or len(pair) != 2):
            raise Break("an OrderedDict made of what is no pair")
        if pair is None:
            raise no_sequence(t, n)
        if len(pair) != 2:
            raise t.raised(ValueError(f"dictionary update sequence element #{n} has length {len(pair)}; 2 is required"))
        yield t.values.real(pair[0]), pair[1]


def _pair(t: Tracer, entry: Var) -> list[Var] | None:
    """Returns the items of an entry; None where it cannot be iterated."""
    try:
        iterator = t.iteration.iter(entry)
    except Raised as e:
        if issubclass(e.exc.cls, TypeError):
            return None
        raise
    return t.iteration.iterate(iterator)


def no_sequence(t: Tracer, n: int) -> Raised:
    """Returns the exception of making a dict of pairs where element n is none: since 3.14 with a note."""
    if not NAMES_THE_KEY:
        return t.raised(TypeError(f"cannot convert dictionary update sequence element #{n} to a sequence"))
    error = t.raised(TypeError("object is not iterable"))
    note = f"Cannot convert dictionary update sequence element #{n} to a sequence"
    t.calls.call_python(BaseException.add_note, [error.exc, Known(note)])
    return error


def _dict_of(cls: type) -> None:
    def make(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        return fill_dict(t, MadeDict(t, cls), args, kwargs)

    MODELS[cls] = make


_dict_of(dict)
_dict_of(collections.OrderedDict)


@models(collections.defaultdict)
def defaultdict_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    check_factory(t, args)
    return fill_dict(t, DictVar({}, collections.defaultdict, factory=args[0] if args else NONE), args[1:], kwargs)


def check_factory(t: Tracer, args: list[Var]) -> None:
    if args and not t.comparisons.is_same(args[0], NONE) and not t.comparisons.truth(t.calls.call_python(callable, [args[0]])):
        raise t.raised(TypeError("first argument must be callable or None"))


@models(types.MappingProxyType)
def mappingproxy(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not isinstance(args[0], DictVar) or args[0].cls not in (dict, collections.OrderedDict):
        raise Break("a mapping proxy of an object")
    t.values.complete(args[0])
    return ProxyVar(args[0])


OD = collections.OrderedDict


def dict_methods(name: str) -> set:
    """The method of that name of every dict kind (the kinds that override it have their own descriptor)."""
    return {
        d
        for d in (getattr(c, name, None) for c in (dict, OD, collections.defaultdict))
        if d is not None and not isinstance(d, types.FunctionType)
    }


def on_dict(*names: str) -> Callable:
    def register(handler: Callable) -> Callable:
        for name in names:
            for m in dict_methods(name):
                MODELS[m] = lambda t, args, kwargs: handler(t, _dict_base(t, args[0]), args[1:], kwargs) or NONE
        return handler

    return register


def _dict_base(t: Tracer, v: Var) -> DictVar:
    d = base_of(v)
    if not isinstance(d, DictVar):
        raise Break(f"a dict method of a {t.type_of(v).__name__}")
    return d


@on_dict("get")
def dict_get(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    found = picked(t, d, t.values.real(args[0]))
    if found is None and not lacks(t, d, t.values.real(args[0])):
        found = t.values.lookup(d, key_of(t, args[0]))
    return t.values.real(found if found is not None else (args[1] if len(args) > 1 else kwargs.get("default", NONE)))


@on_dict("setdefault")
def setdefault(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    found = picked(t, d, t.values.real(args[0]))
    if found is None and not lacks(t, d, t.values.real(args[0])):
        found = t.values.lookup(d, key_of(t, args[0]))
    if found is None:
        found = args[1] if len(args) > 1 else NONE
        t.subscript_writes.dict_set(d, args[0], found)
    return t.values.real(found)


_plain_setdefault = MODELS[OD.setdefault]


@models(OD.setdefault)
def ordered_setdefault(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """An OrderedDict's, which asks the methods of its class."""
    given = [*args, kwargs["default"]] if "default" in kwargs and len(args) == 2 else args
    if not isinstance(args[0], InstanceVar):
        return _plain_setdefault(t, given, {})
    if t.subscripts.contains(args[0], given[1]):
        return t.subscripts.getitem(args[0], given[1])
    value = given[2] if len(given) > 2 else NONE
    t.subscript_writes.setitem(args[0], given[1], value)
    return t.values.real(value)


@on_dict("pop")
def dict_pop(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    try:
        key = key_of(t, args[0])
        found = t.values.lookup(d, key)
    except Raised:
        if t.comparisons.truth(d):
            raise
        key = found = None  # an empty dict: its keys are not hashed
    default = args[1] if len(args) > 1 else kwargs.get("default")
    if found is None:
        if default is not None:
            return default
        e = t.raised(KeyError("?"))
        e.exc.slots["args"] = SeqVar([args[0]], tuple)
        raise e
    t.subscript_writes.dict_del(d, key)
    return t.values.real(found)


@on_dict("popitem")
def popitem(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.values.complete(d)
    if not d.items:
        raise t.raised(KeyError("popitem(): dictionary is empty" if d.cls is dict else "dictionary is empty"))
    last = t.comparisons.truth(args[0]) if args else t.comparisons.truth(kwargs["last"]) if "last" in kwargs else True
    key = list(d.items)[-1 if last else 0]
    k, v = d.items[key]
    t.subscript_writes.dict_del(d, key)
    return SeqVar([k, v], tuple)


@on_dict("update", "__init__")
def dict_update(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    fill_dict(t, d, args, kwargs)


@models(OD.update)
@models(OD.__init__)
def ordered_update(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """An OrderedDict sets each entry by the `__setitem__` of its class."""
    fill_dict(t, _dict_base(t, args[0]), args[1:], kwargs, owner=t.values.real(args[0]))
    return NONE


@models(collections.defaultdict.__init__)
def defaultdict_init(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    check_factory(t, args[1:])
    d = _dict_base(t, args[0])
    d.factory = args[1] if len(args) > 1 else NONE
    fill_dict(t, d, args[2:], kwargs)
    return NONE


@models(collections.defaultdict.__missing__)
def defaultdict_missing(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.subscripts.default_item(_dict_base(t, args[0]), args[1], t.values.real(args[0]))


@models(dict.__getitem__)
@models(collections.OrderedDict.__getitem__)
def dict_getitem(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A dict's own, also by `super()`: it asks the class of a subclass's instance for `__missing__`."""
    v, key = t.values.real(args[0]), args[1]
    if isinstance(v, InstanceVar) and v.base is not None:
        return t.subscripts.getitem_of_base(v, key)
    return t.subscripts.getitem(v, key)


@models(*dict_methods("__ior__"))
def dict_ior(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    MODELS[OD.update if issubclass(t.type_of(args[0]), OD) else dict.update](t, args, {})
    return args[0]


@on_dict("clear")
def dict_clear(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    t.values.complete(d)
    for key in list(d.items):
        t.subscript_writes.dict_del(d, key)


@on_dict("copy", "__copy__")
def dict_copy(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if isinstance(d, MadeDict) and d.late:
        return fill_dict(t, MadeDict(t, d.cls), [d], {})
    t.values.complete(d)
    return DictVar(dict(d.items), d.cls if d.cls is not types.MappingProxyType else dict, factory=d.factory)


@on_dict("__setitem__")
def dict_setitem(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    t.subscript_writes.dict_set(d, args[0], args[1])


@on_dict("__delitem__")
def dict_delitem(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    t.subscript_writes.delitem(d, args[0])


@on_dict("__or__")
def dict_or(t: Tracer, d: DictVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    other = base_of(args[0])
    return t.operators.binary("or", d, other) if isinstance(other, DictVar) else Known(NotImplemented)


def _own_copy(t: Tracer, v: InstanceVar, merging: bool) -> Var:
    """copy() of an instance of a subclass: a dict, or of OrderedDict and defaultdict an instance of that class."""
    base = _dict_base(t, v)
    if issubclass(v.cls, collections.defaultdict):
        return t.calls.call(Known(v.cls), [base.factory or NONE, v], {})
    if issubclass(v.cls, OD):
        made = t.calls.call(Known(v.cls), [v] if merging else [], {})
        if not merging:
            MODELS[OD.update](t, [made, v], {})
        return made
    return fill_dict(t, DictVar({}), [v] if t.subscripts.length(base) else [], {})


def _of_own_kind(plainly: Callable, merging: bool) -> Callable:
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if not isinstance(args[0], InstanceVar):
            return plainly(t, args, kwargs)
        if merging and not isinstance(base_of(args[1]), DictVar):
            return Known(NotImplemented)
        made = _own_copy(t, args[0], merging)
        if merging:
            MODELS[OD.update if issubclass(args[0].cls, OD) else dict.update](t, [made, args[1]], {})
        return made

    return run


COPIES: tuple[Any, ...] = (dict.copy, OD.copy, collections.defaultdict.copy, collections.defaultdict.__copy__)
UNIONS: tuple[Any, ...] = (dict.__or__, OD.__or__, collections.defaultdict.__or__)
for _method in (*COPIES, *UNIONS):
    MODELS[_method] = _of_own_kind(MODELS[_method], merging=_method in UNIONS)


@models(OD.move_to_end)
def move_to_end(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    d = _dict_base(t, args[0])
    t.values.complete(d)
    key = key_of(t, args[1])
    if key not in d.items:
        t.subscripts.dict_item(DictVar({}), args[1])
    t.touch(d)
    entry = d.items.pop(key)
    last = t.comparisons.truth(args[2] if len(args) > 2 else kwargs.get("last", TRUE))
    d.items = {**d.items, key: entry} if last else {key: entry, **d.items}
    return NONE


@models(dict.fromkeys)
def fromkeys(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    out = DictVar({})
    for v in t.iteration.each(args[0]):
        t.subscript_writes.dict_set(out, t.values.real(v), args[1] if len(args) > 1 else NONE)
    return out


for _kind in ("keys", "values", "items"):

    def _view(t: Tracer, args: list[Var], kwargs: dict[str, Var], kind: str = _kind) -> Var:
        d = _dict_base(t, args[0])
        if keys_change(t, d):
            return DictView(d, kind, complete=t.values.complete)
        t.values.complete(d)
        return DictView(d, kind)

    for _method in dict_methods(_kind):
        MODELS[_method] = _view


def _disjoint(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.values.constant(not t.iteration.until(args[1], lambda v: t.subscripts.contains(args[0], v)))


MODELS[type({}.keys()).isdisjoint] = MODELS[type({}.items()).isdisjoint] = _disjoint
for _kind in ("get", "keys", "items", "values"):
    MODELS[getattr(types.MappingProxyType, _kind)] = MODELS[getattr(dict, _kind)]
