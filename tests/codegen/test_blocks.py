"""A large arena in blocks: where temps lie, when blocks are allocated and freed, and that results stay (Triton's interpreter)."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from both import TRITON
from hypothesis import given
from hypothesis import strategies as st
from test_triton_ways import planned
from torch import nn

import bytejit
from bytejit.codegen.cuda import blocks, call, schedule
from bytejit.codegen.emit import operands
from bytejit.codegen.loops.memory import ALIGN, extent, place

SMALL = 1024
interpreted = pytest.mark.skipif(not TRITON, reason="needs Triton's interpreter")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocks, call, schedule):
        monkeypatch.setattr(module, "BLOCK", SMALL)
    monkeypatch.setattr(operands, "GRAD_LEAST", 0)


# ---- places ---------------------------------------------------------------------------------------------------------
groups = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 20), st.integers(0, 20)), max_size=30)


@given(groups, st.sampled_from([0, 1024]), st.integers(0, 5))
def test_no_two_live_temps_share_bytes_and_none_crosses_a_block(found: list, block: int, part: int) -> None:
    spans = {f"b{i}": (size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(found)}
    places, arena = place(spans, block, part)
    for g, (size, first, last) in spans.items():
        at = places[g]
        assert at % ALIGN == 0 and at + size <= arena
        if block and size:
            assert at % block == 0 if size > block else at // block == (at + size - 1) // block
        for h, (other, f, e) in spans.items():
            if g < h and first <= e and f <= last:
                assert at + size <= places[h] or places[h] + other <= at


# ---- blocks ---------------------------------------------------------------------------------------------------------
def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    kept = []
    for _ in range(6):
        x = (x @ w).softmax(1)
        kept.append(x.sin())
    for k in reversed(kept):
        x = (x * k) @ w
    return x


@pytest.mark.triton
@interpreted
def test_a_block_lives_while_its_temps_do(small_blocks: None) -> None:
    plan = planned(layers, (torch.randn(16, 16), torch.randn(16, 16)))
    found = blocks.blocks_of(plan, 100)
    assert len(found) > 3 and found[-1].size == 100 and sum(b.size for b in found[:-1]) <= plan.arena
    used = blocks.steps_of_temps(plan)
    assert used.keys() == plan.offsets.keys()
    for name, (first, last) in used.items():
        k, at = blocks.place_in(found, plan.offsets[name])
        assert found[k].first <= first and last <= found[k].last and at + extent(plan.buffers[name]) <= found[k].size
    assert any(b.first > 0 for b in found[:-1]) and any(b.last < len(plan.steps) - 1 for b in found[:-1])


def test_a_small_arena_is_one_piece() -> None:
    assert not blocks.blocks_of(planned(layers, (torch.randn(16, 16), torch.randn(16, 16))))


# ---- calls ----------------------------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:  # masks are bool: names of blocks and of dtypes in one text
            x = torch.where(x > 0, layer(x).softmax(1), x) + nn.functional.dropout(x, 0.5, self.training)
        return x


def step(model: Net, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()


def steps(fn: Callable, model: Net, turns: int = 3) -> list:
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    torch.manual_seed(1)
    return [fn(model, opt, torch.randn(16, 16)) for _ in range(turns)]


@pytest.mark.triton
@interpreted
def test_steps_are_as_eager(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    function = call.CudaPrinter._function
    monkeypatch.setattr(call.CudaPrinter, "_function", lambda *given: (texts.append(made := function(*given)), made)[1])
    model = Net()
    other = copy.deepcopy(model)
    want = steps(step, model)
    got = steps(bytejit.compile(step, fullgraph=True, options={"interpret": True}), other)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(list(other.parameters()), list(model.parameters()), rtol=1e-3, atol=1e-4)
    assert not bytejit.counters["fallbacks"]
    largest = max((t.text for t in texts), key=len)
    made = re.findall(r"(m_block\d+) = block\(", largest)
    assert len(set(made)) >= 9  # one has the number of a dtype's bits
    freed = {name for line in re.findall(r"del (.*)", largest) for name in line.split(", ")}
    typed = re.findall(r"(\w+) = m_block\d+\[.*\]\.view\(", largest)  # a block as elements of a dtype
    assert set(made) <= freed and set(typed) <= freed
    assert max(Counter(typed).values()) == max(Counter(made).values()) and len(typed) < largest.count(".as_strided(")


# ---- old gradients --------------------------------------------------------------------------------------------------
@pytest.mark.triton
@interpreted
@pytest.mark.parametrize("held", [False, True])
def test_old_gradients_are_freed_first(small_blocks: None, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    """But what somebody holds"""
    freed, freed_grads = [], call.freed_grads

    def spied(parameters: tuple, stream: int) -> dict:
        before = [p.grad is not None for p in parameters]
        found = freed_grads(parameters, stream)
        freed.append(sum(before) - sum(p.grad is not None for p in parameters))
        return found

    monkeypatch.setattr(call, "freed_grads", spied)
    model = Net().eval()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    fn = bytejit.compile(step, fullgraph=True, options={"interpret": True})
    holds = []
    for _ in range(4):
        fn(model, opt, torch.ones(16, 16))
        if held:
            holds += [(p.grad, p.grad.clone()) for p in model.parameters()]
    assert freed[0] == 0 and len(freed) == 4
    assert not any(freed) if held else min(freed[1:]) >= len(model.layers)
    for grad, as_it_was in holds:
        assert torch.equal(grad, as_it_was)


@pytest.mark.triton
@interpreted
def test_old_gradients_outlive_a_call_that_fails(small_blocks: None) -> None:
    def train(w: nn.Parameter, x: torch.Tensor, m: torch.Tensor) -> None:
        new = torch.autograd.grad((x @ w).tanh().sum(), w)[0]
        w.grad = new + torch.linalg.cholesky(m).sum()

    w, fn = nn.Parameter(torch.randn(16, 16)), bytejit.compile(train, options={"interpret": True})
    for _ in range(3):
        fn(w, torch.randn(16, 16), torch.eye(3))
    before = w.grad.clone()
    with pytest.raises(torch.linalg.LinAlgError):
        fn(w, torch.randn(16, 16), -torch.eye(3))
    assert torch.equal(w.grad, before)


# ---- no memory ------------------------------------------------------------------------------------------------------
def allocations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many allocations of calls are left before one finds no memory."""
    left = [1000]

    def counted(new: Callable) -> Callable:
        def allocate(*given: object) -> torch.Tensor:
            left[0] -= 1
            if left[0] == 0:
                raise torch.OutOfMemoryError("no memory")
            return new(*given)

        return allocate

    maker, names = call.CudaPrinter.maker, call.CudaPrinter.bind
    monkeypatch.setattr(call.CudaPrinter, "maker", lambda self, dtype: counted(maker(self, dtype)))
    monkeypatch.setattr(
        call.CudaPrinter, "bind", lambda self, name, value: names(self, name, counted(value) if name == "block" else value)
    )
    return left


@pytest.mark.triton
@interpreted
def test_a_step_is_whole_wherever_memory_ends(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original code runs in place of a call that finds none: nothing may have been written by then"""
    left = allocations(monkeypatch)
    model = Net().eval()
    other = copy.deepcopy(model)
    opt, adam = (torch.optim.Adam(m.parameters(), 1e-2) for m in (model, other))
    fn = bytejit.compile(step, fullgraph=True, options={"interpret": True})
    for _ in range(3):
        torch.testing.assert_close(fn(other, adam, torch.ones(16, 16)), step(model, opt, torch.ones(16, 16)))
    began = left[0] = 1000
    fn(other, adam, torch.ones(16, 16))
    step(model, opt, torch.ones(16, 16))
    many = began - left[0]
    assert many > 20
    for at in range(1, many, 7):
        left[0] = at
        torch.testing.assert_close(
            fn(other, adam, torch.ones(16, 16)), step(model, opt, torch.ones(16, 16)), rtol=1e-4, atol=1e-5
        )
        assert left[0] <= 0
    torch.testing.assert_close(list(other.parameters()), list(model.parameters()), rtol=1e-3, atol=1e-4)
    assert sum(bytejit.counters["fallbacks"].values()) == len(range(1, many, 7))


@pytest.mark.triton
@interpreted
def test_what_is_written_early_is_not_written_twice(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets the error: its code cannot run again"""

    def adds(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return layers(x / 100, w).sum()

    left, x, w = allocations(monkeypatch), torch.zeros(16, 16), torch.randn(16, 16)
    fn = bytejit.compile(adds, options={"interpret": True})
    fn(x, w)
    began = left[0]
    fn(x, w)
    many = began - left[0]
    assert many > 5
    for at in range(1, many + 1):
        left[0] = at
        before = x.clone()
        with pytest.raises(torch.OutOfMemoryError):
            fn(x, w)
        assert torch.equal(x, before) or torch.equal(x, before + 1)
    before = x.clone()
    fn(x, w)
    assert torch.equal(x, before + 1)


@pytest.mark.triton
@interpreted
@pytest.mark.parametrize("catches", [False, True])
def test_who_gets_the_error(small_blocks: None, monkeypatch: pytest.MonkeyPatch, catches: bool) -> None:
    """A handler within the function does, though what is written early is then written twice"""

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.clamp_(0, 1)
            return layers(x * 0.5, w).sum()

    def catching(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        try:
            return plain(x, w)
        except torch.OutOfMemoryError:
            return w.sum()

    left, x, w = allocations(monkeypatch), torch.ones(16, 16), torch.randn(16, 16)
    fn = bytejit.compile(catching if catches else plain, options={"interpret": True})
    want = fn(x, w)
    left[0] = 3
    if catches:
        torch.testing.assert_close(fn(x, w), want)
    else:
        with pytest.raises(torch.OutOfMemoryError):
            fn(x, w)
    torch.testing.assert_close(fn(x, w), want)
