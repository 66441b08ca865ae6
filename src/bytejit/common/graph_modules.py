"""Graphs as modules of torch.fx that leave nothing behind."""

from __future__ import annotations

import builtins
import linecache
import operator
import weakref

import torch
from torch import fx
from torch.fx import graph_module as fx_sources


def module_of(graph: fx.Graph, root: torch.nn.Module | None = None) -> fx.GraphModule:
    """A graph that can be called; root: where the modules and attributes that it names are, by default nowhere.

    torch.fx keeps the text of each graph's code for tracebacks, for ever: it goes with the graph's own function.
    """
    keep_signs(graph)
    made = fx.GraphModule(torch.nn.Module() if root is None else root, graph)
    forward = type(made).forward
    file = forward.__code__.co_filename
    for cache in (fx_sources._loader.eval_cache, linecache.cache):
        weakref.finalize(forward, cache.pop, file, None).atexit = False
    return made


def copy_of(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph over the same modules and attributes, in nodes of its own."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    made = module_of(graph, gm)
    made.meta.update(gm.meta)
    return made


def keep_signs(graph: fx.Graph) -> None:
    """Powers of negative numbers become calls of pow(): torch.fx prints `-1 ** x` for (-1) ** x, and that is -(1 ** x)."""
    for n in graph.find_nodes(op="call_function", target=operator.pow):
        if not isinstance(n.args[0], fx.Node) and repr(n.args[0]).startswith("-"):
            n.target = builtins.pow
