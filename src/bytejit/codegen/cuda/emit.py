"""Plan -> Triton: one Python module a graph, and how each of its kernels is launched.

    source = emit_triton(schedule_cuda(fuse(loops), target))
    source.text        the module: imports, @triton.jit kernels
    source.launches    one a kernel call (several for a kernel that is split), in order

Kernels that differ in buffers only are one function. The user's line stands beside a statement; it takes no part in
telling kernels apart. Nothing here imports triton.
"""

from __future__ import annotations

import re
from typing import Any

from bytejit.codegen.cuda.function import TritonFunction
from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.codegen.ops.table import OpTable
from bytejit.codegen.ops.table import table as op_table

from .rows import KernelPrinter
from .source import Launch, TritonSource

HEAD = '''"""Kernels of one graph, made by bytejit."""
import triton
import triton.language as tl
'''
PRELUDE = "bytejit.kernels.prelude.triton_names"
WAIT = "bj_after_previous"


def emit_triton(plan: Plan, rows: OpTable | None = None, early: bool = False) -> TritonSource:
    """The Triton module of a plan made by `schedule_cuda`. Deterministic: equal plans give equal text. early: its kernels may
    begin before the one in front of them has ended, and wait for it themselves (sm_90 and up)."""
    rows = rows or op_table()
    found: dict[Any, tuple[str, str]] = {}
    launches: list[Launch] = []
    total, scratch = 0, 0
    first = f"    {WAIT}()\n" if early else ""
    for at, step in enumerate(plan.steps):
        if not isinstance(step, Call):
            continue
        printer = KernelPrinter(step, plan.buffers, rows)
        total += common.traffic(plan, step)
        for f in printer.print():
            key = signature(f), f.text.plain()
            if key not in found:
                name = f"k{len(found)}"
                found[key] = name, f"@triton.jit\ndef {name}({key[0]}):\n{first}{f.text.full()}\n"
            launches.append(Launch(at, found[key][0], tuple(f.params.values()), f.configs[0], f.configs[1:], "fault" in f.params))
        scratch = largest(scratch, printer.scratch)
    body = "\n\n".join(text for _, text in found.values())
    names = sorted(set(re.findall(r"\bbj_\w+|\blibdevice\b", body)))
    lines = [HEAD, *([f"from {PRELUDE} import (\n    " + ",\n    ".join(names) + ",\n)\n"] if names else []), "\n", body]
    return TritonSource("".join(lines), tuple(launches), scratch, len(found), total)


def signature(f: TritonFunction) -> str:
    """A function's parameters as text; the types of pointers stand in it, so that equal texts are equal kernels."""
    params = [f'{name}: "{arg.type}"' for name, arg in f.params.items()]
    return ", ".join([*params, *(f"{name}: tl.constexpr" for name, _ in f.configs[0].constants)])


def largest(a: Any, b: Any) -> Any:
    """The greater of two sizes; of sizes over symbols, whose order is not known, the sum."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return a if b == 0 else b if a == 0 else ix.size_of(ix.index(a) + b)
