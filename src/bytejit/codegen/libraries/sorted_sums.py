"""Values added up at places read from memory, on a GPU: the places are sorted once, and each row of the result adds up its own.

index_put(x, [i, j], v, accumulate=True)   ->   add_sorted(x, v, *sort_places(flat_places([i, j])))

So are the gradients of `x[i]`. torch's own call sorts too, and always adds in the same order; its sort takes twice as long, is
made for each such call, and about ten kernels are started. Atomic additions would be another result in each run.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace as changed
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    GPU_FLOATS,
    aten,
    call_before,
    contiguous,
    expanded,
    replace,
    spec_of,
    specs_of,
)
from bytejit.codegen.aten.scattered_sums import PUTS, is_zero
from bytejit.codegen.loops import index as ix
from bytejit.codegen.ops.rows import sorted_sums  # noqa: F401  (defines the operators)
from bytejit.codegen.ops.rows.gather import broadcast
from bytejit.common.dtypes import INDEX_DTYPES
from bytejit.common.spec import Spec

from .choices import Choices

MOST = 1 << 31  # rows, and elements of the values: places and positions are int32
own = torch.ops.bytejit


def sort_sums(graph: fx.Graph, choices: Choices) -> None:
    """Changes `graph`. Sums at the same places share their order."""
    orders: dict[tuple, tuple[fx.Node, fx.Node]] = {}
    for node in list(graph.nodes):
        if node.target in PUTS and node.args[3:4] == (True,) and (indices := _leading(node)) is not None:
            _as_sorted(graph, node, indices, orders)


def _leading(node: fx.Node) -> list[fx.Node] | None:
    """The index tensors of the leading dims of a sum that the kernel makes; None for another."""
    x, given, values = node.args[:3]
    indices = [i for i in given if i is not None]
    specs = specs_of(node, x, values, *indices)
    if specs is None or indices != list(given[: len(indices)]):
        return None
    result, base, added, *places = specs
    if {(s.dtype, s.device) for s in (base, added)} != {(result.dtype, result.device)} or result.dtype not in GPU_FLOATS:
        return None
    if any(s.device != result.device or s.dtype not in INDEX_DTYPES for s in places) or not _on_gpu(result):
        return None
    dense = base == contiguous(base) and result == contiguous(result)
    rows, columns = _matrix(base, len(places))
    count = math.prod(broadcast(*(s.shape for s in places)))
    fits = 0 < ix.hint(rows) < MOST and 0 < ix.hint(columns) and 0 < ix.hint(count * columns) < MOST
    return indices if dense and fits else None


def _on_gpu(spec: Spec) -> bool:
    return spec.device.type == "cuda"


def _matrix(spec: Spec, leading: int) -> tuple[Any, Any]:
    """Rows and columns of a tensor as a matrix whose rows are its leading dims."""
    return math.prod(spec.shape[:leading]), math.prod(spec.shape[leading:])


def _as_sorted(graph: fx.Graph, node: fx.Node, indices: list[fx.Node], orders: dict) -> None:
    x, _, values = node.args[:3]
    spec, k = spec_of(node), len(indices)
    rows, columns = _matrix(spec, k)
    places = broadcast(*(spec_of(i).shape for i in indices))
    count = math.prod(places)
    if (key := (*indices, *spec.shape[:k])) not in orders:
        orders[key] = _order(graph, node, indices, places)

    def call(target: object, args: tuple, shape: tuple) -> fx.Node:
        return call_before(graph, node, target, args, contiguous(changed(spec, shape=shape)))

    whole = (*places, *spec.shape[k:])
    if spec_of(values).shape != whole:
        wide = expanded(spec_of(values), whole)
        assert wide is not None, f"{values} does not go to {whole}"  # torch has looked
        values = call_before(graph, node, aten.expand.default, (values, list(whole)), wide)
    if spec_of(values) != contiguous(spec_of(values)):
        copied = {"memory_format": torch.contiguous_format}
        values = call_before(graph, node, aten.clone.default, (values,), contiguous(spec_of(values)), copied)
    values = call(aten.view.default, (values, [count, columns]), (count, columns))
    base = None if is_zero(x) else call(aten.view.default, (x, [rows, columns]), (rows, columns))
    made = call(own.add_sorted.default, (base, values, *orders[key], rows), (rows, columns))
    replace(node, call(aten.view.default, (made, list(spec.shape)), spec.shape))


def _order(graph: fx.Graph, node: fx.Node, indices: list[fx.Node], shape: tuple) -> tuple[fx.Node, fx.Node]:
    """The places sorted, and where each was. shape: of the index tensors together."""
    spec = spec_of(node)
    flat, wide = (contiguous(Spec(s, (), torch.int32, spec.device)) for s in (shape, (math.prod(shape),)))
    at = call_before(graph, node, own.flat_places.default, (indices, list(spec.shape[: len(indices)])), flat)
    at = call_before(graph, node, aten.view.default, (at, list(wide.shape)), wide)
    both = wide, changed(wide, dtype=torch.int64)
    pair = call_before(graph, node, own.sort_places.default, (at,), both)
    first, second = (call_before(graph, node, operator.getitem, (pair, i), s) for i, s in enumerate(both))
    return first, second
