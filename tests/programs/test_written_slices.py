"""Loops that write slices of a result at each step: values and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

STEPS = 6


def plain(out: torch.Tensor, i: int, s: torch.Tensor) -> None:
    out[:, i] = s


def backwards(out: torch.Tensor, i: int, s: torch.Tensor) -> None:
    out[:, -1 - i] = s


def overlapping(out: torch.Tensor, i: int, s: torch.Tensor) -> None:
    out[:, i : i + 3] = s[:, None] * 2


def strided(out: torch.Tensor, i: int, s: torch.Tensor) -> None:
    out[:, i % 2 :: 2] = s[:, None]


def through_a_view(out: torch.Tensor, i: int, s: torch.Tensor) -> None:
    out.transpose(0, 1)[i].mul_(2).add_(s)


def through_a_flip(out: torch.Tensor, i: int, s: torch.Tensor) -> None:
    out[:, i] = s.flip(-1)
    out[:, i, 1:3] = out[:, i - 1, 2:4].clone()


@pytest.mark.parametrize("write", [plain, backwards, overlapping, strided, through_a_view, through_a_flip])
def test_values_and_gradients(write: Callable) -> None:
    """Each step writes a part of the result, which the last ones may write again."""

    def f(x: torch.Tensor, decay: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, s = torch.zeros(3, STEPS, 5), torch.zeros(3, 5)
        for i in range(STEPS):
            s = torch.tanh(s * decay + x[:, i])
            write(out, i, s)
        return out, s

    torch.manual_seed(0)
    x, decay, g = torch.randn(3, STEPS, 5), torch.rand(5), torch.randn(3, STEPS, 5)
    found = []
    for run in (f, bytejit.compile(f)):
        args = x.clone().requires_grad_(), decay.clone().requires_grad_()
        out, s = run(*args)
        found.append([out.detach(), s.detach(), *torch.autograd.grad((out * g).sum() + s.sum(), args)])
    for eager, compiled in zip(*found):
        torch.testing.assert_close(compiled, eager)
        assert compiled.stride() == eager.stride()
    assert not bytejit.counters["breaks"] and not bytejit.counters["fallbacks"]
