"""Rows added up at places that are sorted: out[r] = base[r] + the sum of values[order[p]] over all p with places[p] == r, in f32,
in an order that is always the same. Only `kernels/sorted_sums_triton.py` uses this file."""

import triton
import triton.language as tl


@triton.jit
def first_at(places: tl.tensor, row: tl.tensor, count: tl.tensor, steps: tl.tensor):
    """The first position whose place is `row` or more."""
    low = row * 0
    high = low + count.to(tl.int32)
    for _ in range(steps):
        within = low < high
        middle = (low + high) // 2
        less = within & (tl.load(places + middle, within, other=0) < row)
        high = tl.where(within & (less == 0), middle, high)
        low = tl.where(less, middle + 1, low)
    return low


@triton.jit
def add_sorted(
    base: tl.tensor,
    values: tl.tensor,
    places: tl.tensor,
    order: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    count: tl.tensor,
    steps: tl.tensor,
    BASE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """BM rows, BN columns a program; BK values of each row a turn. count: of values; steps: of the search; BASE: there is one."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    begin = first_at(places, row, count, steps)
    end = first_at(places, row + 1, count, steps)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.max(end - begin), BK):
        at = begin[:, None] + k + tl.arange(0, BK)[None, :]
        there = at < end[:, None]
        source = tl.load(order + at, there, other=0)
        mask = there[:, :, None] & (column < columns)[None, None, :]
        got = tl.load(values + source[:, :, None] * columns + column[None, None, :], mask, other=0.0)
        total += tl.sum(got.to(tl.float32), 1)
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    if BASE:
        total += tl.load(base + place, inside, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), inside)
