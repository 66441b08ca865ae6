"""Which classes override torch's functions (`__torch_function__`), and how compiled code is kept from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from . import special_cases
from .ambient import undone_if_cut
from .ambient_kinds import Kind

TENSOR_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)  # torch's own: they override nothing
DEFAULT = torch.Tensor.__dict__["__torch_function__"].__func__  # wraps results in the class
NEVER = torch._C._disabled_torch_function_impl
# what tracer, guards and kernels ask of a tensor: where a class answers with code of its own, none of them may ask
ASKED = frozenset(
    (
        "shape",
        "size",
        "stride",
        "dtype",
        "device",
        "layout",
        "requires_grad",
        "is_leaf",
        "is_cpu",
        "is_cuda",
        "is_nested",
        "is_quantized",
        "is_conj",
        "is_neg",
        "is_inference",
        "dim",
        "numel",
        "storage_offset",
        "untyped_storage",
        "data_ptr",
        "is_contiguous",
        "element_size",
        "as_subclass",
        "detach",
        "_base",
        "_version",
    )
)


def overrides(cls: type) -> str:
    """How a class overrides torch's functions: "default" as every subclass of Tensor does, "own", or "" when it does not."""
    if cls in TENSOR_CLASSES:
        return ""
    found = next((c.__dict__["__torch_function__"] for c in cls.__mro__ if "__torch_function__" in c.__dict__), NEVER)
    if found is NEVER or getattr(found, "__func__", None) is NEVER:
        return ""
    return "default" if getattr(found, "__func__", None) is DEFAULT else "own"


def answers_as_torch(cls: type) -> bool:
    """Whether what is asked of a tensor of this class is answered by torch, not by a property or a method of the class."""
    return cls in TENSOR_CLASSES or all(ASKED.isdisjoint(c.__dict__) for c in cls.__mro__[: cls.__mro__.index(torch.Tensor)])


def runs_operations(cls: type) -> bool:
    """Whether operations on tensors of the class run its own Python (`__torch_dispatch__`)."""
    owner = next((c for c in cls.__mro__ if "__torch_dispatch__" in c.__dict__), None)
    return owner not in (None, torch.Tensor, torch._C.TensorBase)


def is_composed(cls: type) -> bool:
    """Whether tensors of a class of torch's hold other tensors, on which operations run (DTensor)."""
    return runs_operations(cls) and hasattr(cls, "__tensor_flatten__") and special_cases.TORCH.made(cls) and not overrides(cls)


def is_layer(obj: object) -> bool:
    """Whether an object is one of torch's own layers, without others in it."""
    return special_cases.LAYERS.made(type(obj)) and isinstance(obj, torch.nn.Module) and not obj.__dict__.get("_modules")


def untold(work: Callable, args: tuple) -> Any:
    """work(*args), told to no override. Python 3.14 looks for signals between a manager's `__enter__` and its block: an
    interrupt there leaves the block without its `__exit__`."""
    told, manager = torch._C._is_torch_function_enabled(), torch._C.DisableTorchFunction()
    try:
        with manager:
            return work(*args)
    except BaseException:
        if told and not torch._C._is_torch_function_enabled():
            manager.__exit__(None, None, None)
        raise


def as_subclass(x: torch.Tensor, cls: type) -> torch.Tensor:
    """x.as_subclass(cls), told to no override."""
    return untold(x.as_subclass, (cls,))


def make_wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
    """A tensor without memory of its own, of a class that runs operations itself; told to no override."""
    return untold(partial(torch.Tensor._make_wrapper_subclass, **kwargs), args)


def within_modes(entry: Callable, leaves: tuple[Kind, ...], miss: object) -> Callable:
    """The function of an entry of a region traced within torch function modes: neither its guards nor its graph are told to
    them. leaves: the kinds of ambient state that it sets when it ends well."""

    def run(*args: Any) -> Any:
        if not torch._C._is_torch_function_enabled():
            return miss
        return untold(entry, args)

    def undoable(*args: Any) -> Any:
        return undone_if_cut(leaves, run, args)

    return undoable if leaves else run


def unasked(function: Callable) -> Callable:
    """The function, run so that torch asks no override of its operations."""

    def run(*args: Any) -> Any:
        return untold(function, args)

    return run
