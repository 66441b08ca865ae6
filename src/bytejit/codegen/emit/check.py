"""Every call of a compiled graph compares the results of its library calls with what was inferred for them.

Kernels, our own library calls and views (`as_strided`) of a library's result rely on the dtype and strides that the compiler
inferred. If a library returned others they would read wrong memory. That can happen with another version, another machine, a
size at which the library takes another path, or state of torch that no guard checks.

There are two versions of the call function. The checking one runs in the first call, and in the first call for each combination
of symbolic sizes. It compares from Python. A result with other strides is copied into the strides that the kernels expect. A
result that shares memory with a temp it was made from is copied too, if the op's schema does not call it a view. If some result
was copied, this version runs in every later call. Else the plain version runs for these sizes from then on. It also compares
each result, in a compiled function that reads dtype, device, shape and strides of the tensor. Cost: 55 ns for each result.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.common import registry
from bytejit.common.errors import Bug
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import same_places
from bytejit.compat.layouts import CODES
from bytejit.guards.native_checker import ANY, CHECKER, DEVICES, exchange_fill

KEPT = 1024  # combinations of sizes that are remembered


class CheckLine(str):
    """A line that only the checking version of the call function has."""


class UncheckedLine(str):
    """A line that only the plain version of the call function has."""


@light_dataclass(frozen=True)
class ExpectedResult:
    """The result that a library call has to return."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} on {self.device}"

    def words(self) -> list[int]:
        """The same as 64-bit words, for the compiled check. Strides of dimensions of size 1, and of empty tensors, are not
        checked."""
        code, bits = CODES[self.dtype]
        strides = [ANY if n == 1 or 0 in self.shape else s for n, s in zip(self.shape, self.stride)]
        return [
            id(torch.Tensor),
            DEVICES[self.device.type],
            self.device.index or 0,
            code | bits << 8 | 1 << 16,
            -1,
            len(self.shape),
            *self.shape,
            *strides,
        ]

    def lies_in(self, stride: tuple[int, ...]) -> bool:
        """Whether these strides address the same elements."""
        return same_places(self.shape, stride, self.stride)


def words_of(rank: int) -> int:
    """Number of words of an `ExpectedResult`."""
    return 6 + 2 * rank


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@dataclass
class LibraryResults:
    """What was recorded of the results of one graph's library calls. known: sizes at which all results were as inferred -> the
    words that the compiled check reads; copied: targets of which a result was copied; returned: name of a call in the plan ->
    the strides it returned, where others were inferred."""

    known: dict[tuple, bytes] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)
    returned: dict[str, tuple] = field(default_factory=dict)

    def fit(
        self,
        result: Any,
        shape: tuple,
        stride: tuple,
        dtype: torch.dtype,
        target: str,
        name: str = "",
        read: list[ExpectedResult] | None = None,
    ) -> torch.Tensor:
        """`result`, in the strides that were inferred. name: the call's name in the plan, where it returns one tensor; read: a
        list to which the expected result is added. Raises: Bug when its shape or dtype is another."""
        wanted = ExpectedResult(shape, stride, dtype, result.device)
        if read is not None:
            read.append(wanted)
        return self.laid_out(result, wanted, target, name)

    def laid_out(self, result: Any, wanted: ExpectedResult, target: str, name: str = "") -> torch.Tensor:
        """`result` itself, or a copy of it if its strides are not those wanted. Raises: Bug when its shape, dtype or device is
        another."""
        if (tuple(result.shape), result.dtype, result.device) != (wanted.shape, wanted.dtype, wanted.device):
            raise Bug(f"{target} returned {result.dtype}{list(result.shape)} on {result.device}, but {wanted} was inferred")
        if wanted.lies_in(result.stride()):
            return result
        if target not in self.copied:
            self.copied.add(target)
            registry.count("externs", f"{target} returns other strides than inferred: copied")
        if name:
            self.returned[name] = tuple(result.stride())
        return torch.empty_strided(wanted.shape, wanted.stride, dtype=result.dtype, device=result.device).copy_(result)

    def again(self, words: bytes, at: int, result: Any, target: str) -> torch.Tensor:
        """`result`, which the compiled check refused, copied into the strides that the words from `at` on say. Raises: Bug."""
        row = array("q", words)[at:]
        rank, dtype = row[5], next(d for d, (code, bits) in CODES.items() if code | bits << 8 | 1 << 16 == row[3])
        shape, strides = tuple(row[6 : 6 + rank]), row[6 + rank : 6 + 2 * rank]
        kind = next(k for k, number in DEVICES.items() if number == row[1])
        device = torch.device(kind) if kind == "cpu" else torch.device(kind, row[2])
        stride = tuple(have if s == ANY else s for s, have in zip(strides, result.stride()))
        return self.laid_out(result, ExpectedResult(shape, stride, dtype, device), target)

    def own(self, result: Any, target: str, temps: tuple) -> Any:
        """`result`, or a copy of it if it shares memory with one of `temps`: that memory will be reused for another temp."""
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or not result.numel():
            return result
        if not any(_shares(result, t) for t in temps):
            return result
        if target not in self.copied:
            self.copied.add(target)
            registry.count("externs", f"{target} returns a view of what it was given: copied")
        return result.clone()

    def learn(self, key: tuple, read: Sequence[ExpectedResult] = ()) -> None:
        """Ends a checking call at the sizes `key`. If there was no copy the plain version runs for these sizes from now on.
        read: the expected results."""
        if self.copied:
            return
        if len(self.known) >= KEPT:
            self.known.clear()
        self.known[key] = array("q", [exchange_fill() or 0, *(word for r in read for word in r.words())]).tobytes()


def steady_check() -> Callable[[bytes, int, Any], bool]:
    """`check(words, at, result)`: whether a result is as the words from `at` on say. Compiled; a Python function without a
    compiler, or with a torch whose tensors the compiled function cannot read."""
    return CHECKER.fit if CHECKER.usable else checked_from_python


def checked_from_python(words: bytes, at: int, result: Any) -> bool:
    """The compiled check's function in Python. Cost: 2 us."""
    row = array("q", words)[at:]
    rank = row[5]
    return (
        result.dim() == rank
        and result.device.type == next(k for k, n in DEVICES.items() if n == row[1])
        and (result.device.index or 0) == row[2]
        and CODES.get(result.dtype) == (row[3] & 255, row[3] >> 8 & 255)
        and tuple(result.shape) == tuple(row[6 : 6 + rank])
        and all(s in (ANY, have) for s, have in zip(row[6 + rank : 6 + 2 * rank], result.stride()))
    )
