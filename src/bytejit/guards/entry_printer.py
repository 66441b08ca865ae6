"""How an entry prints the sources that its guards and its graph read, and the order of its guards."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common.overriding import overrides, unasked

from .global_state import GlobalState
from .guard_set import Guard, GuardSet
from .kinds import GLOBAL_STATE, KINDS, TENSOR, TYPE_IS
from .program import GuardProgram
from .sources import (
    Cell,
    Constant,
    KnownSource,
    Local,
    Ref,
    Scope,
    Source,
    SourcePrinter,
    StackSlot,
    TensorSize,
    TensorStride,
    Type,
)

SIZE, STEP = unasked(torch.Tensor.size), unasked(torch.Tensor.stride)  # of a tensor of any class: no code of the program runs


class EntryPrinter(SourcePrinter):
    """Prints sources for an entry: what is read more than once is fetched into a local on first use.

    `lines` are the statements so far; `hoist` makes every fetch a local (for sources read after the graph has run).
    """

    def __init__(self, env: dict[str, Any], uses: dict[Source, int], types: dict[Source, Ref]) -> None:
        super().__init__(env)
        self.uses = uses
        self.types = types  # sources whose exact type is guarded: type(x) is then a constant
        self.lines: list[str] = []
        self.locals: dict[Source, str] = {}
        # what has been fetched: two sources may print alike (the class of two modules)
        self.by_text: dict[str, str] = {}
        self.checked: set[str] = set()
        self.watched: dict[Ref, None] = {}  # objects held by weak reference
        self.held: dict[Ref, str] = {}  # of them, those that a local holds during a call
        self.hoist = False
        self.program: GuardProgram | None = None
        self.program_line = 0  # where among the lines its call goes

    def source(self, source: Source) -> str:  # type: ignore[override]  # entries have no other sources
        if source in self.locals:
            return self.locals[source]
        if type(source) is Type and source.base in self.types:
            return self.ref(self.types[source.base])
        if isinstance(source, (Local, StackSlot, Cell, Constant)) or _held(source):
            return source.expr(self)
        if self.program is not None and (name := self.program.local(source)) is not None:
            self.locals[source] = name
            return name
        text = self.measure(source) if isinstance(source, (TensorSize, TensorStride)) else source.expr(self)
        return self.fetch(source, text) if self.hoist or self.uses.get(source, 0) > 1 else text

    def measure(self, source: TensorSize | TensorStride) -> str:
        """Text for a tensor's size or stride; a class that overrides torch's functions is not told of it."""
        if source.base not in self.types or not overrides(self.types[source.base].get()):
            return source.expr(self)
        asked = SIZE if isinstance(source, TensorSize) else STEP
        return f"{self.bind(asked)}({self.source(source.base)}, {source.dim})"

    def fetch(self, source: Source, text: str) -> str:
        """Emit a fetch of the source into a local, once; the local's name."""
        name = self.by_text.get(text)
        if name is None:
            name = self.by_text[text] = f"v{len(self.by_text)}"
            self.lines.append(f"{name} = {text}")
        self.locals[source] = name
        return name

    def check(self, text: str) -> None:
        """Emit a check, once."""
        if text not in self.checked:
            self.checked.add(text)
            self.lines.append(f"if not ({text}): return MISS")

    def ref(self, ref: Ref) -> str:
        """The object's name. One held weakly is fetched first, once a call: where it is dead, the guards fail."""
        if not ref.weak:
            return super().ref(ref)
        if ref not in self.held:
            self.watch(ref)
            name = self.held[ref] = f"r{len(self.held)}"
            self.lines += [f"{name} = {super().ref(ref)}", f"if {name} is None: return MISS"]
        return self.held[ref]

    def watch(self, ref: Ref) -> None:
        self.watched[ref] = None


def _held(source: Source) -> bool:
    return isinstance(source, (KnownSource, Scope)) and not source.ref.weak


def count_uses(guards: list[Guard], inputs: list[Source]) -> dict[Source, int]:
    """Counts how often each source is read by guards, inputs, and other sources that are read."""
    uses: dict[Source, int] = {}

    def read(source: Source, times: int) -> None:
        seen = source in uses
        uses[source] = uses.get(source, 0) + times
        if not seen:
            for base in source.bases():
                read(base, 1)

    for guard in guards:
        read(guard.source, 1 if KINDS[guard.kind].once else 2)
        for other in KINDS[guard.kind].others(guard.value):
            read(other, 1)
    for source in inputs:
        read(source, 1)
    return uses


def guarded_types(guards: list[Guard]) -> dict[Source, Ref]:
    types = {g.source: g.value for g in guards if g.kind == TYPE_IS}
    return types | {g.source: Ref(g.value.type) for g in guards if g.kind == TENSOR}


MODES = GlobalState("function_modes")


def ordered(guards: GuardSet) -> list[Guard]:
    """Guards in the order in which an entry checks them.

    First the arguments' own (they differ between calls), then global state, then the rest in the order in which the
    trace read them: a guard on an object must come before guards on what is fetched through it.
    """

    def phase(guard: Guard) -> int:
        if KINDS[guard.kind].last:
            return 3
        if guard.kind == GLOBAL_STATE:  # a mode would be told of what the guards ask of tensors
            return -1 if guard.source == MODES else 1
        near = not guard.source.bases() and not any(s.bases() for s in KINDS[guard.kind].others(guard.value))
        return 0 if near and isinstance(guard.source, (Local, StackSlot)) else 2

    return sorted(guards, key=phase)
