"""Numbers at the ends of their range on a GPU: kernels give what eager's give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit

pytestmark = pytest.mark.gpu


def same(f: Callable, *args: torch.Tensor) -> None:
    """Equal to eager to the last bit."""
    torch.testing.assert_close(bytejit.compile(f)(*args), f(*args), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["ceil", "floor", "trunc", "round", "frac", "sign", "abs", "sqrt", "reciprocal", "log", "log1p"])
def test_subnormal_numbers(name: str) -> None:
    """Numbers below 1.2e-38 are numbers, not zeros."""
    x = torch.tensor([1e-40, -1e-40, 3e-39, 1.4e-45, -0.0, 0.0, 1.0], device="cuda")
    same(getattr(torch, name), x)


@pytest.mark.parametrize("f", [torch.fmod, torch.remainder, torch.floor_divide], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_remainders(f: Callable, dtype: torch.dtype) -> None:
    """Of operands of any sizes, alike and apart, of multiples, and of special ones."""
    g = torch.Generator("cuda").manual_seed(0)

    def drawn(n: int, powers: float) -> torch.Tensor:
        sizes = (torch.rand(n, device="cuda", generator=g, dtype=torch.float64) * 2 - 1) * powers
        return torch.randn(n, device="cuda", generator=g, dtype=torch.float64) * 10**sizes

    special = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-40, 1e38, 3e38, 0.1, 7.0]
    pairs = torch.cartesian_prod(*[torch.tensor(special, dtype=torch.float64, device="cuda")] * 2)
    b = drawn(20000, 1)
    a = torch.cat([drawn(20000, 3), b * torch.randint(-1000000, 1000000, (20000,), device="cuda", generator=g), pairs[:, 0]])
    b = torch.cat([drawn(20000, 3), b, pairs[:, 1]])
    if dtype is not torch.float16 or f is not torch.floor_divide:  # which eager rounds at each step
        same(f, a.to(dtype), b.to(dtype))
    x = a.to(dtype)  # eager multiplies by 1 / 0.3 here
    torch.testing.assert_close(bytejit.compile(lambda x: f(x, 0.3))(x), f(x, 0.3), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_floats_out_of_range_as_integers(source: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.tensor([70000.0, -70000.0, 300.0, -300.0, 1e6, 3e9, -3e9, 127.5, 1.9, -1.9], device="cuda", dtype=source)
    same(lambda x: x.to(dtype), x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_known_floats_out_of_range_as_integers(dtype: torch.dtype) -> None:
    """What LLVM finds undefined in one operand is undefined in all that is made of it."""

    def program(x: torch.Tensor) -> tuple:
        inf = torch.tensor(float("inf"), device="cuda").to(dtype)
        masked = torch.where(x > 0, float("inf"), x).to(dtype)
        return x - inf, inf, masked, torch.full_like(x, float("nan")).to(dtype), torch.full_like(x, -1e30).to(dtype) + 1

    same(program, torch.tensor([float("nan"), 1.0, -3.7, 0.0], device="cuda"))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_points_that_are_no_numbers(mode: str, padding: str) -> None:
    torch.manual_seed(0)
    x, at = torch.randn(1, 2, 5, 5, device="cuda"), torch.rand(1, 4, 4, 2, device="cuda") * 2 - 1
    at[0, 0, 0, 0], at[0, 1, 1, 1], at[0, 2, 2, 0], at[0, 3, 3] = float("nan"), float("nan"), float("inf"), -float("inf")

    def sampled(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.grid_sampler_2d(
            x, at, ["bilinear", "nearest"].index(mode), ["zeros", "border", "reflection"].index(padding), False
        )

    torch.testing.assert_close(bytejit.compile(sampled)(x, at), sampled(x, at), equal_nan=True)


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_activations_of_all_numbers(name: str, dtype: torch.dtype) -> None:
    """Values and gradients, beside float64, for all numbers of 16 bits: at most twice as far off as eager's, and a rounding or
    four of f32's. Of gelu's tail float64 itself keeps nothing."""
    f = ACTIVATIONS[name]
    bits = torch.arange(-(1 << 15), 1 << 15, device="cuda").to(torch.int16)
    x = bits.view(torch.bfloat16 if dtype is torch.float32 else dtype).to(dtype)
    x = x[x.abs() < 1e4]
    found = []
    for g, wide in ((f, x.double()), (f, x), (bytejit.compile(f), x)):
        leaf = wide.clone().requires_grad_()
        out = g(leaf)
        out.sum().backward()
        found.append((out.detach().double(), leaf.grad.double()))
    eps = torch.finfo(dtype).eps * (4 if dtype is torch.float32 else 1.1)
    tails = {torch.float32: 6e-8, torch.bfloat16: 1e-14, torch.float16: torch.finfo(dtype).tiny}
    least = tails[dtype] if "gelu" in name or dtype is torch.float16 else 1e-35
    for exact, eager, ours in zip(*found):
        limit = 2 * (eager - exact).abs() + eps * exact.abs() + least
        assert ((ours - exact).abs() <= limit).all(), list(
            zip(*(t[(ours - exact).abs() > limit][:4].tolist() for t in (x, ours, eager, exact)))
        )


PIECEWISE = {
    "elu": F.elu,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "logsigmoid": F.logsigmoid,
    "logit": torch.logit,
    "logit within eps": lambda x: torch.logit(x, 0.1),
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.25, device="cuda", dtype=x.dtype)),
    "glu": lambda x: F.glu(x),
    "clamp": lambda x: x.clamp(-1, 1),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach() * 2, reduction="none"),
    "huber": lambda x: F.huber_loss(x, x.detach() * 2, reduction="none"),
}


@pytest.mark.parametrize("name", PIECEWISE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients_at_special_numbers(name: str, dtype: torch.dtype) -> None:
    numbers = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.0, -1.0, 3.0, -3.0, 0.5, 0.1, 0.9, -0.5, 2.0, 20.0, 7.0]
    found = []
    for f in (bytejit.compile(PIECEWISE[name]), PIECEWISE[name]):
        x = torch.tensor(numbers * 2, device="cuda", dtype=dtype, requires_grad=True)
        f(x).float().nan_to_num(0, 0, 0).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, equal_nan=True)


DECIDED = {
    "a square": lambda x: (x * x > -0.75, x * x >= 0, x * x < -1),
    "a distance": lambda x: ((x - x).square() > -0.5, x.abs() * 2 + 1 >= 1),
    "an exponential": lambda x: (x.exp() > -0.75, -x.exp() <= 0, 0 <= x.exp2()),
    "of a choice": lambda x: (torch.where(x > 0, x * x, 1.0) >= 0, x.relu() >= 0, -x.relu() <= 0),
    "two operands": lambda x: (x * x >= -(x * x), x.abs() > -x.exp() - 1),
}


@pytest.mark.parametrize("name", DECIDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_comparisons_that_hold_for_all_numbers(name: str, dtype: torch.dtype) -> None:
    """They are false for nan."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1.0, -2.0] * 9, device="cuda", dtype=dtype)
    for got, want in zip(bytejit.compile(DECIDED[name])(x), DECIDED[name](x)):
        assert torch.equal(got, want)


ROUNDED = {
    "a product less itself": lambda x, y: (x * y, x * y - (x * y).clone().flip(0).flip(0)),
    "log_softmax of one column": lambda x, y: (x * 300)[:, None].log_softmax(1),
    "a quantized value": lambda x, y: (x * 3 + (x * 3).round() - x * 3, (x * y + y).frac()),
}


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_are_rounded(name: str, dtype: torch.dtype) -> None:
    """As eager's are, which makes each in a kernel of its own: what is 0 there is 0."""
    g = torch.Generator("cuda").manual_seed(0)
    x, y = (torch.randn(1000, device="cuda", generator=g, dtype=dtype) for _ in range(2))
    got, want = bytejit.compile(ROUNDED[name])(x, y), ROUNDED[name](x, y)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
