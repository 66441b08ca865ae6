"""How long sums of floats are accumulated. Adding n floats to an f32 one after another gives an error of about sqrt(n)
roundings of the sum; of n roundings if one of the floats is far larger than the rest.

Eager divides long sums into parts, and accumulates the moments of batch norms and scans in f64. Here a single accumulator is an
f64: its additions wait for one another anyway. Accumulators of lanes and of columns are f32, since f64 would take twice as
long. After CHAIN additions they are added to a `bj::Wide` (kernels/prelude/base.h) and set to 0: they are emptied. The sizes of
the loops decide in which loop that is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.loops.ir import Reduce
from bytejit.common.light_dataclass import light_dataclass

CHAIN = 32  # at most so many additions to an f32 accumulator before it is emptied
FEW = 16  # a single accumulator of at most so many additions is an f32, too


@light_dataclass(frozen=True)
class Sums:
    """How a nest accumulates its sums of f32. wide: in one f64. axis: the accumulators are emptied in its loop ("": never), after
    each `every` iterations (a power of two). at_end: also when that loop ends."""

    wide: bool = False
    axis: str = ""
    every: int = 1
    at_end: bool = False


def sums_of(names: Sequence[str], sizes: Mapping[str, Any], lanes: int, single: bool) -> Sums:
    """The `Sums` of a nest over these axes, outermost first, the innermost in `lanes`. single: there is one accumulator, not
    one for each column or lane."""
    trips = [float(sizes[n]) if isinstance(sizes[n], int) else float("inf") for n in names]
    if names:
        trips[-1] = trips[-1] if trips[-1] == float("inf") else -(-trips[-1] // lanes)
    many, inside = 1.0, 1.0
    for n in trips:
        many *= n
    if single or many <= CHAIN:
        return Sums(wide=single and many > FEW)
    for position in range(len(names) - 1, -1, -1):
        if inside * trips[position] > CHAIN:
            break
        inside *= trips[position]
    every = 1
    while 2 * every * inside <= CHAIN:
        every *= 2
    last = position == len(names) - 1
    return Sums(False, names[position], every, position > 0 and (last or trips[position] == float("inf")))


def accumulator(r: Reduce, sums: Sums) -> str:
    """Dtype of a reduction's accumulators; for argmax and argmin that of the compared value."""
    dtype = common.value_dtype(r)
    if r.kind in ("any", "all") and dtype == "b8":
        return "u8"  # GCC makes no vector code of arrays of bools
    wide = r.kind == "sum" and sums.wide or r.running and r.kind in ("sum", "prod", "logsum")
    return "f64" if wide and dtype == "f32" else dtype


def emptied(r: Reduce, sums: Sums) -> bool:
    """Whether a reduction's accumulators are emptied during the reduction."""
    return bool(sums.axis) and r.kind == "sum" and r.dtype == "f32" and not r.running
