"""A graph with the strides that its libraries returned. Where the first call finds results in other strides than inferred
(`emit.check.LibraryResults`), the graph is built again with those strides, which saves a copy in every call.

Which strides a library returns is known for sure only after a call: torch's attention on a GPU chooses one of four
kernels by the operands and the machine, and they lay their results out in different ways."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from torch import fx

from bytejit.codegen.aten.rewrite import aten as aten_ops
from bytejit.codegen.aten.rewrite import copy_graph, is_static, order_of, spec_of, spec_or_none
from bytejit.codegen.loops.plan import ExternCall, Plan
from bytejit.codegen.ops.calls import kind_of
from bytejit.common.spec import Spec


def relaid(aten: Any, plan: Plan, returned: dict[str, tuple]) -> Any | None:
    """`aten` with the strides that externs of its plan (by name) returned; None where no node can take them: one that is an
    output keeps the strides of eager, symbolic sizes stay as they are."""
    calls: dict[str, list[str]] = {}
    every = [s.extern for s in plan.steps if isinstance(s, ExternCall)]
    for step in sorted(every, key=lambda e: int(re.sub(r"\D", "", e.name) or 0)):  # in the graph's order
        calls.setdefault(step.target, []).append(step.name)
    graph = copy_graph(aten.graph)
    found: dict[Any, tuple] = {}
    nodes: dict[str, list[Any]] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            nodes.setdefault(str(node.target), []).append(node)
    for target, names in calls.items():
        if len(names) != len(nodes.get(target, ())):  # some of them are no calls, and it is not known which
            continue
        found.update({node: returned[name] for name, node in zip(names, nodes[target]) if name in returned})
    return dataclasses.replace(aten, graph=graph) if restride(found) else None


def foreseen(aten: Any) -> Any:
    """`aten` with the strides that its libraries will return where that is known to differ from eager's (meta "returns"): an
    attention on a GPU is handed another mask than the program's, and with it another of torch's kernels serves it."""
    known = {node.name: node.meta["returns"] for node in aten.graph.nodes if "returns" in node.meta}
    if not known:
        return aten
    graph = copy_graph(aten.graph)
    restride({node: known[node.name] for node in graph.nodes if node.name in known})
    return dataclasses.replace(aten, graph=graph)


def restride(strides: dict[fx.Node, tuple]) -> bool:
    """Set the strides that nodes will return, and drop copies behind them that would not change the layout. Returns: whether
    anything changed."""
    changed = False
    for node, stride in strides.items():
        if is_static(spec_or_none(node)) and not _shown(node):
            changed = True
            _with_stride(node, stride)
    return changed


def _with_stride(node: fx.Node, stride: tuple) -> None:
    spec = spec_of(node)
    node.meta["spec"] = Spec(spec.shape, tuple(stride), spec.dtype, spec.device)
    for user in list(node.users):
        order = order_of(user, len(stride))
        if order is not None and not _shown(user):
            _with_stride(user, tuple(stride[d] for d in order))
        elif user.target is aten_ops.clone.default and not _shown(user) and spec_of(user) == node.meta["spec"]:
            user.replace_all_uses_with(node, propagate_meta=False)
            user.graph.erase_node(user)


def _shown(node: fx.Node) -> bool:
    """Whether the user sees a value's strides, as an output or in a view of it."""
    for user in node.users:
        if user.op == "output" or kind_of(user) == "view" and _shown(user):
            return True
    return False
