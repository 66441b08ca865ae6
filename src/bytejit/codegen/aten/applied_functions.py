"""Runs an autograd function of the program on fakes: its traced forward and backward pass, as one autograd node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from bytejit.codegen.loops.sizes import same
from bytejit.common.applied import Applied, TracedPasses
from bytejit.common.graph_calls import parts_of
from bytejit.fake.rules.core import is_dense, memory_order
from bytejit.fake.tensor import Fake

from .mutation import CannotNormalise, same_stride

Execute = Callable[[fx.GraphModule, Sequence], Any]  # records a graph on fakes


def applied(execute: Execute, target: Applied, inputs: Sequence) -> Any:
    """Applies the function, and returns what its `apply` returns. Raises: CannotNormalise."""
    passes = target.passes
    if passes is None:
        raise CannotNormalise(target.opaque)
    arguments, extra = inputs[: target.arguments], inputs[target.arguments :]
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arguments):
        return TracedFunction.apply(passes, execute, extra, *arguments)
    made = execute(passes.forward, [extra[i] for i in passes.forward_takes])
    return outputs_of(passes, made)


def outputs_of(passes: TracedPasses, made: Sequence) -> Any:
    outputs = tuple(made[o] if isinstance(o, int) else o[0] for o in passes.outputs)
    return outputs[0] if passes.single else outputs


class TracedFunction(torch.autograd.Function):
    """Runs the traced passes. Autograd treats it as the function itself."""

    @staticmethod
    def forward(ctx: Any, passes: TracedPasses, execute: Execute, extra: Sequence, *arguments: Any) -> Any:
        made = execute(passes.forward, [extra[i] for i in passes.forward_takes])
        read = [*(extra[i] for i in passes.backward_takes), *made[passes.results :]]
        tensors = [i for i in sorted(passes.saved) if isinstance(read[i], torch.Tensor)]
        ctx.save_for_backward(*(read[i] for i in tensors))
        ctx.passes, ctx.execute, ctx.tensors = passes, execute, tensors
        ctx.read = [None if i in tensors else x for i, x in enumerate(read)]
        ctx.set_materialize_grads(passes.materialize)
        outputs = outputs_of(passes, made)
        flat = (outputs,) if passes.single else outputs
        ctx.mark_non_differentiable(*(flat[i] for i in passes.marked))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple:
        passes = ctx.passes
        if torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
            raise CannotNormalise("the backward pass of an autograd function, differentiated or under autocast")
        if any(grads[i] is None for i in passes.grads):
            raise CannotNormalise("the backward pass of an autograd function, some of whose gradients are None")
        takes = [n for n in passes.backward.graph.nodes if n.op == "placeholder"]
        given = [laid_out(grads[i], n.meta["val"]) for i, n in zip(passes.grads, takes)]
        read = list(ctx.read)
        for i, x in zip(ctx.tensors, ctx.saved_tensors):
            read[i] = x
        return (None, None, None, *ctx.execute(passes.backward, [*given, *read]))


def laid_out(grad: Fake, traced: Fake) -> Fake:
    """A gradient with the strides that the backward pass was traced with."""
    m = traced.m
    if same(grad.m.shape, m.shape) and same_stride(m.shape, grad.m.stride, m.stride):
        return grad
    if same(grad.m.shape, m.shape) and is_dense(m) and (order := memory_order(m)) is not None:
        back = [order.index(d) for d in range(len(order))]
        grad = grad.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
        if same_stride(m.shape, grad.m.stride, m.stride):
            return grad
    raise CannotNormalise("a gradient of an autograd function in other strides")


def conditions(gm: fx.GraphModule) -> list[Callable[[], bool]]:
    """Returns for each autograd function in a graph a function that checks whether its backward pass is as it was traced."""
    found = []
    for node in gm.graph.nodes:
        if isinstance(node.target, Applied) and node.target.passes is not None and node.target.passes.holds is not None:
            found.append(node.target.passes.holds)
        found += [holds for part in parts_of(node) for holds in conditions(part)]
    return found


def has_passes(node: fx.Node) -> bool:
    """Whether a node applies an autograd function of the program's, or a part that it runs does."""
    return isinstance(node.target, Applied) or any(has_passes(n) for part in parts_of(node) for n in part.graph.nodes)
