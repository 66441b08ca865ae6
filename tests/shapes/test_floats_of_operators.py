"""Floats that operators take as plain numbers, changed at every call: one more compile, errors and values of eager."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit

RATES = [0.35, 0.41, 0.52, 0.13, 0.77, 0.61, 0.29, 0.84, 0.93, 0.07, 0.19, 0.68]
EDGES = [0.35, 0.41, 1.0, 0.0, 1.5, -0.5, 2.0, math.nan, math.inf, -0.0, -2.0, 0.6]
Y, W, MASK = torch.linspace(-2, 2, 24).view(2, 3, 4), torch.linspace(0.5, 1.5, 4), torch.arange(24).view(2, 3, 4) % 3 == 0
TARGET = torch.tensor([0, 1, 2])


def batch_norm(x: torch.Tensor, n: float) -> tuple:
    mean, var = torch.zeros(3), torch.ones(3)
    return F.batch_norm(x, mean, var, training=True, momentum=n), mean, var


# what takes a number that changes only values
TAKEN: dict[str, Callable] = {
    "layer_norm": lambda x, n: F.layer_norm(x, (4,), W, W, n),
    "group_norm": lambda x, n: F.group_norm(x, 1, eps=n),
    "instance_norm": lambda x, n: F.instance_norm(x, eps=n),
    "rms_norm": lambda x, n: F.rms_norm(x, (4,), W, n),
    "batch_norm eps": lambda x, n: F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True, eps=n),
    "batch_norm momentum": batch_norm,
    "cosine_similarity": lambda x, n: F.cosine_similarity(x, Y, dim=-1, eps=n),
    "pairwise_distance": lambda x, n: F.pairwise_distance(x, Y, 2.0, eps=n),
    "norm": lambda x, n: torch.norm(x, p=n),
    "normalize": lambda x, n: F.normalize(x, p=n, dim=-1),
    "cdist": lambda x, n: torch.cdist(x, Y, n),
    "renorm": lambda x, n: x.renorm(n, 0, 0.7),
    "interpolate": lambda x, n: F.interpolate(x, scale_factor=n + 1),
    "pow": lambda x, n: x.abs() ** n,
    "lerp": lambda x, n: torch.lerp(x, Y, n),
    "celu": F.celu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "softplus": lambda x, n: F.softplus(x, n),
    "softshrink": lambda x, n: F.softshrink(x, n),
    "xlogy": lambda x, n: torch.xlogy(x.abs(), n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "margin_ranking_loss": lambda x, n: F.margin_ranking_loss(x, Y, torch.ones(2, 3, 4), margin=n),
    "hinge_embedding_loss": lambda x, n: F.hinge_embedding_loss(x, torch.ones(4), margin=n),
    "triplet_margin_loss": lambda x, n: F.triplet_margin_loss(x[0], Y[0], Y[1], margin=n),
    "multi_margin_loss": lambda x, n: F.multi_margin_loss(x[0], TARGET, margin=n),
    "smooth_l1_loss": lambda x, n: F.smooth_l1_loss(x, Y, beta=n),
    "huber_loss": lambda x, n: F.huber_loss(x, Y, delta=n),
    "poisson_nll_loss": lambda x, n: F.poisson_nll_loss(x, Y.abs(), full=True, eps=n),
    "label smoothing": lambda x, n: F.cross_entropy(x[0], TARGET, label_smoothing=n),
    "quantile": lambda x, n: torch.quantile(x, n),
    "attention scale": lambda x, n: F.scaled_dot_product_attention(x, Y, Y, scale=n),
    "dropout": F.dropout,
    "alpha_dropout": F.alpha_dropout,
    "masked_fill": lambda x, n: x.masked_fill(MASK, n),
    "addcmul": lambda x, n: torch.addcmul(x, Y, Y, value=n),
    "isclose": lambda x, n: torch.isclose(x, Y, rtol=n).float() + x,
    "isin": lambda x, n: torch.isin(x.round(), n).float() + x,
    "nan_to_num": lambda x, n: torch.nan_to_num(x / MASK, nan=n),
    "logit": lambda x, n: torch.logit(x.sigmoid(), eps=n / 10),
    "normal_": lambda x, n: x + torch.empty(4).normal_(n, 1.0),
    "bernoulli_": lambda x, n: x * torch.empty(4).bernoulli_(n),
    "uniform_ from 0": lambda x, n: x + torch.empty(4).uniform_(0, n),
    "a matrix": lambda x, n: x @ torch.tensor([[math.cos(n), -n, 0, 1.5], [n, math.cos(n), *[0] * 2], [n] * 4, [1, 2, 3, n]]),
    "exponential_": lambda x, n: x * torch.empty(4).exponential_(n),
    "round": lambda x, n: x * round(10 * n) + round(n, 1),
    "math": lambda x, n: x if math.isnan(n) or math.isinf(n) or math.isclose(n, 5.0) else x * math.hypot(n, 1.0, 2.0),
    "isfinite": lambda x, n: x * n if math.isfinite(n) else x,
}
# through C++: what torch's autograd and composite operators compute of the number
KERNELS = (
    "batch_norm momentum",
    "rms_norm",
    "pow",
    "lerp",
    "celu",
    "label smoothing",
    "attention scale",
    "dropout",
    "huber_loss",
)
# what decides sizes, or by which formula something is computed
STRUCTURE: dict[str, Callable] = {
    "arange": lambda x, n: x.sum() * torch.arange(0.0, 5 * n),
    "uniform_": lambda x, n: x + torch.empty(4).uniform_(0.3, n),
}


def outcome(f: Callable, n: float, grad: bool) -> object:
    """What a call returns, with the gradient of its input; or what it raises."""
    torch.manual_seed(0)
    x = torch.linspace(-1.1, 1.3, 24).view(2, 3, 4).requires_grad_(grad)
    try:
        made = f(x, n)
        first = made[0] if isinstance(made, tuple) else made
        if grad:
            first.sum().backward()
        return made, x.grad
    except Exception as e:
        return type(e), str(e)


def check(f: Callable, numbers: list[float], backend: str, grad: bool) -> int:
    """Compare with the plain function at each number. How often it was compiled again."""
    bytejit.counters.clear()
    compiled = bytejit.compile(f, backend=backend)
    for n in numbers:
        want, got = outcome(f, n, grad), outcome(compiled, n, grad)
        if isinstance(want, tuple) and isinstance(want[0], type):
            assert got == want, n
        else:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m, n=n: f"{n}: {m}")
    assert not bytejit.counters["faults"]
    return bytejit.counters.total("recompiles")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_one_more_compile(name: str, grad: bool) -> None:
    assert check(TAKEN[name], RATES, "eager", grad) <= 1


@pytest.mark.parametrize("name", KERNELS)
def test_one_more_compile_to_kernels(name: str) -> None:
    assert check(TAKEN[name], RATES, "inductor", True) == 1
    assert not bytejit.counters["fallbacks"]


@pytest.mark.parametrize("name", [*TAKEN, *STRUCTURE])
def test_numbers_that_are_refused_or_special(name: str) -> None:
    check((TAKEN | STRUCTURE)[name], EDGES, "eager", False)


@pytest.mark.parametrize("name", ["dropout", "smooth_l1_loss", "celu", "softshrink", "quantile", "huber_loss", "rms_norm"])
def test_numbers_that_kernels_are_not_asked_for(name: str) -> None:
    check(TAKEN[name], [n for n in EDGES if not (name == "quantile" and n != n)], "inductor", False)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_exponents_of_norms_about_those_with_a_formula_of_their_own(backend: str) -> None:
    """Of rows with zeros: torch's gradient is another below 1, below 2 and at both."""

    def f(x: torch.Tensor, n: float) -> torch.Tensor:
        x = x * (x.abs() > 0.5)
        return F.normalize(x, p=n, dim=-1) + F.pairwise_distance(x, x * 2, n)[..., None]

    assert check(f, [2.5, 3.5, 4.25, 7.0, 2.75], backend, True) == 1
    check(f, [2.5, 3.5, 1.5, 1.25, 0.5, 2.0, 1.0, 3.0, 1.75, 0.25, 2.25], backend, True)


@pytest.mark.parametrize("name", STRUCTURE)
def test_numbers_that_decide_more_than_values(name: str) -> None:
    check(STRUCTURE[name], RATES, "eager", False)


def test_an_operator_of_the_programs_own() -> None:
    """Nobody knows what it does with a number: here it decides a size."""
    with torch.library._scoped_library("floats_of_operators", "DEF") as library:
        library.define("first(Tensor x, float part) -> Tensor")
        library.impl("first", lambda x, part: x[: int(part * 10)].clone(), "CompositeExplicitAutograd")
        torch.library.register_fake(
            "floats_of_operators::first", lambda x, part: x.new_empty((int(part * 10), *x.shape[1:])), lib=library
        )
        op = torch.ops.floats_of_operators.first
        check(lambda x, n: op(x.flatten(), n), RATES[:5], "eager", False)


def test_a_rate_and_a_momentum_of_modules() -> None:
    """A schedule sets them between steps."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
    twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
    twin.load_state_dict(net.state_dict())
    compiled = bytejit.compile(twin, backend="eager")
    for step in range(6):
        for m in (net, twin):
            m[1].momentum, m[2].p = 0.1 + step / 20, 0.3 - step / 40
        x = torch.linspace(-1, 1, 12).view(3, 4) * (step + 1)
        torch.manual_seed(step)
        want = net(x)
        torch.manual_seed(step)
        torch.testing.assert_close(compiled(x), want)
        torch.testing.assert_close(twin[1].running_var, net[1].running_var)
    assert bytejit.counters.total("recompiles") <= 2
