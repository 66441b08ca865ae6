"""Text made of numbers that change between calls or are read out of tensors, or of tensors themselves.

The former is made where it leaves the region, so that no number becomes a constant: a message that names the step must not cost a
compile a step. The latter is not made at all."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from bytejit.common.plain_types import JSON_TYPES, OPEN_TYPES
from bytejit.shapes import symbols

from .open_values import OpenVar
from .read_values import ReadVar, refuse_reads
from .signals import Break
from .values import Known, SeqVar, SymVar, Var

# formats that raise for some numbers or texts only (a character, a width, a letter at a place)
BY_VALUE = re.compile(r"%[^a-zA-Z%]*[c*]|:[^{}]*c\}|:[^{}]*\{|\{[^{}:!]*\[")
PLAIN = OPEN_TYPES.union(JSON_TYPES)
CONVERSION = re.compile(r"%[^a-zA-Z%]*([a-zA-Z%])")


class TextVar(Known):
    """Text made of numbers that change: what function(*args, **kwargs) gives where it leaves the region.

    Whoever reads `obj` gets the text that it was, and makes its numbers constants, as of a SymVar.
    """

    __slots__ = ("function", "args", "kwargs")

    def __init__(self, function: Callable[..., str], args: tuple[Var, ...], kwargs: dict[str, Var]) -> None:
        Var.__init__(self, None)
        self.function, self.args, self.kwargs = function, args, kwargs

    @property
    def obj(self) -> str:  # type: ignore[override]  # what Known keeps in a slot
        """The text when traced, made a constant."""
        return self.function(*map(constant_of, self.args), **{k: constant_of(v) for k, v in self.kwargs.items()})

    def __repr__(self) -> str:
        return f"TextVar({self.function.__name__})"


class UnreadText(Known):
    """Text made of tensors' values, as long as nobody reads it: see tracer/objects/unread_texts.py. step: when it was made."""

    __slots__ = ("step",)

    def __init__(self, step: int) -> None:
        Var.__init__(self, None)
        self.step = step

    @property
    def obj(self) -> str:  # type: ignore[override]  # what Known keeps in a slot
        """Raises: Break before the text is made."""
        raise Break("formatting a tensor needs its value", at_step=self.step)

    def __repr__(self) -> str:
        return "UnreadText"


def given_text(obj: str, source: Any, fix: Callable[[], None]) -> TextVar:
    """Text from outside that changes between calls."""
    return TextVar(joined, (OpenVar(obj, source, fix),), {})


def constant_of(v: Any) -> Any:
    """Make a number, a text or a tuple of such a constant."""
    refuse_reads(v)
    return tuple(map(constant_of, v.items)) if isinstance(v, SeqVar) else v.obj


def joined(*parts: str) -> str:
    """Concatenate all parts."""
    return "".join(parts)


def joined_by(between: str, *parts: str) -> str:
    """Concatenate all parts with a separator."""
    return between.join(parts)


def text_of(function: Callable[..., str], args: Sequence[Var], kwargs: Mapping[str, Var] | None = None) -> TextVar | None:
    """Returns the text that a pure function makes of values that change between calls.

    Returns None in three cases: no argument changes; an argument is neither a number nor a text; the function raises, or
    may raise for other values. The caller then treats the arguments as constants."""
    kwargs = kwargs or {}
    given = [*args, *kwargs.values()]
    if not any(map(changes, given)) or not all(map(is_plain, given)):
        return None
    if any(type(a) is Known and isinstance(a.obj, str) and BY_VALUE.search(a.obj) for a in given):
        return None
    if function is operator.mod and rounds(hint(args[0]), hint(args[1])):
        return None
    if function is str.format and type(args[0]) is TextVar:  # what it asks for may not be given
        return None
    if function is format and len(args) == 2 and not (type(args[1]) is Known and args[1].obj[-1:] != "c"):
        return None
    try:
        function(*map(hint, args), **{k: hint(v) for k, v in kwargs.items()})
    except Exception:  # raised again, with the program's line, by who looks at the constants
        return None
    return TextVar(function, tuple(args), dict(kwargs))


def rounds(form: str, given: Any) -> bool:
    """Whether `form % given` writes a float as an integer, which raises for nan and inf."""
    kinds = [kind for kind in CONVERSION.findall(form) if kind != "%"]
    return any(k in "diu" and type(x) is float for k, x in zip(kinds, given if isinstance(given, tuple) else (given,)))


def is_open(v: Var) -> TypeGuard[Known]:
    """Whether it is text, or another plain value but a number that is a symbol, that changes between calls."""
    return type(v) in (TextVar, OpenVar)


def changes(v: Var) -> bool:
    """Whether a value that changes is in it."""
    return type(v) in (SymVar, TextVar, ReadVar, OpenVar) or is_row(v) and any(map(changes, v.items))


def is_plain(v: Var) -> bool:
    """Whether it is a number, text, time, nothing, or a tuple of such."""
    if is_row(v):
        return all(map(is_plain, v.items))
    if type(v) is ReadVar:
        return v.kind in (int, float, bool)
    return type(v) in (SymVar, TextVar, OpenVar) or type(v) is Known and type(v.obj) in PLAIN


def is_row(v: Var) -> TypeGuard[SeqVar]:
    return isinstance(v, SeqVar) and v.cls is tuple


def hint(v: Var) -> Any:
    """Its value when traced. Adds no condition."""
    if isinstance(v, SeqVar):
        return tuple(map(hint, v.items))
    if type(v) is TextVar:
        return v.function(*map(hint, v.args), **{k: hint(x) for k, x in v.kwargs.items()})
    if type(v) is SymVar:
        return symbols.hint(v.value)
    if isinstance(v, OpenVar):
        return v.real
    if type(v) is ReadVar:
        return v.like
    assert isinstance(v, Known), v
    return v.obj
