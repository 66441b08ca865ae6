"""A size computed within a part of a graph (a branch, a loop's body, a trial), and again outside it: each has its own node"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import bytejit


def half(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 2 + 3]


@functools.lru_cache
def cached(n: int) -> int:
    return n // 2 + 3


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape[0]
        return half(x) * 2

    @staticmethod
    def backward(ctx, g):
        return torch.cat([g * 2, g.new_zeros(ctx.size - g.shape[0])])


PARTS: dict[str, Callable] = {
    "branches": lambda x: torch.cond(x.sum() > 0, lambda x: half(x).sum(), lambda x: half(x).mean(), (x,)),
    "a loop": lambda x: while_loop(
        lambda i, y: i + half(y)[0] * 0 > 0, lambda i, y: (i - 1, half(y).sum() + y), (torch.tensor(2.0), x)
    ),
    "an autograd function": Doubled.apply,
    "a cached function": lambda x: x[: cached(x.shape[0])],
    "a scan that is tried": lambda x: (
        associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic") + x[: x.shape[0] - 1].sum()
    ),
    "a gradient": lambda x: torch.func.grad(lambda x: (half(x) ** 2).sum())(x),
    "a checkpoint": lambda x: checkpoint(lambda x: half(x) ** 2, x, use_reentrant=False),
    "a map": lambda x: torch.vmap(lambda row: half(row) * 2)(x[None].repeat(2, 1)),
}


def checked(gm: torch.fx.GraphModule, inputs: list) -> Callable:
    gm.graph.lint()  # no node is used before it is defined
    return gm.forward


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_the_size_is_used_within_and_after(name: str, grad: bool) -> None:
    part = PARTS[name]
    f = lambda x: (part(x), half(x) * x.shape[0])
    compiled = bytejit.compile(f, backend=checked, dynamic=True)
    for n in (7, 12):
        x = torch.randn(n, requires_grad=grad)
        torch.testing.assert_close(compiled(x), f(x))
