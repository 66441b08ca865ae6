"""Graphs with tensors that hold other tensors (DTensor): torch runs the calls on them, and what is before and behind them is
compiled."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from bytejit.autograd.cut_graph import ByTorch, CannotNormalise, belongs_to, calls_of, cut_around, has_passes, joined
from bytejit.common import registry
from bytejit.common.graph_info import info_of, report_of
from bytejit.fake.composed import composed_in

WHY = "operations on tensors that hold others"
MOST_GROUPS = 100  # a pair for each block of a model with sharded layers


def meets_composed(n: fx.Node) -> bool:
    """Whether a call takes such a tensor, or returns one."""
    values = (n.meta.get("val"), *(i.meta.get("val") for i in n.all_input_nodes))
    return any(True for _ in composed_in(values))


def apart_from_composed(gm: fx.GraphModule, compile: Callable[[fx.GraphModule], Callable]) -> Callable:
    """The callable that `compile` makes of the parts of a graph without such tensors."""
    calls = [n for n in calls_of(gm) if meets_composed(belongs_to(n) or n) or meets_composed(n)]
    if not calls and not any(meets_composed(n) for n in gm.graph.nodes if n.op == "placeholder"):
        return compile(gm)
    registry.count("fallbacks", f"{WHY} run through torch")
    try:
        if not calls or len(calls) == len(calls_of(gm)):
            raise CannotNormalise("there is nothing else in the graph")
        if info_of(gm).settings.options.freeze:
            raise CannotNormalise("and its weights are to be constants")
        if has_passes(gm):
            raise CannotNormalise("and a backward pass goes through them")
        parts = cut_around(gm, ByTorch(WHY, calls), MOST_GROUPS)
    except CannotNormalise as e:
        report_of(gm).through_torch = f"{WHY}: {e}"
        return gm.forward
    return joined(gm, parts, compile)
