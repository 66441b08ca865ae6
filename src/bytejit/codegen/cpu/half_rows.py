"""Rows of float16 that a kernel converts a chunk at a time, with the CPU's own instruction for eight numbers.

GCC converts one element at a time in a vector loop over `_Float16`, and integer arithmetic in lanes takes 20 instructions. So the
elements that a loop reads and writes one after the other go through a short array of f32, which stays in the L1 cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Store

from .reductions import NestState

CHUNK = 512  # elements: several such arrays stay in the L1 cache
LEAST = 32  # elements of a row: below, the arrays cost more than they save


def starts(at: Any, axis: str) -> ix.Index | None:
    """Where the elements of an index begin, if they follow each other along the axis; None otherwise."""
    at = ix.index(at)
    if at.coefficient(axis) != 1 or at.within_atoms(axis):
        return None
    return at - ix.var(axis)


def long_enough(n: NestState, axis: str) -> bool:
    """Whether the loop over the axis is vector code of its own, over rows of some length."""
    size = n.sizes[axis]
    return n.sched.vector == axis and not n.block and not (isinstance(size, int) and size < LEAST)


@dataclass(frozen=True)
class HalfRow:
    """of: a load or a store; start: where its row begins; value: what a store rounds."""

    of: Expr | Store
    buffer: str
    start: ix.Index
    value: Expr | None = None


@dataclass(frozen=True)
class HalfRows:
    """The rows that a loop reads and writes."""

    loads: tuple[HalfRow, ...]
    stores: tuple[HalfRow, ...]


def half_rows(n: NestState, axis: str, buffers: set[str]) -> HalfRows | None:
    """The rows of float16 among `buffers`, of which loads are used as f32 alone and stores round an f32. None: none."""
    kept = {id(v) for s in n.p.stores for v in (s.value, s.mask)} | {id(a) for r in n.p.reduces for a in r.args}
    kept |= {id(a) for x in n.placed for a in x.expr.needs if not widens(x.expr)}
    loads = []
    for e in (x.expr for x in n.placed if x.depth == len(n.names)):
        if e.kind == "load" and e.name in buffers and e.dtype == "f16" and e.mask is None and id(e) not in kept:
            start = starts(e.attr[0], axis)
            loads += [HalfRow(e, e.name, start)] if start is not None else []
    stores = []
    for s in n.p.stores:
        start, value = starts(s.coords[0], axis), before_rounding(s)
        if start is not None and s.buffer in buffers and s.mode == "set" and s.mask is None and value.dtype == "f32":
            stores.append(HalfRow(s, s.buffer, start, value))
    return HalfRows(tuple(loads), tuple(stores)) if loads or stores else None


def before_rounding(s: Store) -> Expr:
    """The value that a store of float16 rounds."""
    value = s.value
    return value.args[0] if value.kind == "op" and value.name in ("narrow", "to") and value.dtype == "f16" else value


def widens(e: Expr) -> bool:
    """Whether it is the conversion of a float16 to f32."""
    return e.kind == "op" and e.name == "to" and e.dtype == "f32"
