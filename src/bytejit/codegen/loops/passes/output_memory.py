"""Temps in the memory of outputs: a kernel that computes an output from a temp, element by element, overwrites that temp.

    b1 = mm(p0, p1)          o1 = mm(p0, p1)          a gradient before and after its norm is clipped
    o1[i, j] = b1 * t        o1[i, j] = o1 * t

Else a training step that clips its gradients holds each of them twice.
"""

from __future__ import annotations

from dataclasses import replace

from bytejit.codegen.loops.ir import Extern, Kernel, Loops
from bytejit.codegen.loops.memory import overwritable
from bytejit.codegen.loops.simplify import kernel_roots, may_raise
from bytejit.codegen.loops.uses import reads, writes

from .inplace import alike, renamed


def fill_outputs(loops: Loops) -> Loops:
    """The same program, in which temps lie in the memory of outputs where they may."""
    if not any(b.kind == "output" for b in loops.buffers.values()):
        return loops
    return FilledOutputs(loops).run()


class FilledOutputs:
    """A program while its temps are given outputs' memory. Kernels are visited from the last to the first, so that a chain of
    temps ends in one output."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.steps, self.buffers = list(loops.steps), dict(loops.buffers)
        self.users: dict[str, set[int]] = {}
        for i, step in enumerate(self.steps):
            for name in (*reads(step), *writes(step)):
                self.users.setdefault(name, set()).add(i)
        # behind it gradients are made in the memory of old ones, which a program that raises keeps
        self.safe = max((i for i, s in enumerate(self.steps) if self.may_fail(s)), default=-1)

    def may_fail(self, step: Kernel | Extern) -> bool:
        """Whether a step may raise when it runs."""
        return may_raise(kernel_roots(step)) if isinstance(step, Kernel) else step.reason != "library"

    def run(self) -> Loops:
        """The program with all temps that can be placed so."""
        for i in reversed(range(len(self.steps))):
            step = self.steps[i]
            for name in writes(step) if isinstance(step, Kernel) else ():
                if self.buffers[name].kind == "output" and min(self.users[name]) == i:
                    self.fill(i, name)
        return replace(self.loops, steps=tuple(self.steps), buffers=self.buffers)

    def fill(self, i: int, output: str) -> None:
        """Give a temp that step i overwrites with an output, which it is the first to write, that output's memory."""
        step = self.steps[i]
        assert isinstance(step, Kernel)
        stores = [(at, s) for at, p in enumerate(step.nests) for s in p.stores if s.buffer == output]
        if len(stores) != 1 or output in reads(step):
            return
        ((at, store),) = stores
        for name in reads(step):
            a = self.buffers[name]
            users = self.users[name]
            if a.kind != "temp" or not alike(a, self.buffers[output]) or name in writes(step):
                continue
            if max(users) == i and self.safe < min(users) < i and overwritable(step, a, self.buffers[output], store, at):
                self.rename(name, output)
                return

    def rename(self, old: str, new: str) -> None:
        """One buffer in the place of another, in all steps."""
        for n in self.users[old]:
            self.steps[n] = renamed(self.loops.cons, self.steps[n], old, new)
        self.users[new] |= self.users.pop(old)
        del self.buffers[old]
