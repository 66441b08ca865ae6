"""Scopes in traces of torch.profiler, opened only while a profiler is active: graphs, kernels, compiles under the user's lines.

Generated code asks `FLAG._is_profiler_enabled`, an attribute of a module: some nanoseconds a call.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch

# torch's own module, whose attribute it sets while a profiler is active; without it nothing is ever shown
FLAG: Any = torch.autograd.profiler if hasattr(torch.autograd.profiler, "_is_profiler_enabled") else SimpleNamespace()
if FLAG is not torch.autograd.profiler:
    FLAG._is_profiler_enabled = False
FLAG_TEXT = "profiler._is_profiler_enabled"  # in generated code, where `profiler` is FLAG


def scope(name: str) -> AbstractContextManager:
    """A scope of that name, where a profiler is active."""
    return torch._C._profiler._RecordFunctionFast(name) if FLAG._is_profiler_enabled else contextlib.nullcontext()


def event(name: str) -> None:
    """An empty scope: something happened."""
    with scope(name):
        pass


def call_in_scope(name: str, call: Callable, *args: Any) -> Any:
    """`call(*args)` in a scope."""
    with scope(name):
        return call(*args)


def in_scopes(calls: Mapping[str, tuple[Callable, str]]) -> Callable[[], tuple[Callable, ...]]:
    """A function that returns the calls, in order, each in a scope of its name: name -> (call, scope)."""
    made = tuple(functools.partial(call_in_scope, name, call) for call, name in calls.values())
    return lambda: made
