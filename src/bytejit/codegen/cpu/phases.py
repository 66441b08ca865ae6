"""Loads at computed places that are regular, such as those of an upsampling, as loads of neighbours.

    for j:  o[j] = x[i(j)]  with i = 0, 0, 0, 1, 1, 2, 2, ...      ->      for q:  o[2*q + 1] = x[q];  o[2*q + 2] = x[q]

The places are computed here for every value of the axis. Where each is a constant more than the one `period` values before, the
loop becomes one over whole periods, with a store for each value of a period. What is left at both ends stays as it was. A
vector unit reads neighbours at once, but places that are computed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.loops.ir import Kernel, LoopNest, Store
from bytejit.codegen.loops.mask_values import applied
from bytejit.codegen.loops.simplify import Rewriter, axes_below, depends_on_memory, may_raise_itself, work
from bytejit.common.dtypes import DTYPES
from bytejit.common.light_dataclass import light_dataclass

from .ranges import is_one_loop, part

PERIODS = (1, 2, 3, 4)
LEAST, MOST = 16, 1 << 16  # elements of an axis
SHARE = 4  # at most 1/SHARE of the axis is left at the ends
WORK = 256  # additions and loads of a period, at most


@light_dataclass(frozen=True)
class Regular:
    """Values low <= j < high of an axis are whole periods, in which a place is `steps[e]` more than a period before."""

    period: int
    low: int
    high: int
    steps: dict[int, int]


def nests_of_phases(k: Kernel, p: LoopNest, cons: Cons) -> list[LoopNest]:
    """Nests that together do what the nest p of k does; p alone where its places are not regular."""
    if not is_one_loop(k, p) or not LEAST <= p.axes[0].size <= MOST or work(p.roots()) > WORK:
        return [p]
    axis, size = p.axes[0].name, p.axes[0].size
    seen: dict[int, torch.Tensor | None] = {}
    found = {id(e): (e, v) for e in places(p, axis) if (v := values_of(e, axis, size, seen)) is not None}
    regular = regular_part(size, {n: v for n, (_, v) in found.items()}) if found else None
    if regular is None or regular.period * work(p.roots()) > WORK:
        return [p]
    sizes = {a.name: a.size for a in (*k.axes, *p.axes)}
    ends = [(0, regular.low), (regular.high, size)]
    first, last = ([part(p, sizes, cons, axis, low, high, [])] if low < high else [] for low, high in ends)
    return [*first, whole_periods(p, sizes, cons, regular, found), *last]


def places(p: LoopNest, axis: str) -> Iterator[Expr]:
    """The values that are parts of coordinates of loads, and depend on this axis alone."""
    for e in p.loads:
        for value in ix.values_in(e.attr):
            if axes_below(value) == {axis} and not depends_on_memory(value):
                yield value


def values_of(e: Expr, axis: str, size: int, seen: dict[int, torch.Tensor | None]) -> torch.Tensor | None:
    """An expression's value for each value of the axis; None where an op has no formula."""
    if id(e) not in seen:
        seen[id(e)] = computed(e, axis, size, seen)
    return seen[id(e)]


def computed(e: Expr, axis: str, size: int, seen: dict[int, torch.Tensor | None]) -> torch.Tensor | None:
    """As `values_of`, of a node that was not seen."""
    if e.kind == "const":
        return torch.full((size,), e.attr, dtype=DTYPES[e.dtype].torch)
    if e.kind == "index":
        terms = ix.axis_terms(e.attr)
        if terms is None or any(a != axis or not isinstance(c, int) for a, c in terms):
            return None
        return torch.arange(size) * sum(c for _, c in terms) + e.attr.const
    args = [v for a in e.args if (v := values_of(a, axis, size, seen)) is not None]
    if e.kind != "op" or len(args) < len(e.args):
        return None
    return None if may_raise_itself(e) else applied(e, args)


def regular_part(size: int, values: Mapping[int, torch.Tensor]) -> Regular | None:
    """The longest part around the middle where all values are regular, of the shortest period that leaves little at the ends."""
    for period in PERIODS:
        steps = {n: int(v[size // 2] - v[size // 2 - period]) for n, v in values.items()}
        holds = torch.stack([v[period:] - v[:-period] == steps[n] for n, v in values.items()]).all(0)
        breaks = (~holds).nonzero().flatten().tolist()
        middle = size // 2 - period
        low = max((b + 1 for b in breaks if b < middle), default=0)
        high = min((b for b in breaks if b >= middle), default=size - period) + period
        high -= (high - low) % period
        if SHARE * (size - (high - low)) <= size and min(steps.values()) >= 0:
            return Regular(period, low, high, steps)
    return None


def whole_periods(
    p: LoopNest, sizes: Mapping[str, Any], cons: Cons, regular: Regular, found: Mapping[int, tuple[Expr, torch.Tensor]]
) -> LoopNest:
    """The nest over whole periods. found: id of a place -> (its expression, its values)."""
    axis, count = p.axes[0], (regular.high - regular.low) // regular.period
    at = ix.var(axis.name)
    stores: list[Store] = []
    for phase in range(regular.low, regular.low + regular.period):
        rewrite = Rewriter(cons, {**sizes, axis.name: count}, {axis.name: at * regular.period + phase})
        for n, (e, values) in found.items():
            rewrite.memo[n] = cons.index(at * regular.steps[n] + int(values[phase]), e.where)
            rewrite.keep.append(e)
        stores += map(rewrite.store, p.stores)
    return LoopNest((replace(axis, size=count),), tuple(stores))
