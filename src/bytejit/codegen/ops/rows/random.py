"""Rows of random numbers that kernels make themselves (option `fused_rng`): Philox 4x32-10, a function of a seed, the
element's position and the draw's number in the graph, so any kernel can compute any element, in any order.

`codegen/aten/random_numbers.py` puts these ops where a graph draws through torch. Each runs through torch too,
with the same numbers.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.ops.table import op
from bytejit.common.own_operators import OPERATORS
from bytejit.common.spec import contiguous_stride

LOW = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
STEPS = 0x9E3779B9, 0xBB67AE85
#: bits of a uniform number: as many as its dtype tells apart below 1
BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
TURN = 2 * math.pi / (1 << 24)

OPERATORS.define("uniform(Tensor seed, int draw, SymInt[] size, ScalarType dtype) -> Tensor")
OPERATORS.define("normal(Tensor seed, int draw, SymInt[] size, ScalarType dtype) -> Tensor")


def philox(key: torch.Tensor, index: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    """Words 0 and 1 of Philox 4x32-10, as word 0 << 32 | word 1. All i64: key: its two words; index: counter words 0 and 1;
    draw: counter words 2 and 3."""
    k0, k1 = key & LOW, (key >> 32) & LOW
    c0, c1, c2, c3 = index & LOW, (index >> 32) & LOW, draw & LOW, (draw >> 32) & LOW
    for _ in range(ROUNDS):
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # wraps: the bits are those of the unsigned product
        c0, c1, c2, c3 = ((b >> 32) & LOW) ^ c1 ^ k0, b & LOW, ((a >> 32) & LOW) ^ c3 ^ k1, a & LOW
        k0, k1 = (k0 + STEPS[0]) & LOW, (k1 + STEPS[1]) & LOW
    return c0 << 32 | c1


op(
    "philox",
    arity=3,
    cost=60,
    ref=philox,
    dtypes=frozenset({"i64"}),
    cpp="bj::philox({0}, {1}, {2})",
    triton="bj_philox({0}, {1}, {2})",
)


# ---- through torch: what a graph that gets no kernels runs, and what kernels are compared with --------------------------
def _words(seed: torch.Tensor, draw: int, size: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    index = torch.arange(math.prod(size), dtype=torch.int64, device=seed.device)
    made = philox(seed, index, torch.full_like(index, draw)).view(size)
    return (made >> 32) & LOW, made & LOW


def _uniform(seed: torch.Tensor, draw: int, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    first, _ = _words(seed, draw, size)
    return ((first >> (32 - BITS[dtype])).float() * 2.0 ** -BITS[dtype]).to(dtype)


def _normal(seed: torch.Tensor, draw: int, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    first, second = _words(seed, draw, size)
    radius = torch.sqrt(-2 * torch.log((first + 1).float() * 2.0**-32))
    return (radius * torch.cos((second >> 8).float() * TURN)).to(dtype)


OPERATORS.impl("uniform", _uniform, "CompositeExplicitAutograd")
OPERATORS.impl("normal", _normal, "CompositeExplicitAutograd")


# ---- as loops -------------------------------------------------------------------------------------------------------------
def _drawn(ctx: Any, seed: Any, draw: int, coords: tuple, word: int) -> Any:
    """A word of an element's draw, as i64. The position counts row-major, whatever the strides."""
    at = ctx.cons.index(ix.linear(coords, contiguous_stride(ctx.spec().shape)), ctx.where)
    both = ctx.op("philox", ctx.read(seed, (), "i64"), at, ctx.const(draw, "i64"))
    shifted = both if word else ctx.op("shr", both, ctx.const(32, "i64"))
    return ctx.op("and", shifted, ctx.const(LOW, "i64"))


def _lower_uniform(ctx: Any, seed: Any, draw: int, size: Any, dtype: torch.dtype) -> Any:
    bits = BITS[dtype]

    def element(coords: tuple) -> Any:
        word = ctx.op("shr", _drawn(ctx, seed, draw, coords, 0), ctx.const(32 - bits, "i64"))
        return ctx.op("mul", ctx.cast(word, "f32"), ctx.const(2.0**-bits, "f32"))

    return ctx.map(element)


def _lower_normal(ctx: Any, seed: Any, draw: int, size: Any, dtype: torch.dtype) -> Any:
    def element(coords: tuple) -> Any:
        first = ctx.op("add", _drawn(ctx, seed, draw, coords, 0), ctx.const(1, "i64"))
        part = ctx.op("mul", ctx.cast(first, "f32"), ctx.const(2.0**-32, "f32"))
        radius = ctx.op("sqrt", ctx.op("mul", ctx.op("log", part), ctx.const(-2.0, "f32")))
        second = ctx.op("shr", _drawn(ctx, seed, draw, coords, 1), ctx.const(8, "i64"))
        return ctx.op("mul", radius, ctx.op("cos", ctx.op("mul", ctx.cast(second, "f32"), ctx.const(TURN, "f32"))))

    return ctx.map(element)


op("random_uniform", "bytejit.uniform.default", "composite", lower=_lower_uniform)
op("random_normal", "bytejit.normal.default", "composite", lower=_lower_normal)
