"""Modules that are parametrized after they were compiled, which gives the original another class"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import parametrize as par

import bytejit

X = torch.randn(2, 3)


class Twice(nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w * 2


def results(f: Callable, m: nn.Module) -> list[torch.Tensor]:
    m.zero_grad()
    y = f(X)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in m.parameters() if p.grad is not None)]


def same(f: Callable, g: Callable, m: nn.Module) -> None:
    want = results(f, m)
    for _ in range(2):
        got = results(g, m)
        assert len(got) == len(want)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("within", [False, True], ids=["called", "within"])
def test_the_module_itself(backend: str, within: bool) -> None:
    m = nn.Linear(3, 3)
    compiled = bytejit.compile(m, backend=backend)
    f = bytejit.compile(lambda x: compiled(x * 2), backend=backend) if within else compiled
    plain = (lambda x: m(x * 2)) if within else m
    same(plain, f, m)
    par.register_parametrization(m, "weight", Twice())
    same(plain, f, m)
    par.register_parametrization(m, "bias", Twice())
    same(plain, f, m)
    assert par.is_parametrized(compiled) and isinstance(compiled, type(m)) and compiled._orig_mod is m
    par.remove_parametrizations(m, "weight")
    par.remove_parametrizations(m, "bias")
    same(plain, f, m)
    assert type(compiled).__name__ == "Linear" and not bytejit.counters["faults"]


@pytest.mark.parametrize("change", [parametrizations.weight_norm, parametrizations.orthogonal, parametrizations.spectral_norm])
def test_torchs_own(change: Callable) -> None:
    m = nn.Linear(3, 3)
    compiled = bytejit.compile(m, backend="eager")
    same(m, compiled, m)
    change(m)
    m.eval()
    same(m, compiled, m)
