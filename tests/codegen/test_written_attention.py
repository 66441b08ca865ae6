"""Attentions that programs write out: which become our own, and that results stay eager's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import bytejit
from bytejit.codegen.libraries import attention

pytestmark = pytest.mark.cxx
LOW = float("-inf")


def draw(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s) for s in shapes]


HEADS = [(2, 3, 20, 8), (2, 3, 30, 8), (2, 3, 30, 4)]
BATCH = [(6, 20, 8), (6, 30, 8), (6, 30, 4)]


def windows(x, bias, mask):
    """Scores take a bias of each head, and a mask of each window at five dims."""
    q, k, v = x.unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
    scores = (q * 0.3) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    n = mask.shape[0]
    scores = scores.view(-1, n, 2, 9, 9) + mask.unsqueeze(1).unsqueeze(0)
    return (scores.view(-1, 2, 9, 9).softmax(-1) @ v).transpose(1, 2).reshape(-1, 9, 16)


def lows(*shape: int) -> torch.Tensor:
    """Numbers some of which leave weights that are no normal floats."""
    return -100.0 * (torch.arange(math.prod(shape)).view(shape) % 3 == 1)


JOINED = {
    "plain": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, HEADS),
    "scaled": (lambda q, k, v: (q @ k.mT / 2.5).softmax(-1) @ v, HEADS),
    "scaled before": (lambda q, k, v: ((q * 0.5) @ (k * 0.7).mT).softmax(-1) @ v, HEADS),
    "mask of the keys": (lambda q, k, v, m: ((q @ k.mT) * 0.4 + m).softmax(-1) @ v, [*HEADS, (2, 1, 1, 30)]),
    "mask first": (lambda q, k, v, m: (m + q @ k.mT).softmax(-1) @ v, [*HEADS, (3, 20, 30)]),
    "matrix": (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, [*HEADS, (20, 30)]),
    "two masks": (lambda q, k, v, m, n: (q @ k.mT + m + n).softmax(-1) @ v, [*HEADS, (2, 1, 20, 30), (1, 3, 1, 30)]),
    "bmm": (lambda q, k, v: torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), 2), v), BATCH),
    "bmm with a mask": (lambda q, k, v, m: torch.bmm((torch.bmm(q, k.mT) + m).softmax(-1), v), [*BATCH, (6, 20, 30)]),
    "bmm with one mask": (lambda q, k, v, m: torch.bmm((torch.bmm(q, k.mT) + m).softmax(-1), v), [*BATCH, (1, 1, 30)]),
    "back to three dims": (
        lambda q, k, v, m: torch.bmm(((q @ k.mT).view(2, 3, 20, 30) + m).view(6, 20, 30).softmax(-1), v),
        [*BATCH, (2, 1, 1, 30)],
    ),
    "heads aside": (lambda q, k, v: ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(2, 20, 12), HEADS),
    "heads permuted": (lambda q, k, v: ((q @ k.mT).softmax(-1) @ v).permute(0, 2, 1, 3).contiguous() + 1, HEADS),
    "keys transposed": (lambda q, k, v: (q @ k).softmax(-1) @ v, [HEADS[0], (2, 3, 8, 30), HEADS[2]]),
}
LEFT = {
    "weights are read": (lambda q, k, v: ((p := (q @ k.mT).softmax(-1)) @ v, p), HEADS),
    "scores are read": (lambda q, k, v: ((s := q @ k.mT).softmax(-1) @ v, s), HEADS),
    "another dim": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, HEADS),
    "a function of scores": (lambda q, k, v: (q @ k.mT).tanh().softmax(-1) @ v, HEADS),
    "a scaled mask": (lambda q, k, v, m: ((q @ k.mT + m) * 0.5).softmax(-1) @ v, [*HEADS, (20, 30)]),
    "one query": (lambda q, k, v: (q[:, :, :1] @ k.mT).softmax(-1) @ v, HEADS),
}


@pytest.mark.parametrize("name", JOINED)
def test_joined(own, name: str) -> None:
    f, shapes = JOINED[name]
    args = draw(*shapes)
    with torch.no_grad():
        got, want = bytejit.compile(f)(*args), f(*args)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert got.stride() == want.stride() and own == [1]


@pytest.mark.parametrize("name", LEFT)
def test_left(own, name: str) -> None:
    f, shapes = LEFT[name]
    args = draw(*shapes)
    with torch.no_grad():
        torch.testing.assert_close(bytejit.compile(f)(*args), f(*args))
    assert own == [0]


@pytest.mark.parametrize("batch", [4, 8])
def test_windows(own, batch: int) -> None:
    args = *draw((batch, 9, 48), (2, 9, 9)), lows(4, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(bytejit.compile(windows)(*args), windows(*args), rtol=1e-5, atol=1e-5)
    assert own == [1]


def test_a_row_without_keys_is_nan_as_in_eager(own) -> None:
    q, k, v = draw(*HEADS)
    mask = torch.zeros(20, 30)
    mask[3], mask[:, 4] = LOW, LOW

    def f(q, k, v, m):
        return (q @ k.mT + m).softmax(-1) @ v

    with torch.no_grad():
        got, want = bytejit.compile(f)(q, k, v, mask), f(q, k, v, mask)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert own == [1] and got[:, :, 3].isnan().all() and not got[:, :, 2].isnan().any()


def test_what_is_no_number_stays_so(own) -> None:
    q, k, v = draw(*HEADS)
    q[0, 0, 1, 2], v[0, 1, 3, 0], k[1, 0, 5, 1] = float("nan"), float("inf"), float("inf")

    def f(q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    with torch.no_grad():
        torch.testing.assert_close(bytejit.compile(f)(q, k, v), f(q, k, v), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert own == [1]


def test_training_keeps_the_weights(own) -> None:
    net = nn.Linear(8, 24)

    def f(x):
        q, k, v = net(x).chunk(3, -1)
        return ((q @ k.mT).softmax(-1) @ v).square().sum()

    x = torch.randn(3, 10, 8)
    f(x).backward()
    want = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    bytejit.compile(f)(x).backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], want, rtol=1e-4, atol=1e-5)


def test_timing_chooses(monkeypatch) -> None:
    """The tuner itself, on operands as they lie, with and without masks."""
    bytejit.reset()
    monkeypatch.setattr(attention, "LEAST_WORK", 0)
    q, k, v, m = draw(*HEADS, (1, 3, 20, 30))
    with torch.no_grad():
        for f, args in ((lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (q, k, v)), (JOINED["matrix"][0], (q, k, v, m))):
            torch.testing.assert_close(bytejit.compile(f)(*args), f(*args), rtol=1e-5, atol=1e-5)
