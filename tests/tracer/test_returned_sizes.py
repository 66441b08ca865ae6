"""Sizes that a method of the program's, or a mode, returns where None or NotImplemented would say something else stay
symbols; what is said of a recompile under a mode"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit


class Length:
    """Its operators return a size."""

    def __add__(self, x: torch.Tensor) -> int:
        return x.shape[0]

    def __radd__(self, x: torch.Tensor) -> int:
        return x.shape[0]

    def __lt__(self, x: torch.Tensor) -> int:
        return x.shape[0]

    def __eq__(self, x: object) -> int:
        return x.shape[0]


class Passes(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, fn, types, args=(), kwargs=None):
        return fn(*args, **(kwargs or {}))


def under(f: Callable) -> Callable:
    def g(x: torch.Tensor) -> torch.Tensor:
        with Passes():
            return f(x)

    return g


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (Length() + x) * x,
        lambda x: (x + Length()) * x,
        lambda x: (Length() < x) * x,
        lambda x: (Length() == x) * x,
        under(lambda x: x.size(0) * x),
        under(lambda x: x.numel() + torch.numel(x) * x),
        under(lambda x: torch.vmap(lambda row: row + x.size(0))(x)),
    ],
)
def test_sizes_stay_symbols(f: Callable) -> None:
    compiled = bytejit.compile(f, backend="eager", dynamic=True, fullgraph=True)
    for n in (12, 7, 18):
        x = torch.arange(2.0 * n).view(n, 2)
        assert torch.equal(compiled(x), f(x))
    assert bytejit.counters["graphs"] == {"eager": 1}, bytejit.counters


def test_what_changed_is_said_under_a_mode() -> None:
    """Torch asks no mode while a site compiles, and that is not the reason"""

    def f(**named: torch.Tensor) -> torch.Tensor:
        with Passes():
            return named["x"] * 2

    compiled = bytejit.compile(f, backend="eager", dynamic=False)
    for n in (12, 7):
        compiled(x=torch.ones(n))
    (reason,) = bytejit.counters["recompiles"]
    assert "was f32[12]" in reason and "function_enabled" not in reason
