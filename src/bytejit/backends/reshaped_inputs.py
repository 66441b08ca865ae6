"""Graphs that give an input another shape or other strides in place (`t_`, `squeeze_`). The graph computes with a view of the
input instead, and torch reshapes the input itself after the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from bytejit.codegen.aten.mutation import RESHAPING
from bytejit.common.graph_info import note_around, report_of
from bytejit.common.graph_modules import module_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.fake.tensor import Fake, make

VIEWS = {name.removeprefix("aten::"): view for name, view in RESHAPING.items()}


@light_dataclass(frozen=True)
class Reshape:
    """A call on an input that reshapes it."""

    input: int
    method: str
    args: tuple
    kwargs: dict


@light_dataclass(frozen=True)
class Views:
    """A graph that reshapes no input. calls: those that do, in order. given: (result, input) of what is returned and is such an
    input itself."""

    graph: fx.GraphModule
    calls: tuple[Reshape, ...]
    given: tuple[tuple[int, int], ...]


def apart_from_reshapes(gm: fx.GraphModule, compile: Callable[[fx.GraphModule], Callable]) -> Callable:
    """The callable that `compile` makes of a graph, which reshapes no input itself."""
    found = with_views(gm)
    if found is None:
        return compile(gm)
    call, calls, given = compile(found.graph), found.calls, dict(found.given)

    def reshaping(*inputs: Any) -> Any:
        made = call(*inputs)
        with torch.no_grad():
            for c in calls:
                getattr(inputs[c.input], c.method)(*c.args, **c.kwargs)
        return tuple([inputs[given[k]] if k in given else x for k, x in enumerate(made)])

    note_around(gm, reshaping, call)
    return reshaping


def with_views(gm: fx.GraphModule) -> Views | None:
    """The graph with views in place of the inputs that it reshapes; None where it reshapes none, or in another way."""
    nodes = list(gm.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    reshaped = {id(n.args[0].meta.get("val")) for n in nodes if n.op == "call_method" and n.target in VIEWS}
    changed = {id(n.meta["val"]): i for i, n in enumerate(inputs) if "look" in n.meta and id(n.meta["val"]) in reshaped}
    wanted = nodes[-1].args[0]
    if not changed or not isinstance(wanted, tuple):
        return None
    if any(inputs[i].meta["val"].requires_grad or inputs[i].meta["autograd"][0] for i in changed.values()):
        return None  # the calls may be steps of autograd's
    graph, calls = fx.Graph(), list[Reshape]()
    env: dict[fx.Node, fx.Node] = {}
    now: dict[int, fx.Node] = {}  # the fake of an input -> its view

    def seen(n: fx.Node) -> fx.Node:
        return now.get(id(n.meta.get("val")), env[n])

    for n in nodes[:-1]:
        at = changed.get(id(n.args[0].meta.get("val"))) if n.args and isinstance(n.args[0], fx.Node) else None
        if at is not None and n.op == "call_method" and n.target in VIEWS:
            calls.append(Reshape(at, n.target, n.args[1:], n.kwargs))
            view = graph.call_method(VIEWS[n.target], (seen(n.args[0]), *n.args[1:]), dict(n.kwargs))
            view.meta.update(n.meta)
            env[n] = now[id(inputs[at].meta["val"])] = view
            continue
        if at is not None and n.op == "call_method" and n.target == "detach_":
            env[n] = seen(n.args[0])  # of what has no gradients: nothing. Torch refuses it of a view
            continue
        made = env[n] = graph.node_copy(n, seen)
        if id(n.meta.get("val")) in changed and n.op == "placeholder":
            made.meta["val"] = make(n.meta["look"], False)
    if not all(explained(n, [c for c in calls if c.input == i]) for i, n in enumerate(inputs) if i in changed.values()):
        return None
    given = tuple((k, changed[id(x.meta["val"])]) for k, x in enumerate(wanted) if is_one_of(x, changed))
    graph.output(tuple(None if is_one_of(x, changed) else fx.node.map_arg(x, seen) for x in wanted))
    module = module_of(graph, gm)
    report_of(gm)  # of both
    module.meta = dict(gm.meta)
    return Views(module, tuple(calls), given)


def is_one_of(x: object, changed: dict[int, int]) -> bool:
    """Whether a result is an input that is reshaped."""
    return isinstance(x, fx.Node) and id(x.meta.get("val")) in changed


def explained(n: fx.Node, calls: list[Reshape]) -> bool:
    """Whether these calls, of plain numbers, make of an input what it is in the end."""
    if any(type(x) not in (int, bool) for c in calls for x in pytree.tree_leaves((c.args, c.kwargs))):
        return False
    fake: Fake = make(n.meta["look"], False)
    try:
        for c in calls:
            getattr(fake, c.method)(*c.args, **c.kwargs)
    except (IndexError, RuntimeError, AssertionError):  # another call, as resize_, changed its shape before; the last: torch 2.11
        return False
    m, end = fake.m, n.meta["val"].m
    return bool((m.shape, m.stride, m.offset) == (end.shape, end.stride, end.offset))
