"""Rows of sums at sorted places (`common/sorted_sums.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering
from bytejit.codegen.loops.value import Value
from bytejit.codegen.ops.table import op
from bytejit.common import sorted_sums  # noqa: F401  (defines the operators)
from bytejit.common.dtypes import DTYPES
from bytejit.common.spec import contiguous_stride


def _flat_places(ctx: Lowering, indices: Sequence[Value], sizes: Sequence[int]) -> Value:
    def at(c: tuple) -> Expr:
        own = tuple(ctx.bound(ctx.read(i, c, i.dtype), n, "index_put") for i, n in zip(indices, sizes, strict=True))
        return ctx.const(ix.linear(own, contiguous_stride(tuple(sizes))), "i64")

    return ctx.map(at)


op("flat_places", "bytejit.flat_places.default", "composite", lower=_flat_places, dtypes=frozenset(DTYPES), refuses=True)
op("sort_places", "bytejit.sort_places.default", kind="extern")
op("add_sorted", "bytejit.add_sorted.default", kind="extern")
