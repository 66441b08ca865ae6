"""Graphs as modules of torch.fx that leave nothing behind."""

from __future__ import annotations

import linecache
import weakref

import torch
from torch import fx
from torch.fx import graph_module as fx_sources


def module_of(graph: fx.Graph, root: torch.nn.Module | None = None) -> fx.GraphModule:
    """A graph that can be called; root: where the modules and attributes that it names are, by default nowhere.

    torch.fx keeps the text of each graph's code for tracebacks, for ever: it goes with the graph's own function.
    """
    made = fx.GraphModule(torch.nn.Module() if root is None else root, graph)
    forward = type(made).forward
    file = forward.__code__.co_filename
    for cache in (fx_sources._loader.eval_cache, linecache.cache):
        weakref.finalize(forward, cache.pop, file, None).atexit = False
    return made
