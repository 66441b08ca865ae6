"""What a compiled region's node of autograd leads to: the inputs that its results depend on, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

CELL = torch.nn.GRUCell(4, 8)


def recurrent(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state = CELL(x, state.detach())
    return state, state.square().mean()


def beside(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = CELL(x, x.new_zeros(2, 8))
    return made + state.detach() * 2, made.sum()


def alone(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state = CELL(x, state.detach())
    return state, state


def nodes(node: torch.autograd.graph.Node | None, seen: set) -> int:
    """How many nodes a history has."""
    if node is not None and node not in seen:
        seen.add(node)
        for following, _ in node.next_functions:
            nodes(following, seen)
    return len(seen)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("step", [recurrent, beside, alone])
def test_the_history_of_a_detached_state_ends(step: Callable, backend: str) -> None:
    """Truncated backpropagation through time: the steps before are not kept, nor gone through again"""
    compiled, state, lengths = bytejit.compile(step, backend=backend), torch.zeros(2, 8), []
    for _ in range(4):
        state, loss = compiled(torch.randn(2, 4), state)
        loss.sum().backward()
        lengths.append(nodes(state.grad_fn, set()))
    assert lengths[1] == lengths[-1]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_has_no_derivative_is_not_asked_for_one(backend: str) -> None:
    def f(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counted = torch.histogram(a * 3, 4)  # in the original code
        return a * 2, counted.hist.detach(), counted.bin_edges

    a = torch.randn(5, requires_grad=True)
    bytejit.compile(f, backend=backend)(a)[0].sum().backward()
    assert a.grad is not None and a.grad.tolist() == [2.0] * 5
