"""Reductions and scans of a tile, for kernels in Triton.

AXIS: 1 keeps the dim (a tile of rows), 0 returns a scalar (one row). A tuple of values is combined element by element; under
TRITON_INTERPRET=1 a combination of our own would run element by element, and numpy stands there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_math import bj_div, bj_maximum, bj_minimum, bj_reciprocal, libdevice


# ---- reductions -------------------------------------------------------------------------------------------------------
@triton.jit
def bj_sum(x: tl.tensor, AXIS: tl.constexpr):
    return tl.sum(x, AXIS, keep_dims=AXIS == 1)


@triton.jit
def bj_mul(a: tl.tensor, b: tl.tensor):
    return a * b


@triton.jit
def bj_any(x: tl.tensor, AXIS: tl.constexpr):
    return tl.max(x.to(tl.int32), AXIS, keep_dims=AXIS == 1) != 0


@triton.jit
def bj_all(x: tl.tensor, AXIS: tl.constexpr):
    return tl.min(x.to(tl.int32), AXIS, keep_dims=AXIS == 1) != 0


@triton.jit
def bj_more(a: tl.tensor, i: tl.tensor, b: tl.tensor, j: tl.tensor):
    """Whether (a, i) is a better greatest element than (b, j): nan first, then the greater, then the earlier."""
    if a.dtype.is_floating():
        return tl.where(a == b, i < j, tl.where(a != a, (b == b) | (i < j), a > b))
    else:
        return (a > b) | ((a == b) & (i < j))


@triton.jit
def bj_less(a: tl.tensor, i: tl.tensor, b: tl.tensor, j: tl.tensor):
    if a.dtype.is_floating():
        return tl.where(a == b, i < j, tl.where(a != a, (b == b) | (i < j), a < b))
    else:
        return (a < b) | ((a == b) & (i < j))


@triton.jit
def bj_more_of(a: tl.tensor, i: tl.tensor, b: tl.tensor, j: tl.tensor):
    first = bj_more(a, i, b, j)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def bj_less_of(a: tl.tensor, i: tl.tensor, b: tl.tensor, j: tl.tensor):
    first = bj_less(a, i, b, j)
    return tl.where(first, a, b), tl.where(first, i, j)


if triton.knobs.runtime.interpret:  # there a combination of our own runs element by element
    bj_prod, bj_amax, bj_amin = libdevice.reduce_prod, libdevice.reduce_amax, libdevice.reduce_amin
    bj_argmax, bj_argmin = libdevice.reduce_argmax, libdevice.reduce_argmin
else:

    @triton.jit
    def bj_prod(x: tl.tensor, AXIS: tl.constexpr):
        return tl.reduce(x, AXIS, bj_mul, keep_dims=AXIS == 1)

    @triton.jit
    def bj_amax(x: tl.tensor, AXIS: tl.constexpr):
        return tl.reduce(x, AXIS, bj_maximum, keep_dims=AXIS == 1)

    @triton.jit
    def bj_amin(x: tl.tensor, AXIS: tl.constexpr):
        return tl.reduce(x, AXIS, bj_minimum, keep_dims=AXIS == 1)

    @triton.jit
    def bj_argmax(x: tl.tensor, i: tl.tensor, AXIS: tl.constexpr):
        """(value, index) of the first greatest element."""
        return tl.reduce((x, i), AXIS, bj_more_of, keep_dims=AXIS == 1)

    @triton.jit
    def bj_argmin(x: tl.tensor, i: tl.tensor, AXIS: tl.constexpr):
        return tl.reduce((x, i), AXIS, bj_less_of, keep_dims=AXIS == 1)


# ---- reductions that carry a state (codegen/loops/passes/online_reductions.py) ----------------------------------------
@triton.jit
def bj_decay(a: tl.tensor, top: tl.tensor):
    """exp(a - top), 1 where they are equal, infinities too."""
    return libdevice.exp(tl.where(a == top, 0.0, a - top))


@triton.jit
def bj_expsum_step(top: tl.tensor, total: tl.tensor, x: tl.tensor, ok: tl.tensor, turn: tl.tensor):
    """More elements of a row. One in each lane: one of exp(top - now), exp(x - now) is 1. Where the state has fewer lanes than
    x, a lane takes several elements that follow each other, and corrects its total once."""
    if top.shape[0] == x.shape[0]:
        less = libdevice.exp(tl.where(x == top, 0.0, -tl.abs(x - top)))
        return bj_maximum(top, x), tl.where(x > top, total * less + 1.0, total + less)
    else:
        groups = tl.reshape(x, [top.shape[0], x.shape[0] // top.shape[0]])
        now = bj_maximum(top, tl.reshape(bj_amax(groups, 1), [top.shape[0]]))
        by = tl.where(tl.abs(now) == float("inf"), 0.0, now)
        sums = tl.sum(libdevice.exp(groups - by[:, None]), 1)
        return now, total * bj_decay(top, now) + sums


@triton.jit
def bj_expsum_fold(top: tl.tensor, total: tl.tensor, AXIS: tl.constexpr):
    now = bj_amax(top, AXIS)
    return now, bj_sum(total * bj_decay(top, now), AXIS)


@triton.jit
def bj_expsum_end(top: tl.tensor, total: tl.tensor):
    """As eager: of a row whose greatest element is infinite, nan."""
    return tl.where(tl.abs(top) == float("inf"), float("nan"), total)


@triton.jit
def bj_expsum0_end(top: tl.tensor, total: tl.tensor):
    """The sum of exp(x - 0) where the greatest element is infinite."""
    return tl.where(top == float("inf"), top, tl.where(top == float("-inf"), 0.0, total))


@triton.jit
def bj_moments_step(count: tl.tensor, mean: tl.tensor, squares: tl.tensor, x: tl.tensor, ok: tl.tensor, turn: tl.tensor):
    """One more element, number `turn`, in each lane where ok: Welford."""
    now = tl.full((), 1.0, x.dtype) * turn  # the interpreter's turn is a Python number
    off = x - mean
    moved = tl.where(ok, mean + off * bj_reciprocal(now), mean)
    return tl.where(ok, now, count), moved, tl.where(ok, squares + off * (x - moved), squares)


@triton.jit
def bj_moments_fold(count: tl.tensor, mean: tl.tensor, squares: tl.tensor, AXIS: tl.constexpr):
    """All lanes as one: Chan."""
    every = bj_sum(count, AXIS)
    middle = bj_div(bj_sum(count * mean, AXIS), tl.where(every == 0, every + 1.0, every))
    off = mean - middle
    return every, middle, bj_sum(squares + count * off * off, AXIS)


@triton.jit
def bj_moments_end(count: tl.tensor, mean: tl.tensor, squares: tl.tensor):
    return squares


# ---- scans of a tile ----------------------------------------------------------------------------------------------
@triton.jit
def bj_cumsum(x: tl.tensor, AXIS: tl.constexpr):
    return tl.cumsum(x, AXIS)


@triton.jit
def bj_cumprod(x: tl.tensor, AXIS: tl.constexpr):
    return tl.cumprod(x, AXIS)


@triton.jit
def bj_logsum_of(a: tl.tensor, b: tl.tensor):
    """log(exp(a) + exp(b)); of two equal infinities that."""
    top = bj_maximum(a, b)
    less = bj_minimum(a, b)
    more = top + libdevice.log1p(libdevice.exp(less - top))
    return tl.where(a == b, tl.where(tl.abs(top) == float("inf"), top, more), more)


if triton.knobs.runtime.interpret:
    bj_cumamax, bj_cumamin = libdevice.scan_amax, libdevice.scan_amin
    bj_cumlogsum, bj_logsum = libdevice.scan_logsum, libdevice.reduce_logsum
else:

    @triton.jit
    def bj_logsum(x: tl.tensor, AXIS: tl.constexpr):
        return tl.reduce(x, AXIS, bj_logsum_of, keep_dims=AXIS == 1)

    @triton.jit
    def bj_cumlogsum(x: tl.tensor, AXIS: tl.constexpr):
        return tl.associative_scan(x, AXIS, bj_logsum_of)

    @triton.jit
    def bj_cumamax(x: tl.tensor, AXIS: tl.constexpr):
        return tl.associative_scan(x, AXIS, bj_maximum)

    @triton.jit
    def bj_cumamin(x: tl.tensor, AXIS: tl.constexpr):
        return tl.associative_scan(x, AXIS, bj_minimum)
