"""Option `fused_rng`: draws through torch become draws within kernels (`codegen/ops/rows/random.py`).

    v1 = bernoulli.p(v0, 0.7)       ->      s = randint(0, 2**63 - 1, [])            once a call of the graph
                                            u = bytejit.uniform(s, 0, sizes, f32)
                                            v1 = to(u < 0.7)

The seed of a call comes from torch's own generator of the device: `torch.manual_seed` decides all numbers, and two calls differ.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from bytejit.codegen.ops.rows import random, random_state
from bytejit.common.dtypes import SHORT
from bytejit.common.spec import Spec

from .graph import Aten
from .rewrite import aten, call_before, copy_graph, spec_or_none
from .rewrite import replace as replace_node

MOST_SEED = 2**63 - 1
own = torch.ops.bytejit


@dataclass
class Draws:
    """Rewrites one graph. seed: its node, once there is one; count: draws so far."""

    graph: fx.Graph
    seed: fx.Node | None = None
    count: int = 0

    def draw(self, node: fx.Node, kind: Any, spec: Spec, dtype: torch.dtype) -> fx.Node:
        """Numbers of the shape of `spec`, before `node`."""
        if self.seed is None:
            first = next(n for n in self.graph.nodes if n.op != "placeholder")
            self.seed = call_before(
                self.graph,
                first,
                aten.randint.low,
                (0, MOST_SEED, []),
                Spec((), (), torch.int64, spec.device),
                {"dtype": torch.int64, "device": spec.device},
            )
            self.seed.meta["where"] = node.meta.get("where")
        number, self.count = self.count, self.count + 1
        made = replace(spec, dtype=dtype)
        return call_before(self.graph, node, kind, (self.seed, number, list(spec.shape), dtype), made)

    def apply(self, node: fx.Node, target: Any, *args: Any, dtype: torch.dtype | None = None) -> fx.Node:
        """An op on these arguments. Its result has the node's spec, in `dtype` if that is given."""
        spec = node.meta["spec"]
        spec = spec[0] if isinstance(spec, (tuple, list)) else spec
        return call_before(self.graph, node, target, args, replace(spec, dtype=dtype or spec.dtype))

    def converted(self, node: fx.Node, value: fx.Node, dtype: torch.dtype) -> fx.Node:
        """A value as another dtype."""
        if value.meta["spec"].dtype == dtype:
            return value
        return call_before(
            self.graph, node, aten._to_copy.default, (value,), replace(value.meta["spec"], dtype=dtype), {"dtype": dtype}
        )


def _plain(draws: Draws, node: fx.Node, kind: Any) -> fx.Node:
    return draws.draw(node, kind, node.meta["spec"], node.meta["spec"].dtype)


def _uniform(draws: Draws, node: fx.Node) -> fx.Node:
    low, high = _two_numbers(node)
    return _scaled(draws, node, own.uniform.default, high - low, low)


def _normal(draws: Draws, node: fx.Node) -> fx.Node:
    mean, deviation = _two_numbers(node)
    return _scaled(draws, node, own.normal.default, deviation, mean)


def _two_numbers(node: fx.Node) -> tuple:
    """The two numbers after the tensor; 0 and 1 where they are not given."""
    return (*node.args[1:], 0.0, 1.0)[:2] if len(node.args) != 2 else (node.args[1], 1.0)


def _scaled(draws: Draws, node: fx.Node, kind: Any, factor: Any, plus: Any) -> fx.Node:
    part = draws.apply(node, aten.mul.Tensor, _plain(draws, node, kind), factor)
    return draws.apply(node, aten.add.Tensor, part, plus)


def _bernoulli(draws: Draws, node: fx.Node) -> fx.Node:
    limit = node.args[1] if len(node.args) > 1 else node.args[0]
    drawn = draws.draw(node, own.uniform.default, node.meta["spec"], torch.float32)
    compare = aten.lt.Tensor if isinstance(limit, fx.Node) else aten.lt.Scalar
    hit = draws.apply(node, compare, drawn, limit, dtype=torch.bool)
    return draws.converted(node, hit, node.meta["spec"].dtype)


def _dropout(draws: Draws, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    x, p, _ = node.args
    drawn = draws.draw(node, own.uniform.default, node.meta["spec"][0], torch.float32)
    kept = draws.apply(node, aten.ge.Scalar, drawn, p, dtype=torch.bool)
    left = draws.apply(node, aten.mul.Tensor, x, draws.converted(node, kept, node.meta["spec"][0].dtype))
    return draws.apply(node, aten.mul.Tensor, left, 0.0 if p == 1 else 1 / (1 - p)), kept


RULES: dict[Any, Callable[[Draws, fx.Node], Any]] = {
    aten.rand.default: lambda d, n: _plain(d, n, own.uniform.default),
    aten.rand_like.default: lambda d, n: _plain(d, n, own.uniform.default),
    aten.randn.default: lambda d, n: _plain(d, n, own.normal.default),
    aten.randn_like.default: lambda d, n: _plain(d, n, own.normal.default),
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.native_dropout.default: _dropout,
}


def draws_of(node: fx.Node) -> bool:
    """Whether kernels can make a draw: on the graph's device, of floats up to 32 bits, from torch's own generator."""
    if node.op != "call_function" or node.target not in RULES or node.kwargs.get("generator") is not None:
        return False
    spec = node.meta["spec"]
    if node.target is aten.native_dropout.default:
        spec = spec[0]
        if len(node.args) != 3 or node.args[2] is False:
            return False
    if not isinstance(spec, Spec) or spec.dtype not in SHORT:
        return False
    if _bernoulli is RULES[node.target]:
        limit = node.args[1] if len(node.args) > 1 else node.args[0]
        of_limit = spec_or_none(limit)
        return of_limit is None or of_limit.dtype in random.BITS
    return spec.dtype in random.BITS


def fuse_draws(made: Aten) -> Aten:
    """Move the draws of random numbers into kernels. Returns the same object if no draw can be moved, or if a checkpointed
    part has to repeat its draws (`random_state`)."""
    kept = any(n.target in (random_state.GET, random_state.SET) for n in made.graph.nodes)
    if kept or not any(map(draws_of, made.graph.nodes)):
        return made
    graph = copy_graph(made.graph)
    draws = Draws(graph)
    for node in list(graph.nodes):
        if not draws_of(node):
            continue
        result = RULES[node.target](draws, node)
        if isinstance(result, tuple):
            for user in list(node.users):
                if user.target is operator.getitem:
                    replace_node(user, result[user.args[1]])
            graph.erase_node(node)
        else:
            replace_node(node, result)
    return replace(made, graph=graph)
