"""The base of all sources, and the names of an entry's parameters, by which the first of them fetch. No torch here."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.plain_types import PLAIN_TYPES

from .references import SourcePrinter

T = TypeVar("T")


def _field_names(kind: Any) -> tuple[str, ...]:
    """Names of a source class's fields: the classes are few, and `dataclasses.fields` is slow."""
    return tuple(f.name for f in dataclasses.fields(kind))


field_names: Callable[[type], tuple[str, ...]] = functools.cache(_field_names)


class Source:
    """Base of all sources. Subclasses give `expr(printer)` and `name()`; `bases()` are the sources that it reads."""

    __slots__ = ("_key", "_hash")
    _key: tuple
    _hash: int

    def _fields(self) -> tuple:
        try:
            return self._key
        except AttributeError:
            key = tuple(_typed(getattr(self, name)) for name in field_names(type(self)))
            object.__setattr__(self, "_key", key)
            return key

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or hash(self) != hash(other):
            return False
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            value = hash((type(self).__name__, self._fields()))
            object.__setattr__(self, "_hash", value)
            return value

    def __repr__(self) -> str:
        return self.name()

    def expr(self, at: SourcePrinter) -> str:
        """Python that evaluates to the value; names not in the frame are bound in `at.env`."""
        raise NotImplementedError(f"{type(self).__name__} has no expr(): give the source class one")

    def name(self) -> str:
        """The value's name as a person would write it."""
        raise NotImplementedError(f"{type(self).__name__} has no name(): give the source class one")

    def bases(self) -> tuple[Source, ...]:
        """Sources that this one is computed from."""
        return tuple(v for name in field_names(type(self)) if isinstance(v := getattr(self, name), Source))

    def roots(self) -> set[Source]:
        """The locals, cells, globals and constants that it is computed from."""
        return {root for base in bases for root in base.roots()} if (bases := self.bases()) else {self}

    def root(self) -> Source:
        """The first source of the chain: a local, a cell, a global, a constant."""
        source = self
        while bases := source.bases():
            source = bases[0]
        return source


def _typed(value: Any) -> Any:
    """A key that tells 1, True and 1.0 apart, as DictItem(d, 1) and Item(l, True) print differently."""
    return (type(value), value) if type(value) in PLAIN_TYPES else value


@dataclass_transform(frozen_default=True, eq_default=False)
def source(cls: type[T]) -> type[T]:
    return light_dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)


class Step(Source):
    """A source of a base and at most one further field. `text` fetches it, `shown` is for messages; {0} base, {1} the field."""

    __slots__ = ()
    base: Source
    text: ClassVar[str]
    shown: ClassVar[str] = ""  # "": as `text`

    def _rest(self) -> list[Any]:
        return [getattr(self, name) for name in field_names(type(self))[1:]]

    def expr(self, at: SourcePrinter) -> str:
        return self.text.format(at.source(self.base), *map(at.literal, self._rest()))

    def name(self) -> str:
        return (self.shown or self.text).format(self.base.name(), *map(repr, self._rest()))


def param_name(kind: str, which: str | int) -> str:
    """Name of an entry's parameter: kind is "local", "stack" or "cell". Names like `.0`, `@x` become identifiers."""
    text = str(which)
    if not text.isidentifier() and kind != "stack":
        text = "dot" + "".join(c if c.isidentifier() or c.isdigit() else f"_{ord(c):x}_" for c in text.lstrip("."))
    return {"local": "L_", "stack": "S_", "cell": "C_"}[kind] + text


def params_of(stack: int, live: tuple[str, ...], cells: tuple[str, ...]) -> list[str]:
    """Parameter names of an entry at a point, in the order in which the dispatcher is called."""
    return (
        [param_name("stack", i) for i in range(stack)]
        + [param_name("local", n) for n in live]
        + [param_name("cell", n) for n in cells]
    )
