"""Values computed again instead of stored: large ones made of little, sums of rows of which one element counts, and what then
overwrites what."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import aten, same

import bytejit
from bytejit.codegen.loops.ir import Kernel, Loops
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.memory import plan_memory
from bytejit.codegen.loops.passes import inline
from bytejit.codegen.loops.passes.fuse import fuse

numbers = torch.Generator().manual_seed(0)


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=numbers)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value is large."""
    monkeypatch.setattr(inline, "FAR", (0, 0))


def stored(fused: Loops, numel: int) -> list[str]:
    """Temps of at least so many elements that a kernel stores."""
    names = {s.buffer for k in fused.steps if isinstance(k, Kernel) for p in k.nests for s in p.stores}
    return [
        b.name for b in fused.buffers.values() if b.name in names and b.kind == "temp" and torch.Size(b.shape).numel() >= numel
    ]


def activation(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple:
    """An activation written out, and its gradient, a library's call between them: both read what it is made of."""
    h = x @ w
    cube = h.pow(3)
    t = torch.tanh(0.8 * (h + 0.04 * cube))
    y = 0.5 * h * (1 + t)
    back = (y @ g) * (0.5 * (1 + t) + 0.5 * h * (1 - t * t) * (0.8 + 0.1 * cube / h))
    return y @ w, back


def test_a_step_keeps_what_an_activation_is_made_of(large: None) -> None:
    x, w, g = r(24, 16), r(16, 16), r(16, 16)
    _, fused, _ = same(activation, x, w, g, rtol=1e-3, atol=1e-4)
    assert len(stored(fused, 24 * 16)) == 1  # the activation, which a library reads


def test_small_values_stay_stored() -> None:
    x, w, g = r(24, 16), r(16, 16), r(16, 16)
    _, fused, _ = same(activation, x, w, g, rtol=1e-3, atol=1e-4)
    assert len(stored(fused, 24 * 16)) > 1


def loss_and_gradient(logits: torch.Tensor, target: torch.Tensor, reduction: str) -> tuple:
    """Cross entropy of a product, with its gradient, as torch records it."""
    p = logits.log_softmax(1)
    kind = {"mean": 1, "sum": 2}[reduction]
    loss, total = torch.ops.aten.nll_loss_forward(p, target, None, kind, -100)
    one = torch.ones_like(loss)
    grad = torch.ops.aten.nll_loss_backward(one, p, target, None, kind, -100, total)
    return loss, torch.ops.aten._log_softmax_backward_data(grad, p, 1, p.dtype)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy_stores_nothing_of_the_size_of_its_input(large: None, reduction: str) -> None:
    x, w, target = r(9, 8), r(8, 33), torch.tensor([0, 32, -100, 5, 5, 31, 1, -100, 8])

    def fn(x, w, target):
        loss, grad = loss_and_gradient(x @ w, target, reduction)
        return loss, grad @ w.t()

    _, fused, _ = same(fn, x, w, target, rtol=1e-4, atol=1e-5)
    assert len(stored(fused, 9 * 33)) == 1  # the gradient, which the library reads
    if reduction == "mean":  # else the rows' sums are in the same kernel
        assert set(plan_memory(fused).inplace) == set(stored(fused, 9 * 33))  # over the product


def hits(t: torch.Tensor, n: int) -> torch.Tensor:
    return torch.arange(n) == t[:, None]


SUMS: dict[str, tuple[Callable, tuple, bool]] = {
    "at a place": (lambda t, v: torch.where(hits(t, 7), v[:, None], 0.0).sum(1), (torch.tensor([0, 6, 3]), r(3)), True),
    "outside": (lambda t, v: torch.where(hits(t, 7), v[:, None], 0.0).sum(1), (torch.tensor([-1, 7, 2]), r(3)), True),
    "and more": (
        lambda t, v: torch.where(hits(t, 7) & (v > 0)[:, None], v[:, None], 0.0).sum(1),
        (torch.tensor([1, 2, 3]), torch.tensor([1.0, -1.0, float("nan")])),
        True,
    ),
    "no number": (
        lambda t, v: torch.where(hits(t, 4), v[:, None], 0.0).sum(1),
        (torch.tensor([1, 9]), torch.tensor([float("nan"), float("inf")])),
        True,
    ),
    "minus zero": (lambda t, v: 1 / torch.where(hits(t, 4), v[:, None], 0.0).sum(1), (torch.tensor([1]), -torch.zeros(1)), True),
    "integers": (
        lambda t, v: torch.where(hits(t, 7), v[:, None], 0).sum(1),
        (torch.tensor([0, 6]), torch.tensor([2**40, -3])),
        True,
    ),
    "many elements count": (lambda t, v: torch.where(hits(t, 7), v, 0.0).sum(1), (torch.tensor([0, 6, 3]), r(7)), False),
    "two places": (
        lambda t, v: torch.where(hits(t, 7) | hits(t + 1, 7), v[:, None], 0.0).sum(1),
        (torch.tensor([0, 6, 3]), r(3)),
        False,
    ),
    "another rest": (lambda t, v: torch.where(hits(t, 7), v[:, None], 1.0).sum(1), (torch.tensor([0, 6, 3]), r(3)), False),
    "the largest": (lambda t, v: torch.where(hits(t, 7), v[:, None], 0.0).amax(1), (torch.tensor([0, 6, 3]), r(3)), False),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_which_one_element_counts(name: str) -> None:
    fn, args, without = SUMS[name]
    _, fused, _ = same(fn, *args)
    reduces = [q for k in fused.steps if isinstance(k, Kernel) for p in k.nests for q in p.reduces]
    assert (not reduces) == without


def test_a_place_under_a_mask_is_simple(large: None) -> None:
    """Rows but the last of each of two parts: where the mask holds, no division is needed to find a place."""

    def fn(x, w, v):
        h = (x @ w).view(2, 5, 12)[:, :-1].reshape(8, 12)
        return F.pad((h * v[:, None].exp()).view(2, 4, 12), (0, 0, 0, 1)) @ w.t()

    x, w, v = r(10, 6), r(6, 12), r(8)
    same(fn, x, w, v, rtol=1e-4, atol=1e-5)
    text = repr([p.stores for k in fuse(lower(aten(fn, x, w, v)), True).steps if isinstance(k, Kernel) for p in k.nests])
    assert "//" not in text and "%" not in text


def test_results_of_another_shape_overwrite_what_lies_alike(large: None) -> None:
    def fn(x, w):
        return ((x @ w).view(4, 6, 12).sin() * 2).view(24, 12) @ w.t()

    _, fused, _ = same(fn, r(24, 8), r(8, 12), rtol=1e-4, atol=1e-5)
    assert len(plan_memory(fused).inplace) == 1

    def turned(x, w):
        return ((x @ w).view(12, 2, 12).transpose(0, 1).sin() * 2).reshape(24, 12) @ w.t()

    _, fused, _ = same(turned, r(24, 8), r(8, 12), rtol=1e-4, atol=1e-5)
    assert not plan_memory(fused).inplace


def test_many_values_of_inputs_are_put_there_by_one_call_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that kernels cannot write there, since a check that comes later may raise."""
    calls, real = [], torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda into, values: calls.append(len(into)) or real(into, values))

    norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(5) for _ in range(3)).double()

    def fn(norms: torch.nn.ModuleList, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for norm in norms:
            x = norm(x.exp())
        return F.cross_entropy(x, target)

    ours, x = copy.deepcopy(norms), r(6, 5).double()
    compiled = bytejit.compile(fn)
    with torch.no_grad():
        for target in (torch.arange(6) % 5, torch.arange(6) // 2):
            torch.testing.assert_close(compiled(ours, x, target), fn(norms, x, target))
            torch.testing.assert_close(ours.state_dict(), norms.state_dict())
        assert calls == [3, 6] * 2 or calls == [6, 3] * 2  # counters, statistics
        for f, module in ((compiled, ours), (fn, norms)):
            with pytest.raises(IndexError):
                f(module, x, torch.arange(6))
    torch.testing.assert_close(ours.state_dict(), norms.state_dict())
