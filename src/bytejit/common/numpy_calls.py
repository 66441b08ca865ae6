"""NumPy's functions as nodes of a graph: they run torch's own tensor versions of them, on tensors that stand for arrays."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from bytejit.common.graph_calls import GraphCall
from bytejit.common.light_dataclass import light_dataclass


@cache
def versions() -> Any:
    """torch's tensor versions of NumPy: imported when the first array is met."""
    return importlib.import_module("torch._numpy")


def tensor_version(owner: Any, name: str) -> Callable | None:
    """A function or method of the versions; None without one. torch reads its own function's signature in each call, half of
    the call's time: it is kept with the function, where `inspect` looks for it first."""
    found = getattr(owner, name, None)
    own = getattr(getattr(versions(), name, found), "__wrapped__", None)  # a method calls the module's function
    if own is not None and not hasattr(own, "__signature__"):
        own.__signature__ = inspect.signature(own)
    return found


@light_dataclass(frozen=True)
class Slot:
    """The place of a tensor among the arguments of a call."""

    index: int


@light_dataclass(frozen=True)
class Fit:
    """What is done to a result so that it is NumPy's: its dtype; a copy where NumPy shares no memory; its rows in order."""

    dtype: torch.dtype
    copied: bool
    in_rows: bool

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.dtype)
        x = x.contiguous() if self.in_rows else x
        return x.clone() if self.copied else x


def filled(template: Any, values: tuple) -> Any:
    """Arguments with values in the places of slots."""
    if isinstance(template, Slot):
        return values[template.index]
    if type(template) in (list, tuple):
        return type(template)(filled(v, values) for v in template)
    if type(template) is dict:
        return {k: filled(v, values) for k, v in template.items()}
    if type(template) is slice:
        return slice(*(filled(v, values) for v in (template.start, template.stop, template.step)))
    return template


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors in what a version of a function returns, in order."""
    if isinstance(result, (list, tuple)):
        return [x for part in result for x in tensors_of(part)]
    return [result.tensor if isinstance(result, versions().ndarray) else torch.as_tensor(result)]


class NumpyCall(GraphCall):
    """Calls `function` on arguments of which some are tensors. fits: for each result; None where it only writes its arguments."""

    def __init__(self, name: str, function: Callable, args: tuple, kwargs: dict, fits: tuple[Fit, ...] | None) -> None:
        def run(*tensors: torch.Tensor) -> tuple | None:
            arrays = tuple(versions().ndarray(x) for x in tensors)
            result = function(*filled(args, arrays), **filled(kwargs, arrays))
            return None if fits is None else tuple(fit(x) for fit, x in zip(fits, tensors_of(result), strict=True))

        super().__init__(run, f"numpy_{name}")
        self.__module__ = "bytejit"
