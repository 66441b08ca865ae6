"""What holds at each instruction of a code object: stack layout, live and surely assigned locals, handlers.

Pure analysis, no torch. A *slot* of the stack is described by one byte: ``OBJ`` (a Python object), ``NULL`` (what
PUSH_NULL and the method bit leave), ``MAYBE`` (either: a local that an inlined comprehension saved; what 3.14 leaves
beside a method of `with`, its object or NULL), ``ASIDE`` and ``ASIDE_NULL`` (the content of a cell variable's slot that
an inlined comprehension put aside: its slot holds something else meanwhile, so nothing may resume there), ``RAW`` (no
Python object at all: in 3.14, where an exception was raised; nothing may resume there either).
The analysis describes the *rewritten* form of method loads: NULL and a bound attribute, never (function, self), so that
which slots hold NULL is known without running.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import NamedTuple

from bytejit.common.errors import CannotRewrite
from bytejit.common.light_dataclass import light_dataclass

from .decoder import Instruction, Try, decode, try_ranges
from .liveness import liveness, local_effects
from .opcodes import (
    ATTR,
    ATTR_HAS_BIT,
    CALLS,
    CLEARING,
    FINAL,
    GLOBAL,
    METHOD_LOADS,
    NEVER_RAISE,
    NULL_ABOVE,
    OPMAP,
    OPNAME,
    POP_EXCEPT,
    PUSH_EXC_INFO,
    STORE_FAST,
    STORES,
    SUPER,
    stack_effect,
)

OBJ, NULL, MAYBE, ASIDE, ASIDE_NULL, RAW = b"onmczr"
CALLABLE_AND_NULL = bytes([OBJ, NULL] if NULL_ABOVE else [NULL, OBJ])
# what handlers of `with` and of clean-up find below the exception: an int up to 3.13, since then a bare number that would
# crash the interpreter as an argument of a call
LASTI = RAW if "LOAD_SMALL_INT" in OPMAP else OBJ


class FrameState(NamedTuple):
    """What is known on entry to an instruction.

    ``stack``: a byte a slot. ``handlers``: offsets of the exception handlers being executed. ``must``, ``may``: masks
    of the slots surely, possibly assigned.
    """

    stack: bytes
    handlers: tuple[int, ...]
    must: int
    may: int


@light_dataclass(frozen=True)
class Flow:
    """The analysed code. Lists are indexed by instruction; ``states[i]`` is None where nothing leads to.

    ``cells``: the slot of each of co_cellvars + co_freevars; -1 for a variable that is a cell only within an inlined
    comprehension (3.12) and a plain local, or nothing, where points are. ``leaving``: the range of the `with` whose body is
    done, at the instructions that go on to call its ``__exit__``.
    """

    code: CodeType
    instrs: list[Instruction]
    tries: list[Try]
    caught: list[Try | None]
    states: list[FrameState | None]
    live: list[int]
    first: int
    cells: tuple[int, ...]
    leaving: dict[int, Try]

    def __repr__(self) -> str:
        return f"flow of {self.code.co_qualname}: {len(self.instrs)} instructions, {len(self.tries)} try ranges"

    def state(self, i: int) -> FrameState:
        """Returns what holds at an instruction that something leads to."""
        found = self.states[i]
        assert found is not None, f"nothing leads to {self.instrs[i]}"
        return found

    def handler_index(self, offset: int) -> int:
        """Index of the PUSH_EXC_INFO that starts the handler of that offset (of Point.handlers)."""
        return next(entry.target for entry in self.tries if self.instrs[entry.target].start == offset)

    def site_range(self, i: int) -> Try | None:
        """Returns where an exception raised by a site before instruction i must go.

        The table's own row for i may be wrong for that, as the instruction itself cannot raise: at a handler's head it
        already takes the exception as saved, on the way out of a handler it no longer restores the one before. The site at
        the function's start stands before all of it: of `try: x` in one line the row for x would take what the site says
        of the call as a whole. Between a `with`'s body and the call of its `__exit__` nothing raises but an interrupt, which
        a compile makes likely there: `__exit__` is called for it, as for one at the body's end.
        """
        if i == self.first:
            return None
        if i in self.leaving:
            return self.leaving[i]
        caught = self.caught[i]
        if self.instrs[i].op == PUSH_EXC_INFO:
            return caught and self.caught[caught.target]
        handlers = self.state(i).handlers
        if handlers:
            cleanup = self.caught[self.handler_index(handlers[-1])]
            if cleanup is not None and (caught is None or caught.depth < cleanup.depth):
                return cleanup
        return caught

    def saved_exception(self, handlers: tuple[int, ...]) -> int:
        """The stack slot that holds the exception to restore on leaving all these handlers."""
        return len(self.state(self.handler_index(handlers[0])).stack) - 1

    @cached_property
    def after(self) -> list[tuple[int, ...]]:
        """For each instruction those that may run right after it, handlers included."""
        return [
            (*onward(instr), *(() if caught is None else (caught.target,))) for instr, caught in zip(self.instrs, self.caught)
        ]

    @cached_property
    def index_at(self) -> dict[int, int]:
        """Offset at which an instruction starts -> its index."""
        return {instr.start: i for i, instr in enumerate(self.instrs)}

    @cached_property
    def looping(self) -> frozenset[int]:
        """Instructions that can run again without a new call: those on a way from a jump back to where it jumps from."""
        before: list[list[int]] = [[] for _ in self.instrs]
        for i, following in enumerate(self.after):
            for j in following:
                before[j].append(i)
        back = [(i, j) for i, following in enumerate(self.after) for j in following if j <= i]
        return frozenset().union(*(reachable(self.after, [j]) & reachable(before, [i]) for i, j in back))


def reachable(edges: Sequence[Iterable[int]] | Mapping[int, Iterable[int]], work: list[int]) -> set[int]:
    """The nodes of a graph that edges lead to from some of them, these included."""
    seen = set(work)
    while work:
        for j in edges[work.pop()]:
            if j not in seen:
                seen.add(j)
                work.append(j)
    return seen


def analyse(code: CodeType) -> Flow:
    """Instructions, stack layout and locals of a function's code. Raises: CannotRewrite."""
    if not code.co_flags & inspect.CO_OPTIMIZED:
        raise CannotRewrite(f"{code.co_qualname}: not the code of a function (a module's or class's body)")
    instrs, at = decode(code)
    tries = try_ranges(code, at)
    caught: list[Try | None] = [None] * len(instrs)
    for entry in tries:
        for i in range(entry.start, entry.stop):
            caught[i] = entry
    resume = OPMAP["RESUME"]
    first = next((ins.index + 1 for ins in instrs if ins.op == resume), None)
    if first is None:
        raise CannotRewrite(f"{code.co_qualname}: its code has no RESUME")
    writes = [local_effects(ins) for ins in instrs]
    states = flow_states(code, instrs, caught, writes)
    for ins, state in zip(instrs, states, strict=True):
        if ins.op == CLEARING and state is not None and not state.may >> ins.arg & 1:
            writes[ins.index] = 0, 0, 1 << ins.arg  # it saves nothing: not live before
    made = {ins.arg for ins in instrs[:first] if OPNAME[ins.op] == "MAKE_CELL"}
    own = len(code.co_cellvars)
    cells = tuple(slot if n >= own or slot in made else -1 for n, slot in enumerate(cell_slots(code)))
    live = liveness(code, instrs, caught, writes, cells)
    leaving = leaving_with(instrs, caught, states)
    return Flow(code, instrs, tries, caught, states, live, first, cells, leaving)


def leaving_with(instrs: list[Instruction], caught: list[Try | None], states: list[FrameState | None]) -> dict[int, Try]:
    """Returns for each instruction from the end of a `with` body up to the call of `__exit__`: the range of that `with`."""
    found: dict[int, Try] = {}
    work: list[tuple[int, Try]] = []
    for i, entry in enumerate(caught):
        if entry is None or states[i] is None or not enters_with_handler(instrs, entry):
            continue
        work += [(j, entry) for j in onward(instrs[i]) if (into := caught[j]) is None or into.depth < entry.depth]
    while work:
        i, entry = work.pop()
        if i in found or OPNAME[instrs[i].op] == "SWAP":  # the stack is in another order from here on
            continue
        found[i] = entry
        if instrs[i].op not in CALLS:
            work += [(j, entry) for j in onward(instrs[i])]
    return found


def enters_with_handler(instrs: list[Instruction], entry: Try) -> bool:
    """Whether a range's handler is that of a `with`, which calls `__exit__` with the exception."""
    after = instrs[entry.target : entry.target + 2]
    return [OPNAME[ins.op] for ins in after] == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]


def onward(ins: Instruction) -> list[int]:
    """Instructions that may run right after this one, unless it raises."""
    return ([ins.target] if ins.target >= 0 else []) + ([] if ins.op in FINAL else [ins.index + 1])


def push(stack: bytes, ins: Instruction, jump: bool, slot_kind: int) -> bytes:
    """The stack after an instruction. ``slot_kind``: what LOAD_FAST_AND_CLEAR finds in its local."""
    op, arg = ins.op, ins.arg
    name = OPNAME[op]
    if name == "PUSH_NULL":
        return stack + b"n"
    if op == GLOBAL:
        return stack + (CALLABLE_AND_NULL if arg & 1 else b"o")
    if op in METHOD_LOADS or (op == ATTR and ATTR_HAS_BIT and arg & 1):
        return stack[:-1] + CALLABLE_AND_NULL
    if op == SUPER and arg & 1:
        return stack[:-3] + CALLABLE_AND_NULL
    if name == "COPY":
        return stack + stack[-arg : len(stack) - arg + 1]
    if name == "SWAP":
        swapped = bytearray(stack)
        swapped[-1], swapped[-arg] = swapped[-arg], swapped[-1]
        return bytes(swapped)
    if op == CLEARING:
        return stack + bytes([slot_kind])
    if name == "LOAD_SPECIAL":
        return stack[:-1] + bytes([OBJ, MAYBE])
    depth = len(stack) + stack_effect(op, arg, jump)
    if op in CALLS:
        return stack[: depth - 1] + b"o"
    return stack[:depth] if depth <= len(stack) else stack + b"o" * (depth - len(stack))


def merge_states(old: FrameState | None, new: FrameState, code: CodeType, ins: Instruction) -> FrameState:
    """Merges what holds on two ways into an instruction. Raises: CannotRewrite when they disagree on depth."""
    if old is None or old == new:
        return new
    stack = old.stack
    if stack != new.stack:
        if len(stack) != len(new.stack):
            raise CannotRewrite(f"{code.co_qualname}: stack depth {len(stack)} and {len(new.stack)} at {ins}")
        stack = bytes(a if a == b else MAYBE for a, b in zip(stack, new.stack, strict=True))
    # two ways in that disagree on the handlers: no exit may go there (-1 equals no site's handlers)
    handlers = old.handlers if old.handlers == new.handlers else (-1,)
    return FrameState(stack, handlers, old.must & new.must, old.may | new.may)


def step(state: FrameState, ins: Instruction, jump: bool, effects: tuple[int, int, int], cells: frozenset[int]) -> FrameState:
    """The state after one instruction. ``effects``: its `local_effects`."""
    op, kind = ins.op, OBJ
    stack, handlers, must, may = state
    if op == CLEARING:
        kind = OBJ if must >> ins.arg & 1 else MAYBE if may >> ins.arg & 1 else NULL
        if ins.arg in cells:
            kind = ASIDE if kind == OBJ else ASIDE_NULL
    _, on, off = effects
    if on:
        must, may = must | on, may | on
        if op in STORES:
            must, may = stored(ins, stack, must, may)
    elif off:
        must, may = must & ~off, may & ~off
    elif op == PUSH_EXC_INFO:
        handlers += (ins.start,)
    elif op == POP_EXCEPT:
        handlers = handlers[:-1]
    return FrameState(push(stack, ins, jump, kind), handlers, must, may)


def stored(ins: Instruction, stack: bytes, must: int, may: int) -> tuple[int, int]:
    """Correct the masks for what a store took off the stack: storing NULL leaves a local unassigned."""
    slots = (ins.arg,) if ins.op == STORE_FAST else (ins.arg >> 4, ins.arg & 15)
    for below, slot in enumerate(slots if OPNAME[ins.op] != "STORE_FAST_LOAD_FAST" else slots[:1]):
        kind = stack[-1 - below]
        if kind not in (OBJ, ASIDE):
            must &= ~(1 << slot)
        if kind in (NULL, ASIDE_NULL):
            may &= ~(1 << slot)
    return must, may


def entry_state(code: CodeType) -> FrameState:
    """Before the first instruction: arguments and free variables are assigned."""
    args = code.co_argcount + code.co_kwonlyargcount
    args += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    given = (1 << args) - 1
    for slot in cell_slots(code)[len(code.co_cellvars) :]:
        given |= 1 << slot
    return FrameState(b"", (), given, given)


def flow_states(
    code: CodeType, instrs: list[Instruction], caught: list[Try | None], effects: list[tuple[int, int, int]]
) -> list[FrameState | None]:
    """The state on entry to each instruction, None where unreachable. Raises: CannotRewrite."""
    cells = frozenset(cell_slots(code))
    states: list[FrameState | None] = [None] * len(instrs)
    states[0] = entry_state(code)
    work = [0]
    while work:
        i = work.pop()
        while (state := states[i]) is not None:  # run along the straight line; jumps and handlers go to the worklist
            ins, entry = instrs[i], caught[i]
            onward = []
            after = None if ins.op in FINAL else step(state, ins, False, effects[i], cells)
            if entry is not None and ins.op not in NEVER_RAISE:
                # the exception may come before or after the instruction changed its local
                then = state if after is None else after
                low, high = state.must & then.must, state.may | then.may
                head = state.stack[: entry.depth] + (bytes([LASTI, OBJ]) if entry.lasti else b"o")
                onward.append((entry.target, FrameState(head, state.handlers, low, high)))
            if ins.target >= 0:
                onward.append((ins.target, step(state, ins, True, effects[i], cells)))
            for target, new in onward:
                merged = merge_states(states[target], new, code, instrs[target])
                if merged != states[target]:
                    states[target] = merged
                    work.append(target)
            if after is None:
                break
            i += 1
            merged = merge_states(states[i], after, code, instrs[i])
            if merged == states[i]:
                break
            states[i] = merged
    return states


def cell_slots(code: CodeType) -> list[int]:
    """Slots of the frame that hold a cell, in the order co_cellvars + co_freevars.

    An argument that is also a cell keeps the argument's slot; the other cells follow the locals.
    """
    slots, after = [], code.co_nlocals
    for name in code.co_cellvars:
        if name in code.co_varnames:
            slots.append(code.co_varnames.index(name))
        else:
            slots.append(after)
            after += 1
    return slots + list(range(after, after + len(code.co_freevars)))
