"""Floats that change: a value of the graph, so one more compile at most; results to the last bit on backend eager."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit

ANY = [0.1, 0.25, 1.5, -0.0, 0.0, 2.0, -3.5, 1e-8, math.inf, -math.inf, math.nan, 7.0]
ABOVE = [0.1, 0.25, 1.5, 2.0, 1e-8, 7.0, 1e5]
RATE = 0.5


def entries(f: Callable) -> int:
    """Compiled entries of a function, over all of its sites."""
    return sum(len(s.entries) for s in f.__dict__["__bytejit_handle__"].function.sites.states.values())


def outcome(f: Callable, args: tuple) -> object:
    """What a call returns, or raises."""
    try:
        return f(*args)
    except Exception as e:
        return type(e), str(e)


def agree(got: object, want: object, exact: bool) -> None:
    """The same to the last bit (exact), or nearly; signs of zeros count."""
    if isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, want, equal_nan=True, **({"rtol": 0, "atol": 0} if exact else {}))
        if exact and want.is_floating_point():
            numbers = ~want.isnan()
            assert torch.equal(got.signbit()[numbers], want.signbit()[numbers])
    elif isinstance(want, float):
        assert repr(got) == repr(want)
    elif isinstance(want, tuple) and want and not isinstance(want[0], type):
        for g, w in zip(got, want, strict=True):
            agree(g, w, exact)
    else:
        assert got == want


def check(f: Callable, floats: list, backend: str = "eager", dynamic: bool | None = None, x: torch.Tensor | None = None) -> int:
    """Compare with the plain function at each float. The number of entries."""
    torch.manual_seed(0)
    x = torch.randn(5) if x is None else x
    compiled = bytejit.compile(f, backend=backend, dynamic=dynamic)
    for value in floats:
        agree(outcome(compiled, (x, value)), outcome(f, (x, value)), backend == "eager")
    assert not bytejit.counters["faults"]
    return entries(compiled)


# name -> (function, floats)
PROGRAMS: dict[str, tuple[Callable, list]] = {
    "mul": (lambda x, s: x * s, ANY),
    "add": (lambda x, s: s + x - 1, ANY),
    "div": (lambda x, s: x / s, ANY),
    "half": (lambda x, s: x * (s / 2), ANY),
    "alpha": (lambda x, s: x.add(x, alpha=s), ANY),
    "root": (lambda x, s: x * math.sqrt(s), ABOVE),
    "exponential": (lambda x, s: x * math.exp(-s) + math.log(s + 2), ABOVE),
    "power": (lambda x, s: x * s**2 + s**0.5, ABOVE),
    "power of a tensor": (lambda x, s: x.abs() ** s, ABOVE),
    "floor division": (lambda x, s: x * (s // 0.1) + s % 0.3, ABOVE),
    "divmod": (lambda x, s: x * divmod(s, 0.7)[1], ABOVE),
    "int": (lambda x, s: x * int(s * 10), ABOVE),
    "floor": (lambda x, s: x * math.floor(s) + math.ceil(s), ABOVE),
    "abs and minus": (lambda x, s: (x * abs(s) - (-s), abs(s), -s, +s), ANY),
    "sine": (lambda x, s: x + math.sin(s) * math.atan2(s, 2.0), ABOVE),
    "hypot": (lambda x, s: x + math.hypot(s, 1.0), ABOVE),
    "clamp": (lambda x, s: x.clamp(max=s), ABOVE),
    "full": (lambda x, s: torch.full((3,), s) + 1, ANY),
    "tensor of it": (lambda x, s: torch.tensor(s) * x + torch.tensor(s, dtype=torch.float64), ANY),
    "returned": (lambda x, s: (x + 1, s * 3, s), ANY),
    "compared with": (lambda x, s: (x > s) | (x < -s), ANY),
    "where": (lambda x, s: torch.where(x > 0, s, x), ANY),
    "masked fill": (lambda x, s: x.masked_fill(x > 0, s), ANY),
    "lerp": (lambda x, s: torch.lerp(x, x + 1, s), ANY),
    "addcmul": (lambda x, s: torch.addcmul(x, x, x, value=s), ANY),
    "leaky": (lambda x, s: F.leaky_relu(x, s), ABOVE),
    "in place": (lambda x, s: (x + 0).mul_(s).add_(1), ANY),
    "ints": (lambda x, s: torch.arange(4) * s, ANY),
    "from the right": (lambda x, s: torch.rsub(x, s), ANY),
    "with a size": (lambda x, s: x * (s * x.shape[0]), ANY),
    "sum": (lambda x, s: sum([s, s * 2]) + x, ANY),
    "half precision": (lambda x, s: x.half() * s, ANY),
    "double": (lambda x, s: x.double() * s, ANY),
    "softmax": (lambda x, s: (x / s).softmax(0), ABOVE),
    "nested": (lambda x, s: x * (1 - (1 - s) * 0.1), ANY),
    "many": (lambda x, s: [x := x * s + s / (i + 1) for i in range(4)][-1], ANY),
    "unused": (lambda x, s: x + 1, ANY),
    "in a tuple": (lambda x, s: x * max((s, s))[0] if False else x * (s, 1)[0], ANY),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_more_compile(name: str, backend: str) -> None:
    f, floats = PROGRAMS[name]
    assert check(f, floats, backend) <= 2


@pytest.mark.parametrize("name", ["mul", "half", "root", "power", "floor division", "tensor of it", "returned"])
def test_dynamic_at_once(name: str) -> None:
    assert check(*PROGRAMS[name], dynamic=True) == 1


def test_a_branch_guards_its_condition_only() -> None:
    def f(x, s):
        if s > 1:
            return x * s
        return x - s if s else x

    assert check(f, [0.25, 0.5, 0.75, 2.0, 3.0, 0.1, 9.0, 0.0, -0.0, math.nan, 0.3, math.inf]) <= 5


def test_nan_and_what_is_not_less() -> None:
    """The other side of `s < 1` holds for nan, that of `s <= 1` too."""
    for f in (lambda x, s: x + 1 if s < 1 else x * s, lambda x, s: x + 1 if s >= 1 else x * 2, lambda x, s: x * (s != s)):
        assert check(f, [0.5, 0.25, 3.0, math.nan, 2.0, 0.1, math.nan, 7.0]) <= 4


@pytest.mark.parametrize(
    "f",
    [
        lambda x, s: x * (1 / s),
        lambda x, s: x * math.sqrt(s),
        lambda x, s: x * (s**0.5).real,
        lambda x, s: x * math.log(s),
        lambda x, s: x * int(s),
        lambda x, s: x * 10.0**s,
        lambda x, s: x * (2.0 // s),
        lambda x, s: [x * 2, math.sqrt(s)][0],
    ],
    ids=["division", "root", "complex", "log", "int", "overflow", "floor division", "unused"],
)
def test_where_python_refuses(f: Callable) -> None:
    """An error that Python raises for one float, or a complex number, comes for that float alone."""
    check(f, [0.5, 0.25, 0.0, 4.0, -1.0, math.inf, math.nan, 1e300, 2.0])


def test_a_float_used_as_text_or_key_is_a_constant() -> None:
    assert check(lambda x, s: (x * 2, f"{s:.2f}", {0.5: 1, 0.25: 2}.get(s)), [0.5, 0.25, 0.1, 0.5]) <= 4


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.rates = 0.5, [0.1, 0.2]
        self.options = {"eps": 1e-3}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.rates[1] / (x.abs() + self.options["eps"]) * RATE


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_attributes_items_and_globals(backend: str) -> None:
    global RATE
    module, x = Scaled(), torch.randn(4)
    compiled = bytejit.compile(module, backend=backend)
    for i in range(10):
        module.scale, module.rates[1], module.options["eps"], RATE = 0.5 + i / 7, 0.3 * i, 1e-3 * (i + 1), 1 / (i + 3)
        torch.testing.assert_close(compiled(x), module(x))
    assert bytejit.counters.total("graphs") <= 2 and not bytejit.counters["fallbacks"]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients(backend: str) -> None:
    compiled = bytejit.compile(lambda x, s: (x * s).tanh().sum() * (s / 3), backend=backend)
    for s in (0.1, 0.7, 1.3, 2.9, 0.0):
        x = torch.randn(5, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x, s).backward()
        ((y * s).tanh().sum() * (s / 3)).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert bytejit.counters.total("graphs") <= 2


def test_a_step_of_an_optimizer_with_a_schedule() -> None:
    """The rate changes at each step: two compiles."""

    def step(p, g, m, rate, decay):
        m.mul_(decay).add_(g, alpha=1 - decay)
        p.sub_(m * (rate / math.sqrt(1 + decay)))

    compiled = bytejit.compile(step, backend="inductor")
    g = torch.randn(6)
    ours, theirs = [torch.ones(6), torch.zeros(6)], [torch.ones(6), torch.zeros(6)]
    for i in range(12):
        rate = 0.1 * 0.9**i
        compiled(ours[0], g, ours[1], rate, 0.9)
        step(theirs[0], g, theirs[1], rate, 0.9)
        torch.testing.assert_close(ours, theirs)
    assert bytejit.counters.total("graphs") <= 2 and not bytejit.counters["fallbacks"]


def test_a_float_after_a_break() -> None:
    def f(x, s):
        y = x * s
        if y.sum() > 0:
            return y * (s + 1)
        return y - s

    assert check(f, [0.5, 0.25, -1.0, 2.0, -3.0, 0.125]) <= 7


def test_an_int_and_a_float_in_turn() -> None:
    assert check(lambda x, s: x * s + s, [2, 0.5, 3, 0.25, 4, 1.5, 5, 7.0]) <= 4


@pytest.mark.parametrize(
    ("operation", "pairs"),
    [
        (round, [(1.5, 1), (2.5, -0.0), (1.5, 0.0), (2.5, 1.5)]),
        (operator.pow, [(3, 2), (-7, -7), (-3, -2), (4, -1), (-5, 3), (0, -1)]),
    ],
)
def test_numbers_that_python_takes_in_its_own_way(operation, pairs):
    def f(x, v, w):
        return x + 1, operation(v, w)

    def said(g, pair):
        try:
            return g(torch.ones(2), *pair)[1]
        except (TypeError, ZeroDivisionError) as e:
            return str(e)

    compiled = bytejit.compile(f, backend="eager")
    for pair in pairs:
        assert repr(said(compiled, pair)) == repr(said(f, pair))
