"""Loads at computed places that are regular, such as those of an upsampling, as loads of neighbours.

    for j:  o[j] = x[i(j)]  with i = 0, 0, 0, 1, 1, 2, 2, ...      ->      for q:  o[2*q + 1] = x[q];  o[2*q + 2] = x[q]

The places are computed here for every value of the axis. Where each is a constant more than the one `period` values before, the
loop becomes one over whole periods, with a store for each value of a period. What is left at both ends stays as it was. A
vector unit reads neighbours at once, but places that are computed one by one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.ir import Kernel, LoopNest, Store
from bytejit.codegen.loops.mask_values import applied
from bytejit.codegen.loops.passes.split import accesses
from bytejit.codegen.loops.simplify import Rewriter, axes_at, axes_below, depends_on_memory, may_raise_itself, work
from bytejit.common.dtypes import DTYPES, FLOATS
from bytejit.common.light_dataclass import light_dataclass

from .ranges import has_plain_loop, loaded, part

PERIODS = (1, 2, 3, 4)  # in ascending order
LEAST, MOST = 16, 1 << 16  # elements of an axis
SHARE = 4  # at most 1/SHARE of the axis is left at the ends
WORK = 512  # additions and loads of a period, at most


@light_dataclass(frozen=True)
class Regular:
    """Values low <= j < high of an axis are whole periods, in which a place is `steps[e]` more than a period before."""

    period: int
    low: int
    high: int
    steps: dict[int, int]


def nests_of_phases(k: Kernel, p: LoopNest, cons: Cons) -> list[LoopNest]:
    """Nests that together do what the nest p of k does; p alone where its places are not regular."""
    if not has_plain_loop(k, p) or not LEAST <= p.axes[-1].size <= MOST or work(p.roots()) > WORK:
        return [p]
    axis, size = p.axes[-1].name, p.axes[-1].size
    seen: dict[int, torch.Tensor | None] = {}
    divided = divided_by(p, axis)
    found = {id(e): (e, v) for e in places(p, axis) if (v := values_of(e, axis, size, seen)) is not None}
    regular = regular_part(size, found, divided)
    weights = {id(e): (e, v) for e in own_values(p, axis) if (v := values_of(e, axis, size, seen)) is not None}
    steady = {n: one for n, one in weights.items() if is_steady(regular_part(size, {n: one}, divided))}
    if steady and (both := regular_part(size, found | steady, divided)) is not None and is_steady(both, steady):
        found, regular = found | steady, both
    if regular is None or regular.period * work(p.roots()) > WORK:
        return [p]
    sizes = {a.name: a.size for a in (*k.axes, *p.axes)}
    ends = [(0, regular.low), (regular.high, size)]
    first, last = ([part(p, sizes, cons, axis, low, high, [])] if low < high else [] for low, high in ends)
    return [*first, whole_periods(p, sizes, cons, regular, found), *last]


def divided_by(p: LoopNest, axis: str) -> int:
    """The period of the quotients and remainders of an axis: j // 2 is one more, and j % 2 the same, two values on. 1 where there
    are none, or where they have no short period."""
    period = 1
    for atom in (atom for _, coords in accesses([p]) for at in coords for atom in ix.atoms(at)):
        if type(atom) in (ix.Div, ix.Mod) and axis in ix.variables(atom.parts[0]):
            step, divisor = atom.parts[0].coefficient(axis), atom.parts[1]
            if not isinstance(step, int) or not isinstance(divisor, int):
                return 1
            period = math.lcm(period, divisor // math.gcd(step, divisor))
    return period if period in PERIODS else 1


def places(p: LoopNest, axis: str) -> Iterator[Expr]:
    """The values that are parts of coordinates of loads, and depend on this axis alone."""
    for e in p.loads:
        for value in ix.values_in(e.attr):
            if axes_below(value) == {axis} and not depends_on_memory(value):
                yield value


def own_values(p: LoopNest, axis: str) -> Iterator[Expr]:
    """The largest expressions of floats that depend on this axis alone, such as the weights of a resized image."""
    alone: dict[int, bool] = {}
    for e in walk(p.roots()):
        leaf = e.kind == "const" or e.kind == "index" and axes_at(e) <= {axis}
        alone[id(e)] = leaf or e.kind == "op" and all(alone[id(a)] for a in e.needs)
        if not alone[id(e)]:
            yield from (a for a in e.needs if alone[id(a)] and a.kind == "op" and a.dtype in FLOATS and axes_below(a))


def is_steady(regular: Regular | None, of: Iterable[int] | None = None) -> bool:
    """Whether values, all or some, are the same in each period."""
    return regular is not None and not any(regular.steps[n] for n in (regular.steps if of is None else of))


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


def regular_part(size: int, found: Mapping[int, tuple[Expr, torch.Tensor]], divided: int) -> Regular | None:
    """The longest part around the middle where all values are regular, of the shortest period that leaves little at the ends.
    divided: a period that it is a multiple of. None where there is none, or no reason for one."""
    values = {n: v for n, (_, v) in found.items()}
    if not values:
        return Regular(divided, 0, size - size % divided, {}) if divided > 1 else None
    for period in range(divided, PERIODS[-1] + 1, divided):
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
    axis, count = p.axes[-1], (regular.high - regular.low) // regular.period
    at = ix.var(axis.name)
    stores: list[Store] = []
    for phase in range(regular.low, regular.low + regular.period):
        moved = {axis.name: at * regular.period + phase}
        rewrite = Rewriter(cons, {**sizes, axis.name: count}, moved, functools.partial(loaded, cons))
        for n, (e, values) in found.items():
            steady = e.dtype in FLOATS
            rewrite.memo[n] = (
                cons.const(float(values[phase]), e.dtype)
                if steady
                else cons.index(at * regular.steps[n] + int(values[phase]), e.where)
            )
            rewrite.keep.append(e)
        stores += map(rewrite.store, p.stores)
    return LoopNest((*p.axes[:-1], replace(axis, size=count)), tuple(stores))
