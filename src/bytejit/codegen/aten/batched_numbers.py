"""In a graph on a GPU, chains of 0-dim CPU tensors that differ in one input only become one chain over all those inputs.

    a2 = pow(0.9, a)    b2 = pow(0.9, b)   ->   both = pow(0.9, stack([a, b]))    a2 = both[0]    b2 = both[1]

An optimizer counts the steps of each parameter in a tensor of its own, and computes its corrections from that: a dozen numbers
for each of hundreds of parameters. What the GPU reads of them then goes there in one copy. (In a graph on the CPU alone the
kernels that read such a number would compute the row of all of them again.)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import torch
from torch import fx

from bytejit.codegen.ops.calls import acts, is_tagged
from bytejit.common.spec import Spec

from .graph import Aten
from .rewrite import aten, call_before, copy_graph, is_cpu_number, spec_or_none

FEWEST = 4  # inputs: fewer chains stay as they are
COPY = aten._to_copy.default


Lane = tuple[fx.Node, ...]


@dataclass
class Chains:
    """What is known of a graph's numbers. leaves: the inputs that a number is computed from. lane: for an input, the inputs
    that it is combined with, in order, without those that are combined with many. form: which computation of its lane a
    number is. own: the lane of a number."""

    leaves: dict[fx.Node, frozenset[fx.Node]] = field(default_factory=dict)
    lane: dict[fx.Node, Lane] = field(default_factory=dict)
    form: dict[fx.Node, int] = field(default_factory=dict)
    own: dict[fx.Node, Lane] = field(default_factory=dict)
    known: dict[tuple, int] = field(default_factory=dict)

    def number(self, key: tuple) -> int:
        """The number of a computation, the same for the same one."""
        return self.known.setdefault(key, len(self.known))


def batch_numbers(graph: Aten) -> Aten:
    """The graph with its chains of numbers joined; the same graph where there are none."""
    if not _families(_chains(graph.graph)):
        return graph
    new = copy_graph(graph.graph)
    chains = _chains(new)
    for lanes in _families(chains):
        _join(new, chains, lanes)
    return replace(graph, graph=new)


# ---- what there is -------------------------------------------------------------------------------------------------------
def _chains(graph: fx.Graph) -> Chains:
    found = Chains()
    met: dict[fx.Node, set[fx.Node]] = defaultdict(set)
    for node in graph.nodes:
        if node.op == "placeholder" and is_cpu_number(node):
            found.leaves[node] = frozenset((node,))
        elif _computes(node) and all(a in found.leaves for a in node.all_input_nodes):
            leaves = found.leaves[node] = frozenset().union(*(found.leaves[a] for a in node.all_input_nodes))
            for leaf in leaves:
                met[leaf] |= leaves - {leaf}
    _find_lanes(found, met)
    for node, leaves in found.leaves.items():
        lanes = {found.lane[leaf] for leaf in leaves if leaf in found.lane}
        if node.op == "call_function" and len(lanes) == 1:
            (found.own[node],) = lanes
            found.form[node] = found.number(_key(node, found))
    return found


def _find_lanes(found: Chains, met: dict[fx.Node, set[fx.Node]]) -> None:
    """Inputs that meet each other are one lane. What meets many (a learning rate) is shared, and in none."""
    inputs = [n for n in found.leaves if n.op == "placeholder" and len(met[n]) < FEWEST]
    order = {n: i for i, n in enumerate(inputs)}
    for first in inputs:
        if first in found.lane:
            continue
        together, left = {first}, [first]
        while left:
            new = {n for n in met[left.pop()] if n in order} - together
            together |= new
            left += new
        lane = tuple(sorted(together, key=order.__getitem__))
        found.lane.update(dict.fromkeys(lane, lane))


def _families(chains: Chains) -> list[list[Lane]]:
    """The lanes of which the same is computed, where they are many."""
    forms: dict[Lane, set[int]] = defaultdict(set)
    for node, form in chains.form.items():
        forms[chains.own[node]].add(form)
    families: dict[tuple, list[Lane]] = defaultdict(list)
    for lane, made in forms.items():
        families[frozenset(made), *(n.meta["spec"].dtype for n in lane)].append(lane)
    return [lanes for lanes in families.values() if len(lanes) >= FEWEST]


def _computes(node: fx.Node) -> bool:
    """Whether a node is a number computed of numbers, by an operator that treats each element by itself."""
    if node.op != "call_function" or not is_cpu_number(node) or acts(node):
        return False
    if not node.all_input_nodes or not all(map(is_cpu_number, node.all_input_nodes)):
        return False
    if node.target is COPY:
        return set(node.kwargs) <= {"dtype"}
    dtypes = _dtypes(node)
    alike = len(dtypes) == 1 or all(d.is_floating_point for d in dtypes)
    return is_tagged(node) and alike


def _dtypes(node: fx.Node) -> set[torch.dtype]:
    """The dtypes that a node computes with."""
    return {a.meta["spec"].dtype for a in node.all_input_nodes}


def _key(node: fx.Node, chains: Chains) -> tuple:
    """Returns a key of what a number computes, whatever its own input is."""

    def key(value: Any) -> Any:
        if isinstance(value, fx.Node):
            if value in chains.form:
                return "made", chains.form[value]
            lane = chains.own[node]
            return ("own", lane.index(value), value.meta["spec"].dtype) if value in lane else ("shared", value)
        if isinstance(value, (list, tuple)):
            return tuple(map(key, value))
        return type(value), repr(value)

    return node.target, key(node.args), tuple((k, key(v)) for k, v in sorted(node.kwargs.items())), node.meta["spec"].dtype


# ---- joining -------------------------------------------------------------------------------------------------------------
def _join(graph: fx.Graph, chains: Chains, lanes: list[Lane]) -> None:
    """Joins these lanes, which have the same computations, into one chain. Changes `graph`."""
    place = {lane: i for i, lane in enumerate(lanes)}
    members = [n for n in graph.nodes if chains.own.get(n) in place]
    inputs: dict[fx.Node, fx.Node] = {}
    for same in zip(*lanes):
        whole = call_before(graph, members[0], aten.stack.default, (list(same),), _row(same[0], len(same)))
        inputs.update(dict.fromkeys(same, whole))
    rows: dict[int, fx.Node] = {}

    def operand(value: Any) -> Any:
        return rows[chains.form[value]] if value in chains.form else inputs.get(value, value)

    def converted(node: fx.Node, value: Any) -> Any:
        """An operand of the dtype that numbers of several are computed in: of a row and a number the row's would be."""
        given, dtypes = operand(value), _dtypes(node)
        if len(dtypes) == 1:
            return given
        dtype = reduce(torch.promote_types, dtypes)
        return call_before(graph, node, COPY, (given,), replace(given.meta["spec"], dtype=dtype), {"dtype": dtype})

    for node in members:
        form = chains.form[node]
        if form not in rows:
            args, kwargs = (fx.map_arg(given, partial(converted, node)) for given in (node.args, node.kwargs))
            rows[form] = call_before(graph, node, node.target, args, _row(node, len(lanes)), kwargs)
    inside = set(members)
    there: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in members:
        row, at = rows[chains.form[node]], place[chains.own[node]]
        for user in [u for u in node.users if u not in inside]:
            device = _reads_from(user)
            if device is not None and (row, device) not in there:
                moved = replace(row.meta["spec"], device=device)
                there[row, device] = call_before(graph, row.next, COPY, (row,), moved, {"device": device})
            given, spec = (row if device is None else there[row, device]), node.meta["spec"]
            one = call_before(graph, user, aten.select.int, (given, 0, at), replace(spec, device=device or spec.device))
            if user.op == "output":  # what is shown is no view
                one = call_before(graph, user, aten.clone.default, (one,), spec)
            user.replace_input_with(node, one)
    for node in reversed(members):
        graph.erase_node(node)


def _reads_from(user: fx.Node) -> torch.device | None:
    """The GPU that a call reads a number of the CPU on, as it may."""
    spec = spec_or_none(user)
    return spec.device if is_tagged(user) and spec is not None and spec.device.type == "cuda" else None


def _row(node: fx.Node, length: int) -> Spec:
    """The spec of so many numbers like a node's."""
    return replace(node.meta["spec"], shape=(length,), stride=(1,))
