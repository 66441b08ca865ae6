"""Inputs that a graph writes and detaches, and views of written inputs: each write is made once, and refused as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

OTHER = torch.ones(2, 3, requires_grad=True)


def detached_first(x: torch.Tensor) -> object:
    x.detach_()
    x.add_(1)
    return x


def written_first(x: torch.Tensor) -> object:
    x.add_(1)
    x.detach_()
    return x, x * 2, x.view(-1)


def zeroed(x: torch.Tensor) -> object:
    x.zero_()
    x.detach_()
    return x.relu_()


def tracking_off(x: torch.Tensor) -> object:
    x.requires_grad_(False)
    return x.mul_(2)


def viewed_behind(x: torch.Tensor) -> object:
    """Beside a view that has gradients; a break follows"""
    other = OTHER.t()
    x.detach_() if not x.is_leaf else x.requires_grad_(False)
    behind = x.swapaxes(0, -1)
    print(end="")
    return behind, behind.clone(), behind[1:], other, x


def viewed_as_itself(x: torch.Tensor) -> object:
    x.detach().add_(1)
    piece = x.unbind(0)[0]
    same = piece.view_as(piece)
    return torch.maximum(piece, x), piece, same, piece.view_as(other=piece), x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("f", [detached_first, written_first, zeroed, tracking_off, viewed_behind, viewed_as_itself])
@pytest.mark.parametrize("kinds", [("made", "leaf", "view", "made"), ("view", "leaf", "made", "view")])
def test_writes_are_made_once(f: Callable, kinds: tuple[str, ...], backend: str) -> None:
    compiled = bytejit.compile(f, backend=backend)
    for kind in kinds:
        found = []
        for g in (f, compiled):
            x = torch.linspace(-1, 1, 6).reshape(2, 3).clone().requires_grad_()
            x = {"leaf": x, "made": x * 1, "view": (x * 1)[:]}[kind]
            try:
                made = g(x)
            except RuntimeError as e:
                made = str(e)
            outs = made if isinstance(made, tuple) else (made,)
            told = [(t.requires_grad, t.is_leaf, t.detach().clone()) if isinstance(t, torch.Tensor) else t for t in outs]
            found.append([told, x.requires_grad, x.is_leaf, x.detach().clone(), x._version])
        refused = isinstance(found[0][0][0], str)
        assert refused == isinstance(found[1][0][0], str) and (not refused or found[1][0] == found[0][0])
        torch.testing.assert_close(found[1][refused:], found[0][refused:])


class OfAnIntermediate(torch.autograd.Function):
    """Returns a view of what it has made: torch refuses writes into it."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[0]

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return torch.stack([grad, grad]) * 2


def returned(x: torch.Tensor) -> torch.Tensor:
    return OfAnIntermediate.apply(x)


def written(x: torch.Tensor) -> torch.Tensor:
    return OfAnIntermediate.apply(x).mul_(2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("f", [returned, written])
def test_writes_into_views_of_autograd_functions(f: Callable, backend: str) -> None:
    found = []
    for g in (f, bytejit.compile(f, backend=backend)):
        x = torch.ones(2, 3, requires_grad=True)
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace. This view was created inside a custom"):
            y = g(x)
            y.sum().backward()
            found.append((y._is_view(), y.detach().clone(), x.grad))
            y.add_(1)
    assert f is written or torch.testing.assert_close(found[1], found[0]) is None
