"""Functions of elements that kernels call beside Triton's own language. `bj_NAME` is the row NAME of the op table.

Each computes what torch computes on CUDA: IEEE division and square roots (`div.rn`, `sqrt.rn`), nan that wins or loses, floor
division that rounds down. Functions of the CUDA device library stand behind `libdevice`; under TRITON_INTERPRET=1 numpy stands
there.
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
def bj_neg(x: tl.tensor):
    return x * -1.0 if x.dtype.is_floating() else -x  # Triton's own -x is 0 - x: +0.0 of +0.0


@triton.jit
def bj_div(a: tl.tensor, b: tl.tensor):
    return tl.div_rn(a, b) if a.dtype.is_fp32() else a / b


@triton.jit
def bj_reciprocal(x: tl.tensor):
    return bj_div(tl.full((), 1.0, x.dtype), x)


@triton.jit
def bj_sqrt(x: tl.tensor):
    return tl.sqrt_rn(x) if x.dtype.is_fp32() else tl.sqrt(x)


@triton.jit
def bj_rsqrt(x: tl.tensor):
    return bj_reciprocal(bj_sqrt(x))


@triton.jit
def bj_fmod(a: tl.tensor, b: tl.tensor):
    if not a.dtype.is_floating():
        return a % b
    elif a.dtype.is_fp32():
        # a quotient below 2^20, rounded up by more than its error, is right or one too large: what is left of a is exact
        x, y = tl.abs(a), tl.abs(b + tl.zeros_like(a))  # b may be a number
        quotient = (x / y) * 1.000000476837158203125
        near = (quotient < 1048576.0) & (y > 1e-30) & (y < 1e30)
        left = tl.fma(-tl.floor(quotient), y, x)
        left = tl.where(left < 0, left + y, left)
        far = libdevice.fmod(tl.where(near, 0.0, a), b)  # its loop is left at once where near
        return tl.where(near, libdevice.copysign(left, a), far)
    else:
        return libdevice.fmod(a, b)


@triton.jit
def bj_remainder(a: tl.tensor, b: tl.tensor):
    m = bj_fmod(a, b)
    return tl.where((m != 0) & ((m < 0) != (b < 0)), m + b, m)


@triton.jit
def bj_truncdiv(a: tl.tensor, b: tl.tensor):
    return libdevice.trunc(bj_div(a, b)) if a.dtype.is_floating() else a // b


@triton.jit
def bj_floordiv(a: tl.tensor, b: tl.tensor):
    if a.dtype.is_floating():
        m = bj_fmod(a, b)
        q = bj_div(a - m, b)
        q = tl.where((m != 0) & ((m < 0) != (b < 0)), q - 1, q)
        low = tl.floor(q)
        low = tl.where(q - low > 0.5, low + 1, low)
        about = a / b  # read where b is 0, and for the sign of a zero
        return tl.where(b == 0, about, tl.where(q != 0, low, libdevice.copysign(tl.zeros_like(about), about)))
    else:
        q = a // b
        return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def bj_maximum(a: tl.tensor, b: tl.tensor):
    if a.dtype.is_int1():
        return a | b
    elif a.dtype.is_fp32():
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype.is_floating():
        return tl.where(a != a, a, tl.where(b != b, b, tl.maximum(a, b)))
    else:
        return tl.maximum(a, b)


@triton.jit
def bj_minimum(a: tl.tensor, b: tl.tensor):
    if a.dtype.is_int1():
        return a & b
    elif a.dtype.is_fp32():
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype.is_floating():
        return tl.where(a != a, a, tl.where(b != b, b, tl.minimum(a, b)))
    else:
        return tl.minimum(a, b)


@triton.jit
def bj_fmax(a: tl.tensor, b: tl.tensor):
    if a.dtype.is_floating():
        return tl.where(a != a, b, tl.where(b != b, a, tl.maximum(a, b)))
    else:
        return tl.maximum(a, b)


@triton.jit
def bj_fmin(a: tl.tensor, b: tl.tensor):
    if a.dtype.is_floating():
        return tl.where(a != a, b, tl.where(b != b, a, tl.minimum(a, b)))
    else:
        return tl.minimum(a, b)


@triton.jit
def bj_ipow(a: tl.tensor, b: tl.tensor):
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
def bj_shl(a: tl.tensor, b: tl.tensor):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    bad = (b < 0) | (b >= bits)
    return tl.where(bad, a * 0, a << tl.where(bad, b * 0, b))


@triton.jit
def bj_shr(a: tl.tensor, b: tl.tensor):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    bad = (b < 0) | (b >= bits)
    shifted = a >> tl.where(bad, b * 0 + (bits - 1), b)
    if a.dtype.is_int_unsigned():
        return tl.where(bad, a * 0, shifted)
    else:
        return shifted


@triton.jit
def bj_signbit(x: tl.tensor):
    if x.dtype.is_fp64():
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def bj_philox(key: tl.tensor, index: tl.tensor, draw: tl.tensor):
    """Words 0 and 1 of Philox 4x32-10, as word 0 << 32 | word 1 (codegen/ops/rows/random.py)."""
    a, b, _, _ = tl.philox(key, index.to(tl.int32), (index >> 32).to(tl.int32), draw.to(tl.int32), (draw >> 32).to(tl.int32))
    return (a.to(tl.int64) << 32) | b.to(tl.int64)


# ---- functions of one float ---------------------------------------------------------------------------------------
@triton.jit
def bj_digamma(x: tl.tensor):
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
def bj_sigmoid(x: tl.tensor):
    return bj_reciprocal(1.0 + libdevice.exp(-x))


# ---- for comparisons that the assembler takes for true ------------------------------------------------------------
if triton.knobs.runtime.interpret:

    @triton.jit
    def bj_no_nan(x: tl.tensor):
        return x == x
else:

    @triton.jit
    def bj_no_nan(x: tl.tensor):
        """Whether x is a number, asked where no compiler knows better."""
        if x.dtype == tl.float64:
            text: tl.constexpr = "{ .reg .pred p; testp.number.f64 p, $1; selp.b32 $0, 1, 0, p; }"
            return tl.inline_asm_elementwise(text, "=r,d", [x], tl.int32, True, 1) != 0
        else:
            text: tl.constexpr = "{ .reg .pred p; testp.number.f32 p, $1; selp.b32 $0, 1, 0, p; }"
            return tl.inline_asm_elementwise(text, "=r,f", [x.to(tl.float32)], tl.int32, True, 1) != 0


# ---- floats as integers: for LLVM, what does not fit is undefined, and all that is made of it ------------------------
if triton.knobs.runtime.interpret:

    @triton.jit
    def bj_to_i32(x: tl.tensor):
        return x.to(tl.int32)

    @triton.jit
    def bj_to_i64(x: tl.tensor):
        return x.to(tl.int64)
else:

    @triton.jit
    def bj_to_i32(x: tl.tensor):
        """Truncated. What does not fit is the nearest that does; nan of f32 is 0."""
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise("cvt.rzi.s32.f64 $0, $1;", "=r,d", [x], tl.int32, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rzi.s32.f32 $0, $1;", "=r,f", [x.to(tl.float32)], tl.int32, True, 1)

    @triton.jit
    def bj_to_i64(x: tl.tensor):
        """Truncated. What does not fit is the nearest that does; nan is the least."""
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise("cvt.rzi.s64.f64 $0, $1;", "=l,d", [x], tl.int64, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rzi.s64.f32 $0, $1;", "=l,f", [x.to(tl.float32)], tl.int64, True, 1)


# ---- for what is rounded to 16 bits -------------------------------------------------------------------------------
if triton.knobs.runtime.interpret:

    @triton.jit
    def bj_fast_exp2(x: tl.tensor):
        return tl.exp2(x)

    @triton.jit
    def bj_fast_reciprocal(x: tl.tensor):
        return 1.0 / x
else:

    @triton.jit
    def bj_fast_exp2(x: tl.tensor):
        """One instruction; a subnormal result is 0."""
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)

    @triton.jit
    def bj_fast_reciprocal(x: tl.tensor):
        """One instruction; 0 of 2^126 and more."""
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def bj_rough_sigmoid(x: tl.tensor):
    return bj_fast_reciprocal(1.0 + bj_fast_exp2(x * -1.4426950408889634))


@triton.jit
def bj_rough_normal_cdf(x: tl.tensor):
    """The part of the standard normal distribution below x, 5e-6 of it off: a minimax polynomial in 1 / (1 + 0.31 abs(x)) times
    exp(-x^2 / 2) is the part below -abs(x)."""
    t = bj_fast_reciprocal(1.0 + 0.31 * tl.abs(x))
    p = 0.13343888 + t * (0.01572221 + t * (0.18047362 + t * -0.07393775))
    low = t * (0.1238607 + t * (0.12044001 + t * p)) * bj_fast_exp2(x * x * -0.7213475204444817)
    return tl.where(x < 0, low, 1.0 - low)


@triton.jit
def bj_activation(x: tl.tensor, KIND: tl.constexpr):
    """An activation before or after a matrix product (`EPILOGUES` in `kernels/matmul_triton.py`); x in f32."""
    if KIND == 1:
        return bj_maximum(x, tl.zeros_like(x))
    elif KIND == 2:
        return 0.5 * x * (1.0 + libdevice.erf(x * 0.7071067811865476))
    elif KIND == 3:
        return 0.5 * x * (1.0 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif KIND == 4:
        return bj_div(x, 1.0 + libdevice.exp(-x))
    else:
        return x


# ---- checks of indices: a bad one sets the fault and reads place 0 ------------------------------------------------
@triton.jit
def bj_inside(i: tl.tensor, n: tl.tensor, fault: tl.tensor, active: tl.tensor):
    bad = (i < 0) | (i >= n)
    tl.store(fault + tl.zeros_like(i).to(tl.int32), 2, mask=bad & active)
    return tl.where(bad, 0, i)


@triton.jit
def bj_bound(i: tl.tensor, n: tl.tensor, fault: tl.tensor, active: tl.tensor):
    return bj_inside(tl.where(i < 0, i + n, i), n, fault, active)
