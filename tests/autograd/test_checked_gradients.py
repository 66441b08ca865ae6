"""Gradients that autograd refuses for some values: of a loss that depends on the phase of complex eigenvectors or singular
vectors. The error comes as in eager, and gradients of losses that do not depend on it are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit


def pair(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x.sin())


def vectors(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eig(x * 2)[1] * 3


def vectors_of_a_hermitian(x: torch.Tensor) -> torch.Tensor:
    c = pair(x)
    return torch.linalg.eigh(c + c.mH)[1].sin()


def singular_vectors(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svd(pair(x))[0] + 1


def lengths(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eig(x.tanh())[1].abs() * 3


def values(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvals(x * 2).abs() + x.sum()


def singular_values(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svd(pair(x))[1].exp()


def outcome(f: Callable, x: torch.Tensor) -> object:
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    try:
        out = f(x)
        (out * torch.randn_like(out)).sum().real.backward()
    except RuntimeError as e:
        return str(e)
    return x.grad


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("f", [vectors, vectors_of_a_hermitian, singular_vectors, lengths, values, singular_values])
def test_errors_and_gradients_are_eagers(f: Callable, backend: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    c = bytejit.compile(f, backend=backend, fullgraph=True)
    want = outcome(f, x)
    assert isinstance(want, str) == (f.__name__ in ("vectors", "vectors_of_a_hermitian", "singular_vectors"))
    for _ in range(2):
        got = outcome(c, x)
        if isinstance(want, str):
            assert got == want
        else:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("f", [vectors, lengths])
def test_a_backward_pass_within_the_region(f: Callable) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        out = f(x)
        (out * torch.arange(16.0).reshape(4, 4)).sum().real.backward()
        return out.detach()

    torch.manual_seed(0)
    x = torch.randn(4, 4)
    found = []
    for g in (step, bytejit.compile(step)):
        leaf = x.clone().requires_grad_()
        try:
            found.append((g(leaf), leaf.grad))
        except RuntimeError as e:
            found.append(str(e))
    if f is vectors:
        assert isinstance(found[0], str) and found[1] == found[0]
    else:
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
