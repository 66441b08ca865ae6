"""Merges two kernels that have outer axes in common (a row is a point of the outer axes). Values that the second reads from the
first then stay in registers, in a row-local buffer, or at least in a cache.

`fuse_pair` finds which axes of the two are the same (where the second loads what the first stored, or both load the same),
picks the outer axes, renames axes, and puts the nests one after another. `join_nests` joins nests over the same axes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest, Store
from bytejit.codegen.loops.simplify import Rewriter, cost, innermost, points

from .row_buffers import by_name, place_buffers

SMALL = 65536  # points: up to so many run on one thread, so that few rows are enough
FEW_ROWS = 16  # rows, or blocks of columns, of which threads need at least so many
PROGRAMS = 128  # rows of a kernel on a GPU: with fewer, multiprocessors have nothing to do
LONG_ROW = 1 << 14  # elements: a program goes through so many in the time of a launch
MANY = 8  # stores: a kernel with more of them is large
COLUMN_BLOCK = 64  # columns
LANES = 16  # elements: fewer in the innermost loop leave a vector half empty
COSTLY = 8  # additions: as much as an exponential


def flexible(k: Kernel) -> bool:
    """Whether any axes can be the outer ones: one nest without axes or reductions."""
    return len(k.nests) == 1 and not k.nests[0].axes and not k.nests[0].reduces


@dataclass
class Alignment:
    """axes: names in the first -> names in the second. loose: axes of the first along which the second reads other elements than
    the first has at the same point."""

    axes: dict[str, str]
    loose: set[str]


def unify(a: tuple, b: tuple, sizes: dict[str, Any], found: Alignment) -> bool:
    """Adds to `found` what follows if two coordinate tuples are equal. Returns False if their ranks differ."""
    for x, y in zip(a, b):
        p, q = ix.only_axis(x), ix.only_axis(y)
        if p is not None and q is not None and sizes[p] == sizes[q] and found.axes.get(p, q) == q:
            found.axes[p] = q
        elif not _mixed(x, y, sizes, found) and (x != y or x.terms):
            found.loose |= ix.variables(x)
    return len(a) == len(b)


def _mixed(x: ix.Index, y: ix.Index, sizes: dict[str, Any], found: Alignment) -> bool:
    """Adds that two coordinates of any form are equal, as 64*h + e and 64*k + f, or 2*h - 1 and 2*k - 1. Returns False if the
    forms differ."""
    if len(x.terms) != len(y.terms) or not x.terms:
        return False
    left, right = ix.axis_terms(x), ix.axis_terms(y)
    if left is None or right is None or len(left) != len(right):
        return False
    names = []
    by_stride = [sorted(terms, key=lambda t: ix.hint(t[1])) for terms in (left, right)]
    for (a, c), (b, d) in zip(*by_stride):
        if c != d or sizes[a] != sizes[b]:
            return False
        names.append((a, b))
    if ix.substitute(x, {a: ix.var(b) for a, b in names}, sizes) != y:
        return False
    if any(found.axes.get(a, b) != b for a, b in names):
        return False
    found.axes.update(names)
    return True


def align(first: Kernel, second: Kernel, sizes: dict[str, Any]) -> Alignment | None:
    """Returns which axes of the two are the same; None when the kernels share no buffer."""
    found = Alignment({}, set())
    stores = {s.buffer: s for p in first.nests for s in p.stores}
    seconds = second.loads
    vertical = [e for e in seconds if e.name in stores]
    for e in vertical:
        if stores[e.name].mode != "set" or not unify(stores[e.name].coords, e.attr, sizes, found):
            return None
    if vertical:
        return found
    firsts = by_name(first.loads)
    best = None
    for e in seconds:
        for f in firsts.get(e.name, ()):
            one = Alignment({}, set())
            if unify(f.attr, e.attr, sizes, one) and not one.loose and (best is None or len(one.axes) > len(best.axes)):
                best = one
    return best


def common_outer_axes(first: Kernel, second: Kernel, al: Alignment) -> tuple[str, ...] | None:
    """The merged kernel's outer axes, by their names in the second; None when the kernels have none in common."""
    image = set(al.axes.values())
    fixed = {al.axes.get(a.name) for a in first.axes} if not flexible(first) else None
    if fixed is not None and (None in fixed or any(a.name in al.loose for a in first.axes)):
        return None
    names = [a.name for a in second.axes]
    if not flexible(second):
        back = {x: a for a, x in al.axes.items() if a in {b.name for b in first.axes}}
        if fixed is not None and fixed != set(names):
            return None
        return tuple(names) if all(n in back and back[n] not in al.loose for n in names) else None
    if fixed is not None:
        return tuple(n for n in names if n in fixed) if fixed <= set(names) else None
    free = {al.axes[a.name] for a in first.axes if a.name in al.axes and a.name not in al.loose}
    if len(free) == len(first.axes) == len(names):
        return tuple(names)
    return tuple(n for n in names if n in free) if image and free else None


def fuse_pair(
    first: Kernel, second: Kernel, buffers: dict[str, Buffer], outside: set[str], cons: Cons, few: int = 0
) -> tuple[Kernel, dict[str, Buffer]] | None:
    """Returns one kernel that does both, in order, and the local buffers it needs; None when they cannot or should not be merged.

    outside: buffers that other steps read: they are still stored. few: up to so many points the kernels may have few rows (on a
    GPU, where several programs share a long row; not for scans, nor for sizes that are known only at the call).
    """
    sizes = {a.name: a.size for k in (first, second) for a in (*k.axes, *(a for p in k.nests for a in p.axes))}
    al = align(first, second, sizes)
    if al is None:
        return None
    outer = common_outer_axes(first, second, al)
    if outer is None:
        return None
    if not few and any(cuts_lanes(k, set(outer), names, buffers) for k, names in ((first, al.axes), (second, {}))):
        return None
    if not few and starves(first, second, outer, al):
        return None
    read = {e.name for e in second.loads}
    vertical = any(s.buffer in read for p in first.nests for s in p.stores)
    enough = worthwhile(first, second, outer, al, buffers, vertical)
    if not enough and not (
        few and all(isinstance(n, int) for n in sizes.values()) and worthwhile(first, second, outer, al, buffers, vertical, few)
    ):
        return None
    for p in first.nests:  # two axes of one loop nest must not become one
        names = [al.axes.get(a.name, a.name) for a in (*first.axes, *p.axes)]
        if len(set(names)) < len(names):
            return None
    nests, axes = combined_nests(first, second, al, outer, cons, sizes)
    nests = join_nests(nests, cons, sizes)
    ops = (*first.ops, *(o for o in second.ops if o not in first.ops))
    kernel = Kernel(second.name, axes, tuple(nests), ops, second.where)
    if not enough and any(r.running for p in nests for r in p.reduces):
        return None
    placed = place_buffers(kernel, buffers, outside, cons, sizes)
    return None if placed is not None and few and leaves_idle(*placed, buffers) else placed


def leaves_idle(k: Kernel, made: dict[str, Buffer], buffers: dict[str, Buffer]) -> bool:
    """Whether a kernel has fewer rows than a GPU has multiprocessors, and its long rows cannot be split among several programs,
    as each has a local buffer. made: its new local buffers."""
    if points(k.axes) >= PROGRAMS or all(points(p.axes) <= LONG_ROW for p in k.nests):
        return False
    return any(made.get(e.name, buffers[e.name]).kind == "local" for e in k.loads)


def combined_nests(
    first: Kernel, second: Kernel, al: Alignment, outer: tuple[str, ...], cons: Cons, sizes: dict[str, Any]
) -> tuple[list[LoopNest], tuple[Axis, ...]]:
    """The nests of both over the same outer axes, and these axes. The first kernel is rewritten with the axis names of the
    second. If the first is large it is the other way round: a kernel that grows merge by merge is not rewritten each time."""
    order = {a.name: i for i, a in enumerate((*second.axes, *(a for p in second.nests for a in p.axes)))}
    back = {x: a for a, x in al.axes.items()}
    large = store_count(first) > max(MANY, store_count(second)) and len(back) == len(al.axes)
    names = {} if large else al.axes
    rename = Rewriter(cons, sizes, {a: ix.var(x) for a, x in (back if large else names).items()})
    axes = {a.name: a for a in second.axes}
    nests: list[LoopNest] = []
    for p in first.nests:
        every = [(al.axes.get(a.name, a.name), replace(a, name=names.get(a.name, a.name))) for a in (*first.axes, *p.axes)]
        every = sorted(((n, a) for n, a in every if n not in outer), key=lambda pair: order.get(pair[0], 0))
        inner = tuple(a for _, a in every)
        nests.append(over(p, inner) if large else rename.body(p, inner))
    for p in second.nests:
        inner = tuple(a for a in (*second.axes, *p.axes) if a.name not in outer)
        if large:
            nests.append(rename.body(p, tuple(replace(a, name=back.get(a.name, a.name)) for a in inner)))
        else:
            nests.append(over(p, inner))
    return nests, tuple(replace(axes[n], name=back.get(n, n) if large else n) for n in outer)


def over(p: LoopNest, axes: tuple[Axis, ...]) -> LoopNest:
    """The nest over other axes."""
    return p if p.axes == axes else replace(p, axes=axes)


def store_count(k: Kernel) -> int:
    """Returns how many stores a kernel has."""
    return sum(len(p.stores) for p in k.nests)


def worthwhile(
    first: Kernel, second: Kernel, outer: tuple[str, ...], al: Alignment, buffers: dict[str, Buffer], vertical: bool, few: int = 0
) -> bool:
    """Whether the merged kernel has enough rows for the threads, and its innermost axes still have stride 1 in memory. vertical:
    the second reads what the first stores. few: as in `fuse_pair`."""
    both = flexible(first) and flexible(second)
    if both and len(outer) == len(first.axes) == len(second.axes):
        return True
    if not flexible(first) and not flexible(second):
        return True
    if both and not vertical:
        return False
    if vertical and flexible(second) and len(outer) == len(second.axes):
        return True  # the second kernel only adds one value a row
    if few and vertical and flexible(first) and not flexible(second):
        return True  # sums over what the first computes: several programs share a row, and none reads it from memory
    sizes = {a.name: a.size for a in second.axes}
    row_count = points([Axis(n, sizes[n]) for n in outer])
    total = max(points((*k.axes, *p.axes)) for k in (first, second) for p in k.nests)
    if not outer:
        return total <= max(SMALL // 16, few)
    columns = False
    for k, names in (
        (first, {al.axes.get(a.name, a.name): a.name for a in first.axes}),
        (second, {n: n for n in sizes}),
    ):
        for p in k.nests:
            if points((*k.axes, *p.axes)) <= row_count:
                continue
            inner = innermost(k, p, buffers)
            if any(names.get(n) == inner for n in outer):
                if both:
                    return False
                columns = True
    return total <= max(SMALL, few) or row_count >= FEW_ROWS * (COLUMN_BLOCK if columns else 1)


def cuts_lanes(k: Kernel, outer: set[str], names: dict[str, str], buffers: dict[str, Buffer]) -> bool:
    """Whether a kernel on any axes would keep only a part of its innermost run, less than a vector: 4*g + c of an outer g and
    a c over range(4). names: of its axes, as `outer` has them."""
    if not flexible(k):
        return False
    # a coordinate of one term cannot hold both: most kernels are done before the search of all accesses below
    found = [x for s in k.nests[0].stores for x in s.coords if len(x.terms) > 1]
    terms = [t for x in found if len(t := ix.axis_terms(x) or ()) > 1]
    if not terms:
        return False
    sizes = {a.name: a.size for a in k.axes}
    inner = innermost(k, k.nests[0], buffers)
    least = sizes.get(inner) if inner is not None and names.get(inner, inner) not in outer else None
    if not isinstance(least, int) or least >= LANES:
        return False
    return any((inner, 1) in of and any(c == least and names.get(a, a) in outer for a, c in of) for of in terms)


def starves(first: Kernel, second: Kernel, outer: tuple[str, ...], al: Alignment) -> bool:
    """Whether the first computes costly functions in rows shorter than a vector, and the second has longer ones: the positions of
    a `grid_sample`, two for each pixel, beside its channels. Alone it runs along its rows, many at a time."""
    left = points(a for a in first.axes if al.axes.get(a.name) not in outer)
    if any(left * points(p.axes) >= LANES for p in first.nests) or points(first.axes) < FEW_ROWS * LANES:
        return False
    if LANES > max(points(a for a in (*second.axes, *p.axes) if a.name not in outer) for p in second.nests):
        return False
    return sum(cost(p.roots()) for p in first.nests) >= COSTLY


# ---- nests of one kernel ---------------------------------------------------------------------------------------------
def row_values(nests: list[LoopNest]) -> dict[str, Store]:
    """Stores of nests without axes: one value a row, which later nests can use as an expression."""
    return {s.buffer: s for p in nests if not p.axes for s in p.stores if s.mode == "set" and s.mask is None}


def join_nests(nests: list[LoopNest], cons: Cons, sizes: dict[str, Any]) -> list[LoopNest]:
    """The nests, joined where dependencies allow it. A load of a value that the same nest or row stores is replaced by the
    value."""
    out: list[LoopNest] = []
    same: dict[str, str] = {}  # reductions made before: their names
    for p in nests:
        known = row_values(out)

        def forward(e: Expr, coords: tuple, mask: Any, known: dict = known) -> Expr | None:
            s = known.get(e.name)
            return s.value if s is not None and s.coords == coords and mask is None else None

        if known or same:
            p = Rewriter(cons, sizes, None, forward, refs=same, only=known).body(p)
        p = adopt_axes(out, p, cons, sizes)
        p = drop_repeated(out, p, same)
        if not p.stores and not p.reduces:
            continue
        at = place(out, p)
        if at is None:
            out.append(p)
        else:
            out[at] = join(out[at], p, cons, sizes)
    return out


def adopt_axes(nests: list[LoopNest], p: LoopNest, cons: Cons, sizes: dict[str, Any]) -> LoopNest:
    """p with its axes renamed as in an earlier nest that reads the same elements, so that the two can be joined."""
    names = {a.name for a in p.axes}
    if not names or any({a.name for a in q.axes} == names for q in nests):
        return p
    own: dict[str, Expr] = {}
    for e in p.loads:
        own.setdefault(e.name, e)
    for q in nests:
        if Counter(a.size for a in q.axes) != Counter(a.size for a in p.axes) or names & {a.name for a in q.axes}:
            continue
        for e in q.loads:
            found = Alignment({}, set())
            if e.name in own and unify(own[e.name].attr, e.attr, sizes, found) and not found.loose:
                axes = {a: x for a, x in found.axes.items() if a in names}
                if len(axes) == len(names) == len(set(axes.values())) and set(axes.values()) == {a.name for a in q.axes}:
                    order = [a.name for a in q.axes]
                    new = sorted((replace(a, name=axes[a.name]) for a in p.axes), key=lambda a: order.index(a.name))
                    return Rewriter(cons, sizes, {a: ix.var(x) for a, x in axes.items()}).body(p, tuple(new))
    return p


def drop_repeated(nests: list[LoopNest], p: LoopNest, same: dict[str, str]) -> LoopNest:
    """p without reductions that an earlier nest makes; their names are added to `same`."""
    if not p.reduces:
        return p
    names = {a.name for a in p.axes}
    made = {
        (r.kind, tuple(map(id, r.args)), r.dtype): r.name
        for q in nests
        for r in q.reduces
        if not r.running and {a.name for a in q.axes} == names
    }
    left = []
    for r in p.reduces:
        key = (r.kind, tuple(map(id, r.args)), r.dtype)
        if key in made and not r.running:
            same[r.name] = made[key]
        else:
            left.append(r)
            if not r.running:  # a scan has a value for every element
                made[key] = r.name
    return replace(p, reduces=tuple(left))


def place(nests: list[LoopNest], p: LoopNest) -> int | None:
    """Index of the earliest nest that p can join; None when p must be a nest of its own, after all others."""
    names = {a.name for a in p.axes}
    refs = {r.name: i for i, q in enumerate(nests) for r in q.reduces if not r.running}
    scans = {r.name: i for i, q in enumerate(nests) for r in q.reduces if r.running}
    stores = {s.buffer: (i, s) for i, q in enumerate(nests) for s in q.stores}
    own = {r.name for r in p.reduces}
    least = 0
    for name in set().union(*(e.refs for e in p.roots())) - own:
        least = max(least, refs[name] + 1 if name in refs else scans.get(name, 0))
    for e in p.loads:
        if e.name in stores:
            i, s = stores[e.name]
            same = s.coords == e.attr and e.mask is None and s.mask is None and s.mode == "set"
            same = same and {a.name for a in nests[i].axes} == names
            least = max(least, i if same else i + 1)
    for i in range(least, len(nests)):
        if {a.name for a in nests[i].axes} == names:
            return i
    return None


def join(a: LoopNest, b: LoopNest, cons: Cons, sizes: dict[str, Any]) -> LoopNest:
    """Joins two nests. Where b loads what a stores it takes the value itself."""
    stores = {s.buffer: s for s in a.stores if s.mode == "set" and s.mask is None}

    def forward(e: Expr, coords: tuple, mask: Any) -> Expr | None:
        s = stores.get(e.name)
        return s.value if s is not None and s.coords == coords and mask is None else None

    b = Rewriter(cons, sizes, None, forward, only=stores).body(b)
    rank = {"parallel": 0, "reduce": 1, "scan": 2}
    kinds = {x.name: max(x.kind, y.kind, key=rank.__getitem__) for x in a.axes for y in b.axes if x.name == y.name}
    axes = tuple(replace(x, kind=kinds[x.name]) for x in a.axes)
    return a.joined(b, axes)
