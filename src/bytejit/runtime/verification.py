"""`verify_correctness`: runs a backend's callable once beside the graph, on copies of the inputs. Both must agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bytejit.common.errors import IncorrectResult
from bytejit.common.spec import span_of
from bytejit.common.where import Where
from bytejit.runtime.rollback import random_states

# relative and absolute: what is computed in another order differs by rounding
TOLERANCE = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float16: 1e-2, torch.bfloat16: 3e-2}
DEFAULT_TOLERANCE = 1e-4


def verify(graph: Callable, made: Callable, inputs: Sequence, backend: str, where: Where) -> None:
    """Compare `made(*inputs)` with `graph(*inputs)`: results, and what is written into the inputs.

    Raises: IncorrectResult; what either of the two raises.
    """
    before = random_states()
    found = []
    for run in (graph, made):
        given = [copied(x) for x in inputs]
        try:
            result = run(*given)
        finally:
            for generator, state in before:
                generator.set_state(state)
        found.append([*result, *(x for x in given if isinstance(x, torch.Tensor))])
    wanted, got = found
    if len(wanted) != len(got):
        raise IncorrectResult(f"backend {backend!r} returns {len(got)} values, its graph {len(wanted)}, at {where}")
    for i, (a, b) in enumerate(zip(wanted, got)):
        said = _difference(a, b)
        if said:
            raise IncorrectResult(f"incorrect result of backend {backend!r} at {where}: value {i} {said}")


def copied(x: object) -> object:
    """A tensor in memory of its own, with its strides, leaf or not as it was; anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    made = laid_out_alike(x.detach()).requires_grad_(x.requires_grad)
    return made if x.is_leaf else _NoLeaf.apply(made)


class _NoLeaf(torch.autograd.Function):
    """The same tensor as a result of autograd's: a clone could have other strides."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return laid_out_alike(x.detach())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        return grad


def laid_out_alike(x: torch.Tensor) -> torch.Tensor:
    """A copy with gaps and overlaps where `x` has them: what was compiled for strides reads memory by them."""
    made = x.clone()
    if x.layout is not torch.strided or not x.numel() or made.stride() == x.stride() or x.is_conj() or x.is_neg():
        return made
    row = x.as_strided((span_of(x.shape, x.stride()),), (1,), x.storage_offset()).clone()
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(row.untyped_storage(), 0, x.shape, x.stride())


def _difference(wanted: object, got: object) -> str:
    """Returns how a value differs from the expected one; "" when it agrees."""
    if not isinstance(wanted, torch.Tensor) or not isinstance(got, torch.Tensor):
        return "" if type(wanted) is type(got) and wanted == got else f"is {got!r:.100}, not {wanted!r:.100}"
    near = TOLERANCE.get(wanted.dtype, DEFAULT_TOLERANCE)
    try:
        torch.testing.assert_close(got.detach(), wanted.detach(), rtol=near, atol=near, equal_nan=True)
    except AssertionError as e:
        return "; ".join(line for line in str(e).splitlines() if line)
    return ""
