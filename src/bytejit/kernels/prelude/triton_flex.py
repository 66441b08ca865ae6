"""Attention whose scores a program changes and masks: one pass over the blocks of keys that a block mask names; softmax in f32.

Only `kernels/flex_triton.py` uses this file, as text: it puts numbers to the names below, the program's two functions in the
place of `score` and `seen`, and the tensors that they read in that of the parameter `captured`."""

import triton
import triton.language as tl

from .triton_names import *  # noqa: F403 - what the program's functions call

# H: heads; G: heads that share keys; Q, K: rows and keys; D, E: elements of a key and of a value
# Q*, K*, V*, O*: distances from one batch, head, row and element to the next; N*, F*: of the counts of blocks that are seen in
# part and as a whole; I*, J*: of their places
# ROWS, KEYS: of a block; LISTED: tiles lie within blocks; FULL: blocks seen as a whole are named
# MASKED: `seen` is asked; WHOLE: no tile reaches past the last key
# BM, BN: rows and keys of a tile; BD, BE: elements of a key and of a value, as powers of two; PRECISION: of products
Q = tl.constexpr(1)
K = tl.constexpr(1)
D = tl.constexpr(1)
E = tl.constexpr(1)
KN = tl.constexpr(1)
KD = tl.constexpr(1)
VN = tl.constexpr(1)
VD = tl.constexpr(1)
IC = tl.constexpr(1)
KEYS = tl.constexpr(1)
WHOLE = tl.constexpr(1)
LISTED = tl.constexpr(1)
MASKED = tl.constexpr(1)
SCALE = tl.constexpr(1.0)
BM = tl.constexpr(1)
BN = tl.constexpr(1)
BD = tl.constexpr(1)
BE = tl.constexpr(1)
PRECISION = tl.constexpr(1)
H = tl.constexpr(1)
G = tl.constexpr(1)
QB = tl.constexpr(1)
QH = tl.constexpr(1)
QN = tl.constexpr(1)
QD = tl.constexpr(1)
KB = tl.constexpr(1)
KH = tl.constexpr(1)
VB = tl.constexpr(1)
VH = tl.constexpr(1)
OB = tl.constexpr(1)
OH = tl.constexpr(1)
ON = tl.constexpr(1)
OD = tl.constexpr(1)
NB = tl.constexpr(1)
NH = tl.constexpr(1)
NR = tl.constexpr(1)
IB = tl.constexpr(1)
IH = tl.constexpr(1)
IR = tl.constexpr(1)
FB = tl.constexpr(1)
FH = tl.constexpr(1)
FR = tl.constexpr(1)
JB = tl.constexpr(1)
JH = tl.constexpr(1)
JR = tl.constexpr(1)
JC = tl.constexpr(1)
ROWS = tl.constexpr(1)
FULL = tl.constexpr(1)


@triton.jit
def product(left: tl.tensor, right: tl.tensor, total: tl.tensor):
    if PRECISION == 0:
        return tl.dot(left, right, total, input_precision="ieee")
    elif PRECISION == 1:
        return tl.dot(left, right, total, input_precision="tf32")
    else:
        return tl.dot(left, right, total, input_precision="tf32x3")


@triton.jit
def score(s: tl.tensor, b: tl.tensor, h: tl.tensor, i: tl.tensor, j: tl.tensor, captured: tl.tensor):
    return s


@triton.jit
def seen(b: tl.tensor, h: tl.tensor, i: tl.tensor, j: tl.tensor, captured: tl.tensor):
    return i >= j


@triton.jit
def sweep(
    total: tl.tensor,
    high: tl.tensor,
    weight: tl.tensor,
    left: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    count: tl.tensor,
    indices: tl.tensor,
    b: tl.tensor,
    h: tl.tensor,
    rows: tl.tensor,
    captured: tl.tensor,
    step: tl.constexpr,
    masked: tl.constexpr,
):
    """The output so far, the largest score and the sum of a tile of rows, gone on over some blocks of keys. indices: of the
    blocks, `step` from one to the next; not LISTED: all keys."""
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    i = tl.minimum(rows, Q - 1)[:, None]
    for t in range(0, count):
        if LISTED:
            start = tl.load(indices + t // (KEYS // BN) * step) * KEYS + t % (KEYS // BN) * BN
        else:
            start = t * BN
        keys = start + tl.arange(0, BN)
        right = k + (keys[None, :].to(tl.int64) * KN + d[:, None] * KD)
        if WHOLE and D == BD:
            right = tl.load(right)
        else:
            right = tl.load(right, (keys[None, :] < K) & (d[:, None] < D), other=0.0)
        s = product(left, right, tl.zeros((BM, BN), tl.float32)) * SCALE
        j = tl.minimum(keys, K - 1)[None, :]
        s = tl.broadcast_to(score(s, b, h, i, j, captured), (BM, BN))
        if masked:
            s = tl.where(seen(b, h, i, j, captured), s, float("-inf"))
        if not WHOLE:
            s = tl.where(keys[None, :] < K, s, float("-inf"))
        s = s * 1.4426950408889634
        higher = tl.maximum(high, tl.max(s, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - finite[:, None])
        less = tl.exp2(high - finite)
        weight = weight * less + tl.sum(p, 1)
        value = v + (keys[:, None].to(tl.int64) * VN + e[None, :] * VD)
        if WHOLE and E == BE:
            value = tl.load(value)
        else:
            value = tl.load(value, (keys[:, None] < K) & (e[None, :] < E), other=0.0)
        total = product(p.to(value.dtype), value, total * less[:, None])
        high = higher
    return total, high, weight


@triton.jit
def flex(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    tops: tl.tensor,
    few: tl.tensor,
    few_at: tl.tensor,
    full: tl.tensor,
    full_at: tl.tensor,
    captured: tl.tensor,
):
    """A tile of rows of one head. The last rows come first: under a causal mask they have most to do."""
    tile = tl.cdiv(Q, BM) - 1 - tl.program_id(0)
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    b8, h8, g8 = b.to(tl.int64), h.to(tl.int64), (h // G).to(tl.int64)
    rows, d, e = tile * BM + tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE)
    own = q + b8 * QB + h8 * QH + (rows[:, None].to(tl.int64) * QN + d[None, :] * QD)
    left = tl.load(own, (rows[:, None] < Q) & (d[None, :] < D), other=0.0)
    k += b8 * KB + g8 * KH
    v += b8 * VB + g8 * VH
    total = tl.zeros((BM, BE), tl.float32)
    high, weight = tl.full((BM,), float("-inf"), tl.float32), tl.zeros((BM,), tl.float32)
    row = tile * BM // ROWS
    if LISTED:
        count = tl.load(few + b8 * NB + h8 * NH + row * NR) * (KEYS // BN)
        few_at += b8 * IB + h8 * IH + row * IR
    else:
        count = tl.cdiv(K, BN)
    total, high, weight = sweep(total, high, weight, left, k, v, count, few_at, b, h, rows, captured, IC, MASKED)
    if FULL:
        count = tl.load(full + b8 * FB + h8 * FH + row * FR) * (KEYS // BN)
        full_at += b8 * JB + h8 * JH + row * JR
        total, high, weight = sweep(total, high, weight, left, k, v, count, full_at, b, h, rows, captured, JC, 0)
    made = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
    at = tl.program_id(1).to(tl.int64) * Q + rows
    out += b8 * OB + h8 * OH
    places = out + (rows[:, None].to(tl.int64) * ON + e[None, :] * OD)
    tl.store(places, made.to(out.dtype.element_ty), (rows[:, None] < Q) & (e[None, :] < E))
    tl.store(sums + at, high + tl.log2(weight), rows < Q)
    tl.store(tops + at, high, rows < Q)
