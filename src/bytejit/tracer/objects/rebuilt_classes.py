"""Classes that the library makes of constants: namedtuple, NamedTuple, TypedDict, Enum. They are made for real while tracing;
one that leaves the region is made anew by its exit, as each call of the program makes one of its own."""

from __future__ import annotations

import collections
import enum
import types
import typing
from collections.abc import Callable

from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import CellVar, DictVar, FuncVar, InstanceVar, Known, PropertyVar, Var, expect

AUTO = object()  # stands for enum.auto(), which a class may take once
# stands for the cell of a class's namespace (3.14: its annotations read names there), a class's own
NAMES = types.CellType()


def make(t: Tracer, function: Callable, *args: object, **kwargs: object) -> Known:
    """function(*args, **kwargs), a class: known by how it is made. Raises: Raised."""
    made = t.operators.fold(lambda: function(*args, **kwargs))
    t.rebuilt_classes[made.obj] = function, args, kwargs, t.limits.steps
    t.keep.append(made.obj)
    t.effects.mutations += 1
    return made


def in_module(function: Callable, module: str, args: tuple, kwargs: dict) -> type:
    """Calls a function that makes a class in its caller's module, and puts the class into the program's module."""
    made = function(*args, **kwargs)
    made.__module__ = module
    return made


def _named(function: Callable) -> None:
    def model(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        module = t.present_frame.globals.get("__name__", "__main__")
        return make(t, in_module, function, module, tuple(map(t.const, args)), {k: t.const(v) for k, v in kwargs.items()})

    models(function)(model)


for _function in (collections.namedtuple, typing.NamedTuple):
    _named(_function)


def of_body(t: Tracer, kind: str, name: Var, given: list[Var], names: Var, kwargs: dict[str, Var]) -> Known:
    """A class statement whose body has run. Raises: Break for one that holds more than constants and plain functions."""
    if not isinstance(names, DictVar) or "__classcell__" in names.items:
        raise Break(f"{kind} whose methods name its class")
    t.values.complete(names)
    cell = t.values.real(names.items["__classdictcell__"][1]) if "__classdictcell__" in names.items else None
    space = {t.const(k): content(t, kind, t.values.real(v), cell) for k, v in names.items.values()}
    guard_annotations(t, kind, names)
    bases = tuple(v.real if isinstance(v, FuncVar) else expect(v, Known).obj for v in given)
    return make(t, of_parts, t.const(name), bases, {k: t.const(v) for k, v in kwargs.items()}, space)


def guard_annotations(t: Tracer, kind: str, names: DictVar) -> None:
    """Trace the function that makes a body's annotations (3.14), which the library calls for real: the names that it reads
    are guarded by that. Raises: Break where they cannot be made."""
    if "__annotate_func__" in names.items:
        try:
            t.const(t.calls.call(names.items["__annotate_func__"][1], [Known(1)], {}))  # annotationlib.Format.VALUE
        except Raised:
            raise Break(f"{kind} with annotations that cannot be made yet") from None


def of_parts(name: str, bases: tuple, options: dict, space: dict) -> type:
    """The class of a class statement."""

    def fill(namespace: dict) -> None:
        cell = types.CellType(namespace)
        for key, value in space.items():
            namespace[key] = enum.auto() if value is AUTO else with_names(value, cell)

    return types.new_class(name, bases, dict(options), fill)


def with_names(value: object, cell: types.CellType) -> object:
    """A value of a class's body whose functions, if they read the class's namespace, find it in `cell`."""
    if value is NAMES:
        return cell
    if isinstance(value, types.FunctionType) and value.__closure__ and value.__closure__[0] is NAMES:
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, (cell,))
        made.__qualname__ = value.__qualname__
        return made
    return value


def content(t: Tracer, kind: str, v: Var, names: Var | None) -> object:
    """A real value of a class's body. `names`: the cell of the class's namespace, when the body has one."""
    if isinstance(v, CellVar) and v is names:
        return NAMES
    if isinstance(v, FuncVar) and v.real is None:
        cells = (NAMES,) if len(v.closure) == 1 and v.closure[0] is names else ()
        if len(v.closure) != len(cells) or v.defaults or v.kwdefaults or v.attrs:
            raise Break(f"{kind} with a method that has defaults, attributes or a closure")
        made = types.FunctionType(v.code, v.globals, v.name, None, cells)
        made.__qualname__ = v.qualname
        return made
    if isinstance(v, PropertyVar):
        return v.cls(*(content(t, kind, t.values.real(a), names) for a in v.args))
    if isinstance(v, InstanceVar) and v.cls is enum.auto and v.real is None:
        return AUTO
    return t.const(v)


def kind_of(t: Tracer, given: list[Var]) -> str:
    """Returns the kind of class that the library makes of these bases; "" for another."""
    for v in given:
        real = v.real if isinstance(v, FuncVar) else v.obj if isinstance(v, Known) else None
        if real in (typing.NamedTuple, typing.TypedDict):
            return f"a {real.__name__}"
        if isinstance(real, enum.EnumMeta):
            return "an Enum"
    return ""
