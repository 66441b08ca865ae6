"""Turns emitted instructions into a code object: sizes, jumps, locations, exception table, through `bytecode`."""

from __future__ import annotations

import dis
from collections.abc import Iterable
from itertools import accumulate
from types import CodeType

from bytecode import CompilerFlags, ConcreteBytecode, ConcreteInstr
from bytecode.concrete import ExceptionTableEntry
from bytecode.instr import InstrLocation

from bytejit.common.errors import CannotRewrite

from . import opcodes
from .decoder import Try
from .emitter import Emitter


class UnitRun(ConcreteInstr):
    """A run of assembled code units at one location, for `bytecode` one instruction.

    An instruction object for each of the thousands of units would make a rewrite ten times slower.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: bytes, where: InstrLocation) -> None:
        super().__init__("NOP", location=where)
        self.raw = raw

    @property
    def size(self) -> int:
        """Bytes of the run."""
        return len(self.raw)

    def assemble(self) -> bytes:
        """The bytes of the run."""
        return self.raw


class Assembler:
    """Sizes, jumps, locations and exception table of what was emitted; the result through `bytecode`."""

    def __init__(self, writer: Emitter, tries: dict[int, tuple[Try, int]]) -> None:
        self.writer, self.tries = writer, tries
        self.out, self.labels = writer.out, writer.labels

    def code(self) -> CodeType:
        args, extra, starts = self._resolve()
        new = _blank(self.writer.flow.code)
        new[:] = self._runs(args, extra)
        new.consts = self.writer.consts
        new.varnames = [*self.writer.names, *self.writer.hidden]
        new.exception_table = list(self._table(starts))
        return new.to_code(stacksize=self.writer.stacksize + 2, compute_exception_stack_depths=False)

    def _resolve(self) -> tuple[list[int], list[int], list[int]]:
        """Arguments with jumps resolved, EXTENDED_ARGs each, where each starts (code units; one more for the end)."""
        out, labels = self.out, self.labels
        args = [item[1] for item in out]
        jumps = [i for i, item in enumerate(out) if item[2] >= 0]
        extra = [0 if arg < 256 else _extended(arg) for arg in args]
        sizes = [UNITS[item[0]] + more for item, more in zip(out, extra, strict=True)]
        while True:
            starts = list(accumulate(sizes, initial=0))
            grown = False
            for i in jumps:
                distance = starts[labels[out[i][2]]] - starts[i + 1]
                if (distance < 0) != (out[i][0] in opcodes.BACKWARD) and distance:
                    raise CannotRewrite(f"{dis.opname[out[i][0]]} at {i} jumps {distance} units")
                args[i] = arg = distance if distance >= 0 else -distance
                if arg > 255:
                    more = _extended(arg) - extra[i]
                    if more > 0:
                        extra[i] += more
                        sizes[i] += more
                        grown = True
            if not grown:
                return args, extra, starts

    def _runs(self, args: list[int], extra: list[int]) -> list[UnitRun]:
        """The code as runs of one location each."""
        found, raw, here = [], bytearray(), None
        for item, arg, more in zip(self.out, args, extra, strict=True):
            op, where = item[0], item[3]
            if where is not here:
                if raw:
                    found.append(UnitRun(bytes(raw), here))
                raw, here = bytearray(), where
            while more:
                raw += bytes((opcodes.EXTENDED_ARG, arg >> 8 * more & 255))
                more -= 1
            raw += PAIRS[op << 8 | arg & 255]
        found.append(UnitRun(bytes(raw), here))
        return found

    def _table(self, starts: list[int]) -> Iterable[ExceptionTableEntry]:
        """Returns a row for each run of instructions in the same range."""
        begin, current = 0, None
        for i in range(len(self.out) + 1):
            guarded = self.out[i][4] if i < len(self.out) else None
            if guarded is current:
                continue
            if current is not None:
                if isinstance(current, Try):
                    label, depth, lasti = self.tries[id(current)][1], current.depth, current.lasti
                else:
                    (label, depth), lasti = current, False
                yield ExceptionTableEntry(starts[begin], starts[i] - 1, starts[self.labels[label]], depth, lasti)
            begin, current = i, guarded


def _blank(code: CodeType) -> ConcreteBytecode:
    """An empty ConcreteBytecode with all else as the code has it (`from_code` would decode every instruction)."""
    new = ConcreteBytecode()
    new.name, new.qualname, new.filename = code.co_name, code.co_qualname, code.co_filename
    new.flags, new.first_lineno = CompilerFlags(code.co_flags), code.co_firstlineno
    new.argcount, new.posonlyargcount = code.co_argcount, code.co_posonlyargcount
    new.kwonlyargcount = code.co_kwonlyargcount
    new.names, new.freevars, new.cellvars = list(code.co_names), list(code.co_freevars), list(code.co_cellvars)
    return new


def _extended(arg: int) -> int:
    return 0 if arg < 256 else 1 if arg < 65536 else 2 if arg < 1 << 24 else 3


class _Units(dict):
    """Code units of an operation, its inline caches counted, by opcode. Owner: this module; at most 256 entries."""

    def __missing__(self, op: int) -> int:
        name = dis.opname[op]
        probe = ConcreteInstr(name, 0) if opcodes.has_argument(op) else ConcreteInstr(name)
        self[op] = units = 1 + probe.use_cache_opcodes()
        return units


class _Pairs(dict):
    """Assembled form by opcode << 8 | argument, caches zeroed. Owner: this module; at most 65,536 entries."""

    def __missing__(self, key: int) -> bytes:
        self[key] = raw = bytes((key >> 8, key & 255)) + bytes(2 * (UNITS[key >> 8] - 1))
        return raw


UNITS, PAIRS = _Units(), _Pairs()
