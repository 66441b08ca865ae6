"""Sizes given where torch takes a float: made floats before the call, as torch does. Its C++ would make constants of them."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import SymVar, Var


def as_floats(t: Tracer, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> tuple[list[Var], dict[str, Var]]:
    """Arguments with symbolic ints as floats where an operation's schemas all say float."""
    if not any(type(a) is SymVar for a in (*args, *kwargs.values())):
        return args, kwargs
    floats = _float_parameters(getattr(fn, "__name__", ""))
    if not floats:
        return args, kwargs

    def given(name: str, v: Var) -> Var:
        is_size = name in floats and type(v) is SymVar and v.value.node.is_int()
        return (t.numbers.symbolic_call(float, [v], {}) or v) if is_size else v

    # the names of a Python function's parameters; a builtin is given these by name mostly, and else in the schema's order
    names = fn.__code__.co_varnames if isinstance(fn, types.FunctionType) else _parameters(fn.__name__)
    places = (*names, *("",) * len(args))
    return [given(name, a) for name, a in zip(places, args)], {k: given(k, v) for k, v in kwargs.items()}


@functools.cache
def _schemas(name: str) -> tuple[Any, ...]:
    packet = getattr(torch.ops.aten, name, None) if name and not name.startswith("__") else None
    return tuple(getattr(packet, o)._schema for o in packet.overloads()) if packet is not None else ()


def _parameters(name: str) -> tuple[str, ...]:
    return tuple(a.name for a in _schemas(name)[0].arguments)


@functools.cache
def _float_parameters(name: str) -> frozenset[str]:
    """Names of an operation's parameters that are floats in each overload that has them."""
    types_of: dict[str, set[str]] = {}
    for schema in _schemas(name):
        for a in schema.arguments:
            types_of.setdefault(a.name, set()).add(str(a.type).removeprefix("Optional[").removesuffix("]"))
    return frozenset(n for n, found in types_of.items() if found == {"float"})
