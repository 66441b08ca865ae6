"""The node of torch's autograd that stands for a compiled graph. What it keeps lies in few attributes: one costs 0.3 us.

A printed tensor and torch's errors name the node that made it. The node of a graph with one result has the name of eager's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from .freed import UNPACK
from .hooks import hooked


class CompiledRegion(torch.autograd.Function):
    """The node of a call: made after its forward kernels have run."""

    @staticmethod
    def forward(ctx: FunctionCtx, call: tuple, *followed: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """call: the program, its inputs as they were before, what its kernels have made, and states of generators."""
        program, inputs, made, states = call
        parts = program.parts
        ctx.materialize_grads = False
        values = made[parts.results : program.after]
        if program.shown:  # what autograd knows as a result cannot be looked at by itself
            values = [t.detach() if k in program.shown else t for k, t in enumerate(values)]
        ctx.to_save = saved = (*[inputs[i] for i in parts.saved_inputs], *values)
        ctx.program = program
        if states:
            ctx.states = states
        if UNPACK is None:  # nothing else says later what was written
            ctx.saved_versions = [t._version for t in saved]
        if len(made) > program.after:
            ctx.numbers = made[program.after : program.after + parts.numbers]
            ctx.sizes = made[program.after + parts.numbers :]
        if program.others:
            ctx.others = others = [inputs[i] for i in program.others]
            ctx.versions = [t._version if isinstance(t, torch.Tensor) else 0 for t in others]
        if program.behind:
            ctx.hooked = hooked(followed, program.behind, program.first > 1)
        if parts.copied:
            ctx.now = {i: x for i, x in zip(program.inputs, followed) if i in parts.copied}
        return tuple(made[: program.first]) if program.first > 1 else made[0]

    @staticmethod
    def backward(ctx: FunctionCtx, *tangents: torch.Tensor | None) -> tuple:
        return None, *ctx.program.gradients(ctx, tangents)


# what a node has that was given nothing else
NOTHING: dict[str, Any] = {
    "states": (),
    "saved_versions": (),
    "seen": (),
    "freed": 0,
    "held": None,
    "numbers": (),
    "sizes": (),
    "others": (),
    "hooked": {},
    "versions": (),
    "now": {},
}

NODE: Any = CompiledRegion._backward_cls  # type: ignore[attr-defined]
for _name, _value in NOTHING.items():
    setattr(NODE, _name, _value)
NODE.apply = CompiledRegion.backward  # torch's own looks at each pass for what this node is not


@functools.lru_cache(maxsize=500)
def apply_of(name: str) -> Callable:
    """Returns what makes a node of this name. It is `Function.apply` without what Python does there for function transforms,
    which no compiled graph runs under."""
    named = type(name, (CompiledRegion,), {"__module__": CompiledRegion.__module__}) if name else CompiledRegion
    if name:
        named._backward_cls = type(name, (NODE,), {"__module__": CompiledRegion.__module__})  # type: ignore[attr-defined]
    return super(torch.autograd.Function, named).apply
