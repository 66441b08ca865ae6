"""Numbers that change from call to call, as a row in the GPU's memory: one recording serves all their values."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest
import torch

import bytejit
from bytejit.backends import cuda
from bytejit.kernels.build_triton import triton_version
from bytejit.kernels.number_row import RowSender, with_row

interpreted = pytest.mark.skipif(
    not triton_version() or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs triton and TRITON_INTERPRET=1 (set where there is no GPU)",
)

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "SGD, fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "SGD, loop": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
}


def losses(make: Callable, options: dict | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    optimizer = make(model.parameters())
    kind = torch.optim.lr_scheduler.OneCycleLR  # of momentum and beta1 too
    scheduler = kind(optimizer, 0.1, total_steps=20, cycle_momentum="NAdam" not in type(optimizer).__name__)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = step if options is None else bytejit.compile(step, fullgraph=True, options=options)
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    found = []
    for _ in range(4):  # the rate is a number, then one that changes, then twice the same kernel
        found.append(run(x, y).detach())
        scheduler.step()
    return found


@interpreted
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_recording_does_not_know_the_learning_rate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No number is passed by value to what would be recorded, and the results are right."""
    numbers: set[tuple] = set()

    def replay(target: object, gm: object, aten: object, call: Callable) -> Callable:
        def recorded(*inputs: object) -> object:
            numbers.add(tuple(x for x in inputs if type(x) in (int, float)))
            return call(*inputs)

        return recorded

    monkeypatch.setattr(cuda.InterpretedTarget, "replay", replay)
    made, want = losses(OPTIMIZERS[name], {"interpret": True}), losses(OPTIMIZERS[name], None)
    for a, b in zip(made, want, strict=True):
        torch.testing.assert_close(a, b)
    assert numbers == {()} and sum(bytejit.counters["graphs"].values()) <= 3


@interpreted
def test_what_a_library_is_passed_stays_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple] = []

    def replay(target: object, gm: object, aten: object, call: Callable) -> Callable:
        return lambda *inputs: (seen.append(inputs), call(*inputs))[1]

    monkeypatch.setattr(cuda.InterpretedTarget, "replay", replay)

    def f(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
        return torch.renorm(x, 2, 0, a) * (a + b)

    run, x = bytejit.compile(f, dynamic=True, options={"interpret": True}), torch.rand(4, 4) + 1.5
    for a, b in ((1.25, 2.5), (1.5, 3.5), (0.5, 2.25)):
        torch.testing.assert_close(run(x, a, b), f(x, a, b))
    assert [sorted(v for v in inputs if type(v) is float) for inputs in seen[-2:]] == [[1.5], [0.5]]


def test_a_row_is_sent_when_its_bits_change() -> None:
    row = RowSender(lambda x, a, b: struct.pack("2d", a, b), torch.device("cpu"))
    first = row(None, 0.0, 1.5)
    assert row(None, 0.0, 1.5) is first and first.tolist() == [0.0, 1.5] and first.dtype is torch.float64
    other = row(None, -0.0, 1.5)
    assert other is not first and str(other[0].item()) == "-0.0" and str(first[0].item()) == "0.0"
    call = with_row(lambda *given: given, row, frozenset({1}))
    assert call("x", -0.0, 1.5) == ("x", None, 1.5, other) and call("x", -0.0, 1.5)[3] is other
    assert with_row(lambda *given: given, None, frozenset({0}))(3, 4) == (None, 4)
    torch.testing.assert_close(row.written(struct.pack("2d", 3.0, float("inf"))), torch.tensor([3.0, float("inf")]).double())
