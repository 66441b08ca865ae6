"""Pieces and conjugated views that a graph returns: where they lie and what they lead to, whatever the graph does behind them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit


def unsafe_of_a_part(x: torch.Tensor) -> object:
    return torch.unsafe_chunk(x[2:], 2)[0], x[0]


def unsafe_of_a_piece(x: torch.Tensor) -> object:
    return torch.unsafe_split_with_sizes(x.split(2)[-1], (1, 1))[1]


def unsafe_of_what_is_made(x: torch.Tensor) -> object:
    y = x.sin()
    return torch.unsafe_split(y.view(-1)[2:], 3)[1], y


def detached_behind(x: torch.Tensor) -> object:
    piece = x.split(2)[-1]
    x.detach_()
    return piece, x


def detached_behind_all(x: torch.Tensor) -> object:
    pieces = x.unbind(1)
    x.requires_grad_(False) if x.is_leaf else x.detach_()
    return pieces


def gradients_off_behind(x: torch.Tensor) -> object:
    pieces, z = x.split(2), torch.view_as_complex(x).conj()
    with torch.no_grad():
        y = x + 1
        print(end="")
    return pieces[1], torch.view_as_real(z.resolve_conj()), z.real, y


def gradients_off_within(x: torch.Tensor) -> object:
    with torch.no_grad():
        pieces = x.split(2)
        print(end="")
    return pieces[1], x * 2


FUNCTIONS = (
    unsafe_of_a_part,
    unsafe_of_a_piece,
    unsafe_of_what_is_made,
    detached_behind,
    detached_behind_all,
    gradients_off_behind,
    gradients_off_within,
)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_pieces(f: Callable, backend: str) -> None:
    compiled = bytejit.compile(f, backend=backend)
    for tracked in (True, False, True):
        found = []
        for g in (f, compiled):
            x = torch.arange(8.0).view(4, 2).clone().requires_grad_(tracked)
            made = g(x * 1)
            outs = made if isinstance(made, tuple) else (made,)
            told = [(t.detach().clone(), t.storage_offset(), t.stride(), t.requires_grad, t.is_leaf) for t in outs]
            loss = sum((i + 1) * t.square().sum() for i, t in enumerate(outs) if t.grad_fn is not None)
            grad = torch.autograd.grad(loss, x)[0] if isinstance(loss, torch.Tensor) else None
            with torch.no_grad():
                outs[-1].mul_(3)
            found.append([told, [t.detach().clone() for t in outs], torch.zeros(()) if grad is None else grad])
        torch.testing.assert_close(found[1], found[0])
