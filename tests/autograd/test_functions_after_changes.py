"""An autograd function is one node of the graph after changes of objects from outside, where its passes cannot see them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

import bytejit

from .beside import BACKENDS

OTHER, READ, TABLE, LOG = SimpleNamespace(n=1), SimpleNamespace(n=1), {"n": 1}, [0]


class Slotted:
    __slots__ = ("n",)


SLOTTED = Slotted()


def function_of(factor: Callable) -> Callable:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * factor()

        @staticmethod
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return g * factor()

    return Scaled.apply


def program(kind: str, factor: Callable | None) -> tuple[Callable, Callable]:
    """A function that changes something and applies an autograd function, and what shows the changes. factor: what its passes
    multiply by; None: by what is changed."""
    cell = 1

    def change() -> None:
        nonlocal cell
        if kind == "attribute":
            READ.n = READ.n + 1
        elif kind == "dict":
            TABLE["n"] = TABLE["n"] + 1
        elif kind == "list":
            LOG[0] = LOG[0] + 1
        elif kind == "slot":
            SLOTTED.n = SLOTTED.n + 1
        else:
            cell = cell + 1

    see = {
        "attribute": lambda: READ.n,
        "dict": lambda: TABLE["n"],
        "list": lambda: LOG[0],
        "slot": lambda: SLOTTED.n,
        "cell": lambda: cell,
    }[kind]
    applied = function_of(factor or see)

    def f(x: torch.Tensor) -> torch.Tensor:
        change()
        return applied(x).sin()

    return f, see


def results(f: Callable, see: Callable) -> list:
    found = []
    for n in (1.0, 2.0, 3.0):
        x = torch.full((4,), n, requires_grad=True)
        out = f(x)
        out.sum().backward()
        found += [out.detach(), x.grad, see()]
    return found


@pytest.mark.pairs
@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("kind", ["attribute", "dict", "list", "slot", "cell"])
@pytest.mark.parametrize("seen", [False, True])
def test_values_and_changes(backend: str, kind: str, seen: bool) -> None:
    def both(compiled: bool) -> list:
        READ.n, TABLE["n"], LOG[0], SLOTTED.n = 1, 1, 1, 1
        f, see = program(kind, None if seen else lambda: OTHER.n)
        return results(bytejit.compile(f, backend=backend) if compiled else f, see)

    expected = both(False)
    bytejit.reset()
    bytejit.counters["breaks"].clear()
    got = both(True)
    for a, b in zip(expected, got):
        torch.testing.assert_close(a, b)
    if not seen:
        assert not bytejit.counters["breaks"]


def counted() -> int:
    OTHER.n += 1
    return 2


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
def test_a_forward_pass_with_changes_of_its_own(backend: str) -> None:
    def both(compiled: bool) -> list:
        READ.n, OTHER.n = 1, 1
        f, see = program("attribute", counted)
        return [*results(bytejit.compile(f, backend=backend) if compiled else f, see), OTHER.n]

    for a, b in zip(both(False), both(True)):
        torch.testing.assert_close(a, b)
