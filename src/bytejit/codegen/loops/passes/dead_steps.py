"""The pass that drops dead steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bytejit.codegen.loops.ir import Kernel, Loops
from bytejit.codegen.loops.simplify import checks, drop_unused, kernel_roots, written
from bytejit.codegen.loops.uses import reads, writes


def with_checks(whole: Kernel, left: Kernel | None) -> Kernel | None:
    """`left`, what remains of the kernel `whole`, together with stores that make checks which would be lost otherwise; all of
    `whole` if a reduction makes one."""
    lost = set(map(id, checks(kernel_roots(whole)))) - set(map(id, checks(kernel_roots(left)) if left else ()))
    if not lost:
        return left
    kept = set(written(left) if left else ())
    kept |= {s.buffer for p in whole.nests for s in p.stores if lost & set(map(id, checks(s.roots())))}
    found, before = drop_unused(whole, lambda s: s.buffer in kept), -1
    while found and len(kept) > before:  # with what they read from the same kernel
        before = len(kept)
        kept |= set(written(whole)) & {e.name for e in found.loads}
        found = drop_unused(whole, lambda s: s.buffer in kept)
    return found if found and lost <= set(map(id, checks(kernel_roots(found)))) else whole


def drop_dead(loops: Loops) -> Loops:
    """The loops without kernels, stores and buffers that no output needs. Extern calls stay: `lower` left out the dead ones.
    Stores stay if they check an index or a divisor that no other step checks."""
    needed = {r.view.buffer for r in loops.outputs if r.view is not None}
    steps: list[Any] = []
    for step in reversed(loops.steps):
        if isinstance(step, Kernel):
            own = set(reads(step))
            left = drop_unused(step, lambda s: s.buffer in needed or s.buffer in own)
            if left is not None and not any(b in needed for b in written(left)):
                left = None
            left = with_checks(step, left)
            if left is None:
                continue
            step = left
        needed.update(reads(step))
        needed.update(writes(step))
        steps.append(step)
    needed.update(n for n in loops.inputs if n)
    return replace(loops, steps=tuple(reversed(steps)), buffers={n: b for n, b in loops.buffers.items() if n in needed})
