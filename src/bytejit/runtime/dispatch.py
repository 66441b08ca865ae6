"""Sites at run time: which entries a site has, in what order they are tried, what happens when none fits. Hot path.

runtime/entry.py has the protocol. *compile* is called as ``compile(state, args)`` and returns an entry, which then runs
with these args, or None: nothing to compile here, the site goes idle and the sites reached next are armed; or why it is
otherwise (`NotCompiled`).

Exits go only to points whose ``handlers`` equal those of the site. An exit does not arm anything: whoever makes an
entry that exits to k calls ``state.sites.arm_after(k)``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from bytejit.common import interrupts, registry
from bytejit.common.ambient import capture, putting_back, undone_if_cut
from bytejit.common.errors import BadSetting, Unsupported
from bytejit.rewriter.trampoline import Point, Rewritten, successor_sites

from .circumstances import debugged, replaced
from .entry import MISS, Args, Entry, Exit, Miss, NotCompiled
from .ownership import UserError, keeping_context

Compile = Callable[["SiteState", Args], Entry | NotCompiled | None]

# Held while any site compiles. Whoever finds it held (another thread, or the compiler calling user code that reaches a
# site) runs the original code instead of waiting: waiting could deadlock with a lock that the user's code holds.
_COMPILING = threading.Lock()


def _in_child() -> None:
    """After a fork: the thread that held the lock is not there."""
    global _COMPILING
    _COMPILING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

# Frames that the compiler may use beyond the user's code. It does not have to fit in what is left of the user's recursion limit.
COMPILER_FRAMES = 3000
# Frames that must be left of the user's limit where a compile begins: all that runs before the limit is raised and after it
# is put back. Closer to the limit the original code runs.
LEAST_FRAMES_LEFT = 40


def room_for(frames: int) -> None:
    """Raises: RecursionError where fewer frames are left of the recursion limit."""
    if frames:
        room_for(frames - 1)


def compiling() -> bool:
    """Is a site being compiled now, by any thread?"""
    return _COMPILING.locked()


class LoopBypass:
    """Stands in the cell of a loop's head while no site in the loop is armed: continues in the copy of the loop without sites."""

    __slots__ = ("flat", "copied")

    def __init__(self, flat: int, copied: int) -> None:
        self.flat, self.copied = flat, copied

    def __call__(self, *args: Any) -> Exit:
        return args[: self.flat], self.copied


class SiteState:
    """One site: its entries and the callable in its cell.

    Idle: the cell is empty. Armed: it holds ``miss`` (no entries yet) or a chain: the first entry, then the others,
    then ``miss``. Cost of the chain: 45 ns for the first entry (tests/runtime/test_dispatch.py), 100 ns for each further one.
    """

    __slots__ = ("sites", "rewritten", "point", "compile", "flat", "entries", "frozen", "misses", "compiles", "died", "in_vain",
                 "counts", "wanted", "unloadable", "_asked", "_cell", "_lock", "_last", "_next")  # fmt: skip

    def __init__(self, rewritten: Rewritten, point: Point, compile: Compile, sites: Sites | None = None) -> None:
        if not point.site:
            raise ValueError(f"{point!r} of {rewritten.original.co_qualname} is no site")
        self.sites = sites
        self.rewritten, self.point, self.compile = rewritten, point, compile
        self.flat = point.values + len(point.live)
        self.entries: tuple[Entry, ...] = ()
        self._asked: tuple[Entry, ...] = ()  # the entries that the dispatcher in the cell tries
        self.frozen = False
        self.misses = self.compiles = 0
        self.died = 0  # entries that were removed
        self.in_vain = 0  # of these the last ones, which had fit in one call each
        self.counts = False  # whether new entries count how often they fit
        self.wanted = ""  # the module that is to be loaded before the next attempt to compile
        self.unloadable: frozenset[str] = frozenset()  # modules that could not be loaded
        self._cell = rewritten.cells[point.id]
        self._lock = threading.RLock()
        self._last: Entry | None = None  # the entry that fit last, among all but the first
        self._next: Entry | None = None  # the entry that will become the first

    def __repr__(self) -> str:
        how = "armed" if self.armed else "idle"
        return f"{how} {self.point!r}: {len(self.entries)} entries, {self.misses} misses"

    @property
    def armed(self) -> bool:
        """Does reaching the site look for an entry?"""
        return bool(self._cell) and not isinstance(self._cell[0], LoopBypass)

    def arm(self) -> None:
        """The next call that reaches the site looks for an entry, and compiles one when none fits."""
        if self.sites is not None:
            self.sites.wake(self.point.id)
        with self._lock:
            entries = self.entries
            self._cell[:] = [self._dispatcher()]
            self._asked = entries

    def rearm(self) -> None:
        """Make the dispatcher again, of what the entries run now."""
        with self._lock:
            if self.armed:
                self.arm()

    def idle(self) -> None:
        """Make the site cost nothing. Entries are kept: `arm` brings them back."""
        with self._lock:
            self._cell.clear()
        if self.sites is not None:
            self.sites.rest(self.point.id)

    def bypass(self, copied: int) -> None:
        """Reaching the site goes on in the copy of its loop that has no sites."""
        with self._lock:
            if not self._cell and not self.entries:
                self._cell[:] = [LoopBypass(self.flat, copied)]

    def end_bypass(self) -> None:
        """Undo `bypass`."""
        with self._lock:
            if self._cell and not self.armed:
                self._cell.clear()

    def freeze(self) -> None:
        """Compile no further entries: a call that fits none of them runs the original code."""
        with self._lock:
            self.frozen = True
            if not self.entries:
                self._cell.clear()

    def add(self, entry: Entry) -> None:
        """Try this entry first from now on, among those of its rank: one for all values comes later, and last a negative one
        (see runtime/negative_cache.py).

        A signal may come between the two stores, of the entries and of what the cell asks: `miss` sees to that.
        """
        with self._lock:
            self.entries = tuple(sorted((entry, *self._without(entry)), key=lambda e: e.rank))
            self._last = entry
            self.arm()

    def remove(self, entry: Entry) -> None:
        """Forget an entry (its guards can never hold again). Unknown entries are no error: two removals may race."""
        with self._lock:
            if not entry.negative and entry in self.entries:
                self.died += 1
                if (of_one_call := entry.of_one_call) is not None:
                    self.in_vain = self.in_vain + 1 if of_one_call else 0
            self.entries = self._without(entry)
            self._last = self._next = None
            self.rearm()

    def _without(self, entry: Entry) -> tuple[Entry, ...]:
        """The other entries. A call of its own, as `Signals._put_in` is: the caller holds the lock."""
        return tuple([e for e in self.entries if e is not entry])

    def reset(self) -> None:
        """Forget all entries and go idle."""
        with self._lock:
            self._cell.clear()
            self.entries, self.frozen, self._last, self._next = (), False, None, None
            self.died, self.in_vain, self.counts = 0, 0, False
            self._asked = self.entries

    def own(self, args: Args) -> Exit:
        """The exit that runs the original code from here on."""
        return args[: self.flat], self.point.id

    def miss(self, *args: Any) -> Exit:
        """Called when no entry fits: compile one and run it, or let the original code run."""
        self.misses += 1
        if self.frozen and self.entries is self._asked:  # first: it is each call of a site that has stopped compiling
            return args[: self.flat], self.point.id
        try:
            room_for(LEAST_FRAMES_LEFT)
        except RecursionError:  # the program runs close to its limit
            return args[: self.flat], self.point.id
        if self.entries is not self._asked:  # a signal came between the entries and the cell: see `add`
            self.arm()
            for known in self.entries:
                if (left := undone_if_cut(known.leaves, known.run, args)) is not MISS:
                    return left
        if self.entries and self.sites is not None and self.sites.given_up(self.point.id, args):
            return self.own(args)
        if self.frozen or registry.only_runs() or replaced() or debugged() or _COMPILING.locked():
            return self.own(args)
        try:
            entry = interrupts.uninterrupted(self._compile_alone, args)
        except (Unsupported, BadSetting) as e:  # the message is for the user, to whom the frames of the compiler say nothing
            raise e.with_traceback(None) from e.__cause__
        except UserError as e:
            with keeping_context(e.error):
                raise e.error  # noqa: B904
        if entry is None:
            return self.own(args)
        left = undone_if_cut(entry.leaves, entry.run, args)
        return self.own(args) if left is MISS else left

    def _compile_alone(self, args: Args) -> Entry | None:
        """Compile a new entry and add it to the site. None when there is none, or while another site compiles."""
        lock = _COMPILING
        if not lock.acquire(blocking=False):
            return None
        try:
            self.compiles += 1
            while (entry := putting_back(capture(), self._compile_with_room, args)) is NotCompiled.NOT_LOADED:
                self.load(self.wanted)  # here, because the state that it sets is to stay
            interrupts.poll()
            if entry is NotCompiled.NOT_NOW:
                return None
            if entry is None or entry is NotCompiled.COVERED:
                if not self.entries:
                    self.idle()
                if entry is None and self.sites is not None:
                    self.sites.arm_after(self.point.id)
                return None
            if (self.died or self.counts) and not entry.negative:
                entry.count_runs(self.rearm)
            self.add(entry)
            return entry
        finally:
            lock.release()

    def load(self, module: str) -> None:
        """Load a module that the code imports. Where that raises, the original code will raise by itself."""
        with contextlib.suppress(Exception):
            importlib.import_module(module)
        if module not in sys.modules:
            self.unloadable |= {module}

    def _compile_with_room(self, args: Args) -> Entry | NotCompiled | None:
        """Compile; the ambient state is put back, the user's recursion limit is not what the compiler has to fit in.

        Without cyclic collections: a compile makes many objects that all stay, and a full collection looks at every
        object that torch and the model have made: 0.25 s with BERT loaded.
        """
        sys.setrecursionlimit(sys.getrecursionlimit() + COMPILER_FRAMES)
        gc.disable()
        return self.compile(self, args)

    def _others(self, *args: Any) -> Exit:
        """Tries all entries but the first, then calls `miss`. An entry that fits twice in a row becomes the first.

        Where the entry has changed the ambient state, it becomes the first in the next call: an interrupt here would leave the
        changed state without the exit that belongs to it.
        """
        for entry in self.entries[1:] if self._next is None else self._reordered():
            left = undone_if_cut(entry.leaves, entry.run, args) if entry.leaves else entry.run(*args)
            if left is not MISS:
                if self._last is entry and not entry.rank:
                    self._next = entry
                    if not entry.leaves:
                        self._reordered()
                self._last = entry
                return left
        return self.miss(*args)

    def _reordered(self) -> tuple[Entry, ...]:
        """Moves the entry that fit twice in a row to the front. Returns all entries."""
        entry, self._next = self._next, None
        with self._lock:
            if entry in self.entries:
                self.add(entry)
        return self.entries

    def _dispatcher(self) -> Callable[..., Exit]:
        if not self.entries:
            return self.miss
        if len(self.entries) == 1 and (alone := self.entries[0].alone(self.miss)) is not None:
            return alone
        count = self.flat + len(self.rewritten.original.co_cellvars) + len(self.rewritten.original.co_freevars)
        rest = self.miss if len(self.entries) == 1 else self._others
        return chain_maker(count, self.flat)(self.entries[0].run, rest, MISS, self.point.id)


@cache
def chain_maker(count: int, flat: int) -> Callable[[Callable[..., Any], Callable[..., Exit], Miss, int], Callable[..., Exit]]:
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
        f"            left = first({names})\n"
        f"            return rest({names}) if left is MISS else left\n"
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

    __slots__ = ("rewritten", "compile", "given_up", "states", "_lock", "_after", "_loops")

    def __init__(self, rewritten: Rewritten, compile: Compile) -> None:
        self.rewritten, self.compile = rewritten, compile
        # whether calls with these values get no further entries at a point: known without all that a compile sets up
        self.given_up: Callable[[int, Args], bool] = lambda point, args: False
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
        """Allow a site that gave up without entries to be armed again."""
        state = self.states.get(point_id)
        if state is not None and not state.entries and not state.frozen:
            self.wake(point_id)
            self.states.pop(point_id)

    def rest(self, point_id: int) -> None:
        """A site went idle: if no site in the loop around it is armed, run the copy of the loop without sites."""
        loop = self._loops.get(point_id)
        if loop is None or any(k in self.states and self.states[k].armed for k in loop.sites):
            return
        for _, k, copied in loop.heads:
            if k in self.states:  # one that was never armed may be yet
                self.states[k].bypass(copied)

    def wake(self, point_id: int) -> None:
        """A site is about to be armed: the loop around it runs with sites again."""
        loop = self._loops.get(point_id)
        for _, k, _ in () if loop is None else loop.heads:
            if k in self.states:
                self.states[k].end_bypass()

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
