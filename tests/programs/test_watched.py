"""Modes and transforms around a compiled function"""

import torch
import torch.autograd.forward_ad as forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .harness import F, case, program


class Operations(TorchDispatchMode):
    """Notes each ATen operation."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _under_operations(f, *args):
    first = f(*args)
    with Operations() as mode:
        second = f(*args)
    return first, second, mode.seen, f(*args)


@case(F(4), F(4), drive=_under_operations, total=1)
def test_dispatch_mode_around(x, y):
    """A TorchDispatchMode around the call sees the program's own operations; calls outside of it stay compiled"""
    return torch.add(x, y) * 3


@case(F(4), F(4), drive=lambda f, *args: _under_operations(f, *args)[1:3])
def test_dispatch_mode_around_first_call(x, y):
    """The same, compiled nowhere before"""
    return torch.add(x, y) * 3


@case(F(4), F(4), breaks=True)
def test_dispatch_mode_inside(x, y):
    """A TorchDispatchMode entered inside: what runs under it runs as the original"""
    with Operations() as mode:
        z = torch.add(x, y) * 3
    return z + 1, list(mode.seen)


def _flops(f, x):
    f(x)
    with FlopCounterMode(display=False) as mode:
        y = f(x)
    return y, mode.get_total_flops(), f(x)


@program(F(4, 4), drive=_flops)
def test_flop_counter_around():
    """FlopCounterMode around a compiled function counts what the program computes"""
    torch.manual_seed(0)
    m = torch.nn.Linear(4, 4)
    return lambda x: m(x) @ x


@case(F(4, 3), drive=lambda f, x: (torch.vmap(f)(x), f(x[0]), torch.vmap(f)(x)))
def test_vmap_around(x):
    """torch.vmap of a compiled function"""
    return x * x.sum() + torch.ones(3)


@case(F(4), drive=lambda f, x: (torch.func.jvp(f, (x,), (torch.ones_like(x),)), f(x), torch.func.grad(lambda t: f(t).sum())(x)))
def test_transforms_around(x):
    """torch.func.jvp and torch.func.grad of a compiled function"""
    return x.sin() * x


def _dual(f, x):
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x))))
        return out.primal, out.tangent


@case(F(4), drive=lambda f, x: (f(x), _dual(f, x), f(x)))
def test_forward_mode_around(x):
    """Forward-mode differentiation (dual tensors) of a compiled function"""
    return x.sin() * x


def _jit_traced(f, x):
    made = torch.jit.trace(f, x, check_trace=False)
    return f(x), made(x[:2] * 3), torch.jit.trace(f, x, check_trace=False)(x[:3] + 1), f(x)


@case(F(4, 3), drive=_jit_traced)
def test_jit_trace_around(x):
    """torch.jit.trace of a compiled function, before and after it was compiled, traces the program's operations"""
    return (x.sin() * x.shape[0]).sum(0)
