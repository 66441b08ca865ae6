"""A matrix product with what follows it, for f16 and bf16: out = post(x @ w + b) + other, sums in f32. Sizes and distances are
constants. Only `kernels/matmul_triton.py` uses this file."""
import triton
import triton.language as tl

from bytejit.kernels.prelude.triton_math import bj_div, bj_erf, bj_exp, bj_maximum, bj_tanh


@triton.jit
def matmul(x, w, b, other, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, XM: tl.constexpr, WK: tl.constexpr,
           WN: tl.constexpr, BIAS: tl.constexpr, OTHER: tl.constexpr, POST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    per = GROUP * tl.cdiv(N, BN)                 # tiles of some rows of tiles together: their operands stay in L2
    first = pid // per * GROUP
    high = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    rows = (first + pid % per % high) * BM + tl.arange(0, BM)
    columns = pid % per // high * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    xp = x + (rows % M)[:, None] * XM + inner[None, :]
    wp = w + inner[:, None] * WK + (columns % N)[None, :] * WN
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        if K % BK == 0:
            total = tl.dot(tl.load(xp), tl.load(wp), total)
        else:
            left = K - at
            total = tl.dot(tl.load(xp, inner[None, :] < left, other=0.0), tl.load(wp, inner[:, None] < left, other=0.0), total)
        xp += BK
        wp += BK * WK
    if BIAS:
        total = total + tl.load(b + columns % N).to(tl.float32)[None, :]
    if POST == 1:
        total = bj_maximum(total, tl.zeros_like(total))
    elif POST == 2:
        total = 0.5 * total * (1.0 + bj_erf(total * 0.7071067811865476))
    elif POST == 3:
        total = 0.5 * total * (1.0 + bj_tanh(0.7978845608028654 * (total + 0.044715 * total * total * total)))
    elif POST == 4:
        total = bj_div(total, 1.0 + bj_exp(-total))
    place = rows[:, None] * N + columns[None, :]
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    if OTHER:
        total = total + tl.load(other + place, mask, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask)
