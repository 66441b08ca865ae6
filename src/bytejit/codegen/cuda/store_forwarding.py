"""Store-to-load forwarding: where a nest loads an element that an earlier nest stored, it uses the value instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, Store
from bytejit.codegen.loops.simplify import Rewriter
from bytejit.common.dtypes import itemsize
from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class Overlap:
    """Whether two buffers of a plan may share bytes. offsets, slots: as in `Plan`; own: the kernel's own temps."""

    offsets: dict[str, int]
    slots: dict[str, int]
    buffers: dict[str, Buffer]
    own: frozenset[str] = frozenset()

    def __call__(self, a: str, b: str) -> bool:
        if a == b or a in self.slots and self.slots[a] == self.slots.get(b):
            return True
        if a not in self.offsets or b not in self.offsets:
            return False
        low, high = self.offsets[a], self.offsets[b]
        return low < high + self._bytes(b) and high < low + self._bytes(a)

    def _bytes(self, name: str) -> int:
        b = self.buffers[name]
        size = itemsize(b.dtype)
        return size * (1 + sum((n - 1) * s for n, s in zip(b.shape, b.stride) if n))


def forward(k: Kernel, buffers: dict[str, Buffer], cons: Cons, again: bool, overlap: Overlap) -> Kernel:
    """The kernel with loads of what an earlier nest stored at the same element replaced by the stored value.

    again: the value is not in a register and is computed again. That is not done where it depends on a running result, or on
    memory that the kernel writes.
    """
    written = {s.buffer for p in k.nests for s in p.stores if buffers[s.buffer].kind != "local"}
    made: dict[str, tuple[Store, tuple[Axis, ...]]] = {}
    sizes = {a.name: a.size for p in k.nests for a in (*k.axes, *p.axes)}
    nests = []
    for p in k.nests:

        def on_load(e: Expr, coords: tuple, mask: Any, axes: tuple = p.axes, known: Any = made.copy()) -> Expr | None:
            s, own = known.get(e.name, (None, ()))
            return s.value if s is not None and mask is None and s.coords == coords and own in (axes, ()) else None

        p = Rewriter(cons, sizes, None, on_load).body(p)
        nests.append(p)
        scans = {r.name for r in p.reduces if r.running}
        for s in p.stores:
            made.pop(s.buffer, None)
            below = list(walk((s.value,)))
            if s.mode != "set" or s.mask is not None or any(e.kind == "ref" and e.name in scans for e in below):
                continue
            if again and any(overlap(e.name, w) for e in below if e.kind == "load" for w in written):
                continue
            made[s.buffer] = s, p.axes
    left = {e.name for p in nests for e in p.loads}
    gone = {n for n, b in buffers.items() if (b.kind == "local" or n in overlap.own) and n not in left}
    nests = [replace(p, stores=tuple(s for s in p.stores if s.buffer not in gone)) for p in nests]
    return replace(k, nests=tuple(p for p in nests if p.stores or p.reduces))


def kept(k: Kernel) -> int:
    """Returns how many values of a whole row live from one nest to a later one."""
    seen: dict[Any, int] = {}
    live: set[Any] = set()
    for i, p in enumerate(k.nests):
        inner = {a.name for a in p.axes}
        for e in p.loads:
            if any(ix.variables(c) & inner for c in e.attr):
                if seen.setdefault((e, p.axes), i) < i:
                    live.add((e, p.axes))
    return max(1, len(live))


def barriers(k: Kernel, overlap: Overlap) -> tuple[int, ...]:
    """The nests before which the program's threads have to be synchronised, by number."""
    out: list[int] = []
    stored: set[str] = set()
    read: dict[str, set[Any]] = {}
    for i, p in enumerate(k.nests):
        here: dict[str, set[Any]] = {}
        for e in p.loads:
            here.setdefault(e.name, set()).add((e.attr, p.axes))
        late = any(overlap(s.buffer, n) and at != {(s.coords, p.axes)} for s in p.stores for n, at in read.items())
        if late or stored & set(here):
            out.append(i)
            stored, read = set(), {}
        stored |= {s.buffer for s in p.stores}
        for n, at in here.items():
            read.setdefault(n, set()).update(at)
    return tuple(out)
