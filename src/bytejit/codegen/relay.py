"""A graph laid out by what its libraries answered: where the first call finds results in other strides than inferred
(`emit_check.Fits`), the graph is built once more with the strides that came, in place of a copy in every call.

Which strides a library answers is known for sure only when it has answered: torch's attention on a GPU chooses one of four
kernels by the operands and the machine, and they lay their results out in different ways."""
from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from .. import registry
from ..spec import Spec
from .emit_check import Fits
from .loops import ExternCall, Plan
from .rewrite import copy_graph, is_static, spec_of


def relaid(aten: Any, plan: Plan, answered: dict[str, tuple]) -> Any | None:
    """`aten` with the strides that externs of its plan (by name) answered; None where no node can take them: one that is an
    output keeps the strides of eager, symbolic sizes stay as they are."""
    calls: dict[str, list[str]] = {}
    every = [s.extern for s in plan.steps if isinstance(s, ExternCall)]
    for step in sorted(every, key=lambda e: int(re.sub(r"\D", "", e.name) or 0)):         # in the graph's order
        calls.setdefault(step.target, []).append(step.name)
    graph = copy_graph(aten.graph)
    nodes: dict[str, list[Any]] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            nodes.setdefault(str(node.target), []).append(node)
    changed = False
    for target, names in calls.items():
        if len(names) != len(nodes.get(target, ())):          # some of them are no calls: which, is not known here
            continue
        for name, node in zip(names, nodes[target]):
            spec = spec_of(node)
            if name not in answered or not is_static(spec) or any(u.op == "output" for u in node.users):
                continue
            node.meta["spec"] = Spec(spec.shape, answered[name], spec.dtype, spec.device)
            changed = True
    return dataclasses.replace(aten, graph=graph) if changed else None


def after_the_first(call: Callable, fits: Fits, again: Callable[[dict[str, tuple]], Callable | None]) -> Callable:
    """`call`, and from the second call on what `again` makes of the strides that the first one met, if anything.
    Cost: 0.1 us a call."""
    state = [call, True]

    def settled(*inputs: Any) -> Any:
        made = state[0](*inputs)
        if state[1]:
            state[1] = False
            if fits.answered and (better := again(dict(fits.answered))) is not None:
                registry.count("externs", "a graph is laid out anew, by the strides that its libraries answer")
                state[0] = better
        return made
    return settled
