"""Emission of the new code: instructions with labels, locations and ranges of exceptions; hidden locals and constants."""

from __future__ import annotations

import operator

from bytecode.instr import InstrLocation

from . import opcodes
from .decoder import Try
from .flow import NULL, Flow
from .resume_points import Point

# where exceptions of an instruction go: as in the original code; or (label, depth of the stack) of an added handler
Range = Try | tuple[int, int] | None


class Unbound:
    """Stands for the value of a local that has none, in arguments of dispatchers and in exits."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNBOUND"

    def __reduce__(self) -> str:
        return "UNBOUND"


UNBOUND = Unbound()


def _op(*names: str) -> int:
    """The opcode of the first name that this Python has."""
    return next((opcodes.OPMAP[name] for name in names if name in opcodes.OPMAP), -1)


LOAD_FAST, STORE_FAST, DELETE_FAST = _op("LOAD_FAST"), _op("STORE_FAST"), _op("DELETE_FAST")
LOAD_CLEAR, LOAD_CHECKED = _op("LOAD_FAST_AND_CLEAR"), _op("LOAD_FAST_CHECK", "LOAD_FAST")
LOAD_CELL = _op("LOAD_CLOSURE", "LOAD_FAST")
LOAD_CONST, PUSH_NULL, POP_TOP = _op("LOAD_CONST"), _op("PUSH_NULL"), _op("POP_TOP")
SWAP, COPY, UNPACK, IS_OP = _op("SWAP"), _op("COPY"), _op("UNPACK_SEQUENCE"), _op("IS_OP")
CALL, PRECALL, TO_BOOL = _op("CALL"), _op("PRECALL"), _op("TO_BOOL")
IF_FALSE = _op("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
IF_TRUE = _op("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
IF_NOT_NONE = _op("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
POP_EXCEPT, NOP, CHECK_EXC_MATCH = _op("POP_EXCEPT"), _op("NOP"), _op("CHECK_EXC_MATCH")
FORWARD, RERAISE, RETURN = _op("JUMP_FORWARD"), _op("RERAISE"), _op("RETURN_VALUE")
# no check for signals on the way: an exception raised there would miss the handlers of the point jumped to
BACK = _op("JUMP_BACKWARD_NO_INTERRUPT")
SUBSCR, SUBSCR_ARG = (_op("BINARY_SUBSCR"), 0) if _op("BINARY_SUBSCR") >= 0 else (_op("BINARY_OP"), 26)


CALLEE = operator.attrgetter("__traceback__.tb_next")  # what an exception passed through below the frame that sees it


def handler_range(label: int, depth: int) -> Range:
    """A range of its own: two are never the same, so each is a row of the exception table."""
    return (label, depth)


class Emitter:
    """The new code as it grows: instructions, labels, constants, hidden locals.

    `out`: (opcode, argument, label that a jump goes to or -1, location, range of exceptions). `here` and `guarded` are the
    location and range of what is emitted next.
    """

    def __init__(self, flow: Flow, places: list[tuple[int, Point]]) -> None:
        code = flow.code
        self.flow = flow
        self.consts: list = list(code.co_consts)
        self.hidden: list[str] = []
        self.names = code.co_varnames
        self.out: list[tuple[int, int, int, InstrLocation | None, Range]] = []
        self.labels: list[int] = []
        self.here: InstrLocation | None = None
        self.guarded: Range = None
        # hidden locals are appended to the locals, so cells move up: how many there will be must be known first
        depth = max((p.depth for _, p in places), default=0)
        self.slots = [self.hide(f".s{i}") for i in range(depth)]
        self.path, self.raised, self.before = self.hide(".k"), self.hide(".e"), self.hide(".x")
        self.shift = len(self.hidden)
        self.cell_slots = [self.moved(slot) for slot in flow.cells]
        self.unbound = self.const(UNBOUND)
        self.zero, self.none = self.const(0), self.const(None)
        self.too_deep, self.callee = self.const(RecursionError), self.const(CALLEE)
        self.bodies: dict[int, int] = {}  # id of a point, or of an exit into a loop's copy -> its label
        self.stacksize = code.co_stacksize
        self.where = self._locations()
        self.dispatch, self.finish = self.label(), self.label()  # of the exit dispatch: of (flat, k), and of any exit

    def hide(self, name: str) -> int:
        self.hidden.append(name)
        return len(self.names) + len(self.hidden) - 1

    def moved(self, slot: int) -> int:
        return slot + self.shift if slot >= self.flow.code.co_nlocals else slot

    def const(self, value: object) -> int:
        self.consts.append(value)
        return len(self.consts) - 1

    def _locations(self) -> list[InstrLocation]:
        made: dict[tuple, InstrLocation] = {}
        positions = list(self.flow.code.co_positions())  # fewer than units where the line table ends early
        found = []
        for ins in self.flow.instrs:
            unit = ins.offset >> 1
            position = positions[unit] if unit < len(positions) else NOWHERE
            where = made.get(position)
            if where is None:
                where = made[position] = _location(*position)
            found.append(where)
        return found

    def label(self) -> int:
        self.labels.append(-1)
        return len(self.labels) - 1

    def place(self, label: int) -> None:
        self.labels[label] = len(self.out)

    def emit(self, op: int, arg: int = 0, label: int = -1) -> None:
        self.out.append((op, arg, label, self.here, self.guarded))

    def clear(self, slot: int) -> None:
        """Leave a slot without a value, whether it has one or not."""
        self.emit(PUSH_NULL)
        self.emit(STORE_FAST, slot)

    def take(self, slot: int) -> None:
        """Push a hidden local and leave it empty: `locals()` shows none of them."""
        if LOAD_CLEAR >= 0:
            self.emit(LOAD_CLEAR, slot)
        else:
            self.emit(LOAD_FAST, slot)
            self.emit(DELETE_FAST, slot)

    def unpack_exit(self, onward: int) -> None:
        """Leave (value) or, jumping, (flat, k) of an exit on the stack."""
        self.emit(UNPACK, 2)
        self.emit(SWAP, 2)
        self.emit(COPY, 1)
        self.emit(IF_NOT_NONE, 0, onward)
        self.emit(POP_TOP)

    def push_stack(self, kinds: bytes) -> None:
        for slot, kind in enumerate(kinds):
            if kind == NULL:
                self.emit(PUSH_NULL)
            else:
                self.take(self.slots[slot])


NOWHERE = (None, None, None, None)


def _location(line: int | None, end: int | None, column: int | None, stop: int | None) -> InstrLocation:
    """A location as `bytecode` takes it: code generators write lines before the first one, and ends before starts.

    For columns from 128 to 255 of one line it may write the form of bytes below 128: the table then covers more than the code,
    and CPython, which makes an array of it for tracers and profilers, writes past its end. Such locations have no columns.
    """
    if column is not None and stop is not None and any(128 <= c < 256 for c in (column, stop)):
        end = column = stop = None
    try:
        return InstrLocation(line, end, column, stop)
    except (ValueError, TypeError):
        return InstrLocation(line if line is not None and line > 0 else None, None, None, None)
