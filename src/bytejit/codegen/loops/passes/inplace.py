"""Chooses the memory of a partly written buffer. A kernel that writes some elements of a tensor (`Store.over`: the buffer with
the other elements) writes into the memory of that other buffer, or into a copy of it.

    set b4[0; i; [t1, 16]; j] = t2 over p0        p0 is the user's cache, b4 its contents afterwards

The cache of a language model, for example, is written at one position in each step. Three cases, the last update first:

    `over` is a temp that nobody reads later       the update writes into it
    `over` is an input, and the program writes     the update writes into the input, if no later step reads the old value
    the result to it at the end                    and no step from there on can fail
    anything else                                  a copy is made first

On the CPU an index out of range raises, and the program's own code runs again from its start: no input may be written by then.
So the checks of indices run first, in kernels of their own. A GPU reports such errors in a later call, as torch does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr, walk
from bytejit.codegen.loops.ir import Axis, Buffer, Extern, Kernel, LoopNest, Loops, Store, View, updates
from bytejit.codegen.loops.simplify import Rewriter, axes_below, kernel_roots, loads, may_raise
from bytejit.codegen.loops.uses import reads, writes
from bytejit.common.spec import contiguous_stride


def place_writes(loops: Loops) -> Loops:
    """Give each update its memory: write it into the buffer that it changes, or into a copy. In the result no store has
    `over`."""
    if not any(map(updates, loops.steps)):
        return loops
    place = InplaceUpdates(loops)
    if not place.gpu and loops.mutations:
        place.check_first()
    place.look_up()
    for i in reversed(range(len(place.steps))):
        if updates(place.steps[i]):
            place.move(i)
    return replace(
        loops, steps=place.in_order(), buffers=place.buffers, outputs=tuple(place.outputs), mutations=tuple(place.mutations)
    )


class InplaceUpdates:
    """A program while the memory of its updates is chosen. What uses a buffer is looked up: a loop that fills a tensor makes an
    update a step. New steps stand apart, before the step that they are for, so that positions stay."""

    def __init__(self, loops: Loops) -> None:
        self.loops, self.cons = loops, loops.cons
        self.steps, self.buffers = list(loops.steps), dict(loops.buffers)
        self.outputs, self.mutations = list(loops.outputs), list(loops.mutations)
        self.gpu = any(b.device != "cpu" for b in loops.buffers.values())

    # ---- checks ---------------------------------------------------------------------------------------------------
    def check_first(self) -> None:
        """Check indices of updates before all other steps, where they are computed from inputs alone. Equal ones are checked
        once."""
        made: dict[Any, Buffer] = {}
        checks: list[Kernel] = []
        for n, k in enumerate(self.steps):
            if isinstance(k, Kernel) and updates(k) and all(not p.reduces for p in k.nests):
                self.steps[n] = self.checked(k, made, checks)
        self.steps[:0] = checks

    def checked(self, k: Kernel, made: dict[Any, Buffer], checks: list[Kernel]) -> Kernel:
        """The kernel with such indices read from memory. The kernels that check and store them are added to `checks`."""
        sizes = {a.name: a.size for p in k.nests for a in (*k.axes, *p.axes)}
        found: dict[int, tuple[Expr, Expr]] = {}
        for e in walk(kernel_roots(k)):
            if (
                e.kind == "op"
                and e.name in ("bound", "inside")
                and all(self.buffers[x.name].kind == "input" for x in loads((e,)))
            ):
                names = sorted(axes_below(e), key=list(sizes).index)
                shape = tuple(sizes[a] for a in names)
                own = tuple(Axis(f"c{i}", n) for i, n in enumerate(shape))
                renamed = Rewriter(self.cons, sizes, {a: ix.var(b.name) for a, b in zip(names, own)})(e)
                renamed = self.cons.op(e.name, renamed.args, "i64", e.where, "index")
                if (renamed, shape) not in made:
                    b = Buffer(f"checked{len(made)}", shape, contiguous_stride(shape), "i64", "temp", "cpu", e.where)
                    made[renamed, shape] = self.buffers[b.name] = b
                    store = Store(b.name, tuple(ix.var(a.name) for a in own), renamed, where=e.where)
                    checks.append(Kernel(b.name, own, (LoopNest((), (store,)),), k.ops, e.where))
                found[id(e)] = e, self.cons.load(made[renamed, shape].name, tuple(map(ix.var, names)), "i64", None, e.where)
        if not found:
            return k
        rewrite = Rewriter(self.cons, sizes)
        for e, new in found.values():
            rewrite.memo[id(e)] = new
            rewrite.keep.append(e)
        return replace(k, nests=tuple(map(rewrite.body, k.nests)))

    def look_up(self) -> None:
        """Note what uses each buffer, and where the program may still fail."""
        self.before: dict[int, list[Kernel]] = {}  # new steps, by the step that they stand before
        self.users: dict[str, set[int]] = {}
        for i, step in enumerate(self.steps):
            self.note(i, step)
        self.shown: dict[str, list[int]] = {}
        for n, r in enumerate(self.outputs):
            if r.view is not None:
                self.shown.setdefault(r.view.buffer, []).append(n)
        self.last_failing = max((i for i, s in enumerate(self.steps) if self.may_fail(s)), default=-1)

    def note(self, i: int, step: Kernel | Extern) -> None:
        """A step at a position, or before it, uses its buffers."""
        for name in (*reads(step), *writes(step)):
            self.users.setdefault(name, set()).add(i)

    def insert(self, i: int, step: Kernel) -> None:
        """A new step directly before step i."""
        self.before.setdefault(i, []).append(step)
        self.note(i, step)

    def in_order(self) -> tuple[Kernel | Extern, ...]:
        """All steps."""
        return tuple(s for i, step in enumerate(self.steps) for s in (*self.before.get(i, ()), step))

    def kernel(self, i: int) -> Kernel:
        """The i-th step, which is a kernel."""
        step = self.steps[i]
        assert isinstance(step, Kernel)
        return step

    def may_fail(self, step: Kernel | Extern) -> bool:
        """Whether a step may raise when it runs."""
        if isinstance(step, Extern):
            return step.reason != "library"
        return not self.gpu and may_raise(kernel_roots(step))

    # ---- places ---------------------------------------------------------------------------------------------------
    def move(self, i: int) -> None:
        """Choose the memory of the update in step i. That of all later updates is chosen already."""
        ((out, base),) = {(s.buffer, s.over) for p in self.kernel(i).nests for s in p.stores if s.over}
        old = self.buffers[base]
        self.values_first(i, base)
        if self.last_reader(i, base) and alike(old, self.buffers[out]):
            if old.kind == "temp":
                self.rename(base, out)
                del self.buffers[base]
            elif self.is_final_value(i, out, base):
                self.rename(out, base)
                for n in self.shown.pop(out, ()):
                    r = self.outputs[n]
                    assert r.view is not None  # it is among `shown`
                    self.outputs[n] = replace(r, view=replace(r.view, buffer=base))
                    self.shown.setdefault(base, []).append(n)
                self.mutations = [replace(m, done=True) if self.loops.inputs[m.input] == base else m for m in self.mutations]
                del self.buffers[out]
            else:
                self.copy(i, out, base)
        else:
            self.copy(i, out, base)
        names = {base, out}
        for n in self.users.get(out, set()) | self.users.get(base, set()):
            self.steps[n] = without_over(self.steps[n], names)

    def rename(self, old: str, new: str) -> None:
        """One buffer in the place of another, in all steps."""
        users = self.users.pop(old, set())
        for n in users:
            self.steps[n] = self.renamed(self.steps[n], old, new)
            if n in self.before:
                self.before[n] = [self.renamed(s, old, new) for s in self.before[n]]
        self.users.setdefault(new, set()).update(users)

    def last_reader(self, i: int, base: str) -> bool:
        """Whether no step needs the old contents of the buffer after the update."""
        if max(self.users[base]) > i or self.shown.get(base) or base in writes(self.steps[i]):
            return False
        return all(e.name != base for e in self.kernel(i).loads)

    def values_first(self, i: int, base: str) -> None:
        """If the update computes its values from the buffer that it overwrites, compute them in a step before it, into a temp:
        one point may read what another writes."""
        k = self.kernel(i)
        if len(k.nests) > 1 or k.nests[0].axes or all(e.name != base for e in loads((k.nests[0].stores[0].value,))):
            return
        s = k.nests[0].stores[0]
        shape = tuple(a.size for a in k.axes)
        b = Buffer(f"{k.name}_new", shape, contiguous_stride(shape), s.value.dtype, "temp", self.buffers[base].device, s.where)
        self.buffers[b.name] = b
        coords = tuple(ix.ZERO if a.size == 1 else ix.var(a.name) for a in k.axes)
        value = Store(b.name, coords, s.value, where=s.where)
        axes = tuple(replace(a, kind="parallel") for a in k.axes)
        self.insert(i, Kernel(b.name, axes, (LoopNest((), (value,)),), k.ops, k.where))
        s = replace(s, value=self.cons.load(b.name, coords, b.dtype, None, s.where))
        self.steps[i] = replace(k, nests=(LoopNest((), (s,)),))

    def is_final_value(self, i: int, out: str, base: str) -> bool:
        """Whether `out` is the value of the input `base` after the program, and may be written into it in step i already."""
        mine = [m for m in self.mutations if self.loops.inputs[m.input] == base]
        if len(mine) != 1 or self.buffers[base].kind != "input" or mine[0].position not in self.loops.private:
            return False
        v, b = self.outputs[mine[0].position].view, self.buffers[out]
        if v is None or (v.buffer, v.shape, v.stride, v.offset) != (out, b.shape, b.stride, 0):
            return False
        if any(n != mine[0].position for n in self.shown.get(out, ())):
            return False
        if any(out in writes(self.steps[n]) for n in self.users[out] if n < i):
            return False
        return self.last_failing <= i and not self.may_fail(self.steps[i])

    def copy(self, i: int, out: str, base: str) -> None:
        """Copy the other elements of `out` before step i."""
        b = self.buffers[out]
        axes = tuple(Axis(f"{out}_{d}", n) for d, n in enumerate(b.shape))
        coords = tuple(ix.ZERO if a.size == 1 else ix.var(a.name) for a in axes)
        axes = tuple(a for a in axes if a.size != 1)
        store = Store(out, coords, self.cons.load(base, coords, b.dtype, None, b.where), where=b.where)
        self.insert(i, Kernel(f"{self.steps[i].name}_copy", axes, (LoopNest((), (store,)),), ("clone",), b.where))

    def renamed(self, step: Any, old: str, new: str) -> Any:
        """A step with one buffer in the place of another."""
        if isinstance(step, Extern):
            return replace(
                step,
                args=in_views(step.args, old, new),
                kwargs=in_views(step.kwargs, old, new),
                outs=tuple(new if o == old else o for o in step.outs),
            )

        def on_load(e: Expr, coords: tuple, mask: Any) -> Expr | None:
            return self.cons.load(new, coords, e.dtype, mask, e.where) if e.name == old else None

        sizes = {a.name: a.size for p in step.nests for a in (*step.axes, *p.axes)}
        rewrite = Rewriter(self.cons, sizes, None, on_load)
        nests = [rewrite.body(p) for p in step.nests]
        return replace(
            step,
            nests=tuple(
                replace(
                    p,
                    stores=tuple(
                        replace(s, buffer=new if s.buffer == old else s.buffer, over=new if s.over == old else s.over)
                        for s in p.stores
                    ),
                )
                for p in nests
            ),
        )


def alike(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers have the same layout."""
    return (a.shape, a.stride, a.dtype) == (b.shape, b.stride, b.dtype)


def without_over(step: Any, names: set[str]) -> Any:
    """The step without `over` in stores between these buffers: their memory is chosen."""
    if not isinstance(step, Kernel):
        return step
    return replace(
        step,
        nests=tuple(
            replace(p, stores=tuple(replace(s, over="") if s.over in names and s.buffer in names else s for s in p.stores))
            for p in step.nests
        ),
    )


def in_views(x: Any, old: str, new: str) -> Any:
    """Nested arguments with one buffer in the place of another."""
    if isinstance(x, View):
        return replace(x, buffer=new) if x.buffer == old else x
    return tuple(in_views(part, old, new) for part in x) if isinstance(x, tuple) else x
