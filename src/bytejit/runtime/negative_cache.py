"""Remembers the types of values for which a site had nothing to compile, so that calls with these types pass quickly.

A function called first with an int may be called with a tensor later. So its start keeps one entry that is asked last, the
negative cache: it lets known types pass at a cost of 150 ns, and misses for others. As what the values refer to may change
too, the site is traced again after 1, 2, 4, ... calls that passed.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from bytejit.common.quiet_reads import special_method

from .dispatch import SiteState
from .entry import MISS, Args, Entry

MOST_KINDS = 64  # combinations of types; with more the site is left alone
MOST_CALLS = 4096  # the longest wait until a site is traced again, in calls; after that it is never traced again
SLOW_TRACE_SECONDS = 0.05  # seconds: a trace that found nothing and took longer is not repeated for the same kinds
CONTAINERS: frozenset[type] = frozenset({list, tuple, dict, types.CellType})


def kind(value: Any) -> object:
    """The kind of a value: its type; for a container or cell also the type of its first item."""
    cls = type(value)
    if cls is types.CellType:
        try:
            return cls, kind(value.cell_contents)
        except ValueError:
            return cls
    if any(cls is c for c in CONTAINERS) and value:  # not `in`: a class may have no hash
        return cls, type(next(iter(value.values() if cls is dict else value)))
    return cls


def have_hashes(kinds: tuple) -> bool:
    """Whether kinds can be looked up: a metaclass may have taken their hash, or hash them by code of the program."""
    return all(type(k) is type or _has_hash(k) for k in kinds)


def _has_hash(k: Any) -> bool:
    return have_hashes(k) if type(k) is tuple else special_method(k, "__hash__") is object.__hash__


class Seen:
    """One combination of types: calls that pass until the next trace, plus one; the kinds seen, where types say too little."""

    __slots__ = ("left", "deep", "kinds")

    def __init__(self, deep: bool) -> None:
        self.left, self.deep = 0, deep
        self.kinds: set[tuple] = set()


class NegativeCache(Entry):
    """The kinds of values for which one site had nothing to compile: the entry that its dispatcher tries last."""

    negative = True

    __slots__ = ("flat", "point", "cells", "seen", "waits")

    def __init__(self, state: SiteState) -> None:
        code = state.rewritten.original
        self.flat, self.point = state.flat, state.point.id
        self.cells = len(code.co_cellvars) + len(code.co_freevars)
        self.seen: dict[tuple, Seen] = {}
        self.waits: dict[tuple, int] = {}
        super().__init__(_pass_known(self, None))

    def __repr__(self) -> str:
        return f"{len(self.seen)} kinds of values for which there is nothing to compile"

    def is_new(self, args: Args) -> bool:
        """Whether values of these kinds have never been seen."""
        kinds = tuple(map(kind, args))
        return have_hashes(kinds) and kinds not in self.waits

    def due(self, args: Args) -> bool:
        """Whether the waiting time for values of these kinds is over."""
        row = self.row_of(args)
        return row is not None and row.left == 1

    def row_of(self, args: Args) -> Seen | None:
        """The row for values of these types."""
        types_ = tuple(map(type, args[: self.flat]))
        return self.seen.get(types_) if have_hashes(types_) else None

    def hold(self, args: Args, seconds: float) -> bool:
        """Let values of these kinds pass for a while, for good where the trace took long. False: too many kinds, or
        types without a hash."""
        kinds = tuple(map(kind, args))
        if len(self.waits) >= MOST_KINDS or not have_hashes(kinds):
            return False
        wait = self.waits[kinds] = (
            min(2 * self.waits.get(kinds, 1), 2 * MOST_CALLS) if seconds < SLOW_TRACE_SECONDS else 2 * MOST_CALLS
        )
        types_ = tuple(map(type, args[: self.flat]))
        row = self.seen.setdefault(types_, Seen(self.cells > 0 or not CONTAINERS.isdisjoint(types_)))
        row.left = wait if wait <= MOST_CALLS else -1
        row.kinds.add(kinds)
        return True

    def inner(self, row: Seen, args: Args) -> bool:
        """Whether what containers and cells hold was seen with these types as well; not close to the recursion limit."""
        try:
            return tuple(map(kind, args)) in row.kinds
        except RecursionError:
            return False

    def forget(self, args: Args) -> None:
        """The site has work for values of these kinds by now."""
        row = self.row_of(args)
        if row is not None:
            row.kinds.discard(tuple(map(kind, args)))
            row.deep = True

    def alone(self, otherwise: Callable) -> Callable:
        """The dispatcher of a site without other entries: it saves one call."""
        return _pass_known(self, otherwise)


def _pass_known(cache: NegativeCache, otherwise: Callable | None) -> Callable:
    """Makes the function that lets known kinds pass, for a site's number of parameters. It calls `otherwise` for the rest."""
    known = {"get": cache.seen.get, "inner": cache.inner, "point": cache.point}
    scope: dict[str, Any] = known | {"MISS": MISS, "otherwise": otherwise}
    exec(_code_of(cache.flat, cache.cells, otherwise is None), scope)
    return scope["known"]


@functools.lru_cache(maxsize=256)
def _code_of(flat: int, cells: int, last: bool) -> types.CodeType:
    """The code that `_pass_known` runs: many sites of a function have the same number of parameters."""
    names = [f"a{i}" for i in range(flat)]
    held, types_ = "".join(n + ", " for n in names), "".join(f"type({n}), " for n in names)
    every = held + "".join(f"c{i}, " for i in range(cells))
    text = (
        f"def known({every}):\n"
        f"    try:\n"
        f"        try: row = get(({types_}))\n"
        f"        except TypeError: return {{}}\n"
        f"        if row is None or row.left == 1 or row.deep and not inner(row, ({every})): return {{}}\n"
        f"        row.left -= 1\n"
        f"    except RecursionError as error:\n"  # of a call made here: nothing has been done, see chain_maker
        f"        if error.__traceback__.tb_next is not None: raise\n"
        f"    return ({held}), point\n"
    ).replace("{}", "MISS" if last else f"otherwise({every})")
    return compile(text, f"<bytejit negative cache of {flat}>", "exec")
