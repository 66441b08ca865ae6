"""When to stop compiling at a site that had nothing to compile or failed, for how long, and which sites to arm instead."""

from __future__ import annotations

from collections.abc import Container

from bytejit.rewriter.trampoline import Rewritten, in_loop

from .dispatch import Sites, SiteState
from .entry import Args, Entry, NotCompiled
from .live_values import holds_work
from .negative_cache import NegativeCache

POSTPONED_LIMIT = 3  # postponed compiles (no memory on the GPU, parameters not made yet) before a site is given up


class BackOff:
    """The back-off state of one function: sites given up, postponed compiles, values for which a site had nothing to compile."""

    def __init__(self, rewritten: Rewritten, sites: Sites) -> None:
        self.rewritten, self.sites = rewritten, sites
        self.dead: set[int] = set()  # ids of points where nothing is compiled any more
        self.put_offs: dict[int, int] = {}  # point id -> number of postponed compiles
        self.negative: dict[int, NegativeCache] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.dead.clear()
        self.put_offs.clear()
        self.negative.clear()

    def put_off(self, point: int) -> NotCompiled:
        """This call runs the original code; the next one may compile."""
        self.put_offs[point] = self.put_offs.get(point, 0) + 1
        return NotCompiled.NOT_NOW

    def starved(self, point: int) -> bool:
        """Whether a site's compiles were postponed the maximum number of times."""
        return self.put_offs.get(point, 0) >= POSTPONED_LIMIT

    def leave(self, point: int) -> None:
        """Stop compiling at a site."""
        self.dead.add(point)

    def leave_all(self) -> None:
        """Stop compiling at every site."""
        for point in self.rewritten.sites:
            self.dead.add(point.id)
            self.sites.state(point.id).freeze()

    def found_work(self, point: int, args: Args) -> None:
        """A site now has something to compile for values of these kinds."""
        if point in self.negative:
            self.negative[point].forget(args)

    def held_nothing(self, state: SiteState, args: Args, further: bool, seconds: float) -> Entry | NotCompiled | None:
        """Decides about a site whose region is empty. Where other values may bring work, the site stays armed and lets known
        kinds of values pass. further: whether the sites behind it may have work.

        Other values come to a function's start, and past it where tensors or modules are at hand; within loops a site
        that passes costs too much.
        """
        point = state.point.id
        if point == self.rewritten.start or holds_work(args) and not in_loop(self.rewritten, point):
            cache = self.negative.setdefault(point, NegativeCache(state))
            if cache.hold(args, seconds):
                if further:
                    self.sites.arm_after(point)
                return cache
        self.dead.add(point)
        return None if further else NotCompiled.COVERED

    def revive(self, args: Args) -> None:
        """The function is called with values of new kinds, or for a while in vain: sites that gave up get another trace."""
        cache = self.negative.get(self.rewritten.start)
        if cache is not None and (cache.is_new(args) or cache.due(args)):
            for point in self.dead - {self.rewritten.start}:
                self.sites.forget(point)
            self.dead &= {self.rewritten.start}

    def arm_unvisited(self, exit_point: int | None, visited: Container[int]) -> None:
        """An empty region: the sites behind it, and those on paths that it did not take, may still hold work.

        visited: offsets of the instructions that it went through.
        """
        if exit_point is not None:
            self.sites.arm_after(exit_point)
        for point in self.rewritten.sites:
            if point.offset not in visited and point.id not in self.dead and point.id not in self.sites.states:
                self.sites.state(point.id).arm()

    def leave_loops(self, visited: Container[int]) -> None:
        """The sites on the way to the exit of a region that met no work are left alone: each would be traced to that exit
        again, at the cost of the whole. Those in loops give up, so that the loop's copy without sites is taken."""
        for loop in self.rewritten.loops:
            for k in loop.sites:
                if k not in self.sites.states and self.rewritten.points[k].offset in visited:
                    self.dead.add(k)
                    self.sites.state(k).idle()
