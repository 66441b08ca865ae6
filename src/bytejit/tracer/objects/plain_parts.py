"""Operators on instances of the program's subclasses of list, dict, str, int..., where the built-in type's own apply."""

from __future__ import annotations

import types
from typing import Any

from bytejit.tracer.core.constants import NotConstant, to_python
from bytejit.tracer.core.descriptions import OF_OWN_KIND
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, InstanceVar, Known, SeqVar, SetVar, Var

from .class_facts import MISSING, class_lookup
from .containers import base_of
from .own_methods import OF_MAPPINGS, answers

MUTABLE = (SeqVar, DictVar, SetVar)


def in_text(t: Tracer, v: Var) -> Any:
    """A constant, or what stands for a value in a format."""
    try:
        return to_python(t, v, classes=True)
    except NotConstant:
        return Said.of(t, v)


class Said:
    """Stands for a value in a format whose text is made in the trace: its attributes and items are the value's. Its methods
    raise: Break, Raised."""

    @staticmethod
    def of(t: Tracer, v: Var) -> Said:
        """Returns what stands for `v`: a number where it is one."""
        number = v.base.obj if isinstance(v, InstanceVar) and isinstance(v.base, Known) else None
        made = SaidInt(number) if isinstance(number, int) else SaidFloat(number) if isinstance(number, float) else Said()
        object.__setattr__(made, "what", (t, v))
        return made

    def __str__(self) -> str:
        t, v = _what(self)
        return t.const(t.calls.call_python(str, [v]))

    def __repr__(self) -> str:
        t, v = _what(self)
        return t.const(t.calls.call_python(repr, [v]))

    def __format__(self, spec: str) -> str:
        t, v = _what(self)
        return t.const(t.calls.call_python(format, [v, Known(spec)]))

    def __getattribute__(self, name: str) -> Any:
        t, v = _what(self)
        return in_text(t, t.attributes.getattr(v, name))

    def __getitem__(self, key: int | str) -> Any:
        t, v = _what(self)
        return in_text(t, t.subscripts.getitem(v, Known(key)))


def _what(said: Said) -> tuple[Tracer, Var]:
    """The value that an object stands for; its attributes are the value's."""
    return object.__getattribute__(said, "what")  # type: ignore[no-any-return]


class SaidInt(Said, int):
    """`Said` of an instance of a subclass of int."""


class SaidFloat(Said, float):
    """`Said` of an instance of a subclass of float."""


def plain_binary(t: Tracer, name: str, a: Var, b: Var, in_place: bool, tried: bool = False) -> Var | None:
    """`a op b` of the built-in parts, if no class on the way has a method of its own for it (or `tried`: those declined)."""
    left, right = base_of(a), base_of(b)
    if left is a and right is b or any(isinstance(v, InstanceVar) for v in (left, right)):
        return None
    if in_place and isinstance(left, (SeqVar, DictVar) if left is a else MUTABLE) and getattr(left, "cls") is not tuple:
        return None
    if any(isinstance(part, DictVar) and answers(v, OF_MAPPINGS) for part, v in ((left, a), (right, b))):
        return None  # C asks it for its entries
    if any(isinstance(v, (SeqVar, DictVar)) and v.cls in OF_OWN_KIND for v in (left, right)):
        return None
    if name == "mod" and left is not a and isinstance(left, Known) and isinstance(left.obj, str):
        raise Break("a format in a subclass of str")  # where nothing is put in, it is the result
    methods = ((a, f"__{name}__"), (a, f"__i{name}__"), (b, f"__r{name}__"))
    if not tried and any(
        isinstance(v, InstanceVar) and isinstance(class_lookup(v.cls, m)[0], types.FunctionType) for v, m in methods
    ):
        return None
    try:
        return t.operators.binary(name, left, right, in_place and left is a)
    except Raised as e:
        if issubclass(e.exc.cls, TypeError):  # its words name the classes
            return None
        raise


def plain_equal(t: Tracer, name: str, a: Var, b: Var) -> Var | None:
    """`==` or `!=` of the built-in parts, where classes with methods of their own declined."""
    left, right = base_of(a), base_of(b)
    if left is a and right is b or not all(isinstance(v, MUTABLE) for v in (left, right)):
        return None
    for v, method in ((a, "__eq__"), (b, "__eq__")):
        if not isinstance(v, InstanceVar) or class_lookup(v.cls, method)[0] in (object.__eq__, MISSING):
            continue
        return t.comparisons.compare(name, left, right)
    return None
