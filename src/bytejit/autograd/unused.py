"""A graph that is called with gradients enabled by oversight: what its calls keep for a backward pass that does not come.

The first calls of a graph are watched, by weak references to their nodes of autograd. Where none went backward, and all but the
last have died, the user is told, once a process. A program that holds its results, to go backward later, is told nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from bytejit.common import logs
from bytejit.common.text import plural
from bytejit.common.where import Where

CALLS_WATCHED = 8  # that are watched


class Watched:
    """The first calls of one graph, as long as no backward pass has run for any of them. where: the graph's line."""

    def __init__(self, where: Where | None) -> None:
        self.where, self.nodes = where, list[weakref.ref]()

    def goes_on(self, node: torch.autograd.graph.Node, saved: Sequence) -> bool:
        """Notes a call and what it saved; after the last one says what that costs. Returns: whether to watch the next."""
        if any(seen() is not None for seen in self.nodes[:-1]):  # the program keeps them: the result of the last call may live
            return False
        self.nodes.append(weakref.ref(node))
        if len(self.nodes) < CALLS_WATCHED:
            return True
        tensors = [t for t in saved if isinstance(t, torch.Tensor)]
        if tensors:
            self.say(len(tensors), sum(t.nbytes for t in tensors))
        return False

    def say(self, values: int, size: int) -> None:
        """Warns once a process."""
        name = f"{self.where.function} ({self.where.short})" if self.where is not None else "a graph"
        logs.warn_once(
            "gradients of nobody",
            f"{name} ran {CALLS_WATCHED} times with gradients enabled, and no result went backward: each call keeps "
            f"{plural(values, 'value')}, {size / 2**20:.2f} MiB, for that; under torch.no_grad() it keeps none",
        )
