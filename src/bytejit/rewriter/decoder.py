"""Code objects as instructions and ranges of exception handlers: the one place where bytecode and its tables are read."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType

from bytejit.common.light_dataclass import light_dataclass

from .opcodes import ATTR, ATTR_HAS_BIT, BACKWARD, EXTENDED_ARG, GLOBAL, JUMPS, LOOP_ENDS, OPMAP, OPNAME, SLOT_PAIRS, SUPER


@light_dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the original code, EXTENDED_ARG and CACHE folded in.

    ``start`` is where its EXTENDED_ARG begins (equal to ``offset`` without one), ``target`` the index jumped to. Of one of
    LOOP_ENDS ``arg`` is the index that it names.
    """

    index: int
    start: int
    offset: int
    op: int
    arg: int
    target: int

    def __repr__(self) -> str:
        to = f" -> #{self.target}" if self.target >= 0 else ""
        return f"#{self.index} {self.offset}: {OPNAME[self.op]} {self.arg}{to}"


@light_dataclass(frozen=True, slots=True)
class Try:
    """Instructions [start, stop) whose exceptions go to ``target`` (indices), the stack cut down to ``depth``."""

    start: int
    stop: int
    target: int
    depth: int
    lasti: bool

    def __repr__(self) -> str:
        return f"try #{self.start}..#{self.stop} -> #{self.target} depth {self.depth}{' lasti' * self.lasti}"


def decode(code: CodeType) -> tuple[list[Instruction], dict[int, int]]:
    """Instructions of a code object, and index by byte offset (of the operation and of its EXTENDED_ARGs)."""
    raw = code.co_code
    instrs: list[Instruction] = []
    at: dict[int, int] = {}
    jumps: list[tuple[int, int]] = []
    offset = start = arg = 0
    size = len(raw)
    while offset < size:
        op = raw[offset]
        arg = arg << 8 | raw[offset + 1]
        if op == EXTENDED_ARG:
            at[offset] = len(instrs)
            offset += 2
            continue
        index, after = len(instrs), offset + 2
        while after < size and raw[after] == 0:  # CACHE
            after += 2
        at[offset] = index
        if op in JUMPS:
            jumps.append((index, after - 2 * arg if op in BACKWARD else after + 2 * arg))
        instrs.append(Instruction(index, start, offset, op, arg, -1))
        offset, start, arg = after, after, 0
    for index, target in jumps:
        ins = instrs[index]
        to = (at[target], -1) if ins.op in LOOP_ENDS else (ins.arg, at[target])
        instrs[index] = Instruction(ins.index, ins.start, ins.offset, ins.op, *to)
    return instrs, at


def try_ranges(code: CodeType, at: dict[int, int]) -> list[Try]:
    """The exception table over instruction indices."""
    if not code.co_exceptiontable:
        return []
    ordered = sorted(at.items())

    def index(offset: int) -> int:
        known = at.get(offset)
        if known is None:  # inside an instruction's caches, or the code's end
            known = next((i for o, i in ordered if o >= offset), len(set(at.values())))
        return known

    return [
        Try(index(2 * start), index(2 * (start + length)), at[2 * target], flags >> 1, bool(flags & 1))
        for start, length, target, flags in table_rows(code.co_exceptiontable)
    ]


def table_rows(table: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Rows of an exception table: start, length, target in code units, depth * 2 + lasti.

    Source: Objects/exception_handling_notes.txt in CPython (numbers of 6 bits a byte, bit 6 set on all but the last).
    """
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    for i in range(0, len(numbers), 4):
        start, length, target, flags = numbers[i : i + 4]
        yield start, length, target, flags


CONSTANTS, NAMES, COMPARISONS = frozenset(dis.hasconst), frozenset(dis.hasname), frozenset(dis.hascompare)
SLOTS = frozenset(dis.haslocal) | frozenset(dis.hasfree)
# how far the index of a name stands above the bits that say how it is loaded
NAME_SHIFTS = {GLOBAL: 1, SUPER: 2, ATTR: int(ATTR_HAS_BIT)}
COMPARE_SHIFT = 5 if "CALL_KW" in OPMAP else 4 if "RETURN_CONST" in OPMAP else 0  # since 3.13, 3.12


def slot_names(code: CodeType) -> tuple[str, ...]:
    """The variable of each slot of the frame: locals, then cells that are no arguments, then free variables."""
    own = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return (*code.co_varnames, *own, *code.co_freevars)


def operand(code: CodeType, ins: Instruction, slots: tuple[str, ...]) -> object:
    """Returns what the argument of an instruction stands for: a constant, a name or two, the symbol of a comparison; else the
    number.

    slots: `slot_names(code)`.
    """
    op, arg = ins.op, ins.arg
    if op in CONSTANTS:
        return code.co_consts[arg]
    if op in NAMES:
        return code.co_names[arg >> NAME_SHIFTS.get(op, 0)]
    if op in SLOT_PAIRS:
        return slots[arg >> 4], slots[arg & 15]
    if op in SLOTS:
        return slots[arg]
    return dis.cmp_op[arg >> COMPARE_SHIFT] if op in COMPARISONS else arg
