"""Resume points: where an exit may jump to, and which of them are sites."""

from __future__ import annotations

from collections import defaultdict

from bytejit.common.light_dataclass import light_dataclass

from .flow import ASIDE, ASIDE_NULL, MAYBE, NULL, RAW, Flow, enters_with_handler, reachable
from .opcodes import (
    AFTER_LOOP,
    CALL_INSIDE,
    CALL_PREFIX,
    FINAL,
    OPNAME,
    PLAIN,
    PUSH_EXC_INFO,
    SENDS,
    SITE_AFTER,
    UNCONDITIONAL,
)  # fmt: skip


@light_dataclass(frozen=True)
class Point:
    """A place where execution may resume (and, if ``site``, where a region may start).

    ``offset``: byte offset in the original code of the instruction that runs first after resuming (of its EXTENDED_ARG,
    where it has one). ``nulls``: stack slots that hold NULL; ``maybes``: slots that hold NULL or an object, passed
    as UNBOUND when NULL. ``live``: locals that may be read later. ``bound``: locals surely assigned.
    ``handlers``: offsets of the exception handlers being executed, outermost first: an exit may go only to a point
    whose ``handlers`` equal those of the site that it left (or return). ``tries``: offset of the handler that catches.
    """

    id: int
    offset: int
    site: bool
    depth: int
    nulls: tuple[int, ...]
    live: tuple[str, ...]
    bound: frozenset[str]
    maybes: tuple[int, ...] = ()
    handlers: tuple[int, ...] = ()
    tries: tuple[int, ...] = ()

    @property
    def values(self) -> int:
        """Returns how many stack values travel in and out: the slots that are not statically NULL."""
        return self.depth - len(self.nulls)

    def __repr__(self) -> str:
        kind = "site" if self.site else "point"
        nulls = f" nulls {','.join(map(str, self.nulls))}" if self.nulls else ""
        return f"{kind} {self.id} @{self.offset} depth {self.depth}{nulls} live {' '.join(self.live) or '-'}"


def find_points(flow: Flow, every_point: bool = False) -> list[tuple[int, Point]]:
    """(index of its instruction, point), in the order of the code. ``every_point`` (tests): each one is a site."""
    wanted, sites = wanted_points(flow, every_point)
    code = flow.code
    found: list[tuple[int, Point]] = []
    order = sorted(range(code.co_nlocals), key=lambda slot: code.co_varnames[slot])
    masks: dict[tuple[int, int], tuple[tuple[str, ...], frozenset[str]]] = {}
    for i in sorted(wanted):
        state = flow.state(i)
        key = (flow.live[i], state.must)
        if key not in masks:
            live = tuple(code.co_varnames[s] for s in order if flow.live[i] >> s & 1)
            bound = frozenset(code.co_varnames[s] for s in order if state.must >> s & 1)
            masks[key] = live, bound
        live, bound = masks[key]
        point = Point(
            id=len(found),
            offset=flow.instrs[i].start,
            site=i in sites,
            depth=len(state.stack),
            nulls=tuple(s for s, kind in enumerate(state.stack) if kind == NULL),
            live=live,
            bound=bound,
            maybes=tuple(s for s, kind in enumerate(state.stack) if kind == MAYBE),
            handlers=state.handlers,
            tries=tuple(flow.instrs[t.target].start for t in (flow.caught[i],) if t is not None),
        )
        found.append((i, point))
    return found


def wanted_points(flow: Flow, every_point: bool) -> tuple[set[int], set[int]]:
    """Indices of the instructions that get a resume point, and of those among them that get a site."""
    instrs, wanted, sites = flow.instrs, {flow.first}, {flow.first}
    loops: set[int] = set()
    for i, ins in enumerate(instrs):
        if ins.target >= 0:
            wanted.add(ins.target)
            sites.add(ins.target)
            if ins.op not in UNCONDITIONAL:
                wanted.add(i + 1)
                sites.add(i + 1)
        if ins.op in SENDS:
            # gen.throw() steps back from the yield to the SEND before it, and reads how far that jumps
            loops.update(range(i, ins.target))
        if ins.op not in PLAIN:
            wanted.add(i)
            if ins.op not in FINAL:
                wanted.add(i + 1)
        if ins.op in SITE_AFTER:
            sites.add(i + 1)
        if OPNAME[ins.op] == "RESUME" and ins.arg & 3:
            wanted.add(i + 1)
            if ins.arg & 3 == 1:
                sites.add(i + 1)
    for entry in flow.tries:
        wanted.add(entry.target)
        if enters_with_handler(instrs, entry):  # an interrupt of a compile would keep `__exit__` from being called
            loops.add(entry.target)
        elif instrs[entry.target].op == PUSH_EXC_INFO:
            sites.add(entry.target)
        else:  # puts back the exception state and raises again: what a site raised here would come back here
            loops.add(entry.target)
    wanted = {i for i in wanted if legal(flow, i)}
    return wanted, (wanted if every_point else sites & wanted) - loops


UNTOUCHED = frozenset({ASIDE, ASIDE_NULL, RAW})  # kinds of slots that cannot leave the stack


def legal(flow: Flow, i: int) -> bool:
    """May execution resume at this instruction?"""
    state, ins = flow.states[i] if i < len(flow.instrs) else None, None
    if state is None or i < flow.first or state.handlers[-1:] == (-1,):
        return False
    if not UNTOUCHED.isdisjoint(state.stack):
        return False
    ins, before = flow.instrs[i], flow.instrs[i - 1]
    if ins.op in AFTER_LOOP or (before.op in AFTER_LOOP and OPNAME[ins.op] in ("POP_TOP", "POP_ITER")):
        return False
    if OPNAME[ins.op] == "RESUME" or (ins.op in CALL_INSIDE and before.op in CALL_PREFIX):
        return False
    return all(slot < 0 or state.must >> slot & 1 for slot in flow.cells)


@light_dataclass(frozen=True)
class Loop:
    """The parts of a stretch of code from which a jump back is reached, which are written a second time without sites.

    ``inside``: indices of those instructions, in order. ``heads``: (index of a target of a jump back, id of its point, id
    that an exit uses to go on at that place of the copy). ``sites``: ids of the points with sites among them.
    """

    inside: tuple[int, ...]
    heads: tuple[tuple[int, int, int], ...]
    sites: frozenset[int]


MOST_COPIED = 400  # instructions of a loop that is written twice


def find_loops(flow: Flow, places: list[tuple[int, Point]]) -> tuple[Loop, ...]:
    """The outermost loops that can run as a copy without sites: what enters and leaves them finds the same stack."""
    spans: list[list[int]] = []
    back = sorted((ins.target, ins.index) for ins in flow.instrs if 0 <= ins.target <= ins.index)
    for first, last in back:
        if spans and first <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], last)
        else:
            spans.append([first, last])
    found, number = [], len(places)
    points = dict(places)
    for first, last in spans:
        targets = {target for target, _ in back if first <= target <= last}
        inside = _circling(flow, first, last, targets)
        heads = [(i, points[i].id) for i in sorted(targets & inside) if i in points and points[i].site]
        if not heads or len(inside) > MOST_COPIED or not _can_be_copied(flow, inside):
            continue
        numbered = tuple((i, k, number + n) for n, (i, k) in enumerate(heads))
        number += len(numbered)
        sites = frozenset(p.id for i, p in places if i in inside and p.site)
        found.append(Loop(tuple(sorted(inside)), numbered, sites))
    return tuple(found)


def _ends_loop(flow: Flow, i: int) -> bool:
    """Whether an instruction belongs to the end of the `for` before it."""
    ins, before = flow.instrs[i], flow.instrs[i - 1]
    return ins.op in AFTER_LOOP or (before.op in AFTER_LOOP and OPNAME[ins.op] in ("POP_TOP", "POP_ITER"))


def _circling(flow: Flow, first: int, last: int, targets: set[int]) -> set[int]:
    """The instructions of a stretch that lead back to a target, and the ends of its `for`s. No handlers of exceptions:
    they are entered, and left, among the sites."""
    before: dict[int, list[int]] = defaultdict(list)
    for i in range(first, last + 1):
        for j in flow.after[i]:
            before[j].append(i)
    found = reachable(before, list(targets))
    for target in [flow.instrs[i].target for i in found]:
        while 0 <= target < len(flow.instrs) and _ends_loop(flow, target):
            found.add(target)
            target += 1
    return {i for i in found if (s := flow.states[i]) is not None and not s.handlers and flow.instrs[i].op != PUSH_EXC_INFO}


def _can_be_copied(flow: Flow, inside: set[int]) -> bool:
    """Whether no generator stops inside, and no method and its object are on the stack when the loop is left: they lie
    otherwise in the copy than around the sites."""
    instrs = [flow.instrs[i] for i in inside]
    if any(ins.op in SENDS or OPNAME[ins.op] in ("RESUME", "YIELD_VALUE", "RETURN_GENERATOR") for ins in instrs):
        return False
    head = flow.state(min(inside)).stack
    left = {ins.target for ins in instrs if ins.target >= 0}
    left |= {ins.index + 1 for ins in instrs if ins.op not in FINAL}
    for i in left - inside:
        there = flow.states[i] if i < len(flow.instrs) else None
        if there is None or there.handlers or flow.instrs[i].op in AFTER_LOOP:
            return False
        if there.stack[: len(head)] != head[: len(there.stack)] or NULL in there.stack[len(head) :]:
            return False
    return True
