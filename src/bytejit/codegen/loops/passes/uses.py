"""Which buffers a step reads and writes; what nobody reads is dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bytejit.codegen.loops.ir import Extern, Kernel, Loops, View, updates
from bytejit.codegen.loops.simplify import drop_unused, kernel_roots, loads, written


def views_in(x: Any) -> list[View]:
    """Every View in nested extern arguments."""
    if isinstance(x, View):
        return [x]
    return [v for part in x for v in views_in(part)] if isinstance(x, tuple) else []


def reads(step: Kernel | Extern) -> list[str]:
    """Buffers a step reads, in first-use order, each once."""
    if isinstance(step, Extern):
        return list(dict.fromkeys(v.buffer for v in views_in((step.args, step.kwargs))))
    return list(dict.fromkeys([*(e.name for e in loads(kernel_roots(step))), *updates(step)]))


def writes(step: Kernel | Extern) -> list[str]:
    """Buffers a step makes."""
    return [o for o in step.outs if o] if isinstance(step, Extern) else written(step)


def drop_dead(loops: Loops) -> Loops:
    """Without kernels, stores and buffers that no output needs. Extern calls stay: lower kept only those that
    matter."""
    needed = {r.view.buffer for r in loops.outputs if r.view is not None}
    steps: list[Any] = []
    for step in reversed(loops.steps):
        if isinstance(step, Kernel):
            own = set(reads(step))
            left = drop_unused(step, lambda s: s.buffer in needed or s.buffer in own)
            if left is None or not any(b in needed for b in written(left)):
                continue
            step = left
        needed.update(reads(step))
        needed.update(writes(step))
        steps.append(step)
    needed.update(n for n in loops.inputs if n)
    return replace(loops, steps=tuple(reversed(steps)), buffers={n: b for n, b in loops.buffers.items() if n in needed})
