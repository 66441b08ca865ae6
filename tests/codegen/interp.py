"""A slow interpreter of the loop IR over torch tensors: what loops mean, without a compiler. For tests only.

Every nest is evaluated on the whole grid of its axes at once: outer axes first, then the nest's own.
"""

from __future__ import annotations

from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Extern, Kernel, Loops, View
from bytejit.codegen.loops.plan import Call, ExternCall, Plan
from bytejit.codegen.ops.table import table
from bytejit.common.dtypes import DTYPES, SIZES

TORCH = {k: d.torch for k, d in DTYPES.items()}


SCANS = {
    "sum": torch.cumsum,
    "prod": torch.cumprod,
    "amax": lambda x, d: x.cummax(d).values,
    "amin": lambda x, d: x.cummin(d).values,
    "logsum": torch.logcumsumexp,
}


class OutOfRange(IndexError):
    """A `bound` check failed."""


def run(program: Loops | Plan, inputs: list[Any]) -> list[Any]:
    """The flat outputs of a program; mutations are copied into the inputs at the end."""
    flat = isinstance(program, Plan)
    memory = allocate(program, inputs)
    for step in program.steps:
        step = step.kernel if isinstance(step, Call) else step.extern if isinstance(step, ExternCall) else step
        if isinstance(step, Kernel):
            run_kernel(step, program.buffers, memory, flat)
        else:
            run_extern(step, program.buffers, memory)
    outputs = [r.const if r.view is None else window(memory, r.view) for r in program.outputs]
    for m in program.mutations:
        if not m.done:
            inputs[m.input].copy_(outputs[m.position])
    return outputs


def allocate(program: Loops | Plan, inputs: list[Any]) -> dict[str, torch.Tensor]:
    """Storage of each buffer, as a flat tensor; a plan's temps lie in one arena, filled with garbage first."""
    memory: dict[str, Any] = {}
    for name, value in zip(program.inputs, inputs):
        if name is not None:
            n = extent(tuple(value.shape), tuple(value.stride()))
            memory[name] = value.detach().as_strided((n,), (1,), value.storage_offset())
    offsets = getattr(program, "offsets", {})
    arena = torch.full((getattr(program, "arena", 0),), 0xEE, dtype=torch.uint8)
    for b in program.buffers.values():
        if b.name in memory or b.kind in ("local", "extern"):
            continue
        n = extent(b.shape, b.stride)
        if b.name in offsets:
            size = n * SIZES[b.dtype]
            memory[b.name] = arena[offsets[b.name] : offsets[b.name] + size].view(TORCH[b.dtype])
        else:
            memory[b.name] = torch.full((n,), 77, dtype=TORCH[b.dtype])
    return memory


def extent(shape: tuple, stride: tuple) -> int:
    """Elements from the first to the last one."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride))


def window(memory: dict[str, torch.Tensor], v: View) -> torch.Tensor:
    return memory[v.buffer].as_strided(v.shape, v.stride, memory[v.buffer].storage_offset() + v.offset)


def run_extern(e: Extern, buffers: dict, memory: dict[str, torch.Tensor]) -> None:
    def arg(a: Any) -> Any:
        return window(memory, a) if isinstance(a, View) else [arg(x) for x in a] if isinstance(a, tuple) else a

    fn = torch.ops
    for part in e.target.split("."):
        fn = getattr(fn, part)
    result = fn(*map(arg, e.args), **{k: arg(v) for k, v in e.kwargs})
    results = result if isinstance(result, (tuple, list)) else (result,)
    for name, t in zip(e.outs, results):
        if name is None:
            continue
        b = buffers[name]
        assert tuple(t.shape) == b.shape, (e, t.shape, b)
        if e.into:
            window(memory, View(name, b.shape, b.stride)).copy_(t)
        else:
            assert t.stride() == b.stride or t.numel() < 2, f"{e}: stride {t.stride()}, planned {b.stride}"
            memory[name] = t.as_strided((extent(tuple(t.shape), t.stride()),), (1,), t.storage_offset())


class Grid:
    """One nest on its grid: evaluates expressions to tensors that broadcast over (outer axes, nest axes)."""

    def __init__(self, kernel: Kernel, p: Any, buffers: dict, memory: dict, local: dict, refs: dict, flat: bool):
        self.axes = (*kernel.axes, *p.axes)
        self.shape = tuple(a.size for a in self.axes)
        self.outer = len(kernel.axes)
        self.buffers, self.memory, self.local, self.refs, self.flat = buffers, memory, local, refs, flat
        self.done: dict[int, torch.Tensor] = {}
        self.keep: list[Any] = []

    def index(self, x: Any) -> torch.Tensor:
        x = ix.index(x)
        total = torch.tensor(x.const)
        for atom, c in x.terms:
            total = total + c * self.atom(atom)
        return total

    def atom(self, a: Any) -> torch.Tensor:
        if type(a) is ix.AxisVar:
            k = [x.name for x in self.axes].index(a.parts[0])
            return torch.arange(self.shape[k]).view([-1 if i == k else 1 for i in range(len(self.shape))])
        if type(a) is ix.Val:
            return self.value(a.parts[0])
        x = self.index(a.parts[0])
        return x // a.parts[1] if type(a) is ix.Div else x % a.parts[1]

    def place(self, name: str, coords: tuple) -> torch.Tensor:
        b = self.buffers[name]
        at = self.index(coords[0]) if self.flat else self.index(ix.ZERO)
        for c, s in () if self.flat else zip(coords, b.stride):
            at = at + self.index(c) * s
        if b.kind == "local":  # one row a point of the outer axes
            row = torch.arange(max(1, torch.Size(self.shape[: self.outer]).numel()))
            row = row.view(*self.shape[: self.outer], *[1] * (len(self.shape) - self.outer))
            return at + row * extent(b.shape, b.stride)
        return at

    def storage(self, name: str) -> torch.Tensor:
        b = self.buffers[name]
        if b.kind == "local" and name not in self.local:
            rows = max(1, torch.Size(self.shape[: self.outer]).numel())
            self.local[name] = torch.full((rows * extent(b.shape, b.stride),), 55, dtype=TORCH[b.dtype])
        return self.local[name] if b.kind == "local" else self.memory[name]

    def value(self, e: Expr) -> torch.Tensor:
        if id(e) not in self.done:
            self.done[id(e)] = self.compute(e)
            self.keep.append(e)
        return self.done[id(e)]

    def compute(self, e: Expr) -> torch.Tensor:
        if e.kind == "const":
            return torch.tensor(e.attr, dtype=TORCH[e.dtype])
        if e.kind == "index":
            return self.index(e.attr)
        if e.kind == "ref":
            assert e.name in self.refs, f"{e.name} is read before it is made"
            assert self.refs[e.name].dtype == TORCH[e.dtype], e
            return self.refs[e.name]
        if e.kind == "load":
            return self.load(e)
        args = [self.value(a) for a in e.args]
        return self.op(e, args)

    def load(self, e: Expr) -> torch.Tensor:
        at, memory = self.place(e.name, e.attr), self.storage(e.name)
        assert memory.dtype == TORCH[e.dtype], (e, memory.dtype)
        if 0 in self.shape:
            return torch.zeros(self.shape, dtype=memory.dtype)
        if e.mask is None:
            assert at.numel() == 0 or (0 <= at.min() and at.max() < memory.numel()), (
                f"{e}: {at.min()}..{at.max()} of {memory.numel()}"
            )
            return memory[at]
        mask, at = torch.broadcast_tensors(self.value(e.mask), at)
        picked = torch.where(mask, at, 0)
        assert 0 <= picked.min() and picked.max() < memory.numel(), f"{e}: {picked.min()}..{picked.max()} of {memory.numel()}"
        return torch.where(mask, memory[picked], torch.zeros((), dtype=memory.dtype))

    def op(self, e: Expr, args: list[torch.Tensor]) -> torch.Tensor:
        if e.name in ("to", "narrow"):
            return args[0].to(TORCH[e.dtype])
        if e.name in ("bound", "inside"):
            i, n = args
            if ((i < (-n if e.name == "bound" else 0)) | (i >= n)).any():
                raise OutOfRange(e.attr)
            return torch.where(i < 0, i + n, i)
        row = table().by_name[e.name]
        if e.name == "select":
            out = torch.where(*args)
        elif row.arity == 2:
            out = row.ref(*torch.broadcast_tensors(*args))
        else:
            out = row.ref(*args)
        assert out.dtype == TORCH[e.dtype], f"{e}: {out.dtype}, operands {[a.dtype for a in args]}"
        return out


def run_kernel(k: Kernel, buffers: dict, memory: dict, flat: bool) -> None:
    """All nests of one kernel, on grids."""
    local: dict[str, torch.Tensor] = {}
    refs: dict[str, torch.Tensor] = {}
    for p in k.nests:
        refs = {n: v[(...,) + (None,) * (len(p.axes))] for n, v in refs.items()}
        grid = Grid(k, p, buffers, memory, local, refs, flat)
        results = {}
        for r in p.reduces:
            values = [torch.broadcast_to(grid.value(a), grid.shape) for a in r.args]
            if r.running:
                refs[r.name] = SCANS[r.kind](values[0], len(k.axes)).to(TORCH[r.dtype])
            else:
                results[r.name] = reduce(r, values, len(k.axes))
        writes = []
        for s in p.stores:
            if s.over:
                memory[s.buffer].copy_(memory[s.over])
            value, at = grid.value(s.value), grid.place(s.buffer, s.coords)
            mask = torch.tensor(True) if s.mask is None else grid.value(s.mask)
            value, at, mask = (torch.broadcast_to(t, grid.shape) for t in (value, at, mask))
            writes.append((s, value[mask], at[mask]))
        for s, value, at in writes:
            storage = grid.storage(s.buffer)
            assert storage.dtype == value.dtype, (s, storage.dtype, value.dtype)
            assert at.numel() == 0 or (0 <= at.min() and at.max() < storage.numel()), (k, s)
            storage.index_put_((at.reshape(-1),), value.reshape(-1), accumulate=s.mode == "add")
        refs = {n: v.reshape(v.shape[: len(k.axes)]) if v.shape[len(k.axes) :].numel() == 1 else v for n, v in refs.items()}
        refs = {n: v for n, v in refs.items() if v.dim() == len(k.axes)}
        refs.update(results)


def reduce(r: Any, values: list[torch.Tensor], outer: int) -> torch.Tensor:
    """One reduction over the dims after the first `outer` ones."""
    v = values[0].flatten(outer) if values[0].dim() > outer else values[0].unsqueeze(-1)
    if r.kind in ("argmax", "argmin"):
        v = (
            v.nan_to_num(float("inf") if r.kind == "argmax" else float("-inf"))
            if v.is_floating_point() and v.isnan().any()
            else v
        )
        at = getattr(torch, r.kind)(v, -1, keepdim=True)
        return values[1].reshape(v.shape).gather(-1, at)[..., 0]
    if r.kind in ("any", "all"):
        return getattr(torch, r.kind)(v, -1)
    if r.kind in ("sum", "prod"):
        out = getattr(torch, r.kind)(v.double() if v.dtype == torch.float32 else v, -1)
        return out.to(TORCH[r.dtype])
    return getattr(torch, r.kind)(v, -1).to(TORCH[r.dtype])
