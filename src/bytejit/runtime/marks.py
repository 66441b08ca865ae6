"""Marks on functions that steer the tracer: `disable`, `allow_in_graph`, `disallow_in_graph`, `assume_constant_result`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common import registry
from bytejit.common.quiet_reads import function_of

from . import module
from .origins import original, plain


def disable(fn: object = None, recursive: bool = True, *, reason: str | None = None) -> object:
    """A function (or module) that is never compiled or looked into: in compiled code its call is a graph break.

    Also a decorator, bare or with a reason, which `explain` shows. The given function itself is not changed. recursive:
    compiled functions that it calls compile nothing new either; False: they compile as ever.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, torch.nn.Module):
        return module.disabled(fn, reason, recursive)
    target = plain(fn)
    if not callable(target):
        raise TypeError(f"disable takes a callable, not {type(fn).__name__}")
    return module.disabled_function(target, reason, recursive)


def _marks(kind: str, fn: Any) -> Any:
    """Mark one callable or each of a list or tuple of them. Raises: TypeError."""
    for one in fn if isinstance(fn, (list, tuple)) else (fn,):
        if not callable(one):
            raise TypeError(f"expected a callable, got {type(one).__name__} {one!r:.60}")
        registry.mark(kind, original(function_of(one)))
    return fn


def allow_in_graph(fn: object) -> object:
    """Put calls of `fn` (or of each of a list) into the graph as one node, without tracing into it: it must be pure."""
    for one in fn if isinstance(fn, (list, tuple)) else (fn,):
        registry.unmark("disallow", original(one))
    return _marks("allow", fn)


def disallow_in_graph(fn: object) -> object:
    """Break the graph at calls of `fn` (or of each of a list), such as a torch function that a backend cannot take."""
    for one in fn if isinstance(fn, (list, tuple)) else (fn,):
        registry.unmark("allow", original(one))
    return _marks("disallow", fn)


def assume_constant_result(fn: Callable) -> Callable:
    """Call `fn` while tracing and bake its result in, unguarded: on the user's word that it never changes."""
    return _marks("constant", fn)
