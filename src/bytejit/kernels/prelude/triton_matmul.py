"""A matrix product with what leads to it and follows it: out = epilogue(prologue(x) * y @ w + b) + other, sums in f32, for each
of a batch. Sizes and distances are constants. Only `kernels/matmul_triton.py` uses this file."""

import triton
import triton.language as tl

from .triton_math import bj_activation, bj_after_previous


@triton.jit
def matmul(
    x,
    y,
    w,
    b,
    other,
    out,
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
    pid = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    per = GROUP * tl.cdiv(N, BN)  # tiles of some rows of tiles together: their operands stay in L2
    first = pid // per * GROUP
    high = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    rows = (first + pid % per % high) * BM + tl.arange(0, BM)
    columns = pid % per // high * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    xp = x + batch * XB + (rows % M)[:, None] * XM + inner[None, :] * XK
    yp = y + batch * YB + (rows % M)[:, None] * YM + inner[None, :] * YK
    wp = w + batch * WB + inner[:, None] * WK + (columns % N)[None, :] * WN
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        if K % BK == 0:
            left = tl.load(xp)
            right = tl.load(wp)
        else:
            left = tl.load(xp, inner[None, :] < K - at, other=0.0)
            right = tl.load(wp, inner[:, None] < K - at, other=0.0)
        if PROLOGUE != 0 or TIMES:
            left = left.to(tl.float32)
            if PROLOGUE == 4:  # within the loop, for each tile of columns again: the short forms
                left = left / (1.0 + tl.exp(-left))
            else:
                left = bj_activation(left, PROLOGUE)
            if TIMES:
                if K % BK == 0:
                    left = left * tl.load(yp).to(tl.float32)
                else:
                    left = left * tl.load(yp, inner[None, :] < K - at, other=0.0).to(tl.float32)
        left = left.to(right.dtype)
        if PRECISION == 0:
            total = tl.dot(left, right, total, input_precision="ieee")
        elif PRECISION == 1:
            total = tl.dot(left, right, total, input_precision="tf32")
        else:
            total = tl.dot(left, right, total, input_precision="tf32x3")
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
