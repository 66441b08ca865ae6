"""The exit dispatch: the way from what a dispatcher returned to the point where the original code goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .emitter import (
    BACK,
    DELETE_FAST,
    IF_FALSE,
    IF_TRUE,
    IS_OP,
    LOAD_CONST,
    LOAD_FAST,
    POP_TOP,
    RETURN,
    STORE_FAST,
    SUBSCR,
    SUBSCR_ARG,
    SWAP,
    UNPACK,
    Emitter,
)
from .flow import MAYBE, NULL
from .resume_points import Loop, Point

T = TypeVar("T")
# kinds of the stack's slots, live locals, those of them that may be unbound
Layout = tuple[bytes, tuple[str, ...], tuple[str, ...]]
Group = tuple[Layout, list[int]]  # and the ids of the points that share it


class ExitCode:
    """Writes the exit dispatch."""

    def __init__(self, e: Emitter, places: list[tuple[int, Point]], loops: tuple[Loop, ...]) -> None:
        self.e, self.places, self.loops = e, places, loops

    def write(self) -> None:
        """Groups of points that share a layout each have one restorer; a table says which way leads to each point."""
        self.e.place(self.e.finish)
        self.e.unpack_exit(self.e.dispatch)
        self.e.emit(RETURN)
        self.e.place(self.e.dispatch)
        groups: dict[Layout, list[int]] = {}
        copies = {k: (copied,) for loop in self.loops for _, k, copied in loop.heads}
        for index, point in self.places:
            unsure = tuple(n for n in point.live if n not in point.bound)
            groups.setdefault((self.e.flow.state(index).stack, point.live, unsure), []).extend(
                (point.id, *copies.get(point.id, ()))
            )
        if not groups:
            return
        outer = (len(groups) - 1).bit_length()
        table: list = [None] * (len(self.places) + len(copies))
        for g, members in enumerate(groups.values()):
            inner = (len(members) - 1).bit_length()
            for m, k in enumerate(members):
                table[k] = (*_bits(g, outer), _bits(m, inner))
        self.e.emit(LOAD_CONST, self.e.const(tuple(table)))
        self.e.emit(SWAP, 2)
        self.e.emit(SUBSCR, SUBSCR_ARG)
        self.e.emit(UNPACK, outer + 1)
        self._tree(outer, [(key, members) for key, members in groups.items()], self._restore)
        self.e.stacksize = max(self.e.stacksize, outer + 4)

    def _tree(self, bits: int, leaves: list[T], leaf: Callable[[T], None]) -> None:
        """Jumps that take `bits` bools off the stack, highest first, down to leaf(item) for the item so numbered."""
        if not bits:
            leaf(leaves[0])
            return
        half = 1 << (bits - 1)
        if len(leaves) <= half:
            self.e.emit(POP_TOP)
            self._tree(bits - 1, leaves, leaf)
            return
        right = self.e.label()
        self.e.emit(IF_TRUE, 0, right)
        self._tree(bits - 1, leaves[:half], leaf)
        self.e.place(right)
        self._tree(bits - 1, leaves[half:], leaf)

    def _restore(self, group: Group) -> None:
        """Stack on entry: flat values, path. Puts the values where the points of this group want them."""
        (kinds, live, unsure), members = group
        many = len(members) > 1
        self.e.emit(*((STORE_FAST, self.e.path) if many else (POP_TOP,)))
        values = [slot for slot, kind in enumerate(kinds) if kind != NULL]
        self.e.emit(UNPACK, len(values) + len(live))
        for slot in values:
            self.e.emit(STORE_FAST, self.e.slots[slot])
        for name in live:
            self.e.emit(STORE_FAST, self.e.names.index(name))
        for name in unsure:
            self._drop_unbound(self.e.names.index(name))
        for slot in values:
            if kinds[slot] == MAYBE:
                self._drop_unbound(self.e.slots[slot])
        self.e.push_stack(kinds)
        bits = (len(members) - 1).bit_length()
        if many:
            self.e.take(self.e.path)
            self.e.emit(UNPACK, bits)
        self.e.stacksize = max(self.e.stacksize, len(values) + len(live) + 4, len(kinds) + bits + 2)
        self._tree(bits, members, lambda k: self.e.emit(BACK, 0, self.e.bodies[k]))

    def _drop_unbound(self, slot: int) -> None:
        """A local that came as UNBOUND has no value."""
        done = self.e.label()
        self.e.emit(LOAD_FAST, slot)
        self.e.emit(LOAD_CONST, self.e.unbound)
        self.e.emit(IS_OP, 0)
        self.e.emit(IF_FALSE, 0, done)
        self.e.emit(DELETE_FAST, slot)
        self.e.place(done)


def _bits(number: int, count: int) -> tuple[bool, ...]:
    return tuple(bool(number >> i & 1) for i in range(count - 1, -1, -1))
