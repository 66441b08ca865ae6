"""Records a checkpointed part of a graph on fakes. Its inner values are not kept for the backward pass, which records the part
again.

It works like torch's checkpoint: within the part, a saved value is replaced by its number. The first use of such a number in a
backward pass runs the part again. Calls outside the part never reuse equal calls that were recorded within it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from bytejit.codegen.ops.calls import acts
from bytejit.codegen.ops.rows import random_state
from bytejit.common.autocast import autocast_now
from bytejit.common.checkpointed import Checkpointed
from bytejit.common.spec import Spec
from bytejit.fake.tensor import fake_of_spec

from .mutation import CannotNormalise
from .recorder import Recorder

Execute = Callable[[fx.GraphModule, Sequence], Any]  # records a graph on fakes


def checkpointed(rec: Recorder, execute: Execute, target: Checkpointed, inputs: Sequence) -> Any:
    """The part's results. Raises: CannotNormalise."""
    if not torch.is_grad_enabled():
        return execute(target.part, inputs)
    return _Part(rec, execute, target, inputs).forward()


class _Part:
    """One part, run once and again in each backward pass that reads its inner values."""

    def __init__(self, rec: Recorder, execute: Execute, target: Checkpointed, inputs: Sequence) -> None:
        self.rec, self.execute, self.target = rec, execute, target
        self.first, self.again = target.contexts()
        self.autocast = autocast_now()
        self.saved = 0
        self.state: fx.Node | None = None
        self.found: dict[int, list[torch.Tensor]] = {}  # backward pass -> what it computed again
        around = rec.around[-1] if rec.around else None
        self.inputs = [_kept(x, around, i < target.saved) for i, x in enumerate(inputs)]
        self.given = inputs

    def forward(self) -> Any:
        """Records the part for the first time."""
        before = next(iter(reversed(self.rec.graph.nodes)), None)
        with self.within(self), self.first:
            made = self.execute(self.target.part, self.given)
        inside = _after(self.rec.graph, before)
        for n in inside:
            n.meta["checkpointed"] = True
        if self.target.keeps_random and any(map(acts, inside)):
            self.state = self.note_state(inside[0])
        return made

    @contextlib.contextmanager
    def within(self, keeper: _Part | _Again) -> Iterator[None]:
        """Within, recorded calls are remembered for this part only. keeper: gets the values that are saved."""
        seen, self.rec.seen = self.rec.seen, dict(self.rec.seen)
        self.rec.around.append(keeper)
        try:
            with torch.autograd.graph.saved_tensors_hooks(keeper.pack, keeper.unpack):
                yield
        finally:
            self.rec.around.pop()
            self.rec.seen = seen

    def pack(self, x: torch.Tensor) -> int:
        """The number that stands for a saved value."""
        self.saved += 1
        return self.saved - 1

    def unpack(self, number: int) -> torch.Tensor:
        """A saved value, computed again."""
        task = torch._C._current_graph_task_id()
        if task not in self.found:
            self.found[task] = self.compute()
        return self.found[task][number]

    # ---- again -------------------------------------------------------------------------------------------------------
    def compute(self) -> list[torch.Tensor]:
        """Run the part again and return what it saves. Raises: CannotNormalise where the second run saves something else."""
        rec, again = self.rec, _Again()
        inputs = [x() for x in self.inputs]
        old = None
        if self.state is not None:
            old = self.note_state(None)
            rec._create(random_state.SET, (self.state,), {}, None, None)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for manager in self.autocast:
                stack.enter_context(manager())
            stack.enter_context(self.within(again))
            stack.enter_context(self.again)
            self.execute(self.target.part, inputs)
        if old is not None:
            rec._create(random_state.SET, (old,), {}, None, None)
        if len(again.found) != self.saved:
            raise CannotNormalise("a checkpointed part that saves something else when it runs again")
        return again.found

    def note_state(self, before: fx.Node | None) -> fx.Node:
        """A node with the state of the CPU's random number generator. Raises: CannotNormalise on a GPU."""
        if any(n.meta["spec"].device.type != "cpu" for n in self.rec.graph.nodes if isinstance(n.meta.get("spec"), Spec)):
            raise CannotNormalise("a checkpointed part that draws random numbers, not on the CPU alone")
        size = torch.default_generator.get_state().numel()
        spec = Spec((size,), (1,), torch.uint8, torch.device("cpu"))
        graph = self.rec.graph
        with graph.inserting_before(before) if before is not None else contextlib.nullcontext():
            return self.rec._create(random_state.GET, (), {}, None, fake_of_spec(spec))


class _Again:
    """Gathers what a part saves when it runs again."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def pack(self, x: torch.Tensor) -> int:
        self.found.append(x.detach())
        return len(self.found) - 1

    def unpack(self, number: int) -> torch.Tensor:
        return self.found[number]


def _kept(x: Any, around: _Part | _Again | None, saved: bool) -> Callable[[], Any]:
    """A function that returns an input of a part again: within another part, that part's value. saved: it must not have been
    written."""
    if not isinstance(x, torch.Tensor):
        return lambda: x
    if around is not None:
        number, tracked = around.pack(x), x.requires_grad
        return lambda: around.unpack(number).detach().requires_grad_(tracked)
    version = x._version

    def again() -> torch.Tensor:
        if saved and x._version != version:
            raise CannotNormalise("an argument of a checkpointed part is written before the part runs again")
        return x

    return again


def _after(graph: fx.Graph, node: fx.Node | None) -> list[fx.Node]:
    """The nodes recorded since `node` was the last."""
    found = []
    for n in reversed(graph.nodes):
        if n is node:
            break
        if n.op != "placeholder":
            found.append(n)
    return found[::-1]
