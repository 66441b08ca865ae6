"""Reads what is left in one of Python's own iterators without advancing it. A region looks ahead; its exit then advances it.

A generator is seen as it stands: where its code goes on, and what its locals, cells and stack hold. The cache of a function
under functools.lru_cache is seen without asking the function.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
import types
from dataclasses import field
from typing import Any

from .references import Ref, SourcePrinter
from .source import Source, source
from .sources import CallOf

INDEXED: tuple[Any, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(iter("")),
    type(iter("\u0100")),
    type(iter(b"")),
    type(iter(bytearray())),
    type(reversed([])),
    reversed,
)
EMPTY: tuple[Any, ...] = ({}, {}.values(), {}.items())
COPIED: tuple[Any, ...] = (*(type(iter(v)) for v in EMPTY), type(reversed({})), type(iter(set())))
SEQUENCES = (list, tuple, range, str, bytes, bytearray)
JOINED = (enumerate, zip)
COUNTED = re.compile(r"count\((-?\d+)(?:, (-?\d+))?\)")
MOST_COPIED = 256  # items of a dict or set: looking into its iterator copies them


class NotSeen(Exception):
    """An iterator that cannot be looked into."""


class Rest:
    """The items that an iterator has left: `at(i)`, and how many (`left`). The iterator stays where it is."""

    __slots__ = ("items", "first", "step", "left")

    def __init__(self, iterator: Any):
        try:
            made = iterator.__reduce__()
        except RuntimeError as e:  # over what was changed since: the next step of the iterator says so
            raise NotSeen(str(e)) from None
        self.items, self.step = made[1][0], 1
        if type(self.items) not in SEQUENCES:  # before its length is asked: that may be code of the program
            raise NotSeen(f"{type(iterator).__name__} over a {type(self.items).__name__}")
        self.first = made[2] if len(made) > 2 and made[2] is not None else 0
        if made[0] is reversed and len(made) > 2:
            # a list that got shorter ends it
            self.step, self.left = -1, self.first + 1 if self.first < len(self.items) else 0
        else:
            self.left = max(len(self.items) - self.first, 0)

    def at(self, i: int) -> Any:
        """The item that the (i+1)-th next() will give. Raises: IndexError."""
        if i >= self.left:
            raise IndexError(i)
        return self.items[self.first + self.step * i]


class Joined:
    """`Rest` of an enumerate or zip of iterators that can be looked into."""

    __slots__ = ("parts", "count", "left")

    def __init__(self, iterator: Any):
        args = iterator.__reduce__()[1]
        self.count = args[1] if type(iterator) is enumerate else None
        self.parts = [rest(part) for part in (args[:1] if type(iterator) is enumerate else args)]
        self.left: int = min((part.left for part in self.parts), default=0)

    def at(self, i: int) -> tuple:
        """The item that the (i+1)-th next() will give. Raises: IndexError."""
        if i >= self.left:
            raise IndexError(i)
        items = tuple(part.at(i) for part in self.parts)
        return items if self.count is None else (self.count + i, *items)


class Counted:
    """`Rest` of an itertools.count of integers, which has no end. What it says of itself is read: it has no other way to look."""

    __slots__ = ("first", "step")
    left = sys.maxsize

    def __init__(self, iterator: itertools.count):
        found = COUNTED.fullmatch(repr(iterator))
        if found is None:
            raise NotSeen("a count of other numbers than integers")
        self.first, self.step = int(found[1]), int(found[2] or 1)

    def at(self, i: int) -> int:
        """The item that the (i+1)-th next() will give."""
        return self.first + self.step * i


def rest(iterator: Any) -> Rest | Joined | Counted:
    """The items left in an iterator. Raises: NotSeen if some do not exist yet, or cannot be read."""
    kind = type(iterator)
    if kind is itertools.count:
        return Counted(iterator)
    if kind in JOINED:
        within = leaves(iterator)
        if len({id(leaf) for leaf in within}) < len(within):
            raise NotSeen("one iterator in two places")
        return Joined(iterator)
    if kind in COPIED and iterator.__length_hint__() > MOST_COPIED or kind not in INDEXED and kind not in COPIED:
        raise NotSeen(kind.__name__)
    return Rest(iterator)


def leaves(iterator: Any) -> list:
    """The iterators that an enumerate or zip draws from, at any depth. Raises: NotSeen."""
    if type(iterator) not in JOINED:
        return [iterator]
    args = iterator.__reduce__()[1]
    if type(iterator) is zip:
        if len(iterator.__reduce__()) > 2:
            raise NotSeen("a strict zip")
        return [leaf for part in args for leaf in leaves(part)]
    return leaves(args[0])


@source
class RestOf(Source):
    """rest(base): what an iterator has left."""

    base: Source

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(rest, 'rest')}({at.source(self.base)})"

    def name(self) -> str:
        return f"rest({self.base.name()})"


NOT_STARTED, ENDED = -1, -2


class Suspended:
    """A generator as it stands. `at`: the offset of the yield that it stands at, or NOT_STARTED or ENDED; `values`: what
    its locals, cells and stack hold, in this order, without those that hold nothing. Nothing is run or kept."""

    __slots__ = ("function", "code", "globals", "at", "values", "count")

    def __init__(self, generator: types.GeneratorType):
        if generator.gi_running:
            raise NotSeen("a generator that runs")
        frame = generator.gi_frame
        self.function: types.FunctionType | None = None
        self.globals: dict[str, Any] | None = None
        self.code, self.at = generator.gi_code, ENDED
        self.values: tuple[Any, ...] = ()
        if frame is not None:
            held = gc.get_referents(generator)  # names, frame, function, code, then what the frame holds
            first = next((i for i, v in enumerate(held) if i and v is self.code and type(held[i - 1]) is types.FunctionType), 0)
            if not first:
                raise NotSeen("a generator whose frame is not seen")
            self.function, self.globals = held[first - 1], frame.f_globals
            self.at = frame.f_lasti if generator.gi_suspended else NOT_STARTED
            self.values = tuple(held[first + 1 :])
        self.count = len(self.values)


@source
class StandOf(Source):
    """Suspended(base): how a generator stands."""

    base: Source

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(Suspended, 'stand')}({at.source(self.base)})"

    def name(self) -> str:
        return f"{self.base.name()}.gi_frame"


# ---- caches of functions -------------------------------------------------------------------------------------------------

MISSING = object()


def cached(fn: Any, args: tuple, named: dict[str, Any]) -> Any:
    """Returns what functools.lru_cache has for these arguments, without counting a hit; MISSING without one. Raises: NotSeen."""
    held = gc.get_referents(fn)  # class, (key, result, class) of each where bounded, cache, function, mark, ..., __dict__
    if len(held) < 6 or type(held[-6]) is not dict or held[-5] is not fn.__wrapped__:
        raise NotSeen("a cache of functools.lru_cache laid out in another way")
    parameters = fn.cache_parameters()
    if not named and not parameters["typed"] and len(args) == 1 and type(args[0]) in (int, str):
        key = args[0]
    else:
        key = tuple(args)
        if named:
            key += (held[-4], *(part for pair in named.items() for part in pair))
        if parameters["typed"]:
            key += (*map(type, args), *map(type, named.values()))
    if parameters["maxsize"] is None or key not in held[-6]:
        return held[-6].get(key, MISSING)
    return next((held[i + 1] for i in range(1, len(held) - 6, 3) if type(held[i]) is type(key) and held[i] == key), MISSING)


def ask_cache(fn: Any, *args: Any, **named: Any) -> Any:
    """Returns the value in the function's cache. Raises: NotSeen, also where it has none."""
    found = cached(fn, args, named)
    if found is MISSING:
        raise NotSeen("not in the cache any more")
    return found


@source
class CachedCall(CallOf):
    """base(*args, **dict(named)) of a function under functools.lru_cache, out of the cache."""

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(ask_cache, 'ask')}({at.source(self.base)}, {self._text(at.literal)})"

    def call(self, at: SourcePrinter) -> str:
        """The call, which counts as a hit."""
        return CallOf.expr(self, at)


def ask_first(made: list, fn: Any, *args: Any, **named: Any) -> Any:
    """Returns the value in the function's cache; before the first call, the value that it will return, which `made` holds.
    Raises: NotSeen."""
    return made[0] if made and cached(fn, args, named) is MISSING else ask_cache(fn, *args, **named)


@source
class FirstCall(CachedCall):
    """A call that tracing has found to be the first one, of which it knows the result: the exit makes it."""

    made: Ref = field(kw_only=True)

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(ask_first, 'ask')}({at.ref(self.made)}, {at.source(self.base)}, {self._text(at.literal)})"

    def call(self, at: SourcePrinter) -> str:
        """The call; from then on the cache knows."""
        return f"{at.ref(self.made)}.clear(), {CallOf.expr(self, at)}"
