"""Masks that the graph makes itself: attention without them, or causal, where that is the same; else with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.codegen.aten import known_masks
from bytejit.codegen.aten.known_masks import ALL, CAUSAL

BOOL = torch.bool


def places(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of queries, as a column, and of keys."""
    return torch.arange(n)[:, None], torch.arange(n)


def window(n: int, width: int) -> torch.Tensor:
    """The last keys only."""
    q, k = places(n)
    return (k <= q) & (k > q - width)


def of_sequences(n: int) -> torch.Tensor:
    """Keys up to the query in the same sequence, by places that start again at each: as transformers finds packed sequences."""
    place = torch.arange(n)[None] + 0
    sequence = (torch.diff(place, prepend=place[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    b, q, k = torch.arange(1)[:, None, None, None], torch.arange(n)[None, None, :, None], torch.arange(n)[None, None, None]
    return ((k <= q) & (sequence[b, q] == sequence[b, k])).expand(2, 1, n, n)


@pytest.mark.parametrize(
    "make, kind",
    [
        (lambda n: (places(n)[0] >= 0)[None, None].expand(2, -1, n, n), ALL),
        (lambda n: torch.zeros(n, n), ALL),
        (lambda n: torch.ones(n, n, dtype=BOOL), ALL),
        (lambda n: (places(n)[1][None, None] <= places(n)[0] + 0).expand(2, 1, n, n), CAUSAL),
        (lambda n: torch.ones(n, n, dtype=BOOL).tril() & torch.ones(n, n, dtype=BOOL), CAUSAL),
        (lambda n: torch.ones(n, n).tril().view(1, 1, n, n) == 1, CAUSAL),
        (lambda n: ~torch.ones(n, n, dtype=BOOL).triu(1), CAUSAL),
        (lambda n: torch.full((n, n), float("-inf")).triu(1), CAUSAL),
        (lambda n: (1.0 - torch.ones(n, n).tril()) * torch.finfo(torch.float32).min, CAUSAL),
        (of_sequences, CAUSAL),
        (lambda n: torch.zeros(n, n).masked_fill(torch.ones(n, n).tril() == 0, -9.0), None),
        (lambda n: window(n, 4), None),
        (lambda n: torch.ones(n, n, dtype=BOOL).tril(1), None),
        (lambda n: torch.ones(n, n, dtype=BOOL).tril(-1) | torch.eye(n, dtype=BOOL)[:, :1], None),
        (lambda n: torch.ones(n, n, dtype=BOOL).triu(), None),
        (lambda n: torch.ones(n, n), None),
        (lambda n: torch.rand(n, n) > -1, None),
        # some elements are written: the others keep what was there
        (lambda n: torch.zeros(n, n, dtype=BOOL).index_fill(0, torch.tensor([0]), True), None),
        (lambda n: torch.zeros(n, n, dtype=BOOL).index_put((torch.tensor([0]),), torch.tensor(True)), None),
        (lambda n: torch.ones(n, n, dtype=BOOL).tril().index_fill(1, torch.tensor([-1]), True), None),
        (lambda n: torch.full((n, n), -9.0).index_fill(0, torch.tensor([-1]), 0.0), None),
        (lambda n: torch.zeros(n, n).scatter(0, torch.zeros(1, n, dtype=torch.long), -9.0), None),
        (lambda n: torch.zeros(n, n).index_add(0, torch.tensor([0]), torch.ones(1, n)), None),
    ],
)
def test_masks_of_the_graph(make: Callable, kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found, real = [], known_masks._kind_of
    monkeypatch.setattr(known_masks, "_kind_of", lambda mask: found.append(real(mask)) or found[-1])

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=make(x.shape[-2]))

    compiled = bytejit.compile(fn)
    for n in (8, 12, 1):
        x = torch.randn(2, 2, n, 16)
        torch.testing.assert_close(compiled(x), fn(x), equal_nan=True)
    x = torch.randn(2, 2, 9, 16, requires_grad=True)
    for got, expected in zip(torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(fn(x).sum(), x), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
    assert found[:2] == [kind, kind]


def test_a_window_wider_than_the_sequence_is_causal() -> None:
    compiled = bytejit.compile(lambda x: F.scaled_dot_product_attention(x, x, x, window(8, 100)), dynamic=False)
    x = torch.randn(1, 2, 8, 16)
    torch.testing.assert_close(compiled(x), F.scaled_dot_product_attention(x, x, x, is_causal=True))


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (3, 8), (1, 3, 8, 8), (1, 1, 2, 8, 8)])
def test_a_mask_of_another_shape_stays(shape: tuple[int, ...]) -> None:
    """Also one that torch refuses."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, torch.ones(shape, dtype=BOOL).tril())

    x = torch.randn(1, 2, 8, 16)
    try:
        expected = fn(x)
    except RuntimeError as e:
        with pytest.raises(RuntimeError) as got:
            bytejit.compile(fn)(x)
        assert str(got.value) == str(e)
    else:
        torch.testing.assert_close(bytejit.compile(fn)(x), expected)


def test_a_mask_that_gets_a_gradient_stays() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(x.shape[-2], x.shape[-2]).requires_grad_()
        return torch.autograd.grad(F.scaled_dot_product_attention(x, x, x, mask).square().sum(), mask)[0]

    x = torch.randn(1, 1, 6, 8)
    torch.testing.assert_close(bytejit.compile(fn)(x), fn(x))


def test_dropout_on_the_cpu_draws_what_eager_draws() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, torch.ones(x.shape[-2], x.shape[-2], dtype=BOOL).tril(), 0.5)

    x = torch.randn(2, 2, 8, 16, requires_grad=True)
    torch.manual_seed(3)
    expected = fn(x)
    torch.manual_seed(3)
    torch.testing.assert_close(bytejit.compile(fn)(x), expected)
