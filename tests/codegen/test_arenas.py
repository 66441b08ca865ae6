"""All graphs of a stream share the memory of small arenas on a GPU; here under Triton's interpreter."""

from __future__ import annotations

import torch
from marks import interpreted

import bytejit
from bytejit.codegen.cuda.arena import memory_of

pytestmark = interpreted
INTERPRET = {"options": {"interpret": True}, "fullgraph": True}


def small(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x.sin() @ w).cos() @ w).tanh()


def large(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.cat([x, x + 1, x + 2]).exp()
    return ((y @ w).sigmoid() @ w).sum(0)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(24, 16), torch.randn(16, 16) / 4


def kept() -> list[torch.Tensor]:
    """The memory that no call has taken."""
    return memory_of(torch.device("cpu"))[0]


def test_one_memory_that_grows() -> None:
    compiled, sizes = [bytejit.compile(f, **INTERPRET) for f in (small, large)], list[int]()
    for _ in range(3):
        for made, f in zip(compiled, (small, large)):
            args = inputs()
            torch.testing.assert_close(made(*args), f(*args))
            (memory,) = kept()
            sizes.append(memory.numel())
    assert sizes[0] < sizes[1] and set(sizes[1:]) == {sizes[1]}


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

    compiled = bytejit.compile(loss, **INTERPRET)
    for _ in range(2):
        x, w = inputs()
        grads = []
        for f in (compiled, loss):
            p = w.clone().requires_grad_()
            f(x, p).backward()
            grads.append(p.grad)
        torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)
    assert len(kept()) == 1


def test_forgotten_at_reset() -> None:
    bytejit.compile(small, **INTERPRET)(*inputs())
    assert kept()
    bytejit.reset()
    assert not kept()
