"""Plan and Triton source -> the Python function that runs them on a GPU. It is as `emit/call.py` makes it, with
these differences:

    def call(p0, p1):
        if device() != 0: return elsewhere(0, call, p0, p1)
        stream = stream_of(0)
        o0 = new_f32((64, 128), (128, 1))
        if run0(stream, p0.data_ptr(), p1.data_ptr(), o0.data_ptr()): slow0(stream, ...)
        return (o0,)

Launches between two library calls are one run. The arena comes from torch's allocator. A small one lies in memory that is kept
between calls, which all graphs of a stream share (`arena.py`): work on one stream runs in order. For the same reason a tensor
may be freed as soon as its last reader is launched. A large arena is made of blocks, which are allocated and freed so
(`blocks.py`). What a row needs is allocated before it. While the program records a CUDA graph, the arena is allocated in that
graph's memory, which lives as long as the graph. An error that a kernel finds is written to the fault word, which lies in
the host's memory, and is raised at the next call.

`rows_of` joins the launches between two library calls to a `LaunchRow`; `kernels/build_triton.py` compiles and loads them;
`kernels/cuda_launch.py` launches a row from a table; `kernels/interpret.py` runs rows in Triton's interpreter (option
`interpret`).
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.emit import common
from bytejit.codegen.emit.call import CallPrinter
from bytejit.codegen.emit.call_source import FAULTS
from bytejit.codegen.emit.grad_memory import OldGrads, freed_grads
from bytejit.codegen.emit.memory import fixed
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import View
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.common.dtypes import torch_dtype
from bytejit.common.errors import DeviceFault
from bytejit.common.light_dataclass import light_dataclass

from .arena import Arena, memory_of
from .blocks import ALIGN, BLOCK, blocks_of, place_in, scratch_base
from .source import Arg, Launch, TritonSource


@light_dataclass(frozen=True)
class LaunchRow:
    """The launches between two library calls. args: what a call passes, in order: ("stream", ""), then as in the runs of
    `CppSource`, ("block", number), ("fault", ""), ("scratch", offset), ("value", index). added: byte offsets of buffers and
    scratch in the arena or block."""

    steps: tuple[int, ...]
    launches: tuple[Launch, ...]
    args: tuple[tuple[str, Any], ...]
    where: tuple[tuple[Arg, tuple[tuple[str, Any], int]], ...]

    def __repr__(self) -> str:
        return f"row of {len(self.launches)} launches: steps {self.steps[0]}..{self.steps[-1]}"

    def place(self, arg: Arg, index: dict[tuple[str, Any], int]) -> tuple[int, int]:
        """(position of the call's argument, bytes to add) for an argument of a launch."""
        key, added = dict(self.where)[arg]
        return index[key], added


def rows_of(plan: Plan, source: TritonSource) -> tuple[LaunchRow, ...]:
    """The rows of a plan. A plan without kernels has none."""
    by_step: dict[int, list[Launch]] = {}
    for launch in source.launches:
        by_step.setdefault(launch.step, []).append(launch)
    base = scratch_base(plan)
    static = isinstance(source.scratch, int)
    blocks = blocks_of(plan, source.scratch)

    def in_arena(at: int) -> tuple[tuple[str, Any], int]:
        if not blocks:
            return ("arena", ""), at
        block, at = place_in(blocks, at)
        return ("block", block), at

    out = []
    for steps in common.segments(plan):
        launches = [la for i in steps for la in by_step.get(i, ())]
        if not launches or not isinstance(plan.steps[steps[0]], Call):
            continue
        args: dict[tuple[str, Any], None] = {("stream", ""): None}
        where: dict[Arg, tuple[tuple[str, Any], int]] = {}
        for launch in launches:
            for a in launch.args:
                if a.kind == "buffer" and a.name in plan.offsets:
                    where[a] = in_arena(plan.offsets[a.name])
                elif a.kind == "buffer" and a.name in plan.slots:
                    where[a] = ("slot", str(plan.slots[a.name])), 0
                elif a.kind == "scratch" and static:
                    where[a] = in_arena(base + a.offset)
                elif a.kind == "scratch":
                    where[a] = ("scratch", a.offset), 0
                else:
                    where[a] = (a.kind, a.name), 0
                args.setdefault(where[a][0])
            configs = (launch.config, *launch.alternatives)
            args.update(dict.fromkeys(("value", g) for c in configs for g in c.grid if not isinstance(g, int)))
        out.append(LaunchRow(tuple(steps), tuple(launches), tuple(args), tuple(where.items())))
    return tuple(out)


class Fault:
    """A word that kernels set when an index is out of range. The host reads it without waiting for the device."""

    def __init__(self, pinned: bool) -> None:
        self.tensor = torch.zeros(1, dtype=torch.int32, pin_memory=pinned)
        self.address = self.tensor.data_ptr()
        self.word = ctypes.c_int32.from_address(self.address)

    def report(self) -> None:
        """Clear the word and raise its error. Raises: DeviceFault."""
        code, self.word.value = self.word.value, 0
        _, text = FAULTS[1 if code & 1 else 2]
        raise DeviceFault(f"{text} (in an earlier call of this graph on the GPU: what that call returned is wrong)")


def elsewhere(device: int, call: Callable, *args: Any) -> Any:
    """Run `call` with another current device."""
    with torch.cuda.device(device):
        return call(*args)


class CudaPrinter(CallPrinter):
    """Prints one plan for a device; the CPU stands for Triton's interpreter. rows: `rows_of(plan, source)`; runs: (run,
    unaligned) of each; scratch: `source.scratch`; aten: the graph that the plan is of."""

    def __init__(
        self,
        plan: Plan,
        rows: Sequence[LaunchRow],
        runs: Sequence[tuple[Callable, Callable]],
        device: torch.device,
        scratch: Any,
        aten: Aten | None = None,
    ) -> None:
        self.device, self.scratch = device, scratch
        self.blocks = blocks_of(plan, scratch)
        self.in_use: dict[int, list[str]] = {}  # block -> the locals that hold it
        self.typed: dict[str, str] = {}  # local that holds memory as elements of a dtype -> the local that holds its bytes
        constants, replaced = ((), {}) if aten is None else (aten.constants, aten.old_grads())
        boxed = aten is not None and aten.is_boxed()
        super().__init__(plan, _Runs(tuple(rows)), runs, constants, replaced=replaced, boxed=boxed)
        self.order = {row.steps[0]: n for n, row in enumerate(rows)}

    def stream(self) -> Callable[[], int]:
        """Returns the function that tells on which stream a call's memory is used."""
        return partial(torch._C._cuda_getCurrentRawStream, self.device.index) if self.device.type == "cuda" else super().stream()

    def finder_of_old_grads(self) -> Callable[..., OldGrads]:
        """Returns the function that frees the gradients that die."""
        return freed_grads

    def maker(self, dtype: torch.dtype) -> Callable:
        """Returns the function that allocates outputs."""
        return torch.empty(0, dtype=dtype, device=self.device).new_empty_strided

    def raises(self, run: LaunchRow) -> bool:
        """Whether launches raise within the call: a GPU reports errors in a later one."""
        return False

    def run(self, row: LaunchRow, fns: tuple[Callable, Callable]) -> None:
        """Prints one row of launches."""
        n = self.order[row.steps[0]]
        args = [self.argument(kind, what) for kind, what in row.args]
        text = ", ".join(args)
        self.bind(f"slow{n}", fns[1])
        self.lines.append(f"if {self.bind(f'run{n}', fns[0])}({text}): slow{n}({text})")

    def argument(self, kind: str, what: Any) -> str:
        """An argument of a row's call, as text."""
        if kind == "buffer":
            return self.pointer(what)
        if kind == "size":
            return self._atom(ix.Sym(what))
        if kind == "value":
            return self.size(what)
        if kind == "slot":
            return f"slot{what}"
        if kind == "block":
            self.block(what)
            return f"block{what}"
        if kind == "scratch":
            return f"scratch + {self.size(what)}"
        if kind == "fault":
            return str(self.fault().address)
        return kind

    def fault(self) -> Fault:
        """The plan's fault word."""
        if "fault" not in self.names:
            self.names["fault"] = Fault(self.device.type == "cuda")
            self.names["word"] = self.names["fault"].word
        return self.names["fault"]

    # ---- memory ---------------------------------------------------------------------------------------------------
    def block(self, k: int) -> list[str]:
        """The locals that hold a block, which is allocated where the first step needs it."""
        if k not in self.in_use:
            name = f"m_block{k}"
            self.in_use[k] = [name]
            self.lines += [f"{name} = {self.allocator_of_blocks()}(({self.blocks[k].size},))", f"block{k} = {name}.data_ptr()"]
        return self.in_use[k]

    def allocator_of_blocks(self) -> str:
        """Returns the name of what allocates bytes. Unlike that of outputs it is not replaced while a CUDA graph is recorded."""
        return self.bind("block", torch.empty(0, dtype=torch.uint8, device=self.device).new_empty)

    def in_block(self, v: View) -> bool:
        """Whether a view is one of a temp in a block."""
        return bool(self.blocks) and v.buffer in self.plan.offsets

    def view(self, v: View) -> str:
        """A view of a temp in a block is made where a step first needs it."""
        if not self.in_block(v) or v in self.views:
            return super().view(v)
        held = self.block(place_in(self.blocks, self.plan.offsets[v.buffer])[0])
        held.append(name := super().view(v))
        self.lines.append(f"{name} = {self.placed_view(v, self.lines)}")
        return name

    def dead(self, step: int) -> list[str]:
        """The locals of the blocks that no step behind this one needs, too."""
        ended = [held for k, held in self.in_use.items() if self.blocks[k].last == step]
        typed = [name for held in ended for name, memory in self.typed.items() if memory == held[0]]
        return [*super().dead(step), *itertools.chain(*ended), *typed]

    def _arena(self) -> None:
        self.memory([])

    def _slots(self) -> None:
        slots = []
        for i, sizes in enumerate(self.plan.slot_bytes):
            wanted = f"max({', '.join(map(self.size, sizes))})" if len(sizes) > 1 else self.size(sizes[0])
            slots.append((f"slot{i}", wanted))
        self.memory(slots)

    def memory(self, slots: list[tuple[str, str]]) -> None:
        """Take an arena that is one piece at the head and put it back at the end; allocate slots: (name, text of its bytes)."""
        static = isinstance(self.scratch, int)
        size = 0 if self.blocks else scratch_base(self.plan) + (self.scratch if static else 0)
        if not static:
            slots = [*slots, ("scratch", self.size(self.scratch))]
        lying = [v for v in self.views if v.buffer in self.plan.offsets and not self.blocks]
        views = {v: self.views[v] for v in lying if fixed(v)}
        if size or lying or any(kind == "arena" for row in self.source.runs for kind, _ in row.args):  # one of 0 bytes too
            size = max(size, ALIGN)
            rows = [
                (self.plan.offsets[v.buffer] + v.offset * _dtype(self.plan, v).itemsize, _dtype(self.plan, v), v.shape, v.stride)
                for v in views
            ]
            arena = Arena(size, rows, self.device)
            names = ", ".join(["arena", "m_arena", *views.values()])
            if size <= BLOCK:
                self.bind("pool", memory_of(self.device))
                self.bind("capturing", torch._C._cuda_isCurrentStreamCapturing if self.device.type == "cuda" else bool)
                taken, new = self.bind("taken", arena.taken), self.bind("make_arena", arena.new)
                self.head += [
                    "kept = None if capturing() else pool[stream]",
                    f"shared, ({names}) = {new}() if kept is None else {taken}(kept)",
                ]
                self.lines.append("if kept is not None: kept.append(shared)")
            else:
                self.head.append(f"shared, ({names}) = {self.bind('make_arena', arena.new)}()")
        for name, wanted in slots:
            self.head += [f"m_{name} = {self.allocator_of_blocks()}(({wanted},))", f"{name} = m_{name}.data_ptr()"]
        for v, name in self.views.items():
            if v not in views and not self.in_block(v):
                self.head.append(f"{name} = {self.placed_view(v, self.head)}")

    def placed_view(self, v: View, lines: list[str]) -> str:
        """A view of a block or a slot, or one of symbolic size in the arena, which is made in each call. lines: where to."""
        width = _dtype(self.plan, v).itemsize
        slot = self.plan.slots.get(v.buffer)
        if slot is None and v.buffer not in self.plan.offsets:  # without elements it has no offset
            nothing, device = self.bind("nothing", torch.empty_strided), self.bind("own_device", self.device)
            dtype = self.dtype_name(v)
            return f"{nothing}({self.dims(v.shape)}, {self.dims(v.stride)}, dtype={dtype}, device={device})"
        block, at = f"m_slot{slot}", 0
        if slot is None:
            block, at = "m_arena", self.plan.offsets[v.buffer]
            if self.blocks:
                k, at = place_in(self.blocks, at)
                block = f"m_block{k}"
        start = at // width + v.offset
        return f"{self.elements(block, v, lines)}.as_strided({self.dims(v.shape)}, {self.dims(v.stride)}, {self.size(start)})"

    def elements(self, memory: str, v: View, lines: list[str]) -> str:
        """The local that holds a block, a slot or the arena as elements of a view's dtype. lines: where to make it, once."""
        name, width = f"{memory}_{self.plan.buffers[v.buffer].dtype}", _dtype(self.plan, v).itemsize
        if name not in self.typed:
            self.typed[name] = memory
            lines.append(f"{name} = {memory}[:{memory}.numel() // {width} * {width}].view({self.dtype_name(v)})")
        return name

    def dtype_name(self, v: View) -> str:
        """The name of a view's dtype in the text."""
        return self.bind(f"dtype_{self.plan.buffers[v.buffer].dtype}", _dtype(self.plan, v))

    def needs_memory(self) -> bool:
        """Whether there is an arena, a slot, scratch, or a view of them."""
        return bool(self.plan.slot_bytes or self.scratch) or super().needs_memory()

    def opening(self) -> list[str]:
        """The first lines: make the graph's device the current one, get the stream, raise faults of earlier calls."""
        lines = []
        if self.device.type == "cuda":
            index = self.device.index
            self.bind("device", torch._C._cuda_getDevice)
            self.bind("elsewhere", elsewhere)
            self.bind("stream_of", torch._C._cuda_getCurrentRawStream)
            lines += [f"if device() != {index}: return elsewhere({index}, call, {self.passed()})", f"stream = stream_of({index})"]
        else:
            lines.append("stream = 0")
        if "fault" in self.names:
            lines.append("if word.value: fault.report()")
        return lines

    def closing(self) -> list[str]:
        """The last lines: raise a fault that a kernel has reported already."""
        return ["if word.value: fault.report()"] if "fault" in self.names else []


@light_dataclass(frozen=True)
class _Runs:
    runs: tuple[LaunchRow, ...]


def _dtype(plan: Plan, v: View) -> torch.dtype:
    return torch_dtype(plan.buffers[v.buffer].dtype)
