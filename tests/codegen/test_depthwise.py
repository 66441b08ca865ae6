"""Depthwise convolutions: kernels of our own on a GPU (Triton's interpreter), the library's on a CPU, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from both import TRITON, fresh
from graphs import aten
from torch import nn

import bytejit
from bytejit.codegen.aten.depthwise import take_depthwise

pytestmark = [pytest.mark.cxx, pytest.mark.triton, pytest.mark.skipif(not TRITON, reason="needs Triton's interpreter")]
r = torch.randn


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def own(k: int | tuple, *how: int | tuple, groups: int = 6, bias: bool = False) -> Callable:
    sizes = (k, k) if isinstance(k, int) else k
    w, b = r(groups, 1, *sizes), r(groups) if bias else None
    return lambda x: F.hardswish(F.conv2d(x, w.to(x.dtype), None if b is None else b.to(x.dtype), *how, groups))


# program, image, whether the convolution is a kernel of ours
CASES = {
    "three": (own(3, 1, 1, 1), r(2, 6, 7, 9), True),
    "five, every second": (own(5, 2, 2, 1), r(2, 6, 8, 9), True),
    "seven, channels last": (own(7, 1, 3, 1), last(r(2, 6, 7, 9)), True),
    "bias": (own(3, 1, 0, 1, bias=True), r(2, 6, 7, 9), True),
    "dilated": (own((3, 2), (1, 2), (2, 1), (2, 1)), r(2, 6, 7, 9), True),
    "halves": (own(3, 1, 1, 1, bias=True), r(2, 6, 7, 9).half(), True),
    "bfloat16": (own(5, 1, 2, 1), last(r(2, 6, 7, 9)).bfloat16(), True),
    "no image": (own(3, 1, 1, 1), r(0, 6, 7, 9), True),
    "infinities": (own(3, 1, 1, 1), torch.where(r(2, 6, 7, 9) > 2, float("inf"), 1.0), True),
    "float64": (own(3, 1, 1, 1), r(2, 6, 7, 9).double(), False),
    "eight": (own(8, 1, 3, 1), r(2, 6, 9, 9), False),
    "two results a channel": (lambda x, w=r(12, 1, 3, 3): F.conv2d(x, w, groups=6) * 2, r(2, 6, 7, 9), False),
    "groups of two": (lambda x, w=r(6, 2, 3, 3): F.conv2d(x, w, groups=3) * 2, r(2, 6, 7, 9), False),
    "one channel": (lambda x, w=r(1, 1, 3, 3): F.conv2d(x, w) * 2, r(2, 1, 7, 9), False),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    fn, x, ours = CASES[name]
    for options in ({}, {"interpret": True}):
        bytejit.reset()
        (given,) = fresh((x,))
        expected, got = fn(x), bytejit.compile(fn, options=options)(given)
        narrow = x.dtype in (torch.half, torch.bfloat16)
        torch.testing.assert_close(got, expected, equal_nan=True, **({"rtol": 2e-2, "atol": 2e-2} if narrow else {}))
        assert got.stride() == expected.stride() or not got.numel()
        assert not bytejit.counters["fallbacks"], bytejit.counters
    graph = aten(fn, x).graph
    take_depthwise(graph)
    assert any(n.target is torch.ops.aten._conv_depthwise2d.default for n in graph.nodes) == ours


def test_a_block_with_squeeze_and_excitation() -> None:
    """What stands around it goes along; the gradients are the library's"""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.deep, self.down = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 4, 1)
            self.one, self.two, self.norm = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.silu(self.norm(self.deep(F.silu(self.up(x)))))
            return x + self.down(y * torch.sigmoid(self.two(F.silu(self.one(y.mean((2, 3), keepdim=True))))))

    torch.manual_seed(0)
    x = r(2, 4, 8, 8)
    for training in (False, True):
        bytejit.reset()
        nets = [Block().train(training) for _ in range(2)]
        nets[1].load_state_dict(nets[0].state_dict())
        compiled = bytejit.compile(nets[1], options={"interpret": True})
        with torch.set_grad_enabled(training):
            expected, got = nets[0](x), compiled(x)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        if training:
            expected.square().sum().backward()
            got.square().sum().backward()
            for a, b in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
