"""Which classes override torch's functions (`__torch_function__`), and how compiled code is kept from them."""
from __future__ import annotations

from collections.abc import Callable

import torch

from .ambient import undone_if_cut

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
DEFAULT = torch.Tensor.__dict__["__torch_function__"].__func__      # wraps results in the class
NEVER = torch._C._disabled_torch_function_impl


def overrides(cls: type) -> str:
    """How a class overrides torch's functions: "default" as every subclass of Tensor does, "own", or "" when it does not."""
    if cls in PLAIN:
        return ""
    found = next((c.__dict__["__torch_function__"] for c in cls.__mro__ if "__torch_function__" in c.__dict__), NEVER)
    if found is NEVER or getattr(found, "__func__", None) is NEVER:
        return ""
    return "default" if getattr(found, "__func__", None) is DEFAULT else "own"


def as_subclass(x: torch.Tensor, cls: type) -> torch.Tensor:
    """x.as_subclass(cls), told to no override."""
    with torch._C.DisableTorchFunction():
        return x.as_subclass(cls)


def within_modes(entry: Callable, miss: object) -> Callable:
    """An entry of a region traced within torch function modes: neither its guards nor its graph are told to them."""
    def run(*args):
        if not torch._C._is_torch_function_enabled():
            return miss
        with torch._C.DisableTorchFunction():
            return entry(*args)

    def undoable(*args):
        return undone_if_cut(entry.leaves, run, args)

    made = undoable if entry.leaves else run
    made.__dict__.update(entry.__dict__)
    return made


def unasked(function: Callable) -> Callable:
    """The function, run so that torch asks no override of its operations."""
    def run(*args):
        with torch._C.DisableTorchFunction():
            return function(*args)
    return run
