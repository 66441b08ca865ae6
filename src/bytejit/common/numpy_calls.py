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


# places outside of an axis of length n -> places within it, by the mode of numpy.pad
PAD_PLACES: dict[str, Callable[[int, int], int]] = {
    "edge": lambda p, n: min(max(p, 0), n - 1),
    "wrap": lambda p, n: p % n,
    "symmetric": lambda p, n: min(p % (2 * n), 2 * n - 1 - p % (2 * n)),
    "reflect": lambda p, n: min(p % (2 * n - 2), 2 * n - 2 - p % (2 * n - 2)) if n > 1 else 0,
}


def pad(array: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> torch.Tensor:
    """numpy.pad of a tensor; torch's own takes one mode, and makes tensors of the widths. Raises: TypeError for other widths,
    values and modes, KeyError."""
    x, dims = array.tensor, array.ndim
    widths: list[Any] = [pad_width] * dims if type(pad_width) is int else list(pad_width)
    if len(widths) == 2 and all(type(w) is int for w in widths):
        widths = [widths] * dims
    pairs = [(w, w) if type(w) is int else tuple(w) * (3 - len(w)) for w in widths * (dims if len(widths) == 1 else 1)]
    if len(pairs) != dims or any(type(w) is not int or w < 0 for pair in pairs for w in pair):
        raise TypeError(f"numpy.pad with the widths {pad_width!r}")
    if not x.numel():
        raise TypeError("numpy.pad of an empty array")
    if mode == "constant":
        if type(constant_values) not in (int, float, bool):
            raise TypeError("numpy.pad with values of another type")
        kind = bool if x.dtype is torch.bool else float if x.dtype.is_floating_point or x.dtype.is_complex else int
        return torch.nn.functional.pad(x, [w for pair in reversed(pairs) for w in pair], value=kind(constant_values))
    place = PAD_PLACES[mode]
    for axis, (before, after) in enumerate(pairs):
        n = x.shape[axis]
        if before or after:
            x = x.index_select(axis, torch.tensor([place(p, n) for p in range(-before, n + after)]))
    return x


OWN: dict[str, Callable] = {"pad": pad}  # tensor versions of functions of NumPy's main module


class NumpyCall(GraphCall):
    """Calls `function` on arguments of which some are tensors. said: what messages call NumPy's own. fits: for each result; None
    where it only writes its arguments."""

    def __init__(self, name: str, said: str, function: Callable, args: tuple, kwargs: dict, fits: tuple[Fit, ...] | None) -> None:
        def run(*tensors: torch.Tensor) -> tuple | None:
            arrays = tuple(versions().ndarray(x) for x in tensors)
            result = function(*filled(args, arrays), **filled(kwargs, arrays))
            return None if fits is None else tuple(fit(x) for fit, x in zip(fits, tensors_of(result), strict=True))

        super().__init__(run, f"numpy_{name}")
        self.__module__, self.said = "bytejit", said
