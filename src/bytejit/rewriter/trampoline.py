"""Rewrites a function's code once: a site at each block's head, and a way back into every resume point.

The layout of a rewritten code object:

    original instructions, where a site stands before the point's instruction:
        LOAD_CONST cell; jump if empty to the instruction       idle: this is all that runs, 4 to 9 ns
        stack values into hidden locals; cell[0](*stack values, *locals, *cells); jump to the exit dispatch
    exit dispatch: unpack (value, k); k is None: return value; else by k's bits down a tree of jumps to a *restorer*,
        which unpacks the flat values into locals and stack; by more bits to the point's instruction

A restorer serves all points that share stack layout and live locals. No torch. See docs/architecture.md, part 1.
"""

from __future__ import annotations

import dis
import operator
from dataclasses import dataclass
from types import CodeType

from bytecode.instr import InstrLocation

from . import blocks
from .assembler import Assembler
from .blocks import CannotRewrite, Flow, Ins, State, Try
from .resume_points import Loop, Point, find_loops, find_points

__all__ = ["UNBOUND", "CannotRewrite", "Point", "Rewritten", "follows_lines", "in_loop", "rewrite", "successor_sites"]


class Unbound:
    """Stands for the value of a local that has none, in arguments of dispatchers and in exits."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNBOUND"

    def __reduce__(self) -> str:
        return "UNBOUND"


UNBOUND = Unbound()


@dataclass(frozen=True)
class Rewritten:
    """A code object with sites. ``cells[k]`` is the list that point k's site tests: [] idle, [dispatcher] active."""

    code: CodeType
    original: CodeType
    points: tuple[Point, ...]
    cells: tuple[list, ...]
    by_offset: dict[int, int]
    flow: Flow
    loops: tuple[Loop, ...] = ()

    @property
    def sites(self) -> tuple[Point, ...]:
        """The points where a region may start."""
        return tuple(point for point in self.points if point.site)

    @property
    def start(self) -> int:
        """Id of the site at the function's start."""
        return self.by_offset[self.flow.instrs[self.flow.first].start]

    def __repr__(self) -> str:
        return f"rewritten {self.original.co_qualname}: {len(self.points)} points, {len(self.sites)} sites"


def rewrite(code: CodeType, every_point: bool = False) -> Rewritten:
    """The same function with sites and resume points. ``every_point`` (tests) makes each point a site.

    Raises: CannotRewrite (not a function's code, one that `follows_lines`, or a stack that the analysis cannot follow).
    """
    if follows_lines(code):
        raise CannotRewrite(f"{code.co_qualname} calls {follows_lines(code)}: what follows lines would be shown the compiler's")
    flow = blocks.analyse(code)
    places = find_points(flow, every_point)
    points = tuple(point for _, point in places)
    cells = tuple([] for _ in points)
    by_offset = {}
    for index, point in places:
        by_offset[flow.instrs[index].start] = by_offset[flow.instrs[index].offset] = point.id
    loops = find_loops(flow, places)
    new = Writer(flow, places, cells, loops).write()
    return Rewritten(new, code, points, cells, by_offset, flow, loops)


def follows_lines(code: CodeType) -> str:
    """The name by which a code has its own lines followed (sys.settrace, and what C modules call so; sys.monitoring's
    set_events and set_local_events); "" when it does not.

    From that call on each site of the function that runs, and of its callers, would show the follower calls of the compiler's.
    """
    return next((name for name in code.co_names if name.startswith(("settrace", "set_events", "set_local_events"))), "")


def successor_sites(rewritten: Rewritten, point_id: int) -> tuple[int, ...]:
    """Ids of the sites that can be the first reached after resuming at a point, in the order of the code.

    The point's own site counts only when a loop leads back to it. Exceptions' handlers count as reachable.
    """
    flow = rewritten.flow
    at = {flow.instrs[i].start: i for i in range(len(flow.instrs))}
    sites = {at[p.offset]: p.id for p in rewritten.points if p.site}
    found, seen = set(), set()
    work = list(flow.next(at[rewritten.points[point_id].offset]))
    while work:
        i = work.pop()
        if i in sites:
            found.add(sites[i])
        elif i not in seen:
            seen.add(i)
            work.extend(flow.next(i))
    return tuple(sorted(found))


def in_loop(rewritten: Rewritten, point_id: int) -> bool:
    """Whether the code can come back to a point from there, other than by a new call."""
    flow = rewritten.flow
    at = next(i for i, ins in enumerate(flow.instrs) if ins.start == rewritten.points[point_id].offset)
    work, seen = list(flow.next(at)), set()
    while work:
        i = work.pop()
        if i == at:
            return True
        if i not in seen:
            seen.add(i)
            work.extend(flow.next(i))
    return False


def _op(*names: str) -> int:
    """The opcode of the first name that this Python has."""
    return next((blocks.OPMAP[name] for name in names if name in blocks.OPMAP), -1)


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


CALLEE = operator.attrgetter("__traceback__.tb_next")     # what an exception passed through below the frame that sees it


class Writer:
    """Emits the new code: a list of (opcode, argument or label, location, exception range), then bytes."""

    def __init__(self, flow: Flow, places: list[tuple[int, Point]], cells: tuple[list, ...],
                 loops: tuple[Loop, ...] = ()) -> None:
        code = flow.code
        self.loops = loops
        self.flow, self.places, self.cells = flow, places, cells
        self.consts: list = list(code.co_consts)
        self.hidden: list[str] = []
        self.names = code.co_varnames
        self.out: list[tuple[int, int, int, InstrLocation, object]] = []  # op, arg, label, location, range
        self.labels: list[int] = []
        self.ranges: dict[object, Try] = {}
        # hidden locals are appended to the locals, so cells move up: how many there will be must be known first
        depth = max((p.depth for p in (p for _, p in places)), default=0)
        self.slots = [self._hide(f".s{i}") for i in range(depth)]
        self.path, self.raised, self.before = self._hide(".k"), self._hide(".e"), self._hide(".x")
        self.shift = len(self.hidden)
        self.cell_slots = [self._moved(slot) for slot in flow.cells]
        self.unbound = self._const(UNBOUND)
        self.zero, self.none = self._const(0), self._const(None)
        self.too_deep, self.callee = self._const(RecursionError), self._const(CALLEE)
        self.bodies: dict[int, int] = {}
        self.stacksize = code.co_stacksize
        self.late: list[tuple] = []
        self.where = self._locations()

    # -- small parts

    def _hide(self, name: str) -> int:
        self.hidden.append(name)
        return len(self.names) + len(self.hidden) - 1

    def _moved(self, slot: int) -> int:
        return slot + self.shift if slot >= self.flow.code.co_nlocals else slot

    def _const(self, value: object) -> int:
        self.consts.append(value)
        return len(self.consts) - 1

    def _locations(self) -> list[InstrLocation]:
        made: dict[tuple, InstrLocation] = {}
        positions = list(self.flow.code.co_positions())     # fewer than units where the line table ends early
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

    # -- the whole

    def write(self) -> CodeType:
        self.here, self.guarded = None, None
        flow, points = self.flow, dict(self.places)
        heads = [self.label() for _ in flow.instrs]
        self.dispatch, self.finish = self.label(), self.label()
        for ins in flow.instrs:
            i = ins.index
            self.place(heads[i])
            self.here, self.guarded = self.where[i], flow.caught[i]
            point = points.get(i)
            if point is not None:
                if point.site:
                    self._site(i, point, flow.states[i])
                self.bodies[point.id] = self.label()
                self.place(self.bodies[point.id])
            self._original(ins, heads)
        for loop in self.loops:
            self._copy(loop, heads)
        self._late_parts()
        self._tail()
        ranges = {id(t): (t, heads[t.target]) for t in flow.tries}
        return Assembler(self, ranges).code()

    def _original(self, ins: Ins, heads: list[int]) -> None:
        op, arg = ins.op, ins.arg
        if ins.target >= 0:
            self.emit(op, 0, heads[ins.target])
        elif op in blocks.LOOP_ENDS:
            self.emit(op, 0, heads[arg])
        elif blocks.is_method_load(op, arg):
            if not blocks.NULL_ABOVE:
                plain = blocks.ATTR if op in blocks.METHOD_LOADS else op
                self.emit(plain, arg & ~1 if blocks.ATTR_HAS_BIT else arg)
                self.emit(PUSH_NULL)
                self.emit(SWAP, 2)
            else:
                self.emit(op, arg & ~1)
                self.emit(PUSH_NULL)
        elif op in SLOT_USERS and arg >= self.flow.code.co_nlocals:
            self.emit(op, arg + self.shift)
        else:
            self.emit(op, arg)

    def _copy(self, loop: Loop, heads: list[int]) -> None:
        """The loop once more as it was, without sites. What leaves it goes on among the sites."""
        labels = {i: self.label() for i in loop.inside}
        leaving: dict[int, int] = {}
        for i in loop.inside:
            ins = self.flow.instrs[i]
            self.place(labels[i])
            self.here, self.guarded = self.where[i], self.flow.caught[i]
            if ins.target >= 0:
                there = labels.get(ins.target)
                self.emit(ins.op, 0, leaving.setdefault(ins.target, self.label()) if there is None else there)
            elif ins.op in SLOT_USERS and ins.arg >= self.flow.code.co_nlocals:
                self.emit(ins.op, ins.arg + self.shift)
            else:
                self.emit(ins.op, ins.arg)
            if ins.op not in blocks.FINAL and i + 1 not in labels:
                self.guarded = None
                self.emit(BACK, 0, heads[i + 1])
        self.guarded = None
        for target, label in leaving.items():
            self.here = self.where[target]
            self.place(label)
            self.emit(BACK, 0, heads[target])
        self.bodies.update((copied, labels[i]) for i, _, copied in loop.heads)

    def _site(self, i: int, point: Point, state: State) -> None:
        """The check, and the call of the dispatcher. The stack is empty while that runs."""
        resume, cell = self.label(), self._const(self.cells[point.id])
        self.emit(LOAD_CONST, cell)
        if TO_BOOL >= 0:
            self.emit(TO_BOOL)
        self.emit(IF_FALSE, 0, resume)
        caught, own = self.flow.site_range(i), self.guarded
        self.guarded = caught
        # the range of the original handlers wants `depth` values on the stack, which are in hidden locals now
        fix, bare = None, not point.depth and not point.handlers
        if bare or caught is not None and caught.depth:
            fix = self.label()
            self.guarded = self._range(fix, 0)
        for slot in range(point.depth - 1, -1, -1):
            self.emit(STORE_FAST, self.slots[slot])
        if point.handlers:
            self.emit(LOAD_FAST, self.slots[self.flow.saved_exception(point.handlers)])
            self.emit(STORE_FAST, self.before)
        if not blocks.NULL_ABOVE:
            self.emit(PUSH_NULL)
        self.emit(LOAD_CONST, cell)
        self.emit(LOAD_CONST, self.zero)
        self.emit(SUBSCR, SUBSCR_ARG)
        if blocks.NULL_ABOVE:
            self.emit(PUSH_NULL)
        count = self._arguments(point, state, keep=fix is not None)
        if PRECALL >= 0:
            self.emit(PRECALL, count)
        self.emit(CALL, count)
        self.stacksize = max(self.stacksize, count + 4)
        if fix is not None:
            for slot in range(point.depth):
                if state.stack[slot] != blocks.NULL:
                    self.clear(self.slots[slot])
            self.late.append((fix, (state, resume if bare else -1), caught, self.here))
        # 3.13 looks up an exception that leaves a callee one unit before the call: this jump may be what stands there
        self.guarded = own
        if point.handlers:
            self._leave_handlers()
        self.emit(FORWARD, 0, self.dispatch if point.handlers else self.finish)
        self.place(resume)

    def _leave_handlers(self) -> None:
        """Return from within handlers: the exception that was being handled before them is so again."""
        onward = self.label()
        self._unpack_answer(onward)
        self.take(self.before)
        self.emit(POP_EXCEPT)
        self.emit(RETURN)
        self.place(onward)
        self.clear(self.before)

    def _unpack_answer(self, onward: int) -> None:
        """Leave (value) or, jumping, (flat, k) of an answer on the stack."""
        self.emit(UNPACK, 2)
        self.emit(SWAP, 2)
        self.emit(COPY, 1)
        self.emit(IF_NOT_NONE, 0, onward)
        self.emit(POP_TOP)

    def _arguments(self, point: Point, state: State, keep: bool) -> int:
        pushed = 2
        for slot, kind in enumerate(state.stack):
            if kind == blocks.NULL:
                continue
            if kind == blocks.MAYBE:
                self._load_maybe(self.slots[slot], pushed)
                if not keep:
                    self.clear(self.slots[slot])
            elif keep:
                self.emit(LOAD_FAST, self.slots[slot])
            else:
                self.take(self.slots[slot])
            pushed += 1
        for name in point.live:
            slot = self.names.index(name)
            if name in point.bound:
                self.emit(LOAD_FAST, slot)
            else:
                self._load_maybe(slot, pushed)
            pushed += 1
        for slot in self.cell_slots:
            if slot < 0:
                self.emit(LOAD_CONST, self.none)
            else:
                self.emit(LOAD_CELL, slot)
        return pushed - 2 + len(self.cell_slots)

    def _load_maybe(self, slot: int, depth: int) -> None:
        """Push a local or UNBOUND. No opcode tests for a missing value: a handler catches the UnboundLocalError."""
        missing, done = self.label(), self.label()
        outer, self.guarded = self.guarded, self._range(missing, depth)
        self.emit(LOAD_CHECKED, slot)
        self.guarded = outer
        self.emit(NOP)  # 3.13 looks up what the dispatcher raises one unit before the call: not in this load's range
        self.place(done)
        self.late.append((missing, done, outer, self.here))

    def _range(self, label: int, depth: int) -> tuple[int, int]:
        return (label, depth)

    def _late_parts(self) -> None:
        """Handlers of the sites' own ranges, kept out of the way of the original instructions."""
        for label, what, outer, here in self.late:  # what: (State, resume) of a site, or where a load goes on
            self.here = here
            self.place(label)
            if isinstance(what, tuple):
                self._raised(*what, outer)
            else:
                self.guarded = outer
                self.emit(POP_TOP)
                self.emit(LOAD_CONST, self.unbound)
                self.emit(BACK, 0, what)
        # a line, though none of the user's: code that a signal or the collector runs here looks at the frame's line
        self.here, self.guarded = InstrLocation(self.flow.code.co_firstlineno, None, None, None), None

    def _raised(self, state: State, resume: int, outer: Try | None) -> None:
        """The dispatcher raised: put the stack back, raise where the handlers see it.

        Where there is no stack (at a function's start): a RecursionError whose traceback ends in this frame is that of
        the call, for which no frame was left. The original code goes on at `resume`: it may need none.
        """
        self.guarded = None
        self.emit(STORE_FAST, self.raised)
        if state.handlers:
            self.clear(self.before)
        self._push_stack(state.stack)
        if resume >= 0:
            raised = self.label()
            self.emit(LOAD_FAST, self.raised)
            self.emit(LOAD_CONST, self.too_deep)
            self.emit(CHECK_EXC_MATCH)
            self.emit(SWAP, 2)
            self.emit(POP_TOP)
            self.emit(IF_FALSE, 0, raised)
            self._call_with_raised(self.callee)
            self.emit(IF_NOT_NONE, 0, raised)
            self.clear(self.raised)
            self.emit(BACK, 0, resume)
            self.place(raised)
        self.take(self.raised)
        self.guarded = outer
        self.emit(RERAISE, 0)

    def _call_with_raised(self, function: int) -> None:
        """A constant, which needs no frame, called with the exception."""
        if not blocks.NULL_ABOVE:
            self.emit(PUSH_NULL)
        self.emit(LOAD_CONST, function)
        if blocks.NULL_ABOVE:
            self.emit(PUSH_NULL)
        self.emit(LOAD_FAST, self.raised)
        if PRECALL >= 0:
            self.emit(PRECALL, 1)
        self.emit(CALL, 1)

    def _push_stack(self, kinds: bytes) -> None:
        for slot, kind in enumerate(kinds):
            if kind == blocks.NULL:
                self.emit(PUSH_NULL)
            else:
                self.take(self.slots[slot])

    # -- the exit dispatch

    def _tail(self) -> None:
        self.place(self.finish)
        self._unpack_answer(self.dispatch)
        self.emit(RETURN)
        self.place(self.dispatch)
        groups: dict[tuple, list[int]] = {}
        copies = {k: (copied,) for loop in self.loops for _, k, copied in loop.heads}
        for index, point in self.places:
            unsure = tuple(n for n in point.live if n not in point.bound)
            groups.setdefault((self.flow.states[index].stack, point.live, unsure), []).extend(
                (point.id, *copies.get(point.id, ())))
        if not groups:
            return
        outer = (len(groups) - 1).bit_length()
        table: list = [None] * (len(self.places) + len(copies))
        for g, members in enumerate(groups.values()):
            inner = (len(members) - 1).bit_length()
            for m, k in enumerate(members):
                table[k] = (*_bits(g, outer), _bits(m, inner))
        self.emit(LOAD_CONST, self._const(tuple(table)))
        self.emit(SWAP, 2)
        self.emit(SUBSCR, SUBSCR_ARG)
        self.emit(UNPACK, outer + 1)
        self._tree(outer, [(key, members) for key, members in groups.items()], self._restore)
        self.stacksize = max(self.stacksize, outer + 4)

    def _tree(self, bits: int, leaves: list, leaf) -> None:
        """Jumps that take `bits` bools off the stack, highest first, down to leaf(item) for the item so numbered."""
        if not bits:
            leaf(leaves[0])
            return
        half = 1 << (bits - 1)
        if len(leaves) <= half:
            self.emit(POP_TOP)
            self._tree(bits - 1, leaves, leaf)
            return
        right = self.label()
        self.emit(IF_TRUE, 0, right)
        self._tree(bits - 1, leaves[:half], leaf)
        self.place(right)
        self._tree(bits - 1, leaves[half:], leaf)

    def _restore(self, group: tuple) -> None:
        """Stack on entry: flat values, path. Puts the values where the points of this group want them."""
        (kinds, live, unsure), members = group
        many = len(members) > 1
        self.emit(*((STORE_FAST, self.path) if many else (POP_TOP,)))
        values = [slot for slot, kind in enumerate(kinds) if kind != blocks.NULL]
        self.emit(UNPACK, len(values) + len(live))
        for slot in values:
            self.emit(STORE_FAST, self.slots[slot])
        for name in live:
            self.emit(STORE_FAST, self.names.index(name))
        for name in unsure:
            self._drop_unbound(self.names.index(name))
        for slot in values:
            if kinds[slot] == blocks.MAYBE:
                self._drop_unbound(self.slots[slot])
        self._push_stack(kinds)
        bits = (len(members) - 1).bit_length()
        if many:
            self.take(self.path)
            self.emit(UNPACK, bits)
        self.stacksize = max(self.stacksize, len(values) + len(live) + 4, len(kinds) + bits + 2)
        self._tree(bits, members, lambda k: self.emit(BACK, 0, self.bodies[k]))

    def _drop_unbound(self, slot: int) -> None:
        done = self.label()
        self.emit(LOAD_FAST, slot)
        self.emit(LOAD_CONST, self.unbound)
        self.emit(IS_OP, 0)
        self.emit(IF_FALSE, 0, done)
        self.emit(DELETE_FAST, slot)
        self.place(done)


NOWHERE = (None, None, None, None)


def _location(line: int | None, end: int | None, column: int | None, stop: int | None) -> InstrLocation:
    """A location as `bytecode` takes it: code generators write lines before the first one, and ends before starts."""
    try:
        return InstrLocation(line, end, column, stop)
    except (ValueError, TypeError):
        return InstrLocation(line if line is not None and line > 0 else None, None, None, None)


def _bits(number: int, count: int) -> tuple[bool, ...]:
    return tuple(bool(number >> i & 1) for i in range(count - 1, -1, -1))


SLOT_USERS = frozenset(op for op in (*dis.haslocal, *dis.hasfree) if op < 256 and op not in blocks.SLOT_PAIRS)
