"""The code of a site: the check whether it is armed, the call of its dispatcher, and what catches what that raises."""

from __future__ import annotations

from bytecode.instr import InstrLocation

from bytejit.common.light_dataclass import light_dataclass

from . import opcodes
from .emitter import (
    BACK,
    CALL,
    CHECK_EXC_MATCH,
    FORWARD,
    IF_FALSE,
    IF_NOT_NONE,
    LOAD_CELL,
    LOAD_CHECKED,
    LOAD_CONST,
    LOAD_FAST,
    NOP,
    POP_EXCEPT,
    POP_TOP,
    PRECALL,
    PUSH_NULL,
    RERAISE,
    RETURN,
    STORE_FAST,
    SUBSCR,
    SUBSCR_ARG,
    SWAP,
    TO_BOOL,
    Emitter,
    Range,
    handler_range,
)
from .flow import MAYBE, NULL, FrameState
from .resume_points import Point


@light_dataclass(frozen=True)
class Missing:
    """The handler of a load of a local that has no value: UNBOUND is pushed in its place, and the code goes on at `done`."""

    label: int
    outer: Range
    here: InstrLocation | None
    done: int


@light_dataclass(frozen=True)
class RaisedHandler:
    """The handler of a dispatcher's call. `state`: of the frame there; `resume`: where the original code may go on, or -1."""

    label: int
    outer: Range
    here: InstrLocation | None
    state: FrameState
    resume: int


class SiteCode:
    """Writes sites, and their handlers behind all else."""

    def __init__(self, e: Emitter, cells: tuple[list, ...]) -> None:
        self.e, self.cells = e, cells
        self.handlers: list[Missing | RaisedHandler] = []

    def write(self, i: int, point: Point, state: FrameState) -> None:
        """The check, and the call of the dispatcher. The stack is empty while that runs."""
        resume, cell = self.e.label(), self.e.const(self.cells[point.id])
        self.e.emit(LOAD_CONST, cell)
        if TO_BOOL >= 0:
            self.e.emit(TO_BOOL)
        self.e.emit(IF_FALSE, 0, resume)
        caught, own = self.e.flow.site_range(i), self.e.guarded
        self.e.guarded = caught
        # the range of the original handlers wants `depth` values on the stack, which are in hidden locals now
        fix, bare = None, not point.depth and not point.handlers
        if bare or caught is not None and caught.depth:
            fix = self.e.label()
            self.e.guarded = handler_range(fix, 0)
        for slot in range(point.depth - 1, -1, -1):
            self.e.emit(STORE_FAST, self.e.slots[slot])
        if point.handlers:
            self.e.emit(LOAD_FAST, self.e.slots[self.e.flow.saved_exception(point.handlers)])
            self.e.emit(STORE_FAST, self.e.before)
        if not opcodes.NULL_ABOVE:
            self.e.emit(PUSH_NULL)
        self.e.emit(LOAD_CONST, cell)
        self.e.emit(LOAD_CONST, self.e.zero)
        self.e.emit(SUBSCR, SUBSCR_ARG)
        if opcodes.NULL_ABOVE:
            self.e.emit(PUSH_NULL)
        count = self._arguments(point, state, keep=fix is not None)
        if PRECALL >= 0:
            self.e.emit(PRECALL, count)
        self.e.emit(CALL, count)
        self.e.stacksize = max(self.e.stacksize, count + 4)
        if fix is not None:
            for slot in range(point.depth):
                if state.stack[slot] != NULL:
                    self.e.clear(self.e.slots[slot])
            self.handlers.append(RaisedHandler(fix, caught, self.e.here, state, resume if bare else -1))
        # 3.13 looks up an exception that leaves a callee one unit before the call: this jump may be what stands there
        self.e.guarded = own
        if point.handlers:
            self._leave_handlers()
        self.e.emit(FORWARD, 0, self.e.dispatch if point.handlers else self.e.finish)
        self.e.place(resume)

    def _leave_handlers(self) -> None:
        """Return from within handlers: the exception that was being handled before them is so again."""
        onward = self.e.label()
        self.e.unpack_exit(onward)
        self.e.take(self.e.before)
        self.e.emit(POP_EXCEPT)
        self.e.emit(RETURN)
        self.e.place(onward)
        self.e.clear(self.e.before)

    def _arguments(self, point: Point, state: FrameState, keep: bool) -> int:
        """Push what the dispatcher gets; how many these are. keep: the stack's values stay in their hidden locals."""
        pushed = 2
        for slot, kind in enumerate(state.stack):
            if kind == NULL:
                continue
            if kind == MAYBE:
                self._load_maybe(self.e.slots[slot], pushed)
                if not keep:
                    self.e.clear(self.e.slots[slot])
            elif keep:
                self.e.emit(LOAD_FAST, self.e.slots[slot])
            else:
                self.e.take(self.e.slots[slot])
            pushed += 1
        for name in point.live:
            slot = self.e.names.index(name)
            if name in point.bound:
                self.e.emit(LOAD_FAST, slot)
            else:
                self._load_maybe(slot, pushed)
            pushed += 1
        for slot in self.e.cell_slots:
            if slot < 0:
                self.e.emit(LOAD_CONST, self.e.none)
            else:
                self.e.emit(LOAD_CELL, slot)
        return pushed - 2 + len(self.e.cell_slots)

    def _load_maybe(self, slot: int, depth: int) -> None:
        """Push a local or UNBOUND. No opcode tests for a missing value: a handler catches the UnboundLocalError."""
        missing, done = self.e.label(), self.e.label()
        outer, self.e.guarded = self.e.guarded, handler_range(missing, depth)
        self.e.emit(LOAD_CHECKED, slot)
        self.e.guarded = outer
        self.e.emit(NOP)  # 3.13 looks up what the dispatcher raises one unit before the call: not in this load's range
        self.e.place(done)
        self.handlers.append(Missing(missing, outer, self.e.here, done))

    def write_handlers(self) -> None:
        """Handlers of the sites' own ranges, kept out of the way of the original instructions."""
        for part in self.handlers:
            self.e.here = part.here
            self.e.place(part.label)
            if isinstance(part, RaisedHandler):
                self._raised(part.state, part.resume, part.outer)
            else:
                self.e.guarded = part.outer
                self.e.emit(POP_TOP)
                self.e.emit(LOAD_CONST, self.e.unbound)
                self.e.emit(BACK, 0, part.done)
        # a line, though none of the user's: code that a signal or the collector runs here looks at the frame's line
        self.e.here, self.e.guarded = InstrLocation(self.e.flow.code.co_firstlineno, None, None, None), None

    def _raised(self, state: FrameState, resume: int, outer: Range) -> None:
        """The dispatcher raised: put the stack back, raise where the handlers see it.

        Where there is no stack (at a function's start): a RecursionError whose traceback ends in this frame is that of
        the call, for which no frame was left. The original code goes on at `resume`: it may need none.
        """
        self.e.guarded = None
        self.e.emit(STORE_FAST, self.e.raised)
        if state.handlers:
            self.e.clear(self.e.before)
        self.e.push_stack(state.stack)
        if resume >= 0:
            raised = self.e.label()
            self.e.emit(LOAD_FAST, self.e.raised)
            self.e.emit(LOAD_CONST, self.e.too_deep)
            self.e.emit(CHECK_EXC_MATCH)
            self.e.emit(SWAP, 2)
            self.e.emit(POP_TOP)
            self.e.emit(IF_FALSE, 0, raised)
            self._call_with_raised(self.e.callee)
            self.e.emit(IF_NOT_NONE, 0, raised)
            self.e.clear(self.e.raised)
            self.e.emit(BACK, 0, resume)
            self.e.place(raised)
        self.e.take(self.e.raised)
        self.e.guarded = outer
        self.e.emit(RERAISE, 0)

    def _call_with_raised(self, function: int) -> None:
        """A constant, which needs no frame, called with the exception."""
        if not opcodes.NULL_ABOVE:
            self.e.emit(PUSH_NULL)
        self.e.emit(LOAD_CONST, function)
        if opcodes.NULL_ABOVE:
            self.e.emit(PUSH_NULL)
        self.e.emit(LOAD_FAST, self.e.raised)
        if PRECALL >= 0:
            self.e.emit(PRECALL, 1)
        self.e.emit(CALL, 1)
