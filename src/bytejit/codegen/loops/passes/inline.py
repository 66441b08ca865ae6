"""Inlining: a pointwise kernel goes into its readers, where computing again costs less than memory."""

from __future__ import annotations

from dataclasses import replace
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
    cost,
    elements,
    innermost,
    kernel_roots,
    loads,
    may_raise,
    points,
    work,
)

from .fuse_kernels import flexible
from .one_hot import without_one_hot_sums
from .uses import reads

AGAIN = 24  # additions: work that hides behind the loads of a point
LARGE = 8192  # points: from here on a kernel of its own costs nothing beside them
SIDE = 16  # elements, both ways, of what is worth a transposition in tiles
SMALL = 4096  # points: a kernel on parameters that may be computed at every point
FAR = 32 << 20, 4 << 20  # bytes on the CPU, on a GPU: a value of so many comes from memory, not from a cache
HIDES = 24, 40  # additions, likewise: work that costs less than an element that is stored and loaded again
FEWER = 16  # times: a source of so much fewer elements than points stays in a cache
MORE = 1.01  # times as many bytes as the value may be read again: a padded product is a little larger than its part


def pointwise_store(k: Any) -> Store | None:
    """The one store of a kernel that computes every element of one buffer on its own; else None."""
    if isinstance(k, Kernel) and len(k.nests) == 1 and not k.nests[0].axes and not k.nests[0].reduces:
        stores = k.nests[0].stores
        if len(stores) == 1 and stores[0].mode == "set" and stores[0].mask is None and not stores[0].over:
            if all(
                len(c.terms) <= 1
                and (c.value == 0 or c.terms and type(c.terms[0][0]) is ix.AxisVar and c.terms[0][1] == 1 and not c.const)
                for c in stores[0].coords
            ):
                return stores[0]
    return None


def inline(loops: Loops, launches: bool = False) -> Loops:
    """Move each pointwise kernel that is cheap to compute at its readers' loads into the readers."""
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
            apart = not launches and transposes(new, loops.buffers) and not all(map(flexible, near))
            again = launches and free_again(new, store) or large_again(new, store, near, loops.buffers, launches)
            good = again or not apart and worth_inlining(new, store, near, loops.buffers)
            if good and makes_checks(near, store, sizes):
                inlined[store.buffer] = new, store
                continue
        steps.append(new)
    return replace(loops, steps=tuple(steps))


def all_axes(k: Kernel) -> list[Axis]:
    """Outer axes, then those of all nests."""
    return [*k.axes, *(a for p in k.nests for a in p.axes)]


def too_much(k: Kernel, inlined: dict[str, tuple[Kernel, Store]]) -> list[str]:
    """Inlined buffers that k has no room for, or whose inlining would lose the check of an index: they are stored after all."""
    reading = [e for e in loads(kernel_roots(k)) if e.name in inlined]
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
    """Whether some reader computes a value at all points for which the value checks an index or a divisor: one that reads a part
    of it checks that part alone."""
    found = checks((store.value,))
    if not found:
        return True
    names = set().union(*map(axes_below, found))
    dims = {d: sizes[name] for d, c in enumerate(store.coords) for name in ix.variables(c) & names}
    own = [e for k in readers for e in loads(kernel_roots(k)) if e.name == store.buffer]
    return any(
        (e.mask is None or not e.mask.loads) and reaches_all([(e.attr[d], n) for d, n in dims.items()], sizes) for e in own
    )


def reaches_all(coords: list[tuple[ix.Index, Any]], sizes: dict[str, Any]) -> bool:
    """Whether coordinates, each with the size of its dim, take all values: from first to last, at no fewer points."""
    free = set().union(*(ix.variables(c) for c, _ in coords))
    for c, n in coords:
        low, high = ix.bounds(c, sizes)
        if low > 0 or high < ix.hint(n) - 1:
            return False
    return points(Axis(name, sizes[name]) for name in free) >= points(Axis("", n) for _, n in coords)


def loses_check(read: Expr, store: Store) -> bool:
    """Whether a load checks an index (of a dim that the stored value does not depend on, or in the mask of a value that is not
    loaded) which is gone when the value is computed there."""
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

    if not any(e.name in inlined for e in loads(kernel_roots(k))):
        return k
    rewrite = Rewriter(cons, sizes, None, on_load)
    return replace(k, nests=tuple(rewrite.body(p) for p in k.nests), ops=(*ops, *k.ops))


def transposes(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether a pointwise kernel changes a layout: it stores along one axis what some load has along another. It runs in
    tiles. Rows that are reduced read its result several times, and along their own axes."""
    if not flexible(k) or len(k.nests[0].stores) != 1 or points(k.axes) < LARGE:
        return False
    store = k.nests[0].stores[0]
    own = [a.name for a in k.axes]
    to = {n: ix.linear(store.coords, buffers[store.buffer].stride).coefficient(n) for n in own}
    sizes = {a.name: ix.hint(a.size) for a in k.axes}
    for e in loads((store.value,)):
        source = ix.linear(e.attr, buffers[e.name].stride)
        at = {n: source.coefficient(n) for n in own}
        inner = [n for n in own if to[n] == 1 and abs(ix.hint(at[n])) > 1 and run(n, sizes, to) >= SIDE]
        if inner and any(at[n] == 1 and n not in inner and run(n, sizes, at) >= SIDE for n in own):
            return True
    return False


def run(axis: str, sizes: dict[str, int], strides: dict[str, Any]) -> int:
    """The number of consecutive elements, from the axis of stride 1 on."""
    length = sizes[axis]
    while found := [n for n in sizes if n != axis and strides[n] == length and sizes[n] > 1]:
        axis, length = found[0], length * sizes[found[0]]
    return length


def free_again(k: Kernel, store: Store) -> bool:
    """Whether a small kernel's elements cost next to nothing at any number of points that wait for memory."""
    return (
        points(k.axes) <= SMALL
        and cost((store.value,)) <= AGAIN
        and not may_raise((store.value,))
        and len(loads((store.value,))) <= 5
    )


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


def large_again(k: Kernel, store: Store, readers: list[Kernel], buffers: dict[str, Buffer], gpu: bool) -> bool:
    """Whether a value is so large, and made of so little, that reading what it is made of again costs less than storing it. So a
    training step keeps of an activation what it is computed from, and of log_softmax its rows' sums."""
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
    """The number of points at which readers would compute a value."""
    times = 0.0
    for reader in readers:
        for p in reader.nests:
            at = {e.attr for e in loads(p.roots()) if e.name == store.buffer}
            own = [a for a in (*reader.axes, *p.axes)]
            inner = innermost(reader, p, buffers)
            for coords in at:
                names = set().union(*map(ix.variables, coords), *map(axes_below, ix.values_in(coords)))
                free = [a for a in own if a.name in names]
                hoisted = inner is not None and all(a.name != inner for a in free) and value_cost <= 40
                times += points(free if hoisted else own)
    return times
