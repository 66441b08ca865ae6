"""A backward pass within a graph: the functions that its nodes call, on real tensors or on fakes.

`loss.backward()` in a traced program is `leaf_gradients`, and for each leaf that has a gradient already `accumulate`. That
`.grad` is set where there was none is an effect of the region, which its exit makes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .spec import lies_dense

AGAIN = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True "
    "if you need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)
_Tensors = Sequence[torch.Tensor]
_Grads = Sequence[torch.Tensor | None]


def gradients(
    outputs: _Tensors,
    inputs: _Tensors,
    grad_outputs: _Grads,
    retain_graph: bool | None,
    create_graph: bool,
    allow_unused: bool | None,
    materialize_grads: bool,
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad`, for a graph."""
    return torch.autograd.grad(
        outputs,
        inputs,
        grad_outputs,
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=allow_unused,
        materialize_grads=materialize_grads,
    )


def leaf_gradients(
    outputs: _Tensors, leaves: _Tensors, grad_outputs: _Grads, retain_graph: bool | None, fresh: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients that `backward()` gives each leaf. fresh: whether the leaf has no gradient yet, so that this becomes
    its `.grad`."""
    found = torch.autograd.grad(outputs, leaves, grad_outputs, retain_graph=retain_graph, allow_unused=True)
    taken = {id(g) for g in grad_outputs}
    return tuple(_own(g, leaf, taken) if new and g is not None else g for g, leaf, new in zip(found, leaves, fresh))


def _own(grad: torch.Tensor, leaf: torch.Tensor, taken: set[int]) -> torch.Tensor:
    """A gradient as `.grad` holds it: a tensor of its own, laid out as torch's AccumulateGrad wants it.

    Source: torch/csrc/autograd/functions/accumulate_grad.h.
    """
    dense = is_dense(leaf)
    if dense:
        laid_out = all(n == 1 and g != 0 or n != 1 and g == own for n, g, own in zip(grad.shape, grad.stride(), leaf.stride()))
    else:
        laid_out = grad.is_contiguous()
    mine = id(grad) not in taken
    taken.add(id(grad))
    with torch.no_grad():
        if laid_out and mine:
            return grad.detach()
        if not dense:
            return grad.clone(memory_format=torch.contiguous_format)
        return grad.new_empty_strided(leaf.shape, leaf.stride()).copy_(grad)


def is_dense(x: torch.Tensor) -> bool:
    """Whether a tensor's elements lie side by side, each once, in some order of its dimensions."""
    return 0 in x.shape or lies_dense(x.shape, x.stride(), _now)


def _now(n: int | torch.SymInt) -> int:
    """Returns the present value of a size. Adds no condition to a symbolic one."""
    return n if isinstance(n, int) else n.node.hint


def accumulate(grad: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Add to a gradient that is there, in place."""
    with torch.no_grad():
        grad += new
    return grad


def spent(x: torch.Tensor, *ends: torch.Tensor) -> torch.Tensor:
    """A value whose history a backward pass has used up: it requires gradients, and a backward pass from it raises. ends: what
    the history led to; a pass for anything else does not come to it."""
    with torch.enable_grad():
        made = torch._C._functions.DelayedError(AGAIN.encode(), 1 + len(ends))(x.detach().requires_grad_(), *ends)
    return made[0] if ends else made


BACKWARD = frozenset((gradients, leaf_gradients))


def refused(x: torch.Tensor) -> bool:
    """Whether autograd refuses any use of a view: what it is a view of was written behind it, and it was made by `split`,
    `chunk` or `unbind`, or without gradients."""
    try:
        _ = x.grad_fn
    except RuntimeError:
        return True
    return False


CREATION = torch._C._autograd.CreationMeta


def refuses_writes(x: torch.Tensor) -> bool:
    """Whether autograd refuses any use of a view once it, or what it is a view of, is written."""
    return x._is_view() and x.requires_grad and torch._C._autograd._get_creation_meta(x) != CREATION.DEFAULT


def creation(x: torch.Tensor) -> str | None:
    """How autograd says that a view was made: a name of `CreationMeta`; None for what is no view."""
    return torch._C._autograd._get_creation_meta(x).name if x._is_view() else None


def made_as(x: torch.Tensor, kind: torch._C._autograd.CreationMeta) -> torch.Tensor:
    """A view, of which autograd now says that it was made in another way: by that it refuses writes."""
    if x._is_view():
        torch._C._autograd._set_creation_meta(x, kind)
    return x


def checks_values(step: torch.autograd.graph.Node) -> bool:
    """Whether a step of autograd raises an error for some values of gradients: where a loss depends on the phase of complex
    eigenvectors or singular vectors. Fakes have no values, so that no graph of a backward pass has this check."""
    phases = step.name() in ("LinalgEigBackward0", "LinalgEighBackward0", "LinalgSvdBackward0")
    return phases and any(m.dtype.is_complex for m in step._input_metadata)
