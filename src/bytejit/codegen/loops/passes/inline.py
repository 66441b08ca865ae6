"""Inlining: a pointwise kernel moves into its readers, where computing its values again costs less than memory traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, Loops, Store, updates
from bytejit.codegen.loops.simplify import (
    HEAVY,
    MOST_WORK,
    Rewriter,
    axes_below,
    bytes_of,
    checks,
    conjuncts,
    cost,
    elements,
    innermost,
    kernel_roots,
    loads,
    may_raise,
    points,
    work,
)
from bytejit.codegen.loops.uses import reads
from bytejit.common.spec import contiguous_stride

from .fuse_kernels import flexible
from .one_hot import without_one_hot_sums

AGAIN = 24  # additions: so little work takes no time beside the loads of a point
LARGE = 8192  # points: with at least so many, the cost of starting another kernel does not matter
SIDE = 16  # elements: a transposition of at least so many along both axes runs in tiles
SMALL = 4096  # points: a kernel of at most so many may be computed again at every point of its readers
FAR = 32 << 20, 4 << 20  # bytes (on the CPU, on a GPU): a value of at least so many is read from memory, not from a cache
HIDES = 24, 40  # additions (likewise): so little work costs less than storing an element and loading it again
FEWER = 16  # a source with so many times fewer elements than there are points stays in a cache
MORE = 1.01  # so many times the bytes of the value may be read instead of it: a padded product is a little larger than its part


def pointwise_store(k: Any) -> Store | None:
    """The one store of a kernel that computes each element of one buffer independently; None for other kernels."""
    if isinstance(k, Kernel) and len(k.nests) == 1 and not k.nests[0].axes and not k.nests[0].reduces:
        stores = k.nests[0].stores
        if len(stores) == 1 and stores[0].mode == "set" and stores[0].mask is None and not stores[0].over:
            if all(c.value == 0 or ix.only_axis(c) is not None for c in stores[0].coords):
                return stores[0]
    return None


def inline(loops: Loops, launches: bool = False) -> Loops:
    """Moves pointwise kernels into their readers where that costs less. launches: as in `fuse.passes`."""
    readers: dict[str, list[Kernel]] = {}
    pinned = {r.view.buffer for r in loops.outputs if r.view is not None}
    for step in loops.steps:
        for b in reads(step):
            if isinstance(step, Kernel):
                readers.setdefault(b, []).append(step)
            else:
                pinned.add(b)
        pinned.update(updates(step))
    sizes = {a.name: a.size for k in loops.steps if isinstance(k, Kernel) for a in all_axes(k)}
    inlined: dict[str, tuple[Kernel, Store]] = {}
    laid: dict[str, Buffer] = {}
    steps: list[Any] = []
    for step in loops.steps:
        if not isinstance(step, Kernel):
            steps.append(step)
            continue
        for name in too_much(step, inlined):
            steps.append(inlined.pop(name)[0])
        new = without_one_hot_sums(inline_into(step, inlined, loops.cons, sizes), loops.cons)
        store = pointwise_store(new)
        if store is not None and store.buffer not in pinned and loops.buffers[store.buffer].kind == "temp":
            near = readers.get(store.buffer, [])
            rows = not launches and leaves_rows(new, near, loops.buffers, readers)
            apart = rows or not launches and turns(new, near, loops.buffers, readers)
            again = launches and cheap_at_any_point(new, store) or cheaper_than_memory(new, store, near, loops.buffers, launches)
            good = again or not apart and worth_inlining(new, store, near, loops.buffers)
            if good and makes_checks(near, store, sizes) and (launches or not repeats(new, near)):
                inlined[store.buffer] = new, store
                continue
            if rows:
                laid[store.buffer] = as_rows(new, store, loops.buffers)
        steps.append(new)
    return replace(loops, steps=tuple(steps), buffers={**loops.buffers, **laid})


def as_rows(k: Kernel, store: Store, buffers: dict[str, Buffer]) -> Buffer:
    """The buffer of a kernel that fetches rows, laid out as these lie: whoever reads it along another axis turns it in tiles."""
    b, inner = buffers[store.buffer], innermost(k, k.nests[0], buffers)
    order = sorted(range(len(b.shape)), key=lambda d: inner is not None and inner in ix.variables(store.coords[d]))
    dense = contiguous_stride(tuple(b.shape[d] for d in order))
    return replace(b, stride=tuple(dense[order.index(d)] for d in range(len(b.shape))))


def all_axes(k: Kernel) -> list[Axis]:
    """Outer axes, then those of all nests."""
    return [*k.axes, *(a for p in k.nests for a in p.axes)]


def too_much(k: Kernel, inlined: dict[str, tuple[Kernel, Store]]) -> list[str]:
    """Inlined buffers that have to be stored after all: k would become too large, or the check of an index would be lost."""
    reading = [e for e in k.loads if e.name in inlined]
    if not reading:
        return []
    found = [e.name for e in reading]
    total, out = work(kernel_roots(k)), []
    for name in dict.fromkeys(found):
        if any(e.name == name and loses_check(e, inlined[name][1]) for e in reading):
            out.append(name)
            continue
        more = found.count(name) * work((inlined[name][1].value,))
        if total + more > MOST_WORK:
            out.append(name)
        else:
            total += more
    return out


def makes_checks(readers: list[Kernel], store: Store, sizes: dict[str, Any]) -> bool:
    """Whether no check (of an index, of a divisor) in the value is lost: some reader computes the value at all points at which it
    is checked. A reader that reads a part of the value would check that part only."""
    found = checks((store.value,))
    if not found:
        return True
    names = set().union(*map(axes_below, found))
    shape = [next((sizes[name] for name in ix.variables(c)), 1) for c in store.coords]
    dims = [d for d, c in enumerate(store.coords) if ix.variables(c) & names]
    own = [e for k in readers for e in k.loads if e.name == store.buffer]
    return any(
        (e.mask is None or only_bounds(e.mask, e.attr, shape)) and reaches_all([(e.attr[d], shape[d]) for d in dims], sizes)
        for e in own
    )


def only_bounds(mask: Expr, coords: tuple[ix.Index, ...], shape: list[Any]) -> bool:
    """Whether a mask asks no more than that coordinates lie within the buffer."""
    bounds = {("ge", c, ix.index(0)) for c in coords} | {("lt", c, ix.index(n)) for c, n in zip(coords, shape)}
    return all(
        e.kind == "op"
        and all(a.kind in ("index", "const") for a in e.args)
        and (e.name, *(ix.index(a.attr) for a in e.args)) in bounds
        for e in conjuncts(mask)
    )


def reaches_all(coords: list[tuple[ix.Index, Any]], sizes: dict[str, Any]) -> bool:
    """Whether coordinates, each given with the size of its dim, take all values: they reach the first and the last one, and have
    at least as many points."""
    free = set().union(*(ix.variables(c) for c, _ in coords))
    for c, n in coords:
        low, high = ix.bounds(c, sizes)
        if low > 0 or high < ix.hint(n) - 1:
            return False
    return points(Axis(name, sizes[name]) for name in free) >= points(Axis("", n) for _, n in coords)


def loses_check(read: Expr, store: Store) -> bool:
    """Whether a load checks an index, and the check would be lost if the value were computed there: the index is along a dim that
    the value does not depend on, or in the mask of a value that loads nothing."""
    if read.mask is not None and may_raise((read.mask,)) and not any(True for _ in loads((store.value,))):
        return True
    checked = [s for s, c in zip(store.coords, read.attr) if any(may_raise((e,)) for e in ix.values_in(c))]
    return bool(checked) and any(not ix.variables(s) <= axes_below(store.value) for s in checked)


def inline_into(k: Kernel, inlined: dict[str, tuple[Kernel, Store]], cons: Cons, sizes: dict[str, Any]) -> Kernel:
    """k with every load of an inlined buffer replaced by its expression."""
    ops: list[str] = []
    memo: dict[Any, Rewriter] = {}

    def on_load(e: Expr, coords: tuple, mask: Any) -> Expr | None:
        if e.name not in inlined:
            return None
        maker, store = inlined[e.name]
        ops.extend(o for o in maker.ops if o not in ops)
        key = (e.name, coords, id(mask))
        if key not in memo:
            axes = {s.terms[0][0].parts[0]: c for s, c in zip(store.coords, coords) if s.terms}
            memo[key] = Rewriter(cons, sizes, axes, None, mask)
        return memo[key](store.value)

    if not any(e.name in inlined for e in k.loads):
        return k
    rewrite = Rewriter(cons, sizes, None, on_load)
    return replace(k, nests=tuple(rewrite.body(p) for p in k.nests), ops=(*ops, *k.ops))


def turned_axis(k: Kernel, buffers: dict[str, Buffer]) -> str | None:
    """The axis along which a load of a pointwise kernel has stride 1, where its store has that along another; None for a kernel
    that does not transpose. It runs in tiles, and is not moved into one that reduces rows along other axes, which cannot."""
    if not flexible(k) or len(k.nests[0].stores) != 1 or points(k.axes) < LARGE:
        return None
    store = k.nests[0].stores[0]
    own = [a.name for a in k.axes]
    to = {n: ix.linear(store.coords, buffers[store.buffer].stride).coefficient(n) for n in own}
    sizes = {a.name: ix.hint(a.size) for a in k.axes}
    for e in loads((store.value,)):
        source = ix.linear(e.attr, buffers[e.name].stride)
        at = {n: source.coefficient(n) for n in own}
        inner = [n for n in own if to[n] == 1 and abs(ix.hint(at[n])) > 1 and run(n, sizes, to) >= SIDE]
        turned = [n for n in own if at[n] == 1 and n not in inner and run(n, sizes, at) >= SIDE]
        if inner and turned:
            return turned[0]
    return None


def turns(k: Kernel, readers: list[Kernel], buffers: dict[str, Buffer], of: Mapping[str, list[Kernel]]) -> bool:
    """Whether a kernel transposes, and a reader cannot: one that is more than pointwise, and does not run along the axis on which
    the elements lie, nor takes any order, as it goes through nothing else. of: the readers of buffers."""
    if all(map(flexible, readers)) or (axis := turned_axis(k, buffers)) is None:
        return False
    store = k.nests[0].stores[0]
    dim = next(d for d, c in enumerate(store.coords) if axis in ix.variables(c))
    if len(readers) == 1 and reduces_columns(readers[0], store.buffer, dim, buffers):
        return False
    return not all(flexible(r) or runs_along(r, store.buffer, dim, buffers, of) for r in readers)


def reduces_columns(k: Kernel, buffer: str, dim: int, buffers: dict[str, Buffer]) -> bool:
    """Whether a kernel has a result for each place along a dim of a buffer, and reads or stores nothing else of that size: it
    runs as the elements lie."""
    used = {e.name for e in k.loads} | {s.buffer for p in k.nests for s in p.stores}
    if any(elements(buffers[name]) * FEWER > elements(buffers[buffer]) for name in used - {buffer}):
        return False
    columns = {a.name for a in k.axes if ix.hint(a.size) >= SIDE}
    return all(ix.only_axis(e.attr[dim]) in columns for e in k.loads if e.name == buffer)


def run(axis: str, sizes: dict[str, int], strides: dict[str, Any]) -> int:
    """The number of elements that are consecutive in memory, beginning with an axis of stride 1."""
    length = sizes[axis]
    while found := [n for n in sizes if n != axis and strides[n] == length and sizes[n] > 1]:
        axis, length = found[0], length * sizes[found[0]]
    return length


def cheap_at_any_point(k: Kernel, store: Store) -> bool:
    """Whether a kernel is small, and its elements cost so little that they can be computed again at every point of its
    readers."""
    return (
        points(k.axes) <= SMALL
        and cost((store.value,)) <= AGAIN
        and not may_raise((store.value,))
        and len(loads((store.value,))) <= 5
    )


def leaves_rows(
    k: Kernel, readers: list[Kernel], buffers: dict[str, Buffer], of: Mapping[str, list[Kernel]] = MappingProxyType({})
) -> bool:
    """Whether a kernel fetches rows by computed indices, as an upsampling with the channels innermost, and a reader runs along
    another axis: a load of its own for each element, where tiles cannot help. of: the readers of buffers."""
    if not flexible(k) or len(k.nests[0].stores) != 1:
        return False
    store = k.nests[0].stores[0]
    fetched = [e for e in loads((store.value,)) if next(ix.values_in(e.attr), None) is not None]
    inner = innermost(k, k.nests[0], buffers) if fetched and points(k.axes) >= LARGE else None
    dims = [d for d, c in enumerate(store.coords) if inner is not None and inner in ix.variables(c)]
    if not dims or any(inner in axes_below(v) for e in fetched for v in ix.values_in(e.attr)):
        return False
    return not all(runs_along(reader, store.buffer, dims[0], buffers, of) for reader in readers)


def repeats(k: Kernel, readers: list[Kernel]) -> bool:
    """Whether a kernel repeats elements of a smaller buffer, as the numbers of groups for their channels, for readers with many
    times more points. Left apart it costs little, and the axis of channels in the readers is not divided into groups."""
    if not flexible(k) or len(k.nests[0].stores) != 1:
        return False
    store, most = k.nests[0].stores[0], FEWER * points(k.axes)
    if any(points((*r.axes, *max((p.axes for p in r.nests), key=points))) < most for r in readers):
        return False
    found = loads((store.value,))
    divided = any(type(atom) is ix.Div for e in found for c in e.attr for atom in ix.atoms(c))
    return divided or bool(found) and not set().union(*map(ix.variables, store.coords)) <= axes_below(store.value)


def runs_along(k: Kernel, buffer: str, dim: int, buffers: dict[str, Buffer], of: Mapping[str, list[Kernel]]) -> bool:
    """Whether a kernel reads a buffer with a dim innermost, or is a step towards kernels that add up or compare along it, many
    elements at a time."""
    store = pointwise_store(k)
    later = of.get(store.buffer, []) if store is not None else []
    for p in k.nests:
        good = {innermost(k, p, buffers), *(a.name for a in p.axes if p.reduces and ix.hint(a.size) >= SIDE)}
        for e in p.loads:
            if e.name != buffer or good & (axes := ix.variables(e.attr[dim])):
                continue
            to = [d for d, c in enumerate(store.coords) if axes & ix.variables(c)] if store is not None else []
            if store is None or not to or not later:
                return False
            if not all(runs_along(r, store.buffer, to[0], buffers, of) for r in later):
                return False
    return True


def worth_inlining(k: Kernel, store: Store, readers: list[Kernel], buffers: dict[str, Buffer]) -> bool:
    """Whether computing k's element at every load of it costs less than storing and loading it."""
    value_cost = cost((store.value,))
    sources = loads((store.value,))
    if may_raise((store.value,)) and len(readers) > 1:
        return False
    if not sources:
        return value_cost <= 30
    if len(readers) > 1:
        return value_cost < HEAVY and len(sources) <= 1
    return times_read(store, readers, buffers, value_cost) <= max(1, points(k.axes)) * 1.01 or value_cost < HEAVY


def cheaper_than_memory(k: Kernel, store: Store, readers: list[Kernel], buffers: dict[str, Buffer], gpu: bool) -> bool:
    """Whether a value is so large, and computed from so few bytes, that reading these again costs less than storing it. So a
    training step keeps the input of an activation instead of its output, and the sums of the rows instead of log_softmax."""
    stored, n = bytes_of(buffers[store.buffer]), points(k.axes)
    if not readers or stored < FAR[gpu] or cost((store.value,)) > HIDES[gpu] or may_raise((store.value,)):
        return False
    sources = loads((store.value,))
    large = {e.name for e in sources if elements(buffers[e.name]) * FEWER > n}
    if sum(bytes_of(buffers[name]) for name in large) > MORE * stored:
        return False
    if any(next(ix.values_in(e.attr), None) is not None for e in sources):
        return False
    return times_read(store, readers, buffers, HIDES[gpu] + 1) <= 2 * len(readers) * n


def times_read(store: Store, readers: list[Kernel], buffers: dict[str, Buffer], value_cost: int) -> float:
    """The number of points at which the readers would compute a value. value_cost: in additions."""
    times = 0.0
    for reader in readers:
        for p in reader.nests:
            at = {e.attr for e in p.loads if e.name == store.buffer}
            own = [a for a in (*reader.axes, *p.axes)]
            inner = innermost(reader, p, buffers)
            for coords in at:
                names = set().union(*map(ix.variables, coords), *map(axes_below, ix.values_in(coords)))
                free = [a for a in own if a.name in names]
                hoisted = inner is not None and all(a.name != inner for a in free) and value_cost <= 40
                times += points(free if hoisted else own)
    return times
