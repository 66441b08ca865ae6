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

from dataclasses import replace
from functools import cached_property
from types import CodeType

from bytejit.common.errors import CannotRewrite
from bytejit.common.light_dataclass import light_dataclass

from .emitter import UNBOUND
from .flow import Flow, analyse
from .resume_points import Loop, Point, find_loops, find_points
from .writer import CodeWriter

__all__ = ["UNBOUND", "CannotRewrite", "Point", "Rewritten", "follows_lines", "in_loop", "rewrite", "successor_sites"]


class SiteCell(list):
    """The list that a site tests. It can be hashed, so that the code object that has it among its constants can be hashed,
    as every code object can."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__
    __ne__ = object.__ne__


@light_dataclass(frozen=True)
class Rewritten:
    """A code object with sites. ``cells[k]`` is the list that point k's site tests: [] idle, [dispatcher] active."""

    code: CodeType
    original: CodeType
    points: tuple[Point, ...]
    cells: tuple[list, ...]
    by_offset: dict[int, int]
    flow: Flow
    loops: tuple[Loop, ...] = ()

    @cached_property
    def sites(self) -> tuple[Point, ...]:
        """The points where a region may start."""
        return tuple(point for point in self.points if point.site)

    @cached_property
    def site_at(self) -> dict[int, int]:
        """Index of the instruction that a site stands before -> the site's id."""
        return {self.flow.index_at[point.offset]: point.id for point in self.sites}

    @property
    def start(self) -> int:
        """Id of the site at the function's start."""
        return self.by_offset[self.flow.instrs[self.flow.first].start]

    def renewed(self) -> Rewritten:
        """The same code with idle cells of its own."""
        cells = tuple(SiteCell() for _ in self.points)
        own = dict(zip(map(id, self.cells), cells))
        consts = tuple(own.get(id(const), const) for const in self.code.co_consts)
        return replace(self, code=self.code.replace(co_consts=consts), cells=cells)

    def __repr__(self) -> str:
        return f"rewritten {self.original.co_qualname}: {len(self.points)} points, {len(self.sites)} sites"


def rewrite(code: CodeType, every_point: bool = False) -> Rewritten:
    """The same function with sites and resume points. ``every_point`` (tests) makes each point a site.

    Raises: CannotRewrite (not a function's code, one that `follows_lines`, or a stack that the analysis cannot follow).
    """
    if follows_lines(code):
        raise CannotRewrite(f"{code.co_qualname} calls {follows_lines(code)}: it would be shown lines of the compiler")
    flow = analyse(code)
    places = find_points(flow, every_point)
    points = tuple(point for _, point in places)
    cells = tuple(SiteCell() for _ in points)
    by_offset = {}
    for index, point in places:
        by_offset[flow.instrs[index].start] = by_offset[flow.instrs[index].offset] = point.id
    loops = find_loops(flow, places)
    new = CodeWriter(flow, places, cells, loops).write()
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
    after, at = rewritten.flow.after, rewritten.flow.index_at
    sites = rewritten.site_at
    found, seen = set(), set()
    work = list(after[at[rewritten.points[point_id].offset]])
    while work:
        i = work.pop()
        if i in sites:
            found.add(sites[i])
        elif i not in seen:
            seen.add(i)
            work.extend(after[i])
    return tuple(sorted(found))


def in_loop(rewritten: Rewritten, point_id: int) -> bool:
    """Whether the code can come back to a point from there, other than by a new call."""
    flow = rewritten.flow
    return flow.index_at[rewritten.points[point_id].offset] in flow.looping
