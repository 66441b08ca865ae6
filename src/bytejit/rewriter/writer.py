"""Writes the new code: the original instructions with sites among them, copies of loops, and behind them all what these need."""

from __future__ import annotations

import dis
from types import CodeType

from . import opcodes
from .assembler import Assembler
from .decoder import Instruction
from .emitter import BACK, PUSH_NULL, SWAP, Emitter
from .exit_code import ExitCode
from .flow import Flow
from .resume_points import Loop, Point
from .site_code import SiteCode

SLOT_USERS = frozenset(op for op in (*dis.haslocal, *dis.hasfree) if op < 256 and op not in opcodes.SLOT_PAIRS)


class CodeWriter:
    """The parts of the new code in their order. `cells`: of each point, the list that its site looks into."""

    def __init__(
        self, flow: Flow, places: list[tuple[int, Point]], cells: tuple[list, ...], loops: tuple[Loop, ...] = ()
    ) -> None:
        self.e = Emitter(flow, places)
        self.sites, self.exits = SiteCode(self.e, cells), ExitCode(self.e, places, loops)
        self.points, self.loops = dict(places), loops

    def write(self) -> CodeType:
        """The code object."""
        e, flow = self.e, self.e.flow
        heads = [e.label() for _ in flow.instrs]
        for ins in flow.instrs:
            i = ins.index
            e.place(heads[i])
            e.here, e.guarded = e.where[i], flow.caught[i]
            point = self.points.get(i)
            if point is not None:
                if point.site:
                    self.sites.write(i, point, flow.state(i))
                e.bodies[point.id] = e.label()
                e.place(e.bodies[point.id])
            self._original(ins, heads)
        for loop in self.loops:
            self._copy(loop, heads)
        self.sites.write_handlers()
        self.exits.write()
        ranges = {id(t): (t, heads[t.target]) for t in flow.tries}
        return Assembler(e, ranges).code()

    def _original(self, ins: Instruction, heads: list[int]) -> None:
        """An instruction as it was; of a method load, what leaves NULL and the bound method."""
        op, arg = ins.op, ins.arg
        if ins.target >= 0:
            self.e.emit(op, 0, heads[ins.target])
        elif op in opcodes.LOOP_ENDS:
            self.e.emit(op, 0, heads[arg])
        elif opcodes.is_method_load(op, arg):
            if not opcodes.NULL_ABOVE:
                plain = opcodes.ATTR if op in opcodes.METHOD_LOADS else op
                self.e.emit(plain, arg & ~1 if opcodes.ATTR_HAS_BIT else arg)
                self.e.emit(PUSH_NULL)
                self.e.emit(SWAP, 2)
            else:
                self.e.emit(op, arg & ~1)
                self.e.emit(PUSH_NULL)
        elif op in SLOT_USERS and arg >= self.e.flow.code.co_nlocals:
            self.e.emit(op, arg + self.e.shift)
        else:
            self.e.emit(op, arg)

    def _copy(self, loop: Loop, heads: list[int]) -> None:
        """The loop once more as it was, without sites. What leaves it goes on among the sites."""
        labels = {i: self.e.label() for i in loop.inside}
        leaving: dict[int, int] = {}
        for i in loop.inside:
            ins = self.e.flow.instrs[i]
            self.e.place(labels[i])
            self.e.here, self.e.guarded = self.e.where[i], self.e.flow.caught[i]
            if ins.target >= 0:
                there = labels.get(ins.target)
                self.e.emit(ins.op, 0, leaving.setdefault(ins.target, self.e.label()) if there is None else there)
            elif ins.op in SLOT_USERS and ins.arg >= self.e.flow.code.co_nlocals:
                self.e.emit(ins.op, ins.arg + self.e.shift)
            else:
                self.e.emit(ins.op, ins.arg)
            if ins.op not in opcodes.FINAL and i + 1 not in labels:
                self.e.guarded = None
                self.e.emit(BACK, 0, heads[i + 1])
        self.e.guarded = None
        for target, label in leaving.items():
            self.e.here = self.e.where[target]
            self.e.place(label)
            self.e.emit(BACK, 0, heads[target])
        self.e.bodies.update((copied, labels[i]) for i, _, copied in loop.heads)
