"""The gradients of a compiled region from its traced graph, which runs once more through torch: for what the compiled backward
graph cannot do, such as a pass that is itself differentiated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.autograd.function import FunctionCtx

from bytejit.runtime.rollback import random_states

from .asked import not_asked_for
from .partition import Parts
from .results import primal_of


class TracedRegion(Protocol):
    """What is known of a region: see `TrainingProgram`."""

    parts: Parts
    plain: Callable
    autocast: Sequence[Callable]
    inputs: tuple[int, ...]
    others: tuple[int, ...]
    first: int
    places: int


def differentiable(
    program: TracedRegion, ctx: FunctionCtx, tangents: Sequence[torch.Tensor | None], create: bool = True
) -> Sequence[torch.Tensor | None]:
    """The gradients that are asked for. create: autograd follows them."""
    if ctx.others is None:
        raise RuntimeError("Trying to backward through the graph a second time, after its inputs have been let go")
    parts, inputs = program.parts, inputs_again(program, ctx)
    # where this backward pass ends
    leaves = [Unwritten.apply(ctx.now[i], inputs[i]) if i in ctx.now else inputs[i].view_as(inputs[i]) for i in program.inputs]
    unwanted = not_asked_for(ctx, program.inputs)
    wanted = [leaf for i, leaf in zip(program.inputs, leaves) if i not in unwanted]
    inputs.update(zip(program.inputs, leaves))
    before = random_states() if parts.random else ()
    try:
        for generator, state in ctx.states:
            generator.set_state(state)
        with contextlib.ExitStack() as stack:
            for manager in program.autocast:
                stack.enter_context(manager())
            outs = program.plain(*[inputs[i] for i in range(parts.inputs)])
    finally:
        for generator, state in before:
            generator.set_state(state)
    torch._C._set_grad_enabled(True)
    primals = [primal_of(k, parts.recipes, outs if not parts.single else (outs,)) for k in range(program.first)]
    pairs = [(p, t) for p, t in zip(primals, tangents) if t is not None]
    outputs, grads = [p for p, _ in pairs], [t for _, t in pairs]
    made = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=create, allow_unused=True))
    return [None if i in unwanted else next(made) for i in program.inputs]


def inputs_again(program: TracedRegion, ctx: FunctionCtx) -> dict[int, Any]:
    """The inputs of the forward pass. Raises: RuntimeError where the program has written one of them."""
    parts = program.parts
    saved: Sequence[torch.Tensor] = ()
    if program.places:
        lent = frozenset(range(len(parts.saved_inputs)))
        saved = ctx.saved_tensors if ctx.held is None else ctx.held.checked(lent)
    inputs = dict(zip(parts.saved_inputs, saved)) | dict(zip(program.others, ctx.others))
    others = zip(program.others, ctx.others, ctx.versions)  # of a batch norm's averages, say, no result is computed
    if any(i in parts.read and isinstance(t, torch.Tensor) and t._version != v for i, t, v in others):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: an input of a "
            "compiled region, which a backward pass with create_graph=True computes from"
        )
    for i in parts.written:
        inputs[i] = inputs[i].detach().clone()
    return inputs


class Unwritten(torch.autograd.Function):
    """An input as it was before the graph wrote it without gradients."""

    @staticmethod
    def forward(ctx: FunctionCtx, now: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor | None) -> tuple:
        return grad, None
