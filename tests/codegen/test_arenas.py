"""All graphs of a stream share the memory of small arenas on a GPU; here under Triton's interpreter."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from marks import interpreted

import bytejit
from bytejit.backends.cuda import InterpretedTarget
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.cuda.arena import memory_of
from bytejit.kernels import cuda_capture
from bytejit.kernels.cuda_capture import Outside, Pool

pytestmark = interpreted
INTERPRET = {"options": {"interpret": True}, "fullgraph": True}


@pytest.fixture(autouse=True)
def none_is_kept() -> None:
    """Memory of graphs that other tests left."""
    memory_of(torch.device("cpu")).clear()


def small(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x.sin() @ w).cos() @ w).tanh()


def large(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.cat([x, x + 1, x + 2]).exp()
    return ((y @ w).sigmoid() @ w).sum(0)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(24, 16), torch.randn(16, 16) / 4


def kept() -> list[torch.Tensor]:
    """The memory that no call has taken."""
    return [shared.memory for shared in memory_of(torch.device("cpu"))[0]]


def test_one_memory_that_grows() -> None:
    compiled, sizes = [bytejit.compile(f, **INTERPRET) for f in (small, large)], list[int]()
    for _ in range(3):
        for made, f in zip(compiled, (small, large)):
            args = inputs()
            torch.testing.assert_close(made(*args), f(*args))
            (memory,) = kept()
            sizes.append(memory.numel())
    assert sizes[0] < sizes[1] and set(sizes[1:]) == {sizes[1]}


@pytest.mark.parametrize("trained", [False, True])
def test_recordings_keep_none(trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a call is given by name a recording replaces what allocates outputs, `new_...`, and the memory that is kept."""
    made = list[Outside]()

    def replay(self: InterpretedTarget, gm: torch.fx.GraphModule, aten: Aten, call: Callable) -> Callable:
        made.append(Outside(None, Pool(None, None, None)))
        return made[-1].through(call)

    monkeypatch.setattr(InterpretedTarget, "replay", replay)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(cuda_capture, "allocating", contextlib.nullcontext)
    held, compiled = memory_of(torch.device("cpu")), bytejit.compile(small, **INTERPRET)
    held.clear()
    for _ in range(2):
        x, w = inputs()
        grads = []
        for f in (compiled, small):
            p = w.clone().requires_grad_(trained)
            result = f(x, p)
            grads.append(torch.autograd.grad(result.sum(), p)[0] if trained else result)
        torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)
    assert len(made) == 1 + trained and all(outside.kept is held and outside.made for outside in made)
    assert not any(held.values())


def test_a_call_within_a_call() -> None:
    inner = bytejit.compile(large, **INTERPRET)
    with torch.library._scoped_library("arenas", "DEF") as library:
        library.define("inner(Tensor x, Tensor w) -> Tensor")
        library.impl("inner", lambda x, w: inner(x, w), "CompositeExplicitAutograd")
        torch.library.register_fake("arenas::inner", lambda x, w: x.new_empty(16), lib=library)

        def outer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y, z = x.sin() @ w, x.cos()  # z lies in the arena while the other graph runs
            return torch.ops.arenas.inner(y, w) + (z @ w).tanh()

        compiled = bytejit.compile(outer, **INTERPRET)
        for _ in range(3):
            args = inputs()
            torch.testing.assert_close(compiled(*args), outer(*args))
    assert len(kept()) == 2


def test_a_training_step_has_one_memory() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (small(x, w) * large(x, w)).square().mean()

    compiled, held = bytejit.compile(loss, **INTERPRET), memory_of(torch.device("cpu"))
    held.clear()
    for _ in range(2):
        x, w = inputs()
        grads = []
        for f in (compiled, loss):
            p = w.clone().requires_grad_()
            f(x, p).backward()
            grads.append(p.grad)
        torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)
    assert len(kept()) == 1


def test_ends_with_the_last_graph() -> None:
    compiled = bytejit.compile(small, **INTERPRET)
    compiled(*inputs())
    ref = weakref.ref(kept()[0].untyped_storage())
    assert ref() is not None
    del compiled
    gc.collect()
    bytejit.reset()
    assert ref() is None and not kept()


def test_a_graph_keeps_no_memory_that_is_dropped() -> None:
    """As when a recording takes its place."""
    compiled, held = bytejit.compile(small, **INTERPRET), memory_of(torch.device("cpu"))
    compiled(*inputs())
    ref = weakref.ref(kept()[0].untyped_storage())
    held.clear()
    assert ref() is None
    torch.testing.assert_close(compiled(*(args := inputs())), small(*args))
    assert len(kept()) == 1
