"""A function through all of bytejit by both printers (C++, and Triton under its interpreter) against eager: results, what was
written, strides; and which ops still went through torch. Needs a C++ compiler; the Triton part needs triton. Where there is a
GPU it runs there, not in the interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

import bytejit

TRITON = importlib.util.find_spec("triton") is not None and not torch.cuda.is_available()


def tensors(x: Any) -> list[torch.Tensor]:
    """Every tensor in nested results."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for part in x for t in tensors(part)] if isinstance(x, (tuple, list)) else []


def fresh(args: tuple, device: str = "cpu") -> tuple:
    """Copies with the same strides."""
    return tuple(a.clone().to(device) if isinstance(a, torch.Tensor) else a for a in args)


def compare(got: Any, expected: Any, **tol: Any) -> None:
    """Asserts equal values, dtypes and strides."""
    for a, b in zip(tensors(got), tensors(expected), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **tol)
        assert a.stride() == b.stride() or a.numel() < 2, (a.stride(), b.stride())


def both(
    fn: Callable,
    *args: Any,
    externs: tuple[str, ...] = (),
    on_gpu: tuple[str, ...] = (),
    triton: bool = True,
    gpu: bool = True,
    **tol: Any,
) -> None:
    """Asserts that fn returns and writes what it does in eager, and that only `externs`
    (on a GPU `on_gpu` too) are called through torch. gpu: whether torch has the call on a GPU."""
    ways = [("cpu", {})] + [("cpu", {"interpret": True})] * (triton and TRITON)
    for device, options in ways + [("cuda", {})] * (triton and gpu and torch.cuda.is_available()):
        bytejit.reset()
        given, own = fresh(args, device), fresh(args, device)
        expected = fn(*given)
        compiled = bytejit.compile(fn, options=options)
        compare(compiled(*own), expected, **tol)
        compare(own, given, **tol)
        assert not bytejit.counters["fallbacks"] and not bytejit.counters["breaks"], bytejit.counters
        found = {text.partition(" ")[0] for text in bytejit.counters["externs"]}
        assert bytejit.counters["graphs"] and found == {*externs, *(on_gpu if device == "cuda" else ())}, found


def both_raise(fn: Callable, *args: Any) -> None:
    """Asserts that the CPU's kernels raise what eager raises, and leave what they were given as eager does."""
    given, own = fresh(args), fresh(args)
    try:
        fn(*given)
        raise AssertionError("eager does not raise")
    except (IndexError, RuntimeError) as e:
        expected = e
    bytejit.reset()
    try:
        bytejit.compile(fn)(*own)
        raise AssertionError("compiled code does not raise")
    except (IndexError, RuntimeError) as e:
        assert type(e) is type(expected) and str(e) == str(expected), (e, expected)
    compare(own, given)
