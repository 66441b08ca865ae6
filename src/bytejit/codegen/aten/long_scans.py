"""Running sums over few long rows, on a GPU: one program a row would leave most of it idle.

y = cumsum(x)   ->   parts = x as rows of rows;  y = cumsum(parts) + the sums of all parts before
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import fx

from .rewrite import aten, contiguous, infer_before, is_static, replace, spec_or_none

LONG = 4096  # elements of a row that is worth three kernels
ENOUGH = 256  # programs that keep a GPU busy
COLUMNS = 16  # columns that one program takes where rows lie across
PART = 256  # elements of a part, about
# dtypes whose sums are exact, or at least f32
ADDED = frozenset({torch.float32, torch.float64, torch.int64, torch.int32})


def split_long_scans(graph: fx.Graph, choices: Any = None) -> None:
    """Changes `graph`."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is aten.cumsum.default:
            _split(graph, node)


def _split(graph: fx.Graph, node: fx.Node) -> None:
    x = node.args[0]
    given, made = spec_or_none(x), spec_or_none(node)
    if given is None or made is None or not (is_static(given) and is_static(made)) or not made.shape:
        return
    shape, d = made.shape, node.args[1] % len(made.shape)
    before, n, after = math.prod(shape[:d]), shape[d], math.prod(shape[d + 1 :])
    if n < LONG or not 0 < before * -(-after // COLUMNS) < ENOUGH or made.dtype not in ADDED:
        return
    if given != contiguous(given) or made != contiguous(made):
        return
    part = part_of(n)
    parts = -(-n // part)

    call = partial(infer_before, graph, node)
    if parts * part != n:
        x = call(aten.constant_pad_nd.default, x, [0, 0] * (len(shape) - 1 - d) + [0, parts * part - n], 0)
    rows = call(aten.view.default, x, [*shape[:d], parts, part, *shape[d + 1 :]])
    totals = call(aten.sum.dim_IntList, rows, [d + 1], True, dtype=made.dtype)
    running = call(aten.cumsum.default, totals, d)
    # shifted by one; subtracting the totals would turn elements before an infinity into nan
    earlier = call(aten.constant_pad_nd.default, running, [0, 0] * (len(shape) - d) + [1, -1], 0)
    within = call(aten.cumsum.default, rows, d + 1, dtype=made.dtype)
    result = call(aten.view.default, call(aten.add.Tensor, within, earlier), [*shape[:d], parts * part, *shape[d + 1 :]])
    if parts * part != n:
        result = call(aten.slice.Tensor, result, d, 0, n)
        result = call(aten.clone.default, result, memory_format=torch.contiguous_format)
    replace(node, result)


def part_of(n: int) -> int:
    """The elements of a part: a divisor of `n` near `PART`; `PART` where there is none."""
    near = [m for m in range(PART // 4, PART * 8) if n % m == 0]
    return min(near, key=lambda m: abs(math.log(m / PART)), default=PART)
