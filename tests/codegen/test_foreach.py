"""Ops on lists of tensors, and torch's fused optimizers, as one kernel's work a tensor, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from both import both, both_raise

import bytejit

pytestmark = pytest.mark.cxx
r = torch.randn


NUMBERS = [0.5, 2.0, 3.0]
CASES: dict[str, Callable] = {
    "add": lambda x, y, z: (torch._foreach_add(x, y, alpha=2), torch._foreach_add(x, 1.5), torch._foreach_add(x, NUMBERS)),
    "add_tensor": lambda x, y, z: torch._foreach_add(x, y[0].sum(), alpha=3),
    "sub": lambda x, y, z: (torch._foreach_sub(x, y, alpha=2), torch._foreach_sub(x, 1.5), torch._foreach_sub(x, NUMBERS)),
    "mul": lambda x, y, z: (torch._foreach_mul(x, y), torch._foreach_mul(x, 1.5), torch._foreach_mul(x, NUMBERS)),
    "mul_tensor": lambda x, y, z: torch._foreach_mul(x, y[0].sum()),
    "div": lambda x, y, z: (torch._foreach_div(x, y), torch._foreach_div(x, 1.5), torch._foreach_div(x, NUMBERS)),
    "bounds": lambda x, y, z: (torch._foreach_clamp_max(x, y), torch._foreach_clamp_min(x, 0.9), torch._foreach_maximum(x, y)),
    "bounds_numbers": lambda x, y, z: (torch._foreach_minimum(x, NUMBERS), torch._foreach_maximum(x, 1.0)),
    "pow": lambda x, y, z: (
        torch._foreach_pow(x, y),
        torch._foreach_pow(x, 2),
        torch._foreach_pow(x, NUMBERS),
        torch._foreach_pow(2.0, x),
    ),
    "lerp": lambda x, y, z: (torch._foreach_lerp(x, y, z), torch._foreach_lerp(x, y, 0.3)),
    "addcmul": lambda x, y, z: (torch._foreach_addcmul(x, y, z, 0.3), torch._foreach_addcmul(x, y, z, NUMBERS)),
    "addcdiv": lambda x, y, z: (torch._foreach_addcdiv(x, y, z), torch._foreach_addcdiv(x, y, z, NUMBERS)),
    "addcdiv_tensor": lambda x, y, z: torch._foreach_addcdiv(x, y, z, torch.tensor(NUMBERS)),
    "norm": lambda x, y, z: (torch._foreach_norm(x), torch._foreach_norm(x, 1)),
    "one": lambda x, y, z: (torch._foreach_sqrt(x), torch._foreach_neg(x), torch._foreach_exp(x), torch._foreach_reciprocal(x)),
    "more": lambda x, y, z: (torch._foreach_abs(x), torch._foreach_sign(x), torch._foreach_log(x), torch._foreach_max(x)),
}


def split(fn: Callable, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> object:
    """fn over lists of parts: tensors are what a test compares."""
    return fn(*([t[:2], t[2:5] * 2, t[5:]] for t in (a, b, c)))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    fn = CASES[name]
    both(lambda a, b, c: split(fn, a, b, c), *(torch.rand(9, 3) + 0.5 for _ in range(3)), triton=name in ("addcdiv", "lerp"))


def test_writes() -> None:
    def step(p: torch.Tensor, q: torch.Tensor, g: torch.Tensor) -> None:
        x, y = [p, q], [g, g[:4] * 2]
        torch._foreach_mul_(x, 0.9)
        torch._foreach_add_(x, y, alpha=-0.1)
        torch._foreach_addcdiv_(x, y, torch._foreach_sqrt(torch._foreach_abs(x)), 0.5)
        torch._foreach_copy_(y, x)
        torch._foreach_zero_(y[:1])

    both(step, r(6, 3), r(4, 3), r(6, 3))


def test_of_other_dtypes() -> None:
    both(lambda x: torch._foreach_add([x, x.double()], 1.5), r(4).bfloat16())
    both(lambda x: torch._foreach_mul([x, x.int()], 2), torch.arange(5), triton=False)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch._foreach_add([x, x], [x]),
        lambda x: torch._foreach_add([x], [x[:, :2]]),
        lambda x: torch._foreach_add_([x[0].clone()], [x]),
    ],
)
def test_refused(fn: Callable) -> None:
    both_raise(fn, r(3, 4))


OPTIMIZERS: dict[str, Callable] = {
    "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1, fused=True),
    "adam_ams": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, maximize=True, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adamw_tensor": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True),
    "sgd_plain": lambda p: torch.optim.SGD(p, 0.1, fused=True),
    "adam_foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "sgd_foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    """Four steps of gradients that change."""
    start, grads, found = [r(5, 3), r(7)], [[r(5, 3), r(7)] for _ in range(4)], []
    for compiled in (False, True):
        bytejit.reset()
        params = [torch.nn.Parameter(p.clone()) for p in start]
        for p in params:
            p.grad = torch.zeros_like(p)
        opt = OPTIMIZERS[name](params)
        step = bytejit.compile(opt.step) if compiled else opt.step
        for own in grads:
            for p, g in zip(params, own):
                p.grad.copy_(g)
            step()
        state = [t for p in params for t in opt.state[p].values() if isinstance(t, torch.Tensor)]
        found.append([p.detach().clone() for p in params] + [t.clone() for t in state])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a)
    assert not bytejit.counters["fallbacks"] and not bytejit.counters["externs"], bytejit.counters


IN_ORDER: dict[str, Callable] = {  # eager writes one tensor after the other
    "swapped": lambda x, y: torch._foreach_mul_([x, y], [y, x]),
    "twice": lambda x, y: torch._foreach_add_([x, x, y], 1.5),
    "of_a_view": lambda x, y: torch._foreach_add_([x, x[1:]], [1.0, 2.0]),
    "one": lambda x, y: torch._foreach_sqrt_([x, x]),
    "numbers": lambda x, y: torch._foreach_addcmul_([x, y], [y, x], [x, y], torch.tensor([2.0, 3.0])),
    "lerp": lambda x, y: torch._foreach_lerp_([x, y], [y, x], [x, y]),
    "copy": lambda x, y: torch._foreach_copy_([x, y], [y, x]),
    "number": lambda x, y: torch._foreach_add_([x, y], x[1]),
    "apart": lambda x, y: torch._foreach_sub_([x, y], [x, y], alpha=2),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_lists_are_written_in_order(name: str) -> None:
    found = []
    for step in (IN_ORDER[name], bytejit.compile(IN_ORDER[name])):
        a, b = torch.tensor([1.5, 2.0, 3.0]), torch.tensor([2.0, 3.0, 0.5])
        step(a, b)
        found.append((a, b))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    "step", [lambda x: torch._foreach_mul_([x], x[1]), lambda x: torch._foreach_sub_([x[1:]], [x[:-1]])], ids=["number", "list"]
)
def test_lists_that_read_what_they_write_are_refused(step: Callable) -> None:
    for f in (step, bytejit.compile(step)):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            f(torch.ones(3))
