"""Tensors of random numbers that torch draws from a generator of the program's own (`torch.randn(4, generator=g)`): they are
drawn before the graph runs, in the program's order, and are inputs of it, as numbers are (sizes/drawn.py).

Draws whose sizes change between calls, and those that depend on what the graph computes (`x.normal_(generator=g)`,
`torch.multinomial(p, 1, generator=g)`), break the graph. So do draws from a generator that all share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.guards.sources import Drawn, KnownSource
from bytejit.runtime.early_draws import Draw, peeked
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.sizes import DrawnTensor
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import InstanceVar, SeqVar, SymVar, TensorVar, Var

FACTORIES = frozenset((torch.randn, torch.rand, torch.randint, torch.randperm, torch.normal))
OPTIONS = frozenset(("size", "low", "high", "n", "mean", "std", "dtype", "device", "layout", "pin_memory", "generator"))


class DrawnTensors(Component):
    """The part of the tracer that draws tensors before the graph."""

    def __init__(self, t: Tracer) -> None:
        super().__init__(t)
        self.nodes: set[torch.fx.Node] = set()

    def drawn(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """The tensor that a factory draws from a generator from outside; None for other calls."""
        of = self.t.values.real(kwargs["generator"])
        if fn not in FACTORIES or not isinstance(of, InstanceVar) or of.source is None or type(of.real) is not torch.Generator:
            return None
        t, given, named = self.t, args, {k: v for k, v in kwargs.items() if k != "generator"}
        if not kwargs.keys() <= OPTIONS or any(map(self._changes, (*given, *named.values()))):
            return None
        if t.overrides.modes or t.overrides.entered or t.devices or t.inference or t.program_operators.reaches:
            return None
        shared = (torch.default_generator, *torch.cuda.default_generators)
        if any(of.real is g for g in shared):
            return None
        plain, options = [t.const(a) for a in given], {k: t.const(v) for k, v in named.items()}
        fake = t.tensors.run_fake(fn, tuple(plain), options)
        for g in shared:
            t.guards.add("ALIAS", of.source, (KnownSource.of(g), False), t.tensors.where())
        draw = Draw(_draw, (fn, tuple(plain), options), t.drawn.place(of), True)
        try:
            now = peeked([*t.drawn.draws, draw], [g.real for g in t.drawn.generators])[-1]
        except RuntimeError:  # it raises as well where the program draws
            return None
        node = t.graph.placeholder(f"drawn_{len(t.drawn.draws)}")
        node.target = node.name
        node.meta.update(val=fake, where=t.tensors.where(), autograd=(False, True), look=fake.m)
        self.nodes.add(node)
        t.inputs.append(DrawnTensor(Drawn(len(t.drawn.draws)), now, node))
        t.drawn.draws.append(draw)
        t.deferred.early += 1
        t.effects.mutations += 1
        return t.tensors.wrap_result(node, fake)

    def _changes(self, v: Var) -> bool:
        """Whether there is something in an argument that is known only in the call."""
        v = self.t.values.real(v)
        return isinstance(v, (SymVar, TensorVar)) or isinstance(v, SeqVar) and any(map(self._changes, v.items))


def _draw(generator: torch.Generator, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    return fn(*args, generator=generator, **kwargs)
