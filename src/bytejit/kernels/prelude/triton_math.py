"""What the kernels of `emit_triton` call beside Triton's own language. `bj_NAME` is the row NAME of the op table.

Each computes what torch computes on CUDA: IEEE division and square roots, nan that wins or loses, floor division that
rounds down. Functions of the CUDA device library stand behind `libdevice`; under TRITON_INTERPRET=1 numpy stands there.
Only generated modules import this file.

Arithmetic is IEEE's (`div.rn`, `sqrt.rn`), as in eager.
"""

from __future__ import annotations

import triton
import triton.language as tl

if triton.knobs.runtime.interpret:
    from . import triton_numpy as libdevice
else:
    from triton.language.extra.cuda import gdc_wait, libdevice


@triton.jit
def bj_after_previous():
    """The first statement of a kernel for sm_90 and up: it may begin while the one before it on its stream ends, and waits here
    until that one has ended and its memory is seen."""
    gdc_wait()


# ---- arithmetic ---------------------------------------------------------------------------------------------------
@triton.jit
def bj_neg(x):
    return x * -1.0 if x.dtype.is_floating() else -x  # Triton's own -x is 0 - x: +0.0 of +0.0


@triton.jit
def bj_div(a, b):
    return tl.div_rn(a, b) if a.dtype.is_fp32() else a / b


@triton.jit
def bj_reciprocal(x):
    return bj_div(tl.full((), 1.0, x.dtype), x)


@triton.jit
def bj_sqrt(x):
    return tl.sqrt_rn(x) if x.dtype.is_fp32() else tl.sqrt(x)


@triton.jit
def bj_rsqrt(x):
    return bj_reciprocal(bj_sqrt(x))


@triton.jit
def bj_fmod(a, b):
    return libdevice.fmod(a, b) if a.dtype.is_floating() else a % b


@triton.jit
def bj_remainder(a, b):
    m = bj_fmod(a, b)
    return tl.where((m != 0) & ((m < 0) != (b < 0)), m + b, m)


@triton.jit
def bj_truncdiv(a, b):
    return libdevice.trunc(bj_div(a, b)) if a.dtype.is_floating() else a // b


@triton.jit
def bj_floordiv(a, b):
    if a.dtype.is_floating():
        m = libdevice.fmod(a, b)
        q = bj_div(a - m, b)
        q = tl.where((m != 0) & ((m < 0) != (b < 0)), q - 1, q)
        low = tl.floor(q)
        low = tl.where(q - low > 0.5, low + 1, low)
        exact = bj_div(a, b)
        return tl.where(b == 0, exact, tl.where(q != 0, low, libdevice.copysign(tl.zeros_like(exact), exact)))
    else:
        q = a // b
        return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def bj_maximum(a, b):
    if a.dtype.is_int1():
        return a | b
    elif a.dtype.is_fp32():
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype.is_floating():
        return tl.where(a != a, a, tl.where(b != b, b, tl.maximum(a, b)))
    else:
        return tl.maximum(a, b)


@triton.jit
def bj_minimum(a, b):
    if a.dtype.is_int1():
        return a & b
    elif a.dtype.is_fp32():
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype.is_floating():
        return tl.where(a != a, a, tl.where(b != b, b, tl.minimum(a, b)))
    else:
        return tl.minimum(a, b)


@triton.jit
def bj_fmax(a, b):
    if a.dtype.is_floating():
        return tl.where(a != a, b, tl.where(b != b, a, tl.maximum(a, b)))
    else:
        return tl.maximum(a, b)


@triton.jit
def bj_fmin(a, b):
    if a.dtype.is_floating():
        return tl.where(a != a, b, tl.where(b != b, a, tl.minimum(a, b)))
    else:
        return tl.minimum(a, b)


@triton.jit
def bj_pow(a, b):
    return libdevice.pow(a, b)


@triton.jit
def bj_ipow(a, b):
    """a ** b of integers, wrapping; negative exponents: 1, -1, or 0."""
    out = tl.full((), 1, a.dtype) + a * 0
    base, left = a + b * 0, b + a * 0
    for _ in range(a.dtype.primitive_bitwidth):
        out = tl.where((left & 1) != 0, out * base, out)
        base = base * base
        left = tl.where(left > 0, left >> 1, left * 0)
    if a.dtype.is_int_unsigned():
        return out
    else:
        odd = tl.where((b & 1) != 0, a, a * a)
        return tl.where(b < 0, tl.where(a == 1, a, tl.where(a == -1, odd, a * 0)), out).to(a.dtype)


@triton.jit
def bj_shl(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    bad = (b < 0) | (b >= bits)
    return tl.where(bad, a * 0, a << tl.where(bad, b * 0, b))


@triton.jit
def bj_shr(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    bad = (b < 0) | (b >= bits)
    return a >> tl.where(bad, b * 0 + (bits - 1), b)


@triton.jit
def bj_signbit(x):
    if x.dtype.is_fp64():
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def bj_philox(key, index, draw):
    """Words 0 and 1 of Philox 4x32-10, as word 0 << 32 | word 1 (codegen/ops/random.py)."""
    a, b, _, _ = tl.philox(key, index.to(tl.int32), (index >> 32).to(tl.int32), draw.to(tl.int32), (draw >> 32).to(tl.int32))
    return (a.to(tl.int64) << 32) | b.to(tl.int64)


# ---- functions of one float ---------------------------------------------------------------------------------------
@triton.jit
def bj_exp(x):
    return libdevice.exp(x)


@triton.jit
def bj_exp2(x):
    return libdevice.exp2(x)


@triton.jit
def bj_expm1(x):
    return libdevice.expm1(x)


@triton.jit
def bj_log(x):
    return libdevice.log(x)


@triton.jit
def bj_log2(x):
    return libdevice.log2(x)


@triton.jit
def bj_log10(x):
    return libdevice.log10(x)


@triton.jit
def bj_log1p(x):
    return libdevice.log1p(x)


@triton.jit
def bj_sin(x):
    return libdevice.sin(x)


@triton.jit
def bj_cos(x):
    return libdevice.cos(x)


@triton.jit
def bj_tan(x):
    return libdevice.tan(x)


@triton.jit
def bj_asin(x):
    return libdevice.asin(x)


@triton.jit
def bj_acos(x):
    return libdevice.acos(x)


@triton.jit
def bj_atan(x):
    return libdevice.atan(x)


@triton.jit
def bj_sinh(x):
    return libdevice.sinh(x)


@triton.jit
def bj_cosh(x):
    return libdevice.cosh(x)


@triton.jit
def bj_tanh(x):
    return libdevice.tanh(x)


@triton.jit
def bj_asinh(x):
    return libdevice.asinh(x)


@triton.jit
def bj_acosh(x):
    return libdevice.acosh(x)


@triton.jit
def bj_atanh(x):
    return libdevice.atanh(x)


@triton.jit
def bj_erf(x):
    return libdevice.erf(x)


@triton.jit
def bj_erfc(x):
    return libdevice.erfc(x)


@triton.jit
def bj_erfinv(x):
    return libdevice.erfinv(x)


@triton.jit
def bj_lgamma(x):
    return libdevice.lgamma(x)


@triton.jit
def bj_digamma(x):
    """Reflection below 0, recurrence up to 10, then the asymptotic series. In f64: near its zeros it cancels."""
    v = x.to(tl.float64)
    left = v < 0
    part = v - libdevice.trunc(v)  # tan of the fraction alone: exact where v is large
    turn = tl.where(left, 3.141592653589793 / libdevice.tan(3.141592653589793 * part), 0.0)
    y = tl.where(left, 1.0 - v, v)
    low = tl.zeros_like(y)
    for _ in range(10):
        small = y < 10
        low = tl.where(small, low - 1.0 / y, low)
        y = tl.where(small, y + 1.0, y)
    z = 1.0 / (y * y)
    series = z * (
        8.33333333333333333333e-2
        + z
        * (
            -8.33333333333333333333e-3
            + z
            * (
                3.96825396825396825397e-3
                + z
                * (
                    -4.16666666666666666667e-3
                    + z * (7.57575757575757575758e-3 + z * (-2.10927960927960927961e-2 + z * 8.33333333333333333333e-2))
                )
            )
        )
    )
    out = libdevice.log(y) - 0.5 / y - series + low - turn
    out = tl.where(v == 0, libdevice.copysign(float("inf") + v, -1.0 * v), out)
    out = tl.where(left & (part == 0), float("nan"), out)
    return tl.where(v == float("inf"), v, out).to(x.dtype)


@triton.jit
def bj_sigmoid(x):
    return bj_reciprocal(1.0 + libdevice.exp(-x))


@triton.jit
def bj_floor(x):
    return tl.floor(x)


@triton.jit
def bj_ceil(x):
    return libdevice.ceil(x)


@triton.jit
def bj_trunc(x):
    return libdevice.trunc(x)


@triton.jit
def bj_round(x):
    return libdevice.nearbyint(x)


@triton.jit
def bj_atan2(a, b):
    return libdevice.atan2(a, b)


@triton.jit
def bj_hypot(a, b):
    return libdevice.hypot(a, b)


@triton.jit
def bj_copysign(a, b):
    return libdevice.copysign(a, b)


@triton.jit
def bj_nextafter(a, b):
    return libdevice.nextafter(a, b)


@triton.jit
def bj_activation(x, KIND: tl.constexpr):
    """What stands before or behind a matrix product (`kernels/matmul_triton.EPILOGUES`); x in f32."""
    if KIND == 1:
        return bj_maximum(x, tl.zeros_like(x))
    elif KIND == 2:
        return 0.5 * x * (1.0 + bj_erf(x * 0.7071067811865476))
    elif KIND == 3:
        return 0.5 * x * (1.0 + bj_tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif KIND == 4:
        return bj_div(x, 1.0 + bj_exp(-x))
    else:
        return x


# ---- checks of indices: a bad one sets the fault and reads place 0 ------------------------------------------------
@triton.jit
def bj_inside(i, n, fault, active):
    bad = (i < 0) | (i >= n)
    tl.store(fault + tl.zeros_like(i).to(tl.int32), 2, mask=bad & active)
    return tl.where(bad, 0, i)


@triton.jit
def bj_bound(i, n, fault, active):
    return bj_inside(tl.where(i < 0, i + n, i), n, fault, active)


# ---- reductions of a tile along AXIS: 1 keeps the dim (a tile of rows), 0 returns a scalar (one row) ---------------
@triton.jit
def bj_sum(x, AXIS: tl.constexpr):
    return tl.sum(x, AXIS, keep_dims=AXIS == 1)


@triton.jit
def bj_mul(a, b):
    return a * b


@triton.jit
def bj_any(x, AXIS: tl.constexpr):
    return tl.max(x.to(tl.int32), AXIS, keep_dims=AXIS == 1) != 0


@triton.jit
def bj_all(x, AXIS: tl.constexpr):
    return tl.min(x.to(tl.int32), AXIS, keep_dims=AXIS == 1) != 0


@triton.jit
def bj_more(a, i, b, j):
    """Whether (a, i) is a better greatest element than (b, j): nan first, then the greater, then the earlier."""
    if a.dtype.is_floating():
        return tl.where(a == b, i < j, tl.where(a != a, (b == b) | (i < j), a > b))
    else:
        return (a > b) | ((a == b) & (i < j))


@triton.jit
def bj_less(a, i, b, j):
    if a.dtype.is_floating():
        return tl.where(a == b, i < j, tl.where(a != a, (b == b) | (i < j), a < b))
    else:
        return (a < b) | ((a == b) & (i < j))


@triton.jit
def bj_more_of(a, i, b, j):
    first = bj_more(a, i, b, j)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def bj_less_of(a, i, b, j):
    first = bj_less(a, i, b, j)
    return tl.where(first, a, b), tl.where(first, i, j)


if triton.knobs.runtime.interpret:  # there a combination of our own runs element by element
    bj_prod, bj_amax, bj_amin = libdevice.reduce_prod, libdevice.reduce_amax, libdevice.reduce_amin
    bj_argmax, bj_argmin = libdevice.reduce_argmax, libdevice.reduce_argmin
else:

    @triton.jit
    def bj_prod(x, AXIS: tl.constexpr):
        return tl.reduce(x, AXIS, bj_mul, keep_dims=AXIS == 1)

    @triton.jit
    def bj_amax(x, AXIS: tl.constexpr):
        return tl.reduce(x, AXIS, bj_maximum, keep_dims=AXIS == 1)

    @triton.jit
    def bj_amin(x, AXIS: tl.constexpr):
        return tl.reduce(x, AXIS, bj_minimum, keep_dims=AXIS == 1)

    @triton.jit
    def bj_argmax(x, i, AXIS: tl.constexpr):
        """(value, index) of the first greatest element."""
        return tl.reduce((x, i), AXIS, bj_more_of, keep_dims=AXIS == 1)

    @triton.jit
    def bj_argmin(x, i, AXIS: tl.constexpr):
        return tl.reduce((x, i), AXIS, bj_less_of, keep_dims=AXIS == 1)


# ---- reductions that carry a state (codegen/loops/passes/online_reductions.py) ----------------------------------------
@triton.jit
def bj_decay(a, top):
    """exp(a - top), 1 where they are equal, infinities too."""
    return bj_exp(tl.where(a == top, 0.0, a - top))


@triton.jit
def bj_expsum_step(top, total, x, ok, turn):
    """One more element in each lane. One of exp(top - now), exp(x - now) is 1."""
    less = bj_exp(tl.where(x == top, 0.0, -tl.abs(x - top)))
    return bj_maximum(top, x), tl.where(x > top, total * less + 1.0, total + less)


@triton.jit
def bj_expsum_fold(top, total, AXIS: tl.constexpr):
    now = bj_amax(top, AXIS)
    return now, bj_sum(total * bj_decay(top, now), AXIS)


@triton.jit
def bj_expsum_end(top, total):
    """As eager: of a row whose greatest element is infinite, nan."""
    return tl.where(tl.abs(top) == float("inf"), float("nan"), total)


@triton.jit
def bj_expsum0_end(top, total):
    """The sum of exp(x - 0) where the greatest element is infinite."""
    return tl.where(top == float("inf"), top, tl.where(top == float("-inf"), 0.0, total))


@triton.jit
def bj_moments_step(count, mean, squares, x, ok, turn):
    """One more element, number `turn`, in each lane where ok: Welford."""
    now = tl.full((), 1.0, x.dtype) * turn  # the interpreter's turn is a Python number
    off = x - mean
    moved = tl.where(ok, mean + off * bj_reciprocal(now), mean)
    return tl.where(ok, now, count), moved, tl.where(ok, squares + off * (x - moved), squares)


@triton.jit
def bj_moments_fold(count, mean, squares, AXIS: tl.constexpr):
    """All lanes as one: Chan."""
    every = bj_sum(count, AXIS)
    middle = bj_div(bj_sum(count * mean, AXIS), tl.where(every == 0, every + 1.0, every))
    off = mean - middle
    return every, middle, bj_sum(squares + count * off * off, AXIS)


@triton.jit
def bj_moments_end(count, mean, squares):
    return squares


# ---- scans of a tile ----------------------------------------------------------------------------------------------
@triton.jit
def bj_cumsum(x, AXIS: tl.constexpr):
    return tl.cumsum(x, AXIS)


@triton.jit
def bj_cumprod(x, AXIS: tl.constexpr):
    return tl.cumprod(x, AXIS)


@triton.jit
def bj_logsum_of(a, b):
    """log(exp(a) + exp(b)); of two equal infinities that."""
    top = bj_maximum(a, b)
    less = bj_minimum(a, b)
    more = top + bj_log1p(bj_exp(less - top))
    return tl.where(a == b, tl.where(tl.abs(top) == float("inf"), top, more), more)


if triton.knobs.runtime.interpret:
    bj_cumamax, bj_cumamin = libdevice.scan_amax, libdevice.scan_amin
    bj_cumlogsum, bj_logsum = libdevice.scan_logsum, libdevice.reduce_logsum
else:

    @triton.jit
    def bj_logsum(x, AXIS: tl.constexpr):
        return tl.reduce(x, AXIS, bj_logsum_of, keep_dims=AXIS == 1)

    @triton.jit
    def bj_cumlogsum(x, AXIS: tl.constexpr):
        return tl.associative_scan(x, AXIS, bj_logsum_of)

    @triton.jit
    def bj_cumamax(x, AXIS: tl.constexpr):
        return tl.associative_scan(x, AXIS, bj_maximum)

    @triton.jit
    def bj_cumamin(x, AXIS: tl.constexpr):
        return tl.associative_scan(x, AXIS, bj_minimum)
