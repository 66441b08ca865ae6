"""Sites at run time: which entries a site has, in what order they are tried, what happens when none fits. Hot path.

The protocol, all positional:

- *args* of a dispatcher and of an entry: the point's stack values without NULLs (bottom first; ``UNBOUND`` for a slot
  of ``Point.maybes`` that holds NULL), a value for each name of ``Point.live`` (``UNBOUND`` when it has none), the cell
  objects of co_cellvars and co_freevars (None for one that exists only within an inlined comprehension). The first
  ``state.flat`` of them are the *flat* state: stack and locals, no cells.
- An *answer*: ``(value, None)`` returns value from the function; ``(flat, k)`` goes on at point k with that point's
  flat state; ``MISS`` (entries only): the guards do not hold, nothing has been done. Exceptions propagate.
- ``own_exit(k, flat)`` is the answer of point k itself that changes nothing: the original instruction there runs.
- *compile* is called as ``compile(state, args)`` and answers an entry, which then runs with these args, or None:
  nothing to compile here, the site goes idle and the sites reached next are armed. ``COVERED``: the same, but what
  is reached from here holds nothing either, or is armed already.

Exits go only to points whose ``handlers`` equal those of the site. An exit does not arm anything: whoever makes an
entry that exits to k calls ``state.sites.arm_after(k)``.
"""

from __future__ import annotations

import builtins
import gc
import linecache
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from bytejit.common import interrupts, registry
from bytejit.common.ambient import capture, putting_back, undone_if_cut
from bytejit.rewriter.trampoline import UNBOUND, Point, Rewritten, successor_sites

__all__ = ["COVERED", "MISS", "UNBOUND", "SiteState", "Sites", "compiling", "own_exit"]

Args = tuple[Any, ...]
Answer = tuple[Any, int | None]
Entry = Callable[..., Any]
Compile = Callable[["SiteState", Args], Entry | None]

# Held while any site compiles. Whoever finds it held (another thread, or the compiler calling user code that reaches a
# site) runs the original code instead of waiting: waiting could deadlock with a lock that the user's code holds.
_COMPILING = threading.Lock()


def _in_child() -> None:
    """After a fork: the thread that held the lock is not there."""
    global _COMPILING
    _COMPILING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

# How much deeper than the user's code the compiler may call: what is left of the user's limit is none of its business.
COMPILER_FRAMES = 3000
# Frames that must be left of the user's limit where a compile begins: all that runs before the limit is raised and after it
# is put back. Closer to the limit the original code runs.
ROOM = 40


class Miss:
    """What an entry answers when its guards do not hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISS"

    def __reduce__(self) -> str:
        return "MISS"


MISS = Miss()
COVERED: Any = object()
NOT_NOW: Any = object()


def room_for(frames: int) -> None:
    """Raises: RecursionError where fewer frames are left of the recursion limit."""
    if frames:
        room_for(frames - 1)


def own_exit(point_id: int, flat: Args) -> Answer:
    """Go on with the original code at the point itself, nothing changed. ``flat``: the args without the cells."""
    return flat, point_id


def compiling() -> bool:
    """Is a site being compiled now, by any thread?"""
    return _COMPILING.locked()


# What the compiler itself calls, by the names of the namespaces: while a program (a test) has replaced one of them, nothing
# is compiled.
_NEEDED = tuple((vars(module), {name: getattr(module, name) for name in names.split()}) for module, names in (
    (builtins, "len isinstance issubclass getattr hasattr setattr type id iter next range zip enumerate map filter sorted "
     "reversed min max sum any all abs hash repr str int float bool list dict tuple set frozenset callable super vars slice "
     "compile exec open object property staticmethod classmethod __import__ __build_class__"),
    (os, "getcwd fspath stat getpid"), (os.path, "abspath join exists splitext"), (sys, "_getframe exc_info"),
    (time, "monotonic perf_counter"), (linecache, "getline getlines checkcache updatecache"), (weakref, "ref finalize"),
    (threading, "Lock RLock"), (gc, "isenabled enable disable")))


def debugged() -> bool:
    """Whether a debugger follows this thread line by line: it would be shown the compiler's lines. Coverage tools count
    them, which does no harm."""
    follows = sys.gettrace()
    return follows is not None and type(follows).__module__.partition(".")[0] != "coverage" or monitored()


def monitored() -> bool:
    """Whether a tool of sys.monitoring (3.12 and later) other than coverage is told of each line or instruction."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return False
    each = monitoring.events.LINE | monitoring.events.INSTRUCTION
    names = ((tool, monitoring.get_tool(tool)) for tool in range(6))
    return any(name not in (None, "coverage.py") and monitoring.get_events(tool) & each for tool, name in names)


def replaced(needed: tuple = _NEEDED) -> bool:
    """Whether a function that the compiler uses is another one now."""
    for now, names in needed:
        for name in names:
            if now.get(name) is not names[name]:
                return True
    return False


class Around:
    """In the cell of a loop's head when no site in the loop is armed: goes on in the loop's copy, which has none."""

    __slots__ = ("flat", "copied")

    def __init__(self, flat: int, copied: int) -> None:
        self.flat, self.copied = flat, copied

    def __call__(self, *args: Any) -> Answer:
        return args[: self.flat], self.copied


class SiteState:
    """One site: its entries and the callable in its cell.

    Idle: the cell is empty. Armed: it holds ``miss`` (no entries yet) or a chain: the first entry, then the others,
    then ``miss``. Cost of the chain: 45 ns for the first entry (tests/runtime/test_dispatch.py), 100 ns for each further one.
    """

    __slots__ = ("sites", "rewritten", "point", "compile", "flat", "entries", "frozen", "misses", "compiles",
                 "_asked", "_cell", "_lock", "_last")  # fmt: skip

    def __init__(self, rewritten: Rewritten, point: Point, compile: Compile, sites: Sites | None = None) -> None:
        if not point.site:
            raise ValueError(f"{point!r} of {rewritten.original.co_qualname} is no site")
        self.sites = sites
        self.rewritten, self.point, self.compile = rewritten, point, compile
        self.flat = point.values + len(point.live)
        self.entries: tuple[Entry, ...] = ()
        self._asked = self.entries          # those that the dispatcher in the cell asks
        self.frozen = False
        self.misses = self.compiles = 0
        self._cell = rewritten.cells[point.id]
        self._lock = threading.RLock()
        self._last: Entry | None = None

    def __repr__(self) -> str:
        how = "armed" if self.armed else "idle"
        return f"{how} {self.point!r}: {len(self.entries)} entries, {self.misses} misses"

    @property
    def armed(self) -> bool:
        """Does reaching the site look for an entry?"""
        return bool(self._cell) and not isinstance(self._cell[0], Around)

    def arm(self) -> None:
        """The next call that reaches the site looks for an entry, and compiles one when none fits."""
        if self.sites is not None:
            self.sites.wake(self.point.id)
        with self._lock:
            entries = self.entries
            self._cell[:] = [self._dispatcher()]
            self._asked = entries

    def idle(self) -> None:
        """The site costs nothing from now on. Entries are kept: `arm` brings them back."""
        with self._lock:
            self._cell.clear()
        if self.sites is not None:
            self.sites.rest(self.point.id)

    def go_around(self, copied: int) -> None:
        """Reaching the site goes on in the copy of its loop that has no sites."""
        with self._lock:
            if not self._cell and not self.entries:
                self._cell[:] = [Around(self.flat, copied)]

    def come_back(self) -> None:
        """Undo `go_around`."""
        with self._lock:
            if self._cell and not self.armed:
                self._cell.clear()

    def freeze(self) -> None:
        """No further entries: what fits none of those there runs the original code, without compiling."""
        with self._lock:
            self.frozen = True
            if not self.entries:
                self._cell.clear()

    def add(self, entry: Entry) -> None:
        """Try this entry first from now on; a quiet one (see runtime/negative_cache.py) last.

        A signal may come between the two stores, of the entries and of what the cell asks: `miss` sees to that.
        """
        with self._lock:
            others = [e for e in self.entries if e is not entry]
            quiet = [e for e in (entry, *others) if hasattr(e, "quiet")]
            self.entries = (*(e for e in (entry, *others) if not hasattr(e, "quiet")), *quiet)
            self._last = entry
            self.arm()

    def remove(self, entry: Entry) -> None:
        """Forget an entry (its guards can never hold again). Unknown entries are no error: two removals may race."""
        with self._lock:
            self.entries = tuple(e for e in self.entries if e is not entry)
            if self._last is entry:
                self._last = None
            if self.armed:
                self.arm()

    def reset(self) -> None:
        """Forget all entries and go idle."""
        with self._lock:
            self._cell.clear()
            self.entries, self.frozen, self._last = (), False, None
            self._asked = self.entries

    def own(self, args: Args) -> Answer:
        """The answer that runs the original code from here on."""
        return args[: self.flat], self.point.id

    def miss(self, *args: Any) -> Answer:
        """No entry fits: compile one and run it, or let the original code run."""
        self.misses += 1
        try:
            room_for(ROOM)
        except RecursionError:      # the program runs close to its limit
            return args[: self.flat], self.point.id
        if self.entries is not self._asked:         # a signal came between the entries and the cell: see `add`
            self.arm()
            for entry in self.entries:
                if (answer := undone_if_cut(getattr(entry, "leaves", ()), entry, args)) is not MISS:
                    return answer
        if self.frozen or registry.only_runs() or replaced() or debugged() or _COMPILING.locked():
            return self.own(args)
        entry = interrupts.uninterrupted(self._compile_alone, args)
        if entry is None:
            return self.own(args)
        answer = undone_if_cut(getattr(entry, "leaves", ()), entry, args)
        return self.own(args) if answer is MISS else answer

    def _compile_alone(self, args: Args) -> Entry | None:
        """The new entry, which the site then has; None when there is none, or another site compiles now."""
        lock = _COMPILING
        if not lock.acquire(blocking=False):
            return None
        try:
            self.compiles += 1
            entry = putting_back(capture(), self._compile_with_room, args)
            interrupts.poll()
            if entry is NOT_NOW:
                return None
            if entry is None or entry is COVERED:
                if not self.entries:
                    self.idle()
                if entry is None and self.sites is not None:
                    self.sites.arm_after(self.point.id)
                return None
            self.add(entry)
            return entry
        finally:
            lock.release()

    def _compile_with_room(self, args: Args) -> Entry | None:
        """Compile; the ambient state is put back, the user's recursion limit is not what the compiler has to fit in.

        Without cyclic collections: a compile makes many objects that all stay, and a full collection looks at every
        object that torch and the model have made: 0.25 s with BERT loaded.
        """
        sys.setrecursionlimit(sys.getrecursionlimit() + COMPILER_FRAMES)
        gc.disable()
        return self.compile(self, args)

    def _others(self, *args: Any) -> Answer:
        """All entries but the first, then `miss`. The one that fits twice in a row becomes the first."""
        for entry in self.entries[1:]:
            answer = undone_if_cut(entry.leaves, entry, args) if hasattr(entry, "leaves") else entry(*args)
            if answer is not MISS:
                if self._last is entry and not hasattr(entry, "quiet"):
                    with self._lock:
                        if entry in self.entries:
                            self.add(entry)
                self._last = entry
                return answer
        return self.miss(*args)

    def _dispatcher(self) -> Callable[..., Answer]:
        if not self.entries:
            return self.miss
        if len(self.entries) == 1 and hasattr(self.entries[0], "quiet"):
            return self.entries[0].quiet.alone(self.miss)
        count = self.flat + len(self.rewritten.original.co_cellvars) + len(self.rewritten.original.co_freevars)
        rest = self.miss if len(self.entries) == 1 else self._others
        return chain_maker(count, self.flat)(self.entries[0], rest, MISS, self.point.id)


@cache
def chain_maker(count: int, flat: int) -> Callable[[Entry, Callable[..., Answer], Miss, int], Callable[..., Answer]]:
    """make(first, rest, MISS, k): a function of `count` parameters that asks `first`, and `rest` when that misses.

    Written out for each count: passing *args on would build a tuple and cost 60 ns more. A call for which the recursion
    limit leaves no frame has done nothing (its traceback ends here): the original code runs, from point k, with the first
    `flat` values.
    """
    names = ", ".join(f"a{i}" for i in range(count))
    state = "".join(f"a{i}, " for i in range(flat))
    text = (
        "def make(first, rest, MISS, k):\n"
        f"    def chain({names}):\n"
        "        try:\n"
        f"            answer = first({names})\n"
        f"            return rest({names}) if answer is MISS else answer\n"
        "        except RecursionError as error:\n"
        "            if error.__traceback__.tb_next is not None:\n"
        "                raise\n"
        f"        return ({state}), k\n"
        "    return chain\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(text, f"<bytejit chain of {count}>", "exec"), scope)
    return scope["make"]


class Sites:
    """All sites of one rewritten function, made when first armed."""

    __slots__ = ("rewritten", "compile", "states", "_lock", "_after", "_loops")

    def __init__(self, rewritten: Rewritten, compile: Compile) -> None:
        self.rewritten, self.compile = rewritten, compile
        self._loops = {k: loop for loop in rewritten.loops for k in loop.sites}
        self.states: dict[int, SiteState] = {}
        self._lock = threading.Lock()
        self._after: dict[int, tuple[int, ...]] = {}

    def __repr__(self) -> str:
        armed = sum(state.armed for state in self.states.values())
        return f"sites of {self.rewritten.original.co_qualname}: {armed} of {len(self.rewritten.sites)} armed"

    def state(self, point_id: int) -> SiteState:
        """The state of a site. Raises: ValueError when the point is no site."""
        found = self.states.get(point_id)
        if found is None:
            with self._lock:
                found = self.states.get(point_id)
                if found is None:
                    point = self.rewritten.points[point_id]
                    found = self.states[point_id] = SiteState(self.rewritten, point, self.compile, self)
        return found

    def arm_start(self) -> None:
        """Arm the function's start."""
        self.state(self.rewritten.start).arm()

    def forget(self, point_id: int) -> None:
        """A site that gave up without entries may be armed again."""
        state = self.states.get(point_id)
        if state is not None and not state.entries and not state.frozen:
            self.wake(point_id)
            self.states.pop(point_id)

    def rest(self, point_id: int) -> None:
        """A site went idle: where none is armed in the loop around it, the loop runs as its copy without sites."""
        loop = self._loops.get(point_id)
        if loop is None or any(k in self.states and self.states[k].armed for k in loop.sites):
            return
        for _, k, copied in loop.heads:
            if k in self.states:      # one that was never armed may be yet
                self.states[k].go_around(copied)

    def wake(self, point_id: int) -> None:
        """A site is about to be armed: the loop around it runs with sites again."""
        loop = self._loops.get(point_id)
        for _, k, _ in () if loop is None else loop.heads:
            if k in self.states:
                self.states[k].come_back()

    def arm_after(self, point_id: int) -> None:
        """Arm the sites that can be reached first from a point on; those that are armed or gave up stay as they are."""
        after = self._after.get(point_id)
        if after is None:
            after = self._after[point_id] = successor_sites(self.rewritten, point_id)
        for k in after:
            if k not in self.states:
                self.state(k).arm()

    def reset(self) -> None:
        """Forget all entries; only the function's start is armed."""
        for state in list(self.states.values()):
            state.reset()
        self.states.clear()
        self.arm_start()
