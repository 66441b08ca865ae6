"""What autograd asks of ATen in a backward pass: each call with its arguments, as cases for the tests of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from both import both, tensors
from torch.utils._python_dispatch import TorchDispatchMode

import bytejit

aten = torch.ops.aten


class Calls(TorchDispatchMode):
    """The calls of one op while it is on: (arguments, options)."""

    def __init__(self, op: Callable) -> None:
        super().__init__()
        self.op, self.found = op, []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is self.op:
            self.found.append((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def calls(op: Callable, fn: Callable, *args: Any) -> list[tuple[tuple, dict]]:
    """Calls of op in the backward pass of fn, with a gradient of random numbers."""
    given = [a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    with Calls(op) as mode:
        outs = [t for t in tensors(fn(*given)) if t.requires_grad]
        torch.autograd.backward(outs, [torch.randn_like(t) for t in outs])
    assert mode.found, f"{op} is not called"
    return mode.found


def check(
    op: Callable,
    fn: Callable,
    *args: Any,
    triton: bool = True,
    gpu: bool = True,
    externs: tuple[str, ...] = (),
    exact: bool = False,
    **tol: Any,
) -> None:
    """Asserts that each call of op in the backward pass of fn is compiled, and gives what eager gives. gpu: whether the calls
    that the CPU's backward pass makes are a GPU's too. exact: by the distance to float64, for eager loses digits."""
    for given, kwargs in calls(op, fn, *args):
        at = [i for i, a in enumerate(given) if isinstance(a, torch.Tensor)]

        def call(*own: torch.Tensor, given: tuple = given, at: list[int] = at, kwargs: dict = kwargs) -> Any:
            full = list(given)
            for i, t in zip(at, own):
                full[i] = t
            if isinstance(full[-1], torch.dtype):
                full[-1] = own[0].dtype
            return op(*full, **kwargs)

        if exact:
            _closer(call, *(given[i].detach() for i in at))
        both(call, *(given[i].detach() for i in at), triton=triton, gpu=gpu, externs=externs, **tol)


def _closer(fn: Callable, *args: torch.Tensor) -> None:
    """Asserts that what is compiled is at most twice as far from float64 as eager is."""
    wide = tensors(fn(*(a.double() if a.is_floating_point() else a for a in args)))
    bytejit.reset()
    for got, eager, exact in zip(tensors(bytejit.compile(fn)(*args)), tensors(fn(*args)), wide, strict=True):
        mine, its = ((t.double() - exact).nan_to_num(0.0).abs().max() for t in (got, eager))
        assert mine <= 2 * its + 4 * exact.nan_to_num(0.0).abs().max() * torch.finfo(got.dtype).eps, (mine, its)


def check_sizes(fn: Callable, make: Callable, sizes: list) -> None:
    """Asserts that fn compiled with sizes that change gives what eager gives at each of them, through torch nowhere."""
    bytejit.reset()
    compiled = bytejit.compile(fn, dynamic=True, fullgraph=True)
    for size in sizes:
        args = make(*size)
        for a, b in zip(tensors(compiled(*args)), tensors(fn(*args)), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
            assert a.stride() == b.stride() or b.numel() < 2, (size, a.stride(), b.stride())
    assert not bytejit.counters["externs"] and not bytejit.counters["fallbacks"], bytejit.counters
