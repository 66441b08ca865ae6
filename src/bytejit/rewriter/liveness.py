"""Which locals may be read later, from each instruction of a code object on."""

from __future__ import annotations

from types import CodeType

from .decoder import Instruction, Try
from .opcodes import FINAL, OPNAME, SLOT_PAIRS

FRAME_READERS = frozenset({"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "f_locals"})


def local_effects(ins: Instruction) -> tuple[int, int, int]:
    """Bit masks over slots: read, assigned, unassigned by one instruction."""
    op, arg = ins.op, ins.arg
    name = OPNAME[op]
    if name in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"):
        return 1 << arg, 0, 0
    if name in ("STORE_FAST", "MAKE_CELL"):
        return 0, 1 << arg, 0
    if name in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
        return 1 << arg, 0, 1 << arg
    if op in SLOT_PAIRS:
        one, two = 1 << (arg >> 4), 1 << (arg & 15)
        if name == "STORE_FAST_STORE_FAST":
            return 0, one | two, 0
        if name == "STORE_FAST_LOAD_FAST":
            return two & ~one, one, 0
        return one | two, 0, 0
    return 0, 0, 0


def liveness(
    code: CodeType,
    instrs: list[Instruction],
    caught: list[Try | None],
    effects: list[tuple[int, int, int]],
    cells: tuple[int, ...],
) -> list[int]:
    """Masks of the locals (no cells) that may be read from each instruction on."""
    locals_mask = (1 << code.co_nlocals) - 1
    for slot in cells:
        if slot >= 0:
            locals_mask &= ~(1 << slot)
    count = len(instrs)
    if FRAME_READERS.intersection(code.co_names):
        return [locals_mask] * count
    if "super" in code.co_names and "__class__" in code.co_freevars and code.co_argcount:
        effects = [(reads | 1, on & ~1, off & ~1) for reads, on, off in effects]  # super() reads the first argument
    live = [0] * (count + 1)
    changed = True
    while changed:
        changed = False
        for i in range(count - 1, -1, -1):
            ins = instrs[i]
            reads, on, off = effects[i]
            after = 0 if ins.op in FINAL else live[i + 1]
            if ins.target >= 0:
                after |= live[ins.target]
            now = (after & ~(on | off)) | reads
            if (handler := caught[i]) is not None:
                now |= live[handler.target]
            now &= locals_mask
            if now != live[i]:
                live[i] = now
                changed = True
    return live[:count]
