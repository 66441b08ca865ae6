"""Mutations whose value one kernel makes element by element are written into the input by that kernel.

Only where no later step reads the input's old value, no other output shows the new one, and no step from there to the end of the
call can fail. Before that, `inplace.place_writes` places the kernels that write a part of a buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from bytejit.codegen.loops.ir import Extern, Kernel, Loops, MutationCopy
from bytejit.codegen.loops.memory import overwritable
from bytejit.codegen.loops.simplify import kernel_roots, may_raise
from bytejit.codegen.loops.uses import reads, writes

from .inplace import place_writes


def write_inputs(loops: Loops) -> Loops:
    """The same program, in which kernels write the inputs where they may."""
    loops = place_writes(loops)
    return InputWrites(loops).run() if loops.mutations else loops


class InputWrites:
    """A program while the kernels that write its inputs are chosen. What steps read and write is looked up by buffer: a training
    step writes all of its parameters and of the optimizer's state."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.steps, self.outputs, self.buffers = list(loops.steps), list(loops.outputs), dict(loops.buffers)
        self.readers, self.writers = positions(self.steps, reads), positions(self.steps, writes)
        self.shown = Counter(r.view.buffer for r in self.outputs if r.view is not None)
        self.last_raising = last(self.steps, lambda s: isinstance(s, Kernel) and may_raise(kernel_roots(s)))
        self.last_foreign = last(self.steps, lambda s: isinstance(s, Extern) and s.reason != "library")

    def run(self) -> Loops:
        """The program with all mutations that can be made so."""
        mutations = tuple(map(self.write, self.loops.mutations))
        return replace(
            self.loops, steps=tuple(self.steps), buffers=self.buffers, outputs=tuple(self.outputs), mutations=mutations
        )

    def write(self, m: MutationCopy) -> MutationCopy:
        """The mutation, done by the kernel that makes its value where it may be."""
        at = self.writer(m)
        if at is None:
            return m
        view, new = self.outputs[m.position].view, self.loops.inputs[m.input]
        k = self.steps[at]
        assert view is not None and isinstance(k, Kernel) and new is not None  # `writer` found it
        old = view.buffer
        nests = tuple(
            replace(p, stores=tuple(replace(s, buffer=new) if s.buffer == old else s for s in p.stores)) for p in k.nests
        )
        self.steps[at] = replace(k, nests=nests)
        self.outputs[m.position] = replace(self.outputs[m.position], view=replace(view, buffer=new))
        self.shown.subtract([old])
        self.shown.update([new])
        del self.buffers[old], self.writers[old]
        self.writers.setdefault(new, []).append(at)
        return replace(m, done=True)

    def writer(self, m: MutationCopy) -> int | None:
        """Position of the kernel that may write the mutation's value into the input itself; None: copy at the end."""
        name, v = self.loops.inputs[m.input], self.outputs[m.position].view
        if m.position not in self.loops.private or v is None or name is None:
            return None
        a, b = self.buffers[name], self.buffers[v.buffer]
        shown_elsewhere = self.shown[b.name] > 1 or self.shown[name] > 0
        if b.kind != "output" or (a.shape, a.stride, a.dtype) != (b.shape, b.stride, b.dtype) or shown_elsewhere:
            return None
        if v.shape != b.shape or v.stride != b.stride:
            return None
        if len(self.writers.get(b.name, ())) != 1:
            return None
        at = self.writers[b.name][0]
        k = self.steps[at]
        if at <= max(self.last_foreign, self.last_raising if a.device == "cpu" else -1):  # a GPU reports errors in a later call
            return None
        read_late = self.readers.get(name, [-1])[-1] > at or self.readers.get(b.name, [-1])[-1] >= at
        if read_late or not isinstance(k, Kernel) or at in self.writers.get(name, ()):
            return None
        where = [(i, s) for i, p in enumerate(k.nests) for s in p.stores if s.buffer == b.name]
        if len(where) != 1 or not overwritable(k, a, b, where[0][1], where[0][0]):
            return None
        return at


def positions(steps: Sequence[Kernel | Extern], names: Callable[[Kernel | Extern], list[str]]) -> dict[str, list[int]]:
    """Buffer -> positions of the steps that name it, in order."""
    found: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        for b in names(step):
            found.setdefault(b, []).append(i)
    return found


def last(steps: Sequence[Kernel | Extern], which: Callable[[Kernel | Extern], bool]) -> int:
    """Position of the last such step; -1 without one."""
    return next((i for i in reversed(range(len(steps))) if which(steps[i])), -1)
