"""Hooks of the inputs of a region that get no gradient: see common/spared_hooks.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node

from bytejit.common import spared_hooks

from .asked import runs
from .freed import freed_of
from .leaf_order import ACCUMULATES

MOST_NODES = 1000  # nodes behind an input that are looked through for leaves


def hooked(followed: Sequence[torch.Tensor], behind: Iterable[int], several: bool) -> dict[int, dict[int, Callable]]:
    """Returns place -> table of hooks, for the inputs `behind` which other code made. Torch does not give these tables out
    during a backward pass. several: whether this region has several results; then an input without a table gets one, for
    hooks that the program registers later."""
    for k in behind if several else ():
        if followed[k]._backward_hooks is None:
            spared_hooks.sparing(followed[k])
    return {k: hooks for k in behind if (hooks := followed[k]._backward_hooks)}


def spare(ctx: FunctionCtx, made: Sequence[torch.Tensor | None], unwanted: frozenset[int], inputs: Sequence[int]) -> None:
    """Keeps hooks from being called: those of the inputs that got no gradient, and of the leaves behind these inputs."""
    without = [k for k, i in enumerate(inputs) if made[k] is None and i not in unwanted]
    edges = ctx.next_functions
    roots = [edges[k][0] for k in without if runs(edges[k][0])]
    for hooks in [ctx.hooked[k] for k in without if k in ctx.hooked and edges[k][0] in roots]:
        spared_hooks.spare(hooks)
    for leaf in _leaves(roots):
        if leaf._backward_hooks:
            spared_hooks.spare(leaf._backward_hooks)


def _leaves(roots: Iterable[Node]) -> Iterable[torch.Tensor]:
    """The leaves that nodes lead to, without those behind another region, which finds its own. Leaves that also get a
    gradient from elsewhere are among them: their hooks are called with it."""
    todo, seen = list(roots), set(roots)
    while todo:
        node = todo.pop()
        if node.name() == ACCUMULATES:
            yield node.variable  # type: ignore[attr-defined]
        elif freed_of(node) is None:
            found = {n for n, _ in node.next_functions if n is not None} - seen
            seen |= found
            todo += found
        if len(seen) > MOST_NODES:
            return
