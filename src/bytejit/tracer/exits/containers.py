"""Containers that leave a region: expressions and statements that make them again."""

from __future__ import annotations

import collections
import types

import torch

from bytejit.compat import numpy_types
from bytejit.tracer.core import set_tables
from bytejit.tracer.core.constants import are_keys
from bytejit.tracer.core.numpy_values import ArrayVar, TensorArrayVar
from bytejit.tracer.core.set_tables import Table
from bytejit.tracer.core.signals import CannotReconstruct
from bytejit.tracer.core.values import (
    NONE,
    DictVar,
    DictView,
    Known,
    ProxyVar,
    SeqVar,
    SetVar,
    SliceVar,
    TensorVar,
)
from bytejit.tracer.objects.made_dicts import MadeDict
from bytejit.tracer.objects.set_orders import guard_table, order_of, table_of

from .statements import Statements


def sequence(out: Statements, v: SeqVar) -> str:
    if v.cls is tuple:
        return f"({out.many(v.items)})"
    if v.cls is list:
        name = out.new_name(v)
        out.lines.append(f"{name} = []")
        inside = out.many(v.items)
        if inside:
            out.lines.append(f"{name} += [{inside}]")
        return name
    if v.cls is collections.deque:
        name = out.new_name(v)
        out.lines.append(f"{name} = {out.bind(collections.deque)}([], {v.maxlen!r})")
        out.lines.append(f"{name}.extend([{out.many(v.items)}])")
        return name
    cls = out.bind(v.cls)
    inside = out.many(v.items)
    name = out.new_name(v)
    make = f"{out.bind(tuple.__new__)}({cls}, ({inside}))" if hasattr(v.cls, "_fields") else f"{cls}(({inside}))"
    out.lines.append(f"{name} = {make}")
    return name


def mapping(out: Statements, v: DictVar) -> str:
    name = out.new_name(v)
    if v.cls is collections.defaultdict:
        made = f"{out.bind(v.cls)}({out.value(v.factory or NONE)})"
    else:
        made = "{}" if v.cls is dict else f"{out.bind(v.cls)}()"
    out.lines.append(f"{name} = {made}")
    fill_dict(out, name, v)
    out.lines += attributes(out, name, v)
    return name


def attributes(out: Statements, target: str, v: DictVar | TensorVar) -> list[str]:
    """Statements that set what was set on a value."""
    return [f"setattr({target}, {n!r}, {out.value(x)})" for n, x in v.attrs.items()]


def fill_dict(out: Statements, name: str, v: DictVar, setter: str = "") -> None:
    for key, value in v.pairs() if isinstance(v, MadeDict) else v.items.values():
        k, x = out.value(key), out.value(value)
        out.lines.append(f"{setter}({name}, {k}, {x})" if setter else f"{name}[{k}] = {x}")


def mapping_proxy(out: Statements, v: ProxyVar) -> str:
    return f"{out.bind(types.MappingProxyType)}({out.value(v.owner)})"


def make_set(out: Statements, v: SetVar) -> str:
    made = repeated(out, v) or f"{out.bind(v.cls)}(({out.many(v.items.values())}))"
    name = out.new_name(v)
    out.lines.append(f"{name} = {made}")
    return name


def repeated(out: Statements, v: SetVar) -> str | None:
    """An expression that makes a set of the region by the same steps; None where these are not known."""
    table = table_of(v)
    if table is None or not are_keys(out.t, v.items.values()):
        return None
    seen: list[SetVar | Known] = []
    plain = set_tables.numbered(table, seen)
    given = as_they_were(out, seen)
    return f"{out.bind(set_tables.made)}({out.bind(plain)}, ({given}).__getitem__)" if order_of(v) is not None else None


def repeated_on(out: Statements, v: SetVar, target: str) -> str | None:
    """A statement that changes a set from outside by the same steps; None where these are not known."""
    table = table_of(v)
    if table is None or table.steps()[0].operands != (v,) or not all(step.changes for step in table.steps()[1:]):
        return None
    if not are_keys(out.t, v.items.values()):
        return None
    seen: list[SetVar | Known] = []
    steps = [Table(None, step.name, set_tables.numbered_operands(step, seen)) for step in table.steps()[1:]]
    return f"{out.bind(set_tables.taken)}({target}, {out.bind(steps)}, ({as_they_were(out, seen)}).__getitem__)"


def as_they_were(out: Statements, seen: list[SetVar | Known]) -> str:
    """Sets from outside as they were when the region began: of those that it changes copies, made before anything is written.
    Raises: CannotReconstruct."""
    texts = []
    for v in seen:
        texts.append(out.value(v))
        if id(v) in out.t.effects.touched:
            try:
                guard_table(out.t, v)
            except set_tables.Unlike:
                raise CannotReconstruct("what was made of a set from outside that was changed", out.t.limits.steps) from None
            out.lines.append(f"s{out.count} = {out.bind(set_tables.like)}({texts[-1]})")
            texts[-1] = f"s{out.count}"
            out.count += 1
    return "".join(text + ", " for text in texts)


def dict_view(out: Statements, v: DictView) -> str:
    return f"{out.value(v.owner)}.{v.kind}()"


def make_slice(out: Statements, v: SliceVar) -> str:
    return f"slice({out.many(v.parts)})"


def traced_array(out: Statements, v: TensorArrayVar) -> str:
    """An array of a tensor's memory, or the number in it."""
    assert v.tensor is not None, v
    name = out.new_name(v)
    number = "" if v.cls is numpy_types.ARRAY else "[()]"
    out.lines.append(f"{name} = {out.bind(torch.Tensor.numpy)}({out.value(v.tensor)}){number}")
    if v.read_only:
        out.lines.append(f"{name}.setflags(write=False)")
    return name


def array(out: Statements, v: ArrayVar) -> str:
    """A numpy array of known values: a copy of its own for each call."""
    for other in out.arrays:
        if other is not v and numpy_types.may_share_memory(other.array, v.array):
            raise CannotReconstruct("numpy arrays that share memory", max(v.step, other.step))
    if v.shared:
        raise CannotReconstruct("a numpy array that shares memory with a tensor", v.step)
    out.arrays.append(v)
    name = out.new_name(v)
    out.lines.append(f"{name} = {out.bind(v.array)}.copy('K')")
    return name
