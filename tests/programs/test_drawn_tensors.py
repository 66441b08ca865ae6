"""Tensors that torch draws from a generator of the program's own: `torch.randn(4, generator=g)`"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

import bytejit

from . import targets
from .harness import F, case, program


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@program(F(4, 3), graphs=1, total=1)
def test_factories_with_a_generator():
    """randn, rand, randint, randperm and normal: one graph, the generator's numbers and its state"""
    g = seeded()

    def f(x):
        noise = torch.randn(4, 3, generator=g, dtype=x.dtype, device=x.device)
        place = torch.randint(0, 4, (2,), generator=g)
        whole = torch.rand((2, 3), generator=g), torch.randint(9, (2,), generator=g), torch.normal(1.0, 2.0, (3,), generator=g)
        return x + noise, x[place], whole, x[torch.randperm(4, generator=g)], noise

    return f, lambda: torch.rand(3, generator=g)


@program(F(4, 3), graphs=1, backend="inductor", tol=(1e-5, 1e-5))
def test_noise_in_a_training_step():
    """Noise from a generator beside torch's own, written in place, with a backward pass"""
    g, net = seeded(), nn.Linear(3, 3)
    with torch.no_grad():
        net.weight.fill_(0.25), net.bias.zero_()

    def f(x):
        noise = torch.randn(x.shape, generator=g)
        noise.mul_(0.5)
        loss = (net(x + noise) - torch.randn(4, 3)).square().mean()
        loss.backward()
        return loss.detach(), noise

    return f, lambda: (net.weight.grad, torch.rand(3, generator=g))


@program(F(4))
def test_draws_that_the_graph_does_not_take():
    """Draws that depend on what is computed, a seed set between draws, a number of a draw that decides"""
    g = seeded()

    def f(x):
        first = torch.rand(2, generator=g)
        kept = torch.bernoulli(x.sigmoid(), generator=g), x.clone().normal_(generator=g)
        choice = torch.multinomial(x.softmax(-1), 1, generator=g)
        g.manual_seed(5)
        at = torch.randint(0, 4, (), generator=g).item()
        return first, kept, choice, x[:at], torch.rand(2, generator=g)

    return f, lambda: torch.rand(3, generator=g)


def outcome(f: Callable, *args: Any) -> Any:
    try:
        return f(*args)
    except (RuntimeError, IndexError) as e:
        return type(e)


def same(f: Callable, *generators: Callable, backend: str = "eager") -> None:
    """The same numbers and states from each of the generators, one a call; beside torch's own."""
    compiled = targets.compiled(f, targets.Counter(backend))
    for make in generators:
        found = []
        for run in (f, compiled):
            torch.manual_seed(1)
            g = make()
            found.append((outcome(run, torch.ones(4), g), g.get_state().tolist(), torch.rand(2).tolist()))
        (a, *rest), (b, *other) = found
        assert rest == other
        assert a == b if isinstance(a, type) else torch.equal(a, b)


def test_the_generator_that_all_share():
    """torch's own generator, given by name: its numbers come in the program's order, also where it takes another's place."""

    def f(x, g):
        return torch.rand(4) + torch.rand(4, generator=g) * x

    same(f, lambda: torch.default_generator, lambda: torch.default_generator)
    bytejit.reset()
    same(f, seeded, lambda: torch.default_generator, seeded)


def test_one_generator_in_two_places():
    same(lambda x, g: (lambda pair: torch.rand(4, generator=pair[0]) - torch.rand(4, generator=pair[1]))([g, g]), seeded, seeded)


def test_a_graph_that_raises_draws_once():
    """The original code draws again, from where the generator stood."""

    def f(x, g):
        return torch.rand(4, generator=g) * x[torch.randint(0, 9, (4,), generator=g)]

    same(f, *[lambda seed=seed: seeded(seed) for seed in range(6)])


def test_within_transforms_and_checkpoints():
    same(lambda x, g: torch.vmap(lambda a: a + torch.rand(3, generator=g), randomness="same")(x[:, None]), seeded, seeded)

    def again(x, g):
        return checkpoint.checkpoint(
            lambda a: a.sin() + torch.rand(4, generator=g), x, use_reentrant=False, preserve_rng_state=False
        )

    bytejit.reset()
    same(again, seeded, seeded)


@case(F(4), 2, calls=5)
def test_sizes_that_change(x, n):
    """Sizes of the argument: one break, no compile a size"""
    g = seeded()
    return torch.rand(x.shape[0] + n, generator=g)


def test_an_export_refuses_them():
    with pytest.raises(bytejit.exc.Unsupported, match="drawn before the graph"):
        bytejit.export(lambda x, g: x + torch.rand(4, generator=g), torch.ones(4), seeded())
