"""Runs a plan's Triton kernels: on the GPU where there is one, else under Triton's interpreter (tests/conftest.py says
so to triton). Needs triton."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import interp
import torch

from bytejit.codegen.cuda.source import Launch, TritonSource
from bytejit.codegen.emit.common import symbol_atoms
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import View
from bytejit.codegen.loops.plan import Call, ExternCall, Plan
from bytejit.common.dtypes import DTYPES, SIZES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TORCH = {d.pointer: d.torch for d in DTYPES.values()}
SCRATCH_SLACK = 64


def module(text: str) -> Any:
    """A generated module, imported from a file (the interpreter reads its source)."""
    folder = Path(tempfile.gettempdir()) / f"bytejit_triton_tests_{os.getuid()}"
    folder.mkdir(exist_ok=True)
    name = "m" + hashlib.md5(text.encode()).hexdigest()
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def number(x: Any, symbols: dict[str, int]) -> int:
    """A size or grid as a number."""
    if isinstance(x, int):
        return x
    total = x.const
    for atom, c in x.terms:
        kind = type(atom)
        if kind is ix.Sym:
            value = symbols[atom.parts[0]] if atom.parts[0] in symbols else eval(atom.text, {"math": math}, symbols)
        elif kind is ix.Prod:
            value = math.prod(number(ix.index(p), symbols) for p in atom.parts)
        else:
            a, b = (number(ix.index(p), symbols) for p in atom.parts)
            value = a // b if kind is ix.Div else a % b
        total += c * value
    return total


def memory_of(plan: Plan, inputs: list[torch.Tensor], symbols: dict[str, int]) -> dict[str, torch.Tensor]:
    """Storage of each buffer, flat, on the device; temps and outputs hold garbage."""
    memory = {}
    for name, value in zip(plan.inputs, inputs):
        if name is not None and isinstance(value, torch.Tensor):
            n = interp.extent(tuple(value.shape), tuple(value.stride()))
            memory[name] = value.detach().as_strided((n,), (1,), value.storage_offset())
    arena = torch.full((number(plan.arena, symbols),), 0xEE, dtype=torch.uint8, device=DEVICE)
    for b in plan.buffers.values():
        if b.name in memory or b.kind in ("local", "extern"):
            continue
        shape, stride = (tuple(number(n, symbols) for n in v) for v in (b.shape, b.stride))
        n, dtype = interp.extent(shape, stride), DTYPES[b.dtype].torch
        if b.name in plan.offsets:
            at = number(plan.offsets[b.name], symbols)
            memory[b.name] = arena[at : at + n * SIZES[b.dtype]].view(dtype)
        else:
            memory[b.name] = torch.full((n,), 77, dtype=dtype, device=DEVICE)
    return memory


def launch(
    made: Any,
    one: Launch,
    memory: dict[str, torch.Tensor],
    scratch: torch.Tensor,
    fault: torch.Tensor,
    symbols: dict[str, int],
    config: Any = None,
) -> None:
    """One kernel launch."""
    config = config or one.config
    args: list[Any] = []
    for a in one.args:
        if a.kind == "buffer":
            args.append(memory[a.name])
        elif a.kind == "scratch":
            args.append(scratch[number(a.offset, symbols) :].view(TORCH[a.type]))
        else:
            args.append(fault if a.kind == "fault" else symbols[a.name])
    grid = tuple(number(n, symbols) for n in config.grid)
    kernel = getattr(made, one.kernel)[grid]
    kernel(*args, **dict(config.constants), num_warps=config.warps, num_stages=config.stages)


def run(
    plan: Plan, source: TritonSource, inputs: list[torch.Tensor], symbols: dict[str, int] | None = None, configs: Any = None
) -> tuple[list[Any], int]:
    """The flat outputs and the fault. inputs lie on DEVICE. configs(launch): another configuration than the first."""
    symbols = dict(symbols or {})
    for step in plan.steps:  # symbols that are computed from others
        for name, atom in (symbol_atoms(step.kernel) if isinstance(step, Call) else {}).items():
            symbols.setdefault(name, number(ix.index(atom), symbols))
    made = module(source.text)
    memory = memory_of(plan, inputs, symbols)
    size = -(-(number(source.scratch, symbols) + SCRATCH_SLACK) // 64) * 64
    scratch = torch.full((size,), 0xEE, dtype=torch.uint8, device=DEVICE)
    fault = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for i, step in enumerate(plan.steps):
        if isinstance(step, ExternCall):
            interp.run_extern(step.extern, plan.buffers, memory)
            continue
        for one in source.launches:
            if one.step == i:
                launch(made, one, memory, scratch, fault, symbols, configs(one) if configs else None)

    def view(v: View) -> torch.Tensor:
        shape, stride = (tuple(number(n, symbols) for n in part) for part in (v.shape, v.stride))
        return interp.window(memory, View(v.buffer, shape, stride, number(v.offset, symbols)))

    outputs = [r.const if r.view is None else view(r.view) for r in plan.outputs]
    for m in plan.mutations:
        if not m.done:
            inputs[m.input].copy_(outputs[m.position])
    return outputs, int(fault)
