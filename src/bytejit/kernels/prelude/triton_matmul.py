"""A matrix product with what leads to it and follows it: out = epilogue(prologue(x) * y @ w + b) + other, sums in f32, for each
of a batch. Sizes and distances are constants. Only `kernels/matmul_triton.py` uses this file."""

import triton
import triton.language as tl

from .triton_math import bj_activation, bj_after_previous


@triton.jit
def tile(M: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Rows and columns of a program's tile. Tiles of some rows of tiles run together: their operands stay in L2."""
    pid = tl.program_id(0)
    per = GROUP * tl.cdiv(N, BN)
    first = pid // per * GROUP
    high = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    return (first + pid % per % high) * BM + tl.arange(0, BM), pid % per // high * BN + tl.arange(0, BN)


@triton.jit
def loaded(at: tl.tensor, mask: tl.tensor, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(at)
    else:
        return tl.load(at, mask, other=0.0)


@triton.jit
def prologue(left: tl.tensor, yp: tl.tensor, mask: tl.tensor, KIND: tl.constexpr, TIMES: tl.constexpr, WHOLE: tl.constexpr):
    """A tile of x as it is multiplied, in f32. Within the loop, for each tile of columns again: the short forms."""
    left = left.to(tl.float32)
    if KIND == 4:
        left = left / (1.0 + tl.exp(-left))
    else:
        left = bj_activation(left, KIND)
    if TIMES:
        left = left * loaded(yp, mask, WHOLE).to(tl.float32)
    return left


@triton.jit
def product(left: tl.tensor, right: tl.tensor, total: tl.tensor, PRECISION: tl.constexpr):
    if PRECISION == 0:
        return tl.dot(left, right, total, input_precision="ieee")
    elif PRECISION == 1:
        return tl.dot(left, right, total, input_precision="tf32")
    else:
        return tl.dot(left, right, total, input_precision="tf32x3")


@triton.jit
def matmul(
    x: tl.tensor,
    y: tl.tensor,
    w: tl.tensor,
    b: tl.tensor,
    other: tl.tensor,
    out: tl.tensor,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    XB: tl.constexpr,
    XM: tl.constexpr,
    XK: tl.constexpr,
    YB: tl.constexpr,
    YM: tl.constexpr,
    YK: tl.constexpr,
    WB: tl.constexpr,
    WK: tl.constexpr,
    WN: tl.constexpr,
    PROLOGUE: tl.constexpr,
    TIMES: tl.constexpr,
    BIAS: tl.constexpr,
    OTHER: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        bj_after_previous()
    batch = tl.program_id(1).to(tl.int64)
    rows, columns = tile(M, N, BM, BN, GROUP)
    inner = tl.arange(0, BK)
    xp = x + batch * XB + (rows % M)[:, None] * XM + inner[None, :] * XK
    yp = y + batch * YB + (rows % M)[:, None] * YM + inner[None, :] * YK
    wp = w + batch * WB + inner[:, None] * WK + (columns % N)[None, :] * WN
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        left = loaded(xp, inner[None, :] < K - at, K % BK == 0)
        right = loaded(wp, inner[:, None] < K - at, K % BK == 0)
        if PROLOGUE != 0 or TIMES:
            left = prologue(left, yp, inner[None, :] < K - at, PROLOGUE, TIMES, K % BK == 0)
        total = product(left.to(right.dtype), right, total, PRECISION)
        xp += BK * XK
        yp += BK * YK
        wp += BK * WK
    if BIAS:
        total = total + tl.load(b + columns % N).to(tl.float32)[None, :]
    total = bj_activation(total, EPILOGUE)
    place = batch * M * N + rows[:, None] * N + columns[None, :]
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    if OTHER:
        total = total + tl.load(other + place, mask, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask)
