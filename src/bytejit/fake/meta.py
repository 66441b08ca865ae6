"""Lets torch's meta kernels, the fallback of fake tensors, run without importing torch._dynamo.

Meta kernels written in Python are wrapped by `torch._compile._disable_dynamo`: the first call of each looks for a
cached
attribute on the function, and without it imports torch._dynamo (over a second). `keep_plain` puts a forwarder
there that runs
the plain function as long as torch._dynamo is not loaded, and steps aside for good once the user's program has
loaded it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

_CACHED = "__dynamo_disable"
_EMPTY = CellType()
_INNER = torch._compile._disable_dynamo(lambda: None).__code__
_done: list[int] = []


def _forwarder(fn: Callable, wrapper: Callable) -> Callable:
    """The value of the cached attribute of `fn`: calls `fn` itself, until this process has loaded torch._dynamo."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return fn(*args, **kwargs)
        if fn.__dict__.get(_CACHED) is plain:
            del fn.__dict__[_CACHED]
        return wrapper(*args, **kwargs)

    return plain


def _unwrap_chain(fn: Callable, seen: set[int]) -> int:
    """Set the attribute on every function that wrappers of `fn` hold in their closures. Returns how many were set."""
    count = 0
    pending = [fn]
    while pending:
        fn = pending.pop()
        if not isinstance(fn, FunctionType) or id(fn) in seen:
            continue
        seen.add(id(fn))
        held = [cell.cell_contents for cell in fn.__closure__ or () if cell != _EMPTY]
        if fn.__code__ is _INNER:
            for inner in held:
                if isinstance(inner, FunctionType) and _CACHED not in inner.__dict__:
                    setattr(inner, _CACHED, _forwarder(inner, fn))
                    count += 1
        pending += held
    return count


def _functions_of(module: ModuleType) -> list[FunctionType]:
    return [v for v in vars(module).values() if isinstance(v, FunctionType)]


def keep_plain() -> int:
    """Let torch's Python references and decompositions run without torch._dynamo. Idempotent; returns how many it
    set.

    Cost: some 10 ms, once, and nothing at all when torch._dynamo is loaded already.
    """
    if _done or "torch._dynamo" in sys.modules:
        return 0
    import torch._decomp
    import torch._meta_registrations
    import torch._refs

    found = []
    for name in (
        "torch._refs",
        "torch._refs.nn.functional",
        "torch._refs.special",
        "torch._refs.linalg",
        "torch._refs.fft",
        "torch._refs._conversions",
        "torch._decomp.decompositions",
        "torch._meta_registrations",
        "torch._prims",
        "torch._prims_common.wrappers",
    ):
        module = sys.modules.get(name)
        if module is not None:
            found += _functions_of(module)
    for table in (
        torch._decomp.decomposition_table,
        torch._decomp.meta_table,
        torch._decomp.global_decomposition_table["pre_autograd"],
    ):
        found += table.values()
    seen: set[int] = set()
    count = sum(_unwrap_chain(fn, seen) for fn in found)
    _done.append(count)
    return count
