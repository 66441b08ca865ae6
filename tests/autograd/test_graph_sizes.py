"""Graphs of gradients have as many operators for long dimensions as for short ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit
import bytejit.backends

OPERATORS: dict[str, Callable] = {
    "cumprod": lambda x: x.cumprod(1),
    "cumprod of doubles": lambda x: torch.cumprod(x, 0, dtype=torch.double),
    "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(1),
    "cummax": lambda x: x.cummax(1)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(1),
    "sort": lambda x: x.sort(1)[0],
    "median": lambda x: x.median(1)[0],
    "flip": lambda x: x.flip(1),
    "cdist": lambda x: torch.cdist(x, x * 2),
    "kron": lambda x: torch.kron(x, x),
    "trapezoid": lambda x: torch.trapezoid(x),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "vander": lambda x: torch.linalg.vander(x[0], N=4),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_as_many_operators(name: str) -> None:
    counted: list[int] = []

    def count(gm: torch.fx.GraphModule, examples: object) -> Callable:
        counted.append(sum(n.op == "call_function" for n in gm.graph.nodes))
        return gm.forward

    def of_size(n: int) -> list[int]:
        torch.manual_seed(0)
        x = torch.rand(n, n).requires_grad_()
        y = x.detach().clone().requires_grad_()
        counted.clear()
        compiled = bytejit.compile(OPERATORS[name], backend=bytejit.backends.aot(forward=count, backward=count), dynamic=False)
        compiled(x).sum().backward()
        OPERATORS[name](y).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        return list(counted)

    assert of_size(5) == of_size(17) and counted
