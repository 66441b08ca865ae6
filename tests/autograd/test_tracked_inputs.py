"""Graphs that turn requires_grad of an input on or off, and whose outputs need gradients: eager's gradients, compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .beside import BACKENDS, beside

pytestmark = [pytest.mark.pairs, pytest.mark.parametrize("backend", BACKENDS)]
Made = torch.Tensor | tuple[torch.Tensor, ...]


def at_once(x: torch.Tensor, w: torch.Tensor) -> Made:
    x.requires_grad_()
    return x.sin() * w, x


def used_before(x: torch.Tensor, w: torch.Tensor) -> Made:
    y = x * 2
    x.requires_grad = True
    return x.sin() * w + y, y


def penalty(x: torch.Tensor, w: torch.Tensor) -> Made:
    x.requires_grad_()
    (slope,) = torch.autograd.grad((x.sin() * w).sum(), x, create_graph=True)
    return slope.square(), x


def written_before(x: torch.Tensor, w: torch.Tensor) -> Made:
    with torch.no_grad():
        y = x * 2
        x.add_(1)
    x.requires_grad_()
    return x * w + y


def views(x: torch.Tensor, w: torch.Tensor) -> Made:
    x.requires_grad_()
    return x[1:] * w[1:], x[:2]


def not_read(x: torch.Tensor, w: torch.Tensor) -> Made:
    x.requires_grad_()
    return w * 2


def off(x: torch.Tensor, w: torch.Tensor) -> Made:
    x.requires_grad_(False)
    return x * w


def data_set_as_well(x: torch.Tensor, w: torch.Tensor) -> Made:
    w.data = w.detach() * 2
    x.requires_grad_()
    return x * 2, x.detach() + 1


@pytest.mark.parametrize("of", [(False, True), (False, False), (True, False)])
@pytest.mark.parametrize("f", [at_once, used_before, penalty, written_before, views, not_read, off, data_set_as_well])
def test_an_input_is_followed_from_then_on(f: Callable, of: tuple[bool, bool], backend: str) -> None:
    def drive(f: Callable, x: torch.Tensor, w: torch.Tensor) -> tuple:
        x.requires_grad_(of[0])
        made = f(x, w)
        followed = [t.square().sum() for t in (made if isinstance(made, tuple) else (made,)) if t.requires_grad]
        if followed:
            torch.stack(followed).sum().backward()
        return [t.detach() for t in (made if isinstance(made, tuple) else (made,))], x.requires_grad, x.grad

    runs = None if f in (data_set_as_well, used_before, written_before) else 0
    beside(backend, f, lambda: (torch.randn(4), torch.randn(4, requires_grad=of[1])), drive, torch_runs=runs)


@pytest.mark.parametrize("f", [at_once, used_before, views, written_before])
def test_gradients_of_gradients(f: Callable, backend: str) -> None:
    """The graph runs again: what came before requires_grad_ is not followed then either"""

    def drive(f: Callable, x: torch.Tensor, w: torch.Tensor) -> tuple:
        made = f(x, w)
        out = made[0] if isinstance(made, tuple) else made
        grads = torch.autograd.grad(out.square().sum(), (x, w), create_graph=True)
        sum(t.square().sum() for t in grads).backward()
        return [t.detach() for t in grads], x.grad, w.grad

    inputs = lambda: (torch.randn(4), torch.randn(4, requires_grad=True))  # noqa: E731
    beside(backend, f, inputs, drive, steps=1, torch_runs=None)


def test_a_call_that_raises_sets_nothing(backend: str) -> None:
    """An index out of range, found when the graph runs: eager has set requires_grad by then"""

    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return x[at] * 2

    def drive(f: Callable, x: torch.Tensor, at: torch.Tensor) -> tuple:
        try:
            f(x, at)
        except IndexError as e:
            return str(e), x.requires_grad
        return x.requires_grad, None

    beside(backend, f, lambda: (torch.randn(4), torch.tensor([9])), drive)
