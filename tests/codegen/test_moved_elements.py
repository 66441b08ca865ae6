"""Random chains of what moves elements (borders, parts, other shapes, orders), as networks shift positions: index arithmetic with
many divisions, in one kernel. On the CPU, and on a GPU where there is one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


Step = Callable[[torch.Tensor], torch.Tensor]


def dealt(numbers: random.Random, count: int) -> list[int]:
    """Three sizes whose product is `count`: its factors, dealt anew."""
    sizes = [1, 1, 1]
    while count > 1:
        factor = next(k for k in (*range(2, 14), count) if count % k == 0)
        sizes[numbers.randrange(3)] *= factor
        count //= factor
    return sizes


def step_for(shape: torch.Size, numbers: random.Random) -> Step:
    """A step that suits a tensor of this shape; its first dim stays as it is."""
    d, kind, k = numbers.randrange(1, 4), numbers.randrange(7), numbers.randrange(1, 5)
    if kind == 0:
        borders = [numbers.choice((0, 1, 1, -1)) if n > 2 else 1 for n in shape[:1:-1] for _ in range(2)]
        return lambda x: F.pad(x, borders)
    if kind == 1 and shape[d] > 2:
        return lambda x: x.narrow(d, 1, x.shape[d] - 1 - k % 2)
    if kind == 2:
        return lambda x: x.flip(d)
    if kind == 3:
        return lambda x: x.roll(k, d)
    if kind == 4:
        return lambda x: x.transpose(d, 1 + d % 3)
    if kind == 5 and shape[1] > 3:
        return lambda x: x[:, ::2]
    sizes = dealt(numbers, math.prod(shape[1:]))
    return lambda x: x.reshape(x.shape[0], *sizes)


def steps_of(seed: int) -> tuple[torch.Size, list[Step]]:
    """A shape, and five steps."""
    numbers = random.Random(seed)
    x = torch.empty(4, *(numbers.choice((3, 7, 13, 16, 29, 40)) for _ in range(3)), device="meta")
    shape, steps = x.shape, []
    for _ in range(5):
        steps.append(step_for(x.shape, numbers))
        x = steps[-1](x)
    return shape, steps


def used(x: torch.Tensor, steps: list[Step]) -> tuple[torch.Tensor, ...]:
    """The elements, and a function of whole rows of them."""
    for step in steps:
        x = step(x) * 0.5
    return x, x.flatten(1).softmax(-1).view_as(x) - x


@pytest.mark.parametrize(("device", "first"), [(d, k) for d in DEVICES for k in range(0, 4 if d == "cpu" else 40, 4)])
def test_random_moves(device: str, first: int) -> None:
    torch.manual_seed(first)
    for seed in range(first, first + 4):
        bytejit.reset()
        shape, steps = steps_of(seed)
        x = torch.randn(shape, device=device, requires_grad=True)
        compiled = bytejit.compile(used, fullgraph=True, dynamic=False)
        want, got = used(x, steps), compiled(x, steps)
        torch.testing.assert_close(got, want, msg=lambda text, seed=seed: f"seed {seed}: {text}")
        grads = [torch.autograd.grad([r.sum() for r in (y * y for y in ys)], x)[0] for ys in (want, got)]
        torch.testing.assert_close(grads[1], grads[0], msg=lambda text, seed=seed: f"gradient, seed {seed}: {text}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("queries", "batch"), [(79, 2), (64, 3), (31, 1)])
def test_scores_of_relative_positions(queries: int, batch: int, device: str) -> None:
    """The shift of Transformer-XL: column j of row i belongs to the distance j - i"""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        heads, n, distances = x.shape[1:]
        x = F.pad(x, (1, 0)).view(-1, heads, distances + 1, n)
        return x[:, :, 1:].view(-1, heads, n, distances)[..., :n] * 0.25

    x = torch.randn(batch, 4, queries, 2 * queries - 1, device=device, requires_grad=True)
    results = []
    for f in (shifted, bytejit.compile(shifted, fullgraph=True)):
        y = f(x)
        results.append((y, *torch.autograd.grad((y * torch.linspace(-1, 1, y.numel(), device=device).view_as(y)).sum(), x)))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [79, 64, 33])
def test_gradients_of_shifted_scores(n: int, device: str) -> None:
    """As autograd makes it, of the gradient of a bias that attention padded: one kernel over rows of 12,403 elements"""
    aten, wide, stride = torch.ops.aten, 2 * n - 1, n + 8 - n % 8

    def gradient(g: torch.Tensor) -> torch.Tensor:
        g = aten.slice_backward(g, [2, 4, n, stride], -1, 0, n, 1)
        g = aten.constant_pad_nd(g, [0, n - stride]) * 0.25
        g = aten.slice_backward(g, [2, 4, n, wide], 3, 0, n, 1).view(2, 4, wide, n)
        g = aten.slice_backward(g, [2, 4, wide + 1, n], 2, 1, 2**63 - 1, 1).view(2, 4, n, wide + 1)
        return aten.constant_pad_nd(g, [-1, 0])

    given = torch.randn(2, 4, n, stride, device=device)[..., :n]
    torch.testing.assert_close(bytejit.compile(gradient, fullgraph=True)(given), gradient(given), rtol=0, atol=0)
