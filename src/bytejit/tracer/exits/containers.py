"""Containers that leave a region: expressions and statements that make them again."""

from __future__ import annotations

import collections
import types

import torch

from bytejit.compat import numpy_types
from bytejit.tracer.core.numpy_values import ArrayVar, TensorArrayVar
from bytejit.tracer.core.signals import CannotReconstruct
from bytejit.tracer.core.values import NONE, DictVar, DictView, ProxyVar, SeqVar, SetVar, SliceVar, TensorVar

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
    for key, value in v.items.values():
        k, x = out.value(key), out.value(value)
        out.lines.append(f"{setter}({name}, {k}, {x})" if setter else f"{name}[{k}] = {x}")


def mapping_proxy(out: Statements, v: ProxyVar) -> str:
    return f"{out.bind(types.MappingProxyType)}({out.value(v.owner)})"


def make_set(out: Statements, v: SetVar) -> str:
    if v.copied is not None and not {id(v), id(v.copied)} & {*out.t.effects.touched}:
        inside = out.value(v.copied)  # a copy has an order of its own
    else:
        inside = f"({out.many(v.items.values())})"
    name = out.new_name(v)
    out.lines.append(f"{name} = {out.bind(v.cls)}({inside})")
    return name


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
