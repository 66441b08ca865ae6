"""The first call of a compiled graph checks what its library calls answer against what was inferred for them.

Kernels read a library's result by the strides that the compiler inferred. Should a library answer others (another
version, another machine, a size at which it takes another path), elements would be read from the wrong places. So the
first call, and the first for each combination of symbolic sizes, runs a twin of the call function that compares; a
result laid out otherwise is copied into the strides that the kernels expect, from then on at every call. So is one that
lies in the memory of a temp that it was made from, though its schema says nothing of a view.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.common import registry
from bytejit.errors import Bug

KEPT = 1024              # combinations of sizes that are remembered


class Check(str):
    """A line that only the checking twin has."""


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@dataclass
class Fits:
    """What has been seen of one graph's library calls. known: sizes at which all answered as inferred; answered: strides that
    came where others were inferred, by the call's name in the plan."""
    known: set[tuple] = field(default_factory=set)
    misfits: set[str] = field(default_factory=set)
    answered: dict[str, tuple] = field(default_factory=dict)

    def fit(self, result: Any, shape: tuple, stride: tuple, target: str, name: str = "") -> torch.Tensor:
        """`result`, in the strides that were inferred. name: of the call, where it answers one tensor. Raises: Bug when it is
        of another shape."""
        if tuple(result.shape) != shape:
            raise Bug(f"{target} answered the shape {tuple(result.shape)}, {shape} was inferred")
        if result.stride() == stride or result.numel() == 0 or all(
                n == 1 or a == b for n, a, b in zip(shape, result.stride(), stride)):
            return result
        if target not in self.misfits:
            self.misfits.add(target)
            registry.count("externs", f"{target} answers other strides than inferred: copied")
        if name:
            self.answered[name] = tuple(result.stride())
        return torch.empty_strided(shape, stride, dtype=result.dtype, device=result.device).copy_(result)

    def own(self, result: Any, target: str, temps: tuple) -> Any:
        """`result`, not in the memory of a temp that it was made from: another temp will take that."""
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or not result.numel():
            return result
        if not any(_shares(result, t) for t in temps):
            return result
        if target not in self.misfits:
            self.misfits.add(target)
            registry.count("externs", f"{target} answers a view of what it was given: copied")
        return result.clone()

    def learn(self, key: tuple) -> None:
        """A call at these sizes is over; as long as there was no misfit the plain function serves them from now on."""
        if self.misfits:
            return
        if len(self.known) >= KEPT:
            self.known.clear()
        self.known.add(key)
