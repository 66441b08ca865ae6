"""Outputs of many bytes: made in memory that nobody holds any more, never in memory that somebody does."""

from __future__ import annotations

import pytest
import torch

import bytejit
from bytejit.codegen.emit import memory, operands


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand bytes are many."""
    monkeypatch.setattr(operands, "LARGE", 1000)


def address(t: torch.Tensor) -> int:
    """Where its memory begins."""
    return t.untyped_storage().data_ptr()


def test_memory_is_used_again(few_are_many: None) -> None:
    f, x = bytejit.compile(lambda x: x * 2 + 1), torch.randn(500)
    f(x)
    first = f(x)
    where = address(first)
    del first
    assert address(f(x)) == where
    assert torch.allclose(f(x), x * 2 + 1)


@pytest.mark.parametrize("hold", ("tensor", "view", "array", "storage", "graph", "list"))
def test_what_somebody_holds_stays(few_are_many: None, hold: str) -> None:
    f = bytejit.compile(lambda x: x * 2 + 1)
    xs = [torch.full((500,), float(i)) for i in range(6)]
    weight = torch.ones(500, requires_grad=True)

    def held(y: torch.Tensor) -> object:
        if hold == "graph":
            return (y * weight).sum()  # keeps y for its backward pass
        return {"tensor": y, "view": y[1:], "array": y.numpy(), "storage": y.untyped_storage(), "list": y.detach()}[hold]

    kept = [held(f(x)) for x in xs]
    for x, k in zip(xs, kept):
        want = x * 2 + 1
        if hold == "graph":
            assert torch.equal(torch.autograd.grad(k, weight)[0], want)
        elif hold == "storage":
            assert torch.equal(torch.empty(0).set_(k, 0, (500,), (1,)), want)
        else:
            assert torch.equal(torch.as_tensor(k), want[-len(k) :])


def test_memory_that_was_resized_or_is_shared_is_not_used(few_are_many: None) -> None:
    f, x = bytejit.compile(lambda x: x * 2 + 1), torch.randn(500)
    for change in (lambda y: y.untyped_storage().resize_(0), lambda y: y.share_memory_()):
        y = f(x)
        change(y)
        where = address(y)
        del y
        assert torch.equal(f(x), x * 2 + 1) and (not where or address(f(x)) != where)


def test_few_are_kept_and_each_mode_gets_its_own_kind() -> None:
    made = memory.LargeOutput(torch.empty(0).new_empty_strided, torch.float32)
    outs = [made((50, 10), (1, 50)) for _ in range(5)]
    assert len(made.kept) == memory.LargeOutput.KEPT and len({address(o) for o in outs}) == 5
    del outs
    with torch.inference_mode():
        inner = made((50, 10), (10, 1))
        assert inner.is_inference() and inner.stride() == (10, 1)
    del inner
    assert not made((50, 10), (10, 1)).is_inference()


def test_gradients_of_a_step_take_turns(few_are_many: None) -> None:
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().sum().backward()

    compiled, seen = bytejit.compile(step), set()
    for _ in range(6):
        compiled()
        seen.add(address(layer.weight.grad))
        want = layer.weight.grad.clone()
        step()
        assert torch.allclose(layer.weight.grad, want, rtol=1e-4, atol=1e-5)
    assert len(seen) <= 2
