"""Which values of the forward pass are kept for the backward pass, and which are computed again: a minimum cut over bytes.

Cheap calls may be computed again from what is kept; products, convolutions, attention, reductions, random numbers and calls
through torch may not. In the flow network each value is an edge whose capacity is its bytes, from what exists to what the
backward pass reads. The edges of the minimum cut are the values to keep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import networkx
import torch
from torch import fx

from bytejit.codegen.aten.rewrite import bytes_of
from bytejit.codegen.ops.calls import acts, is_tagged, kind_of, row_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .nodes import base_of, is_view_node

CHEAP = {"cpu": 4, "cuda": 60}  # additions per element; for a dearer call, reading its value is cheaper
FUSED = ("pointwise", "composite", "view", "reduce", "create")
aten = torch.ops.aten


@light_dataclass(frozen=True)
class Cut:
    """A graph that is to be cut. forward: calls before the backward pass; calls: those of the backward pass; weights: inputs
    that live anyway; lent: inputs that the backward pass reads as they are, those of others are copied; shown: values that the
    forward pass returns anyway."""

    forward: frozenset[fx.Node]
    calls: frozenset[fx.Node]
    weights: frozenset[fx.Node]
    lent: frozenset[fx.Node]
    shown: frozenset[fx.Node]

    # ---- what a node is ----------------------------------------------------------------------------------------------
    def cheap(self, n: fx.Node) -> bool:
        """Whether a call may be made again."""
        spec = n.meta.get("spec")
        if n.op != "call_function" or n not in self.forward or not isinstance(spec, Spec) or acts(n) or "checkpointed" in n.meta:
            return False
        if is_view_node(n):
            return True
        if n.target in (aten._to_copy.default, aten.clone.default):  # a weight is cast once
            return not all(base_of(i) in self.weights for i in n.all_input_nodes)
        row = row_of(n)
        if row is None or not is_tagged(n) or row.cost > CHEAP.get(spec.device.type, 1):
            return False
        return not (self.stored(n) and any(not fused(u) for u in n.users if u in self.calls))

    def stored(self, n: fx.Node) -> bool:
        """Whether the forward pass writes a value to memory anyway."""
        return n in self.shown or not fused(n) or any(not fused(u) for u in n.users if u in self.forward)

    def width(self, n: fx.Node) -> float:
        """The cost of keeping a value. Units: bytes. A value that would not be written otherwise counts twice, a copy of an
        input three times."""
        spec = n.meta["spec"]
        if n in self.lent:
            return 1.0 if n in self.weights else 0.5 * bytes_of(spec)
        if n.op == "placeholder":
            return 3.0 * bytes_of(spec)
        if is_view_node(n):
            return math.inf
        return bytes_of(spec) * (1.0 if self.stored(n) else 2.0)

    # ---- the cut -----------------------------------------------------------------------------------------------------
    def recomputed(self, needed: Iterable[fx.Node]) -> set[fx.Node]:
        """The calls that may be made again, without those whose values are kept. needed: what the backward pass reads."""
        needed = {n for n in needed if isinstance(n.meta.get("spec"), Spec)}
        if not any(map(self.cheap, needed)):
            return set()
        region = networkx.DiGraph()
        stack = list(needed)
        while stack:
            n = stack.pop()
            region.add_node(n)
            for i in n.all_input_nodes if self.cheap(n) else ():
                if isinstance(i.meta.get("spec"), (Spec, tuple)):
                    if i not in region:
                        stack.append(i)
                    region.add_edge(i, n)
        found: set[fx.Node] = set()
        for part in networkx.weakly_connected_components(region):
            free = {n for n in part if self.cheap(n)}
            found |= free - self.kept(region.subgraph(part), free, needed) if free else set()
        return found

    def kept(self, region: networkx.DiGraph, free: set[fx.Node], needed: set[fx.Node]) -> set[fx.Node]:
        """The set of fewest bytes from which everything needed can be computed."""
        pipes = networkx.DiGraph()
        for n in region:
            width = self.width(n) if isinstance(n.meta["spec"], Spec) else math.inf
            pipes.add_edge((n, 0), (n, 1), **({} if width == math.inf else {"capacity": width}))
            if n not in free:
                pipes.add_edge("source", (n, 0))
            if n in needed:
                pipes.add_edge((n, 1), "sink")
        for a, b in region.edges:
            pipes.add_edge((a, 1), (b, 0))
        if "source" not in pipes:
            return set()
        _, (near, _) = networkx.minimum_cut(pipes, "source", "sink")
        return {n for n in region if (n, 0) in near and (n, 1) not in near}


def fused(n: fx.Node) -> bool:
    """Whether a call becomes part of one of our kernels."""
    return kind_of(n) in FUSED
