"""A training step run plainly and compiled, from equal beginnings, and all of it compared."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import bytejit

BACKENDS = [pytest.param("aot_eager"), pytest.param("inductor", marks=pytest.mark.cxx)]


def tensors_of(x: object) -> list:
    """All tensors in nested tuples, lists and dicts; other leaves as they are."""
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (tuple, list)):
        return [t for y in x for t in tensors_of(y)]
    return [x]


def places(t: torch.Tensor) -> list[int]:
    """Strides, without those that lead nowhere."""
    return [0 if n == 1 else s for n, s in zip(t.shape, t.stride())]


def same(a: object, b: object, tol: float, strides: Callable = torch.Tensor.stride) -> None:
    """Compares two results: kinds, shapes, strides, dtypes, what autograd knows of them, values."""
    a, b = tensors_of(a), tensors_of(b)
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert type(x) is type(y), (x, y)
        if not isinstance(x, torch.Tensor):
            assert x == y
            continue
        assert (x.shape, x.dtype, x.requires_grad, x.is_leaf) == (y.shape, y.dtype, y.requires_grad, y.is_leaf)
        assert strides(x) == strides(y)
        largest = float(x.detach().mul(1.0).abs().nan_to_num().max()) if x.numel() else 0.0
        torch.testing.assert_close(x.detach(), y.detach(), rtol=tol, atol=tol * max(1.0, largest), equal_nan=True)


def outcome(work: Callable, *args: object) -> tuple:
    """What work(*args) returns, or the kind and text of what it raises."""
    try:
        return "returned", work(*args)
    except Exception as e:
        return "raised", type(e).__name__, str(e).partition("[")[0][:60]


def beside(
    backend: str,
    f: Callable,
    inputs: Callable[[], tuple],
    drive: Callable,
    steps: int = 2,
    tol: float = 1e-5,
    torch_runs: int | None = 0,
    strides: Callable = torch.Tensor.stride,
) -> None:
    """drive(f, *inputs) for f plain and compiled, `steps` times from seeds. inputs(): a tuple of tensors and modules, made
    afresh for each side. torch_runs: how many graphs are expected to run through torch;
    None: any number."""
    bytejit.reset()
    bytejit.counters["fallbacks"].clear()
    compiled = bytejit.compile(f, backend=backend)
    torch.manual_seed(0)
    plain = inputs()
    ours = copy.deepcopy(plain)
    for step in range(steps):
        torch.manual_seed(step)
        expected = outcome(drive, f, *plain)
        state = torch.get_rng_state()
        torch.manual_seed(step)
        got = outcome(drive, compiled, *ours)
        assert expected[0] == got[0], (expected, got)
        same(expected[1:], got[1:], tol, strides)
        assert torch.equal(state, torch.get_rng_state())
        for a, b in zip(plain, ours):
            same(held(a), held(b), tol, strides)
    found = {k: n for k, n in bytejit.counters["fallbacks"].items() if "through torch" in k}
    assert torch_runs is None or sum(found.values()) == torch_runs, found


def held(x: object) -> list:
    """What a step may leave behind in an input: values and gradients."""
    if isinstance(x, torch.nn.Module):
        return [*x.parameters(), *x.buffers(), [p.grad for p in x.parameters()]]
    return [x, x.grad] if isinstance(x, torch.Tensor) and x.is_leaf else [x]
