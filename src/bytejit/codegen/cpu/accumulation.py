"""How long sums of floats are accumulated: an f32 that takes n floats one after another is wrong by about sqrt(n) roundings
of its last value, and by n where one of them is far larger than the rest.

Eager cuts long sums into parts, and keeps the moments of batch norms and scans in f64. Here a single accumulator
is an f64 (its additions wait for one another anyway); those of lanes and of columns take CHAIN floats and are emptied
into a `bj::Wide` (prelude/base.h), in a loop that their sizes decide: f64 in all of them would take twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.loops.ir import Reduce

CHAIN = 32  # additions in a row to one accumulator of f32
FEW = 16  # total number of additions allowed in f32


@dataclass(frozen=True)
class Sums:
    """How a nest keeps its sums of f32. many: additions to one accumulator, inf where not known. axis: in whose loop they are
    emptied ("": nowhere), after each `every` of its steps (a power of two), and where `at_end` when that loop ends."""

    many: float = 1
    axis: str = ""
    every: int = 1
    at_end: bool = False


def sums_of(names: Sequence[str], sizes: Mapping[str, Any], lanes: int, single: bool) -> Sums:
    """For a nest over these axes, outermost first, the innermost in `lanes`. single: one accumulator, no column or lane."""
    trips = [float(sizes[n]) if isinstance(sizes[n], int) else float("inf") for n in names]
    if names:
        trips[-1] = trips[-1] if trips[-1] == float("inf") else -(-trips[-1] // lanes)
    many, inside = 1.0, 1.0
    for n in trips:
        many *= n
    if single or many <= FEW:
        return Sums(many)
    for position in range(len(names) - 1, -1, -1):
        if inside * trips[position] > CHAIN:
            break
        inside *= trips[position]
    every = 1
    while 2 * every * inside <= CHAIN:
        every *= 2
    last = position == len(names) - 1
    return Sums(many, names[position], every, position > 0 and (last or trips[position] == float("inf")))


def accumulator(r: Reduce, sums: Sums) -> str:
    """Dtype of a reduction's accumulators; for argmax and argmin that of the compared value."""
    dtype = common.value_dtype(r)
    wide = r.kind == "sum" and sums.many > FEW and not sums.axis or r.running and r.kind in ("sum", "prod", "logsum")
    return "f64" if wide and dtype == "f32" else dtype


def emptied(r: Reduce, sums: Sums) -> bool:
    """Whether a reduction's accumulators are emptied from time to time."""
    return bool(sums.axis) and r.kind == "sum" and r.dtype == "f32" and not r.running
