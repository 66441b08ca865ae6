"""Wrong calls: the exception of eager with its message, caught or not, and the function is of use afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit

C, LINEAR, WHOLE = torch.tensor([1.0, 2.0, 3.0]), nn.Linear(4, 2), torch.tensor([1, 2, 3])


@dataclasses.dataclass
class Pair:
    first: int
    second: int = 2


class User:
    def method(self, x: torch.Tensor, y: int = 2) -> torch.Tensor:
        return x * y

    @property
    def broken(self) -> int:
        raise ValueError("a property")


def function(a: object, b: object, *, c: int = 1) -> object:
    return a


WRONG: dict[str, Callable] = {
    "clamp without bounds": lambda x: x.clamp(),
    "clip of None": lambda x: torch.clip(x, None, None),
    "clamp by text": lambda x: x.clamp("a"),
    "any of a dim twice": lambda x: torch.any(x.sum(), (0, -1)),
    "all of a dim twice": lambda x: torch.all(x.flatten()[:1], (0, -1)),
    "squeeze of a dim twice": lambda x: x.flatten()[:1].squeeze((0, -1)),
    "heaviside of two dtypes": lambda x: torch.heaviside(x, C.double()),
    "layer_norm of two dtypes": lambda x: F.layer_norm(x.bfloat16(), x.shape[-1:], torch.ones(x.shape[-1]).double()),
    "bucketize by a matrix": lambda x: torch.bucketize(C, x),
    "searchsorted on no side": lambda x: torch.searchsorted(C, x, side="up"),
    "div rounded up": lambda x: torch.div(x, x, rounding_mode="up"),
    "gather along no dim": lambda x: x.gather(5, torch.tensor([[0]])),
    "gather out of range": lambda x: x.gather(0, torch.tensor([[5, 0, 0]])),
    "gather by floats": lambda x: x.gather(0, C),
    "a mask less a number": lambda x: (x > 0) - 1,
    "a number less a mask": lambda x: torch.rsub(x > 0, 2),
    "a number less True": lambda x: x - True,
    "cumsum as bool": lambda x: x.cumsum(0, dtype=torch.bool),
    "smooth_l1_loss below 0": lambda x: F.smooth_l1_loss(x, x, beta=-1),
    "huber_loss below 0": lambda x: F.huber_loss(x, x, delta=-1),
    "softshrink below 0": lambda x: F.softshrink(x, -1.0),
    "celu of 0": lambda x: F.celu(x, 0.0),
    "a constant's item": lambda x: C[7] + x,
    "a constant's items": lambda x: C[torch.tensor([0, 5])],
    "an item": lambda x: x[5],
    "an item by text": lambda x: x["a"],
    "no such method": lambda x: x.foo(),
    "no such function": lambda x: torch.foo(x),
    "cat of other sizes": lambda x: torch.cat([x, torch.ones(2, 2)]),
    "cat of nothing": lambda x: torch.cat([]),
    "view": lambda x: x.view(4, 4),
    "broadcast": lambda x: x + torch.ones(4),
    "add text": lambda x: x + "a",
    "product": lambda x: x @ x,
    "linear": LINEAR,
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 9])),
    "embedding": lambda x: F.embedding(torch.tensor([9]), x),
    "one_hot": lambda x: F.one_hot(torch.tensor([5]), 3),
    "dropout": lambda x: F.dropout(x, 2.0),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "quantile": lambda x: torch.quantile(x, 1.5),
    "std below 0": lambda x: torch.normal(0.0, -1.0, (2,)),
    "a whole number's inverse": lambda x: WHOLE.pow(-1),
    "a whole number's rest": lambda x: WHOLE % torch.zeros(3, dtype=torch.int64),
    "in place of whole numbers": lambda x: torch.ones(2, dtype=torch.int64).add_(0.5),
    "backward of what has none": lambda x: x.sum().backward(),
    "too few arguments": lambda x: function(x),
    "too many arguments": lambda x: function(x, x, x),
    "an unknown argument": lambda x: function(x, x, d=1),
    "an argument twice": lambda x: User().method(x, x=x),
    "a method's": lambda x: User().method(),
    "a property that raises": lambda x: User().broken,
    "a dataclass": lambda x: Pair(),
    "a number as text": lambda x: int("a"),
    "a key": lambda x: {"a": x}["b"],
    "an item of a list": lambda x: [x][5],
    "division": lambda x: x * (1 // (x.dim() - 2)),
    "a strict zip": lambda x: list(zip([x], [x, x], strict=True)),
}


def caught(wrong: Callable) -> Callable:
    def program(x: torch.Tensor, go: bool) -> tuple:
        y, said = x * 2, ("", "")
        if go:
            try:
                y = y + wrong(x)
            except Exception as e:
                said = type(e).__name__, str(e)
        return y + 1, said

    return program


def outcome(f: Callable, *args: object) -> tuple:
    try:
        return f(torch.arange(6.0).view(2, 3), *args)
    except Exception as e:
        return type(e), str(e)


def agree(got: object, want: object) -> None:
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    elif isinstance(want, tuple):
        for g, w in zip(got, want, strict=True):
            agree(g, w)
    else:
        assert got == want


@pytest.mark.parametrize("name", WRONG)
def test_as_eager(name: str) -> None:
    wrong = WRONG[name]
    program = caught(wrong)
    assert program(torch.arange(6.0).view(2, 3), True)[1] != ("", ""), "it is not wrong"

    def bare(x: torch.Tensor, go: bool) -> torch.Tensor:
        y = x * 2
        return y + wrong(x) if go else y

    for f in (program, bare):
        compiled = bytejit.compile(f, backend="inductor")
        for go in (True, False, True, True):
            want, got = outcome(f, go), outcome(compiled, go)
            agree(got, want)
    assert not bytejit.counters["faults"]
