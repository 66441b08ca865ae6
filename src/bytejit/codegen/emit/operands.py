"""Operands of a call function as Python text: sizes, tensors, views, arguments of library calls."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import Buffer, View
from bytejit.codegen.loops.memory import extent
from bytejit.codegen.loops.plan import Call, ExternCall, Plan
from bytejit.codegen.loops.sizes import Real, SizeText, bits_of
from bytejit.common.dtypes import DTYPES, torch_dtype
from bytejit.common.errors import Bug
from bytejit.guards.native_checker import CHECKER

from .check import LibraryResults
from .common import symbol_atoms, symbols_in
from .grad_memory import LEAST as GRAD_LEAST
from .grad_memory import GradMemory, OldGrads, old_grads
from .memory import LARGE, LargeOutput


class Printed(Protocol):
    """The text that a target printed for a plan. runs: its functions, in the order of the calls."""

    @property
    def runs(self) -> Sequence[Any]: ...


class Operands:
    """What a call function's text refers to: names, sizes, tensors, views. runs: the loaded function of each of `source.runs`;
    constants: tensors for the last inputs, the caller passes the first `given`; overrides: functions to call for targets,
    instead of torch's dispatcher; replaced: as in `Aten.old_grads`; boxed: as `Aten.is_boxed`."""

    def __init__(
        self,
        plan: Plan,
        source: Printed,
        runs: Sequence[Any],
        constants: Sequence[Any] = (),
        overrides: dict[str, Callable] | None = None,
        replaced: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
        boxed: bool = False,
    ) -> None:
        self.plan, self.source, self.overrides = plan, source, overrides or {}
        self.replaced, self.boxed = replaced, boxed
        views = (plan.outputs[o].view for found in replaced.values() for o in found)
        self.new_grads = {v.buffer for v in views if v is not None}
        self.at = 0  # the step that is printed
        self.safe_from = self._first_safe_step()
        self.lines: list[str] = []
        self.head: list[str] = []  # runs before `lines`
        self.scopes: dict[str, tuple[Callable, str]] = {}  # name of a run's function -> the function, and its name in a profiler
        self.library_results = LibraryResults()
        self.words = 1  # length of the words of the results that are checked, and one word before them
        self.sizes = SizeText(self.symbol)
        self.derived = {
            n: a for step in plan.steps if isinstance(step, Call) for n, a in symbol_atoms(step.kernel).items() if a.text
        }
        self.names: dict[str, Any] = {}
        self.externs: list[tuple[str, str]] = []
        self.text: dict[str, str] = {}  # buffer -> the local that holds its tensor
        self.output_numbers = itertools.count()
        self.views: dict[View, str] = {}  # view of the arena -> local
        self.symbols: dict[str, str] = {s: f"p{i}" for s, i in plan.symbols.items()}
        self.fetched: dict[str, str] = {}  # symbol -> text that reads it from an input's shape, once
        self.given = len(plan.inputs) - len(constants)
        self.numbers: set[int] = set()  # positions of inputs that are numbers and that the text reads
        self.runs = {run.steps[0]: (run, fn) for run, fn in zip(source.runs, runs)}
        self.pointers: dict[str, str] = {}
        self.names.update((f"p{self.given + i}", c) for i, c in enumerate(constants))
        for i, buffer in enumerate(plan.inputs):
            if buffer is not None:
                self._name_input(f"p{i}", plan.buffers[buffer])
        self.uses = self._count_uses()

    def _first_safe_step(self) -> int:
        """The number of the first step behind all that may fail."""
        steps = enumerate(self.plan.steps)
        libraries = [i for i, s in steps if isinstance(s, ExternCall) and s.extern.reason != "library"]
        raising = [run.steps[0] for run in self.source.runs if self.raises(run)]
        return max([*libraries, *raising], default=-1) + 1

    def _name_input(self, name: str, buffer: Buffer) -> None:
        """An input is the local `name`, which also tells the size symbols that are its dimensions."""
        self.text[buffer.name] = name
        for d, size in enumerate(buffer.shape):
            for s in symbols_in(size):
                if ix.index(size) == ix.index(ix.Sym(s)):
                    self.symbols.setdefault(s, "")
                    self.fetched.setdefault(s, f"{name}.shape[{d}]")

    def _count_uses(self) -> dict[str, int]:
        uses: dict[str, int] = {}
        for run in self.source.runs:
            for kind, name in run.args:
                if kind == "buffer":
                    uses[name] = uses.get(name, 0) + 1
        return uses

    # ---- pieces ---------------------------------------------------------------------------------------------------
    def bind(self, name: str, value: Any) -> str:
        self.names.setdefault(name, value)
        return name

    def size(self, x: Any) -> str:
        """A size or offset, or a symbolic float, as Python text."""
        text = self.sizes(x)
        self._bind_math(text)
        return text

    def _bind_math(self, text: str) -> None:
        """Bind the names that the text of a number uses."""
        if "math." in text:
            self.bind("math", math)
        if "bits_of(" in text:
            self.bind("bits_of", bits_of)

    def _atom(self, a: ix.Atom) -> str:
        return self.sizes.atom(a)

    def symbol(self, name: str, text: str = "") -> str:
        """The local that holds a size symbol; text: how it is computed."""
        if name in self.plan.symbols:
            self.numbers.add(self.plan.symbols[name])
        if not self.symbols.get(name):
            text = text or getattr(self.derived.get(name), "text", "")
            if not text and name not in self.fetched:
                raise Bug(f"size {name} is neither an input of {self.plan!r} nor a dimension of one")
            value = self.sizes.words(text) if text else self.fetched[name]
            self.symbols[name] = f"size_{name}"
            self.head.append(f"size_{name} = {value}")
            self._bind_math(value)
        return self.symbols[name]

    def dims(self, sizes: Sequence[Any]) -> str:
        return "(" + "".join(self.size(s) + ", " for s in sizes) + ")"

    def tensor(self, buffer: str) -> str:
        """The local that holds a buffer's tensor; allocates an output on its first use."""
        if buffer not in self.text:
            b = self.plan.buffers[buffer]
            if b.kind == "temp":
                return self.view(View(buffer, b.shape, b.stride))
            if b.kind != "output":
                raise Bug(f"{b!r} is used before a step makes it")
            name = self.text[buffer] = f"o{next(self.output_numbers)}"
            dims = f"{self.dims(b.shape)}, {self.dims(b.stride)}"
            if self.may_replace(b):
                self.lines.append(f"{name} = {self.grad_allocator(name, b)}({dims}, old, on)")
            else:
                self.lines.append(f"{name} = {self.allocator(name, b)}({dims})")
        return self.text[buffer]

    def may_replace(self, b: Buffer) -> bool:
        """Whether an output is a gradient that may take the place of another. Where a step may still fail, the program may see
        the old gradients again."""
        return b.name in self.new_grads and self.at >= self.safe_from and self.is_large(b.name)

    def raises(self, run: Any) -> bool:
        """Whether a run of kernels raises within the call for the values that it reads."""
        return run.raises

    def grad_allocator(self, name: str, b: Buffer) -> str:
        """The name of what allocates such an output."""
        new = self.output_maker(b)
        of = name if isinstance(new, LargeOutput) else b.dtype
        return self.bind(f"new_{of}_grad", GradMemory(new, self.maker(torch_dtype(b.dtype))((0,), (1,))))

    def find_old_grads(self) -> None:
        """Print the search for old gradients whose memory an output may take. Nothing is printed if no output may."""
        large = [i for i in self.replaced if self.is_large(self.plan.inputs[i])]
        if any(map(self.may_replace, (b for b in self.plan.buffers.values() if b.kind == "output"))):
            self.bind("old_grads", self.finder_of_old_grads())
            self.bind("current_stream", self.stream())
            self.lines += ["on = current_stream()", f"old = old_grads(({''.join(f'p{i}, ' for i in large)}), on)"]

    def is_large(self, name: str | None) -> bool:
        """Whether a gradient of an input is worth the search for its memory."""
        b = self.plan.buffers[name] if name is not None else None
        size = extent(b) if b is not None and b.dtype in DTYPES else 0  # kernels make no complex numbers
        return isinstance(size, int) and size >= GRAD_LEAST

    def finder_of_old_grads(self) -> Callable[..., OldGrads]:
        """Returns the function that looks for the gradients that die."""
        return old_grads

    def stream(self) -> Callable[[], int]:
        """Returns the function that tells on which stream a call's memory is used. The CPU has one."""
        return int

    def allocator(self, name: str, b: Buffer) -> str:
        """The name of the function that allocates an output."""
        new = self.output_maker(b)
        return self.bind(f"new_{name if isinstance(new, LargeOutput) else b.dtype}", new)

    def output_maker(self, b: Buffer) -> Callable:
        """The function that allocates an output. That of a large output keeps memory, so each has its own."""
        dtype, size = torch_dtype(b.dtype), extent(b)
        large = self.plan.target == "cpu" and isinstance(size, int) and size >= LARGE
        return LargeOutput(self.maker(dtype), dtype) if large else self.maker(dtype)

    def view(self, v: View) -> str:
        """The text of a view of a buffer, as a tensor."""
        b = self.plan.buffers[v.buffer]
        if b.kind == "temp":
            if v not in self.views:
                self.views[v] = f"a{len(self.views)}"
            return self.views[v]
        base = self.tensor(v.buffer)
        if (v.shape, v.stride) == (b.shape, b.stride) and v.offset == 0:
            return base
        if len(v.shape) == 2 and (v.shape, v.stride) == (b.shape[::-1], b.stride[::-1]) and v.offset == 0:
            return f"{base}.t()"
        if v.offset == 0:
            return f"{base}.as_strided({self.dims(v.shape)}, {self.dims(v.stride)})"
        return self.window(base, v.shape, v.stride, v.offset)

    def window(self, base: str, shape: Sequence[Any], stride: Sequence[Any], offset: Any) -> str:
        """The text of a view of a tensor; offset: in elements, from the tensor's first element."""
        start = f"{base}.storage_offset() + {self.size(offset)}"
        return f"{base}.as_strided({self.dims(shape)}, {self.dims(stride)}, {start})"

    def value(self, x: Any) -> str:
        """The text of an argument of a library call."""
        if isinstance(x, View):
            return self.view(x)
        if isinstance(x, (tuple, list)):
            return "[" + "".join(self.value(v) + ", " for v in x) + "]"
        if x is None or type(x) in (bool, int, str) or (type(x) is float and x - x == 0):
            return repr(x)
        if isinstance(x, (ix.Index, Real)):
            return self.size(x)
        return self.bind(f"c{sum(n[0] == 'c' for n in self.names)}", x)

    def maker(self, dtype: torch.dtype) -> Callable:
        """The function that allocates outputs of a dtype: called with shape and stride."""
        return CHECKER.maker(dtype)
