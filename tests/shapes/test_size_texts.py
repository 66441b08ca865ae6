"""The Python text of a size, as guards and entries hold it, has the size's value."""

from __future__ import annotations

import random

import pytest
import sympy
import torch

import bytejit
from bytejit.guards.tensor_checks import TensorCheck
from bytejit.shapes import integer_math as sm

SYMBOLS = sympy.symbols("s0:3", integer=True, positive=True)


def drawn(draw: random.Random, depth: int) -> sympy.Basic:
    """An expression of sums, products, quotients and remainders."""
    if depth == 0:
        return draw.choice([*SYMBOLS, sympy.Integer(draw.randint(1, 5))])
    a, b = drawn(draw, depth - 1), drawn(draw, depth - 1)
    number = sympy.Integer(draw.randint(2, 5))
    return draw.choice(
        [a + b, a - b, -a, a * b, sm.FloorDiv(a, number), sm.Mod(a, number), -sm.FloorDiv(a, number) - b, sm.Most(a, b)]
    )


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_text_has_the_value_of_its_expression(depth: int) -> None:
    draw = random.Random(depth)
    for _ in range(150):
        e = drawn(draw, depth)
        for _ in range(3):
            sizes = {s: draw.randint(1, 40) for s in SYMBOLS}
            text = sm.text(e)
            assert eval(text, {s.name: n for s, n in sizes.items()} | {"max": max}) == sm.value(e, sizes), text


def test_a_guard_of_a_negated_quotient_holds_for_the_sizes_it_was_made_from() -> None:
    """Were it read as (-n)//16, no entry would hold: every call would compile once more."""

    def f(x: torch.Tensor) -> torch.Tensor:
        n = (x.shape[0] - 1) // 16 + 1
        return x * (2 if (-n) % 2 == 0 else 3)

    compiled = bytejit.compile(f, backend="eager", dynamic=True)
    for n in (96, 96, 64, 96, 80, 80, 96):
        x = torch.randn(n)
        assert torch.equal(compiled(x), f(x))
    assert sum(bytejit.counters["graphs"].values()) == 2


def test_a_number_made_of_a_negated_quotient_is_returned() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + 1, -(x.shape[0] // 4) - 1

    compiled = bytejit.compile(f, backend="eager", dynamic=True)
    for n in (16, 18, 21):
        assert compiled(torch.ones(n))[1] == f(torch.ones(n))[1]


def test_strides_that_follow_from_the_sizes_are_not_told() -> None:
    """-2 at the front: shape[1] * stride(1)."""
    check = TensorCheck(dtype=torch.float32)
    assert repr(check.with_sizes((2, 3, 32), (-2, 32, 1))) == repr(check.with_sizes((2, 3, 32), (96, 32, 1))) == "f32[2,3,32]"
    assert repr(check.with_sizes((2, -1, 32), (-2, 32, 1))) == "f32[2,1+,32]"
    assert repr(check.with_sizes((2, 0, 32), (128, 32, 1))) == "f32[2,0,32](128,32,1)"
