"""Graphs that return views which are conjugated or negated when they are read, or pieces of a tensor that has gradients.

No kernel makes such a view, and autograd refuses writes into one of the pieces that `split`, `chunk` and `unbind` return
together. The graph returns what they view, and torch makes the views behind it: they share memory with what is written, and
their bits, strides, gradients and refusals are eager's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from bytejit.autograd.cut_graph import cut_at, joined
from bytejit.codegen.aten.mutation import RESHAPING
from bytejit.common.gradients import CREATION, creation, refused
from bytejit.common.graph_calls import FLIPS, called_name
from bytejit.common.graph_info import INFO, info_of, note_around, report_of
from bytejit.common.graph_modules import module_of
from bytejit.fake.tensor import Fake, was_written

from .composed_parts import apart_from_composed
from .reshaped_inputs import apart_from_reshapes
from .seeds import apart_from_seeds
from .set_data import apart_from_sets
from .surround import tracked_anew

_RESHAPES = frozenset(name.removeprefix("aten::") for name in (*RESHAPING, "aten::resize_", "aten::set_"))


def in_plain_parts(gm: fx.GraphModule, compile: Callable[[fx.GraphModule], Callable]) -> Callable:
    """The callable that `compile` makes of a graph, which sets no seed and no data, reshapes no input and returns no
    flipped view itself."""
    for apart in (apart_from_flips, apart_from_reshapes, apart_from_sets, apart_from_composed):
        compile = partial(apart, compile=compile)
    return apart_from_seeds(gm, compile)


def apart_from_flips(gm: fx.GraphModule, compile: Callable[[fx.GraphModule], Callable]) -> Callable:
    """The callable that `compile` makes of a graph without the flipped views among its results."""
    wanted = list(gm.graph.nodes)[-1].args[0]
    info = info_of(gm)
    if not isinstance(wanted, tuple) or info.inference is not None or info.grads_off and not info.needs_grad:
        return compile(gm)
    if tracked_anew(gm):  # views made behind the graph would be of the input as it is left
        return compile(gm)
    chains = {k: chain for k, n in enumerate(wanted) if isinstance(n, fx.Node) and (chain := chain_of(n))}
    if not chains or any(called_name(n) in _RESHAPES for n in gm.graph.nodes):
        return compile(gm)
    views = {n for chain in chains.values() for n in chain}
    if info.needs_grad and any(used_besides(wanted[k], views) for k in chains):
        # gradients of what is computed from the view flow through it, and its hooks see them
        if (cut := cut_at(gm, [n for n in gm.graph.nodes if n in views], False)) is not None:
            return joined(gm, cut, compile)
    call = compile(without(gm, wanted, chains))
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    given = {k: placeholders.index(chain[0].args[0]) for k, chain in chains.items() if chain[0].args[0] in placeholders}
    without_gradients = frozenset(filter(is_without_gradients, views))

    def viewing(*inputs: Any) -> Any:
        found = list(call(*inputs))
        made: dict[fx.Node, Any] = {}
        mode = torch.is_grad_enabled()  # as the graph leaves it
        try:
            for k, chain in chains.items():
                x = inputs[given[k]] if k in given else found[k]
                for n in chain:
                    torch._C._set_grad_enabled(n not in without_gradients)
                    x = made[n] = made[n] if n in made else step(n, x)
                found[k] = x
        finally:
            torch._C._set_grad_enabled(mode)
        return tuple(found)

    note_around(gm, viewing, call)
    return viewing


def used_besides(n: fx.Node, views: set[fx.Node]) -> bool:
    """Whether other calls than those use a view that has gradients."""
    return n.meta["val"].requires_grad and any(user.op != "output" and user not in views for user in n.users)


def without(gm: fx.GraphModule, wanted: tuple, chains: dict[int, list[fx.Node]]) -> fx.GraphModule:
    """The graph that returns what the chains begin with; nothing where that is an input."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for n in list(gm.graph.nodes)[:-1]:
        env[n] = graph.node_copy(n, env.__getitem__)
    bases = [chains[k][0].args[0] if k in chains else n for k, n in enumerate(wanted)]
    shown = [None if k in chains and n.op == "placeholder" else n for k, n in enumerate(bases)]
    graph.output(tuple(env[n] if isinstance(n, fx.Node) else n for n in shown))
    graph.eliminate_dead_code(lambda n: n.op == "placeholder" or not is_step(n))
    module = module_of(graph, gm)
    report_of(gm)  # of both
    written = [n for n in graph.nodes if n.op == "placeholder" and type(n.meta["val"]) is Fake and was_written(n.meta["val"])]
    values = [n.meta.get("val") for n in (*shown, *written) if isinstance(n, fx.Node)]
    needs_grad = info_of(gm).needs_grad and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
    module.meta = {**gm.meta, INFO: replace(info_of(gm), needs_grad=needs_grad)}
    return module


def chain_of(n: fx.Node) -> list[fx.Node]:
    """The views from the first flip, or the first call that makes pieces, to a result; [] where there is none, or where a view
    is taken with computed sizes."""
    chain: list[fx.Node] = []
    first, piece = 0, is_piece(n.meta.get("val"))
    while is_step(n):
        chain.insert(0, n)
        if called_name(n) == "_neg_view" or called_name(n) in FLIPS and n.args[0].meta["val"].is_complex():
            first = len(chain)
        if piece and type(n.meta["val"]) is not Fake:
            first = len(chain)
        n = n.args[0]
    return chain[len(chain) - first :]


def is_without_gradients(n: fx.Node) -> bool:
    """Whether the program makes a view, or several at once, with gradients off."""
    value = n.meta["val"]
    return any(creation(v) == CREATION.NO_GRAD_MODE.name for v in pieces(value) or (value,))


def is_piece(value: object) -> bool:
    """Whether a result is one of several views that were made together, into which autograd refuses writes."""
    if type(value) is not Fake or not value.requires_grad or not value._is_view() or refused(value):
        return False
    return torch._C._autograd._get_creation_meta(value) == torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE


def is_step(n: fx.Node) -> bool:
    """Whether a node makes a view of its first argument, or several, by constants, or takes one of several."""
    base = n.args[0] if n.args else None
    if n.op == "placeholder" or not isinstance(base, fx.Node) or n.all_input_nodes != [base]:
        return False
    value, of = n.meta.get("val"), base.meta.get("val")
    if n.target is operator.getitem and pieces(of):
        return True
    views = pieces(value) or ((value,) if type(value) is Fake else ())
    return type(of) is Fake and bool(views) and all(v is not of and v.m.store is of.m.store for v in views)


def pieces(value: object) -> tuple:
    """The tensors that a call returned together, if it did."""
    return tuple(value) if isinstance(value, (tuple, list)) and all(type(v) is Fake for v in value) else ()


def step(n: fx.Node, x: torch.Tensor) -> torch.Tensor:
    """A view, made of the tensor that is there at the call, which may be an argument more than once (`x.view_as(x)`)."""
    base = n.args[0]
    args, kwargs = [x if a is base else a for a in n.args], {k: x if a is base else a for k, a in n.kwargs.items()}
    return getattr(x, n.target)(*args[1:], **kwargs) if n.op == "call_method" else n.target(*args, **kwargs)
