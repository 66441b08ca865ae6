"""Graphs that set a tensor's `data`. The new data become one more result, which is assigned after the call. Where gradients are
computed of what was set, the graph is cut around the assignments, which torch makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import fx

from bytejit.autograd.cut_graph import CutPart, calls_of, cut_at, joined
from bytejit.codegen.aten.outputs import versions_of
from bytejit.common.graph_calls import parts_of, set_data
from bytejit.common.graph_info import INFO, info_of, note_around, report_of
from bytejit.common.graph_modules import module_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.fake.tensor import Fake, make

from .surround import counting, through_torch, tracked_anew


@light_dataclass(frozen=True)
class Without:
    """A graph that sets nothing. sets: the inputs whose data were set; the graph's last results are these data. writes: how many
    writes their versions count. given: (result, input) of what is returned and is such an input itself."""

    graph: fx.GraphModule
    sets: tuple[int, ...]
    writes: tuple[int, ...]
    given: tuple[tuple[int, int], ...]


def apart_from_sets(gm: fx.GraphModule, compile: Callable[[fx.GraphModule], Callable]) -> Callable:
    """The callable that `compile` makes of a graph, which sets no data itself."""
    if not info_of(gm).sets_data:
        return compile(gm)
    if tracks_set(gm) or info_of(gm).needs_grad and tracked_anew(gm):
        return through_torch(gm, "it sets a tensor's data, and requires_grad of an input")
    found = without_sets(gm)
    if isinstance(found, str):
        parts = cut_at_sets(gm)
        if parts is None:
            return through_torch(gm, found)
        return joined(gm, parts, compile)
    call, sets, given, lent = compile(found.graph), found.sets, dict(found.given), info_of(gm).needs_grad

    def assigning(*inputs: Any) -> Any:
        # what a backward pass may compute from is the tensor as it is now
        seen = [x.detach() if lent and i in sets else x for i, x in enumerate(inputs)]
        made = call(*seen)
        results = [inputs[given[k]] if k in given else x for k, x in enumerate(made[: len(made) - len(sets)])]
        for i, x in zip(sets, made[len(results) :]):
            inputs[i].data = x
        return tuple(results)

    setting = counting(assigning, dict(zip(sets, found.writes)))
    note_around(gm, setting, call)
    return setting


def without_sets(gm: fx.GraphModule) -> Without | str:
    """The graph in which each tensor whose data are set is, from then on, what it was set to; or why there is none."""
    nodes = list(gm.graph.nodes)
    if any(sets_within(part) for n in nodes for part in parts_of(n)):
        return "it sets a tensor's data in a part of it that torch runs"
    placeholders = [n for n in nodes if n.op == "placeholder"]
    now: dict[fx.Node, fx.Node] = {}  # tensor -> what has its memory, in the new graph
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for n in nodes[:-1]:
        if n.target is set_data:
            x, value = n.args
            env[x] = now[x] = detached(graph, env[value], x)
            continue
        if any(follows(x, n, info_of(gm).needs_grad) for x in n.all_input_nodes if x in now):
            return "it sets a tensor's data and computes gradients of it"
        made = env[n] = graph.node_copy(n, env.__getitem__)
        if n.op == "placeholder" and "look" in n.meta and n.meta["val"].m is not n.meta["look"]:
            val = n.meta["val"]
            made.meta["val"] = make(n.meta["look"], val.requires_grad if val.is_leaf else n.meta["autograd"][0])
    wanted = nodes[-1].args[0]
    if not isinstance(wanted, tuple) or any(x in now and x.meta["val"].requires_grad for x in wanted if x not in placeholders):
        return "it sets the data of a tensor that it makes"
    sets = [n for n in placeholders if n in now]
    if info_of(gm).needs_grad and any(n.meta["val"].requires_grad for n in sets):
        return "it sets a tensor's data and computes gradients of it"
    graph.output((*fx.node.map_arg(wanted, env.__getitem__), *(env[n] for n in sets)))
    module = module_of(graph, gm)
    report_of(gm)  # of both
    module.meta = {**gm.meta, INFO: replace(info_of(gm), sets_data=False)}
    given = tuple((k, placeholders.index(x)) for k, x in enumerate(wanted) if x in sets)
    writes = tuple(versions_of(n.meta["val"]) for n in sets)
    return Without(module, tuple(map(placeholders.index, sets)), writes, given)


def tracks_set(gm: fx.GraphModule) -> bool:
    """Whether a graph says of a tensor whose data it sets whether that requires gradients."""
    return any(u.target in ("requires_grad_", "detach_") for n in calls_of(gm) if n.target is set_data for u in n.args[0].users)


def sets_within(gm: fx.GraphModule) -> bool:
    """Whether a part of a graph sets data."""
    return any(n.target is set_data or any(map(sets_within, parts_of(n))) for n in gm.graph.nodes)


def detached(graph: fx.Graph, value: fx.Node, x: fx.Node) -> fx.Node:
    """A tensor in the memory of `value`, for `x`."""
    made = graph.call_method("detach", (value,))
    made.meta.update(x.meta, val=make(x.meta["val"].m))
    return made


def follows(x: fx.Node, user: fx.Node, needs_grad: bool) -> bool:
    """Whether autograd may follow what a node computes from a tensor whose data were set."""
    value = user.meta.get("val")
    return bool(x.meta["val"].requires_grad) and (type(value) is not Fake or value.requires_grad or needs_grad)


def cut_at_sets(gm: fx.GraphModule) -> list[CutPart] | None:
    """The parts of a graph between assignments to inputs' data, in order. None where it cannot be cut."""
    sets = [n for n in calls_of(gm) if n.target is set_data]
    if any(n.args[0].op != "placeholder" for n in sets) or (parts := cut_at(gm, sets, changing=True)) is None:
        return None
    made = {n.name: n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), Fake)}
    looks = {n.args[0].name: n.args[0].meta["look"] for n in sets}
    for part in parts:
        for n in part.graph.graph.nodes:
            if n.op == "placeholder" and n.name in looks:
                n.meta |= {"look": looks[n.name], "val": make(looks[n.name], n.meta["val"].requires_grad)}
        looks |= {n.args[0].name: made[n.args[1].name].m for n in calls_of(part.graph) if n.target is set_data}
        part.graph.meta[INFO] = replace(info_of(part.graph), sets_data=False)
    return parts
