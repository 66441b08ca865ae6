"""Plan -> Triton: a Python module for each graph, and how each of its kernels is launched.

    source = emit_triton(schedule_cuda(fuse(loops), target))
    source.text        the module: imports, @triton.jit kernels
    source.launches    one for each kernel call (several for a kernel that is split), in order

Kernels that differ only in their buffers are one function. The user's line is a comment beside each statement; kernels that
differ only in comments are equal. Nothing here imports triton.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from bytejit.codegen.cuda.function import TritonFunction
from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.codegen.ops.table import table as op_table

from . import joined_launches
from .rows import KernelPrinter
from .source import Launch, TritonSource

HEAD = '''"""Kernels of one graph, made by bytejit."""
import triton
import triton.language as tl
'''
PRELUDE = "bytejit.kernels.prelude.triton_names"
WAIT = "bj_after_previous"


def emit_triton(plan: Plan, early: bool = False) -> TritonSource:
    """The Triton module of a plan made by `schedule_cuda`. Deterministic: equal plans give equal text. early: a kernel may
    begin before the one in front of it on the stream has ended, and waits for it itself (sm_90 and up)."""
    rows = op_table()
    module = KernelModule(f"    {WAIT}()\n" if early else "")
    printed: list[list[TritonFunction]] = []
    total, scratch = 0, 0
    for step in plan.steps:
        printed.append([])
        if isinstance(step, Call):
            printer = KernelPrinter(step, plan.buffers, rows)
            total += common.traffic(plan, step)
            printed[-1] = printer.print()
            scratch = largest(scratch, printer.scratch)
    parts = [part(plan, at, functions) for at, functions in enumerate(printed)]
    rows_of_parts = {row[0].launch.step: row for row in joined_launches.groups(parts, common.segments(plan))}
    taken = {p.launch.step for row in rows_of_parts.values() for p in row}
    launches: list[Launch] = []
    for at, functions in enumerate(printed):
        if at in rows_of_parts:
            launches.append(module.row(rows_of_parts[at]))
        elif at not in taken:
            launches += [module.launch(at, f) for f in functions]
    body = "\n\n".join(module.texts)
    names = sorted(set(re.findall(r"\bbj_\w+|\blibdevice\b", body)))
    lines = [HEAD, *([f"from {PRELUDE} import (\n    " + ",\n    ".join(names) + ",\n)\n"] if names else []), "\n", body]
    return TritonSource("".join(lines), tuple(launches), scratch, len(module.found), total)


class KernelModule:
    """The kernels of a module, each once. first: the line that they begin with."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.found: dict[Any, str] = {}
        self.texts: list[str] = []

    def launch(self, at: int, f: TritonFunction) -> Launch:
        """The launch of a function of step `at`, which is printed if no equal one was."""
        key = signature(f), f.text.plain()
        if key not in self.found:
            self.found[key] = f"k{len(self.found)}"
            self.texts.append(f"@triton.jit\ndef {self.found[key]}({key[0]}):\n{self.first}{f.text.full()}\n")
        return Launch(at, self.found[key], tuple(f.params.values()), f.configs[0], f.configs[1:], "fault" in f.params)

    def row(self, parts: list[joined_launches.LaunchPart]) -> Launch:
        """Makes one launch for several steps."""
        kernel, launch = joined_launches.joined(parts)
        if kernel not in self.found:
            self.found[kernel] = f"k{len(self.found)}"
            self.texts.append(kernel.text(self.found[kernel], self.first))
        return replace(launch, kernel=self.found[kernel])


def part(plan: Plan, at: int, functions: list[TritonFunction]) -> joined_launches.LaunchPart | None:
    """A step as a part of a joined launch; None where it stays a launch of its own."""
    if len(functions) != 1:
        return None
    (f,) = functions
    launch = Launch(at, "", tuple(f.params.values()), f.configs[0], f.configs[1:], "fault" in f.params)
    return joined_launches.part_of(plan, launch, tuple(f.params), f.text.plain())


def signature(f: TritonFunction) -> str:
    """A function's parameters as text, with the types of pointers: kernels of equal text are equal."""
    params = [f'{name}: "{arg.type}"' for name, arg in f.params.items()]
    return ", ".join([*params, *(f"{name}: tl.constexpr" for name, _ in f.configs[0].constants)])


def largest(a: Any, b: Any) -> Any:
    """The greater of two sizes. Where symbols leave their order unknown: their sum."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return a if b == 0 else b if a == 0 else ix.size_of(ix.index(a) + b)
