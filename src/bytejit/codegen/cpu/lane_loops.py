"""The innermost loop of a reduction: steps of several elements, with a partial result for each lane.

What is left of a row whose length is no multiple of that is one more step, of which the last lanes do nothing, where the length
is a constant: loads that are masked, and choices, are vector code too. Elements one by one would be written to the array of
partial results one by one, and the vectors that are read from it next would wait for them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bytejit.codegen.cpu.accumulation import CHAIN, accumulator
from bytejit.codegen.loops.ir import Buffer
from bytejit.codegen.loops.simplify import may_raise
from bytejit.common.dtypes import itemsize

from .expressions import ExprText
from .reductions import NestState, Reductions

WIDE = 16  # lanes: so many elements of four bytes are a vector of AVX-512, which masks loads of one and two bytes, too


class LaneLoops(Reductions):
    """The part of a kernel's printer for loops in lanes."""

    buffers: dict[str, Buffer]
    expr: ExprText

    @abstractmethod
    def body(self, n: NestState, depth: int, far: bool, lane: str = "0") -> None:
        """What is done at each element."""

    @abstractmethod
    def vectorized(self) -> None:
        """The pragma of a loop that the compiler vectorizes."""

    def lane_loops(self, n: NestState, axis: str, low: str, high: str) -> None:
        """The loop in steps of `n.lanes` elements, and one for the rest."""
        t, size, saved = self.text, self.sizes[axis], dict(self.names)
        whole = isinstance(size, int) and low == "0" and high == self.index(size)
        long = n.sums.axis == axis
        t.open("")
        t.add(f"i64 turn = {low};")
        if long:
            t.open(f"for (i64 stop = turn; turn + {n.lanes} <= {high};)")
            t.add(f"stop = {least(f'stop + {n.lanes * CHAIN}', high)};")
        if not whole or size >= n.lanes:
            t.open(f"for (; turn + {n.lanes} <= {'stop' if long else high}; turn += {n.lanes})")
            self.turn(n, axis, str(n.lanes))
            t.close()
        if long:
            self.empty(n, axis)
            t.close()
        if not whole or size % n.lanes:
            self.names.clear()
            self.names.update(saved)
            if whole and self.may_mask(n):
                self.last_turn(n, axis, size)
            else:
                t.add(f"const i64 rest = {high} - turn;")
                self.turn(n, axis, "rest")
            if n.sums.at_end:
                self.empty(n, axis)
        t.close()

    def turn(self, n: NestState, axis: str, count: str) -> None:
        """A step of `count` elements."""
        t = self.text
        self.vectorized()
        t.open(f"for (i64 lane = 0; lane < {count}; ++lane)")
        t.add(f"const i64 {axis} = turn + lane;")
        self.body(n, len(n.names), False, lane="lane")
        t.close()

    def last_turn(self, n: NestState, axis: str, size: int) -> None:
        """The step of what is left of `size` elements: whole vectors, of which the last one has lanes that do nothing."""
        t, rest = self.text, size % n.lanes
        width = min(n.lanes, -(-rest // n.sched.lanes) * n.sched.lanes)
        self.vectorized()
        t.open(f"for (i32 lane = 0; lane < {width}; ++lane)")
        t.add(f"const i64 {axis} = {size - rest} + lane;")
        t.add(f"const b8 in = lane < {rest};")
        self.last = self.expr.last = "in"
        self.body(n, len(n.names), False, lane="lane")
        self.last = self.expr.last = ""
        t.close()

    def may_mask(self, n: NestState) -> bool:
        """Whether each load and store of the innermost loop can have a mask, and nothing raises in a lane without an element."""
        inner = [x.expr for x in n.placed if x.depth == len(n.names)]
        own = [e.dtype for e in inner if e.kind == "load"] + [self.buffers[s.buffer].dtype for s in n.p.stores]
        if self.sizes[n.names[-1]] < 2 * n.sched.lanes:  # of one vector and a few bytes the bytes are faster one by one
            own += [accumulator(r, n.sums) for r in n.p.reduces]
        narrow = n.sched.lanes < WIDE and any(itemsize(dtype) < 4 for dtype in own)
        tabled = n.tabled.places or any(id(e) in n.tabled.parts for e in inner)
        plain = all(s.mode == "set" and s.mask is None for s in n.p.stores)
        return plain and not (narrow or tabled or self.expr.widened or may_raise(n.p.roots()))


def least(a: Any, b: Any) -> str:
    """The text of the smaller of two texts."""
    return f"({a} < {b} ? {a} : {b})"
