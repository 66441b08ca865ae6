"""Instances made in a region that leave it: made without running their __init__, then filled."""

from __future__ import annotations

import _random
import collections
import functools
import weakref
from collections.abc import Callable

from bytejit.common.quiet_reads import HEAP_TYPE
from bytejit.tracer.core.made_generators import GeneratorVar, remade
from bytejit.tracer.core.signals import CannotReconstruct
from bytejit.tracer.core.values import NONE, NULL, DictVar, InstanceVar, Known, SeqVar, SetVar, Var
from bytejit.tracer.objects.class_facts import class_lookup, is_data_descriptor
from bytejit.tracer.torch import inference_mode, overrides

from .containers import fill_dict
from .statements import Statements


def instance(out: Statements, v: InstanceVar) -> str:
    name = out.new_name(v)
    cls = out.bind(v.cls)
    if v.cls is functools.partial:
        slots = v.slots
        out.lines.append(
            f"{name} = {cls}({out.value(slots['func'])}, *{out.value(slots['args'])}, **{out.value(slots['keywords'])})"
        )
        for attr in ("args", "keywords"):  # it holds a tuple and a dict of its own
            out.name_as(slots[attr], f"{name}.{attr}")
        return name
    if v.cls is inference_mode.MANAGER:
        # making one enters its mode: `leave` does that, last
        out.lines.append(f"{name} = {out.bind(v.cls.__new__)}({cls})")
        return name
    if v.cls in (overrides.OFF_ALL, overrides.OFF_SUBCLASSES):
        out.lines.append(f"{name} = {cls}()")
        return name
    if isinstance(v, GeneratorVar):
        out.lines.append(f"{name} = {out.bind(remade)}({out.bind(_random.Random.getstate(v.state))})")
        fill_instance(out, name, v)
        return name
    if v.cls is weakref.ReferenceType:
        called = "" if v.slots["callback"] is NONE else f", {out.value(v.slots['callback'])}"
        out.lines.append(f"{name} = {cls}({out.value(v.slots['of'])}{called})")
        return name
    if issubclass(v.cls, BaseException):
        if id(v) in out.t.raised_at:
            raise CannotReconstruct("an exception that was raised in the region", v.step)
        args = out.value(v.slots.get("args", SeqVar([], tuple)))
        base = next(c for c in v.cls.__mro__ if not c.__flags__ & HEAP_TYPE)
        out.lines.append(f"{name} = {cls}.__new__({cls}, *{args})")
        out.lines.append(f"{out.bind(base)}.__init__({name}, *{args})")
    elif isinstance(v.base, Known) or isinstance(v.base, SeqVar) and v.base.cls is not list:
        kind = out.t.type_of(v.base) if isinstance(v.base, Known) else tuple
        out.lines.append(f"{name} = {out.bind(kind.__new__)}({cls}, {out.value(v.base)})")
    elif v.base is not None:
        out.lines.append(f"{name} = {cls}.__new__({cls})")
        fill_base(out, name, v)
    else:
        maker = object.__new__ if v.cls.__flags__ & HEAP_TYPE else v.cls.__new__  # a C class has its own
        out.lines.append(f"{name} = {out.bind(maker)}({cls})")
    fill_instance(out, name, v)
    return name


def fill_base(out: Statements, name: str, v: InstanceVar) -> None:
    if isinstance(v.base, DictVar):
        if v.base.cls is collections.defaultdict:
            out.lines.append(f"{name}.default_factory = {out.value(v.base.factory or NONE)}")
        fill_dict(out, name, v.base, out.bind(setter_of(v.base.cls)))
    elif isinstance(v.base, SeqVar):
        out.lines.append(f"{out.bind(list.extend)}({name}, [{out.many(v.base.items)}])")
    else:
        assert isinstance(v.base, SetVar), v.base
        out.lines.append(f"{out.bind(set.update)}({name}, ({out.many(v.base.items.values())}))")


def setter_of(cls: type) -> Callable:
    return collections.OrderedDict.__setitem__ if issubclass(cls, collections.OrderedDict) else dict.__setitem__


def fill_instance(out: Statements, name: str, v: InstanceVar) -> None:
    if v.ns is not None and v.ns.items and v.ns.source is None:
        setter = out.bind(object.__setattr__)
        if sets_plainly(v.cls, tuple(v.ns.items)):  # an object without a dict stays without
            out.lines += [f"{setter}({name}, {out.value(k)}, {out.value(x)})" for k, x in v.ns.items.values()]
        else:
            inside = "".join(f"{out.value(k)}: {out.value(x)}, " for k, x in v.ns.items.values())
            out.lines.append(f"{name}.__dict__.update({{{inside}}})")
    for attr, value in in_order(v.slots):
        if attr in ("args", "exceptions", "message") and issubclass(v.cls, BaseException) or value is NULL:
            continue
        out.lines.append(f"{out.bind(object.__setattr__)}({name}, {attr!r}, {out.value(value)})")


def in_order(slots: dict[str, Var]) -> list[tuple[str, Var]]:
    """Orders what an instance keeps beside its namespace as it is to be set: an exception's cause also sets
    `__suppress_context__`."""
    return sorted(slots.items(), key=lambda item: item[0] == "__suppress_context__")


INLINE = 20  # attributes; Python keeps about 30 without a dict


def sets_plainly(cls: type, names: tuple) -> bool:
    """Whether object.__setattr__ stores these names in an instance's namespace."""
    return (
        len(names) <= INLINE
        and all(type(n) is str and not is_data_descriptor(class_lookup(cls, n)[0]) for n in names)
        and not any("__setattr__" in vars(c) for c in cls.__mro__[:-1] if not c.__flags__ & HEAP_TYPE)
    )
