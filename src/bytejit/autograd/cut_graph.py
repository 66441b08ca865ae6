"""Cuts a traced graph into parts, each a node of autograd of its own.

Where an output that needs a gradient is computed from another such output: the program may run a backward pass from one to the
other, register a hook on it, or retain its gradient. The first part ends with the output that others are computed from.

Where a write into an input is a step of autograd's: the input, its views and what it is a view of get another history. torch
makes the writes, and what is before and behind them is compiled. So it is of an embedding whose gradient is sparse.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

import torch
from torch import fx

from bytejit.codegen.aten.mutation import CannotNormalise
from bytejit.codegen.aten.outputs import versions_of
from bytejit.common.ambient import preserved
from bytejit.common.gradients import gradients, leaf_gradients, refused
from bytejit.common.graph_info import INFO, info_of, report_of
from bytejit.common.graph_modules import module_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.shapes import symbols

SET_GRAD = torch._C._set_grad_enabled
AUTOCAST = (torch.set_autocast_enabled, torch.set_autocast_dtype, torch.set_autocast_cache_enabled)
PASSES = (gradients, leaf_gradients)
MOST_GROUPS = 8  # so many groups of writes are cut out of a graph, which makes as many parts and one more


class Dependent(CannotNormalise):
    """An output that needs a gradient is computed from another. node: where that one is made."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__("an output that needs a gradient is computed from another")
        self.node = node


class ByTorch(CannotNormalise):
    """Calls that are to be steps of torch's autograd. new: inputs that they write, and that need no gradient before."""

    def __init__(self, why: str, calls: Sequence[fx.Node], new: Sequence[fx.Node] = ()) -> None:
        super().__init__(why)
        self.calls, self.new = calls, new


@light_dataclass(frozen=True)
class CutPart:
    """One part. graph: its module; inputs: which values of the whole graph it takes, by name; plain: torch runs it."""

    graph: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    plain: bool = False


def cut_after(gm: fx.GraphModule, node: fx.Node) -> list[CutPart]:
    """The parts of a graph, in order. Raises: CannotNormalise where ambient state is set in it."""
    calls = calls_of(gm)
    groups = grouped(calls, node)
    if not groups[-1]:
        raise Dependent(node)
    return parts_between(gm, groups, [g for g in groups if g[0].target in PASSES], str(Dependent(node)))


def cut_around(gm: fx.GraphModule, found: ByTorch, most: int = MOST_GROUPS) -> list[CutPart]:
    """Cuts the graph into parts, in order: torch runs the calls of `found`, the others are compiled. Raises: CannotNormalise
    where ambient state is set in the graph."""
    by_torch = set(found.calls)
    if any(n.target in AUTOCAST for n in calls_of(gm)):  # torch would set it for what comes after its part
        raise CannotNormalise(str(found))
    groups: list[list[fx.Node]] = []
    of: dict[fx.Node, list[fx.Node]] = {}
    for n in calls_of(gm):
        if (beside := of.get(belongs_to(n))) is None:
            if not groups or (groups[-1][0] in by_torch) is not (n in by_torch):
                groups.append([])
            beside = groups[-1]
        of[n] = beside
        beside.append(n)
    plain = [g for g in groups if g[0] in by_torch]
    most = most if not found.new else 1  # between two writes it is not known whether a new one needs a gradient
    if len(plain) > most:
        raise CannotNormalise(str(found))
    return parts_between(gm, groups, plain, str(found), found)


def cut_at(gm: fx.GraphModule, calls: Sequence[fx.Node], changing: bool) -> list[CutPart] | None:
    """Cuts the graph into parts, in order: torch runs `calls`, the others are compiled. changing: the calls change tensors.
    None where autograd follows a value from one part to another, and a backward pass runs within the graph or may read what a
    call has changed, or a part writes the value: torch looks at versions of what it has saved."""
    if info_of(gm).settings.options.freeze:
        return None
    try:
        parts = cut_around(gm, ByTorch("calls that torch makes", calls))
    except CannotNormalise:
        return None
    nodes = {n.name: n for n in gm.graph.nodes}
    crossing = [nodes[name] for part in parts[:-1] for name in part.outputs]
    tensors = [n for n in crossing if isinstance(n.meta.get("val"), torch.Tensor)]
    followed = [n.meta["val"] for n in tensors if n.meta["val"].requires_grad and not all(user in calls for user in n.users)]
    apart = changing or has_passes(gm) or any(map(versions_of, followed))
    return None if followed and apart else parts


def calls_of(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes that do something."""
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


def has_passes(gm: fx.GraphModule) -> bool:
    """Whether a backward pass runs within the graph."""
    return any(n.target in PASSES for n in gm.graph.nodes)


def belongs_to(n: fx.Node) -> fx.Node | None:
    """The call that a node takes one of several results of: it stays beside it."""
    taken = n.target is operator.getitem and not isinstance(n.args[0].meta.get("val"), torch.Tensor)
    return n.args[0] if taken else None


def parts_between(
    gm: fx.GraphModule, groups: list[list[fx.Node]], plain: list[list[fx.Node]], why: str, found: ByTorch | None = None
) -> list[CutPart]:
    """The groups of calls as parts, in order. plain: the groups that torch runs. why: for messages. Raises: CannotNormalise."""
    by_torch = set(found.calls) if found is not None else set()
    for n in (n for g in groups for n in g):
        if n.op != "call_method" and n.target is not SET_GRAD and "val" not in n.meta and n not in by_torch:
            raise CannotNormalise(f"{why}, where a state is set")
    wanted: list[fx.Node] = []
    fx.node.map_arg(list(gm.graph.nodes)[-1].args[0], wanted.append)
    parts, mode, outside = [], info_of(gm).grad_at_start, seen_outside(gm)
    grown: frozenset[fx.Node] = frozenset()
    for k, group in enumerate(groups):
        later = [i for g in groups[k + 1 :] for n in g for i in n.all_input_nodes]
        outputs = dict.fromkeys(n for n in (*wanted, *later) if n in group)
        casts = [n for g in groups[:k] for n in g if n.target in AUTOCAST]
        if any(n.target is not SET_GRAD for n in group):
            part = part_of(gm, [*casts, *group], list(outputs), mode, grown, outside)
            parts.append(replace(part, plain=True) if any(group is g for g in plain) else part)
        mode = next((n.args[0] for n in reversed(group) if n.target is SET_GRAD), mode)
        if found is not None and not by_torch.isdisjoint(group):
            grown = frozenset(found.new)
    return parts


def seen_outside(gm: fx.GraphModule) -> set[fx.Node]:
    """The values that the program gets, or that a backward pass in the graph goes from or to."""
    shown = list(gm.graph.nodes)[-1].args[0]
    inner = info_of(gm).inner
    found = {n for i, n in enumerate(shown if isinstance(shown, (tuple, list)) else [shown]) if i not in inner}
    return found | {i for n in gm.graph.nodes if n.target in PASSES for i in n.all_input_nodes}


def grouped(calls: Sequence[fx.Node], node: fx.Node) -> list[list[fx.Node]]:
    """The calls up to the node, and those behind it. A backward pass behind the node would stop at it, because the node's
    history belongs to another part. So the graph is cut around such passes, and torch runs each of them over all that is
    before. Raises: CannotNormalise."""
    at = calls.index(node) + 1
    runs = [n for n in calls[at:] if n.target in PASSES]
    if not all(map(retained, runs)):  # what a pass frees, torch frees by operation: a later pass may be right or wrong
        said = "and a backward pass frees its history, or makes one of its own"
        raise CannotNormalise(f"an output that needs a gradient is computed from another, {said}")
    groups: list[list[fx.Node]] = [[]]
    of: dict[fx.Node, list[fx.Node]] = {}
    for n in calls:
        if n in runs:
            groups += [[], []]
        of[n] = of.get(belongs_to(n), groups[-2] if n in runs else groups[-1])
        of[n].append(n)
        if n is node and not runs:
            groups.append([])
    return [g for g in groups[:-1] if g] + [g for g in groups[-1:] if g or not runs]


def retained(run: fx.Node) -> bool:
    """Whether a backward pass leaves the history as it is, and makes none of its own."""
    return run.args[3] is True and not (run.target is gradients and run.args[4])


def numbers_for(calls: Sequence[fx.Node]) -> list[fx.Node]:
    """The calls on numbers alone, of other parts, that these calls need: they are made again. In order."""
    own, found = set(calls), dict[fx.Node, None]()
    stack = list(calls)
    while stack:
        for n in stack.pop().all_input_nodes:
            if n.op != "placeholder" and n not in own and n not in found and symbols.is_symbolic(n.meta.get("val")):
                found[n] = None
                stack.append(n)
    return [n for n in calls[0].graph.nodes if n in found] if found else []


def part_of(
    gm: fx.GraphModule,
    calls: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    mode: bool,
    grown: Set[fx.Node],
    outside: Set[fx.Node],
) -> CutPart:
    """The calls as a graph of their own. mode: whether gradients are on at its start. grown: inputs that now need a gradient.
    outside: values that not only other parts see."""
    calls = [*numbers_for(calls), *calls]
    own, graph, env = set(calls), fx.Graph(), {}
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    numbers = [n for n in placeholders if symbols.is_symbolic(n.meta.get("val"))]  # shapes may have any of them
    taken = dict.fromkeys([*numbers, *(i for n in calls for i in n.all_input_nodes if i not in own)])
    for n in taken:
        made = env[n] = graph.placeholder(n.name)
        made.meta.update(n.meta)
        if n.op != "placeholder":
            if not isinstance(n.meta.get("val"), torch.Tensor):
                raise CannotNormalise("an output that needs a gradient is computed from another, and no tensor between them")
            if n.meta["val"].requires_grad and refused(n.meta["val"]):
                raise CannotNormalise("a view that autograd refuses to use is taken from one part to another")
            made.meta["autograd"] = (n.meta["val"].requires_grad, n.meta["val"].is_leaf)
        if n in grown:
            made.meta["autograd"] = (True, False)
    for n in calls:
        env[n] = graph.node_copy(n, env.__getitem__)
    graph.output(tuple(env[n] for n in outputs))
    module = module_of(graph, gm)
    weights = frozenset(i for i, n in enumerate(taken) if n in placeholders and placeholders.index(n) in info_of(gm).weights)
    module.meta[INFO] = replace(
        info_of(gm),
        # of inputs too: a part that only writes into what another part made has no output, and its write is autograd's
        needs_grad=any(n.meta["val"].requires_grad for n in (*outputs, *taken) if isinstance(n.meta.get("val"), torch.Tensor)),
        grad_at_start=mode,
        weights=weights,
        new_grads=(),
        inner=frozenset(i for i, n in enumerate(outputs) if n not in outside),
    )
    return CutPart(module, tuple(n.name for n in taken), tuple(n.name for n in outputs))


def named_for(prefix: str, stages: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The stages of one graph of several. prefix: says which graph."""
    return [(prefix + name, text, suffix) for name, text, suffix in stages]


def run_by_torch(part: CutPart) -> Callable:
    """A part that torch runs, with gradients on or off as they are where it begins."""
    mode = info_of(part.graph).grad_at_start

    def call(*inputs: object) -> object:
        before = torch.is_grad_enabled()
        try:
            SET_GRAD(mode)
            return part.graph.forward(*inputs)
        finally:
            SET_GRAD(before)

    return call


def joined(gm: fx.GraphModule, parts: Sequence[CutPart], compile: Callable[[fx.GraphModule], Callable]) -> Callable:
    """The whole graph's callable: torch runs the plain parts, `compile` makes those of the others. Its report has what the parts'
    reports tell, now or later."""
    made = [run_by_torch(part) if part.plain else compile(part.graph) for part in parts]
    report = report_of(gm)
    for i, part in enumerate(parts):
        own, name = report_of(part.graph), f"part{i}_"
        report.saved += own.saved
        report.stages += named_for(name, own.stages)
        own.later = lambda stages, name=name: report.tell_later(named_for(name, stages))
    names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    wanted = list(gm.graph.nodes)[-1].args[0]
    single = not isinstance(wanted, (tuple, list))
    casts = any(n.target in AUTOCAST for n in gm.graph.nodes)

    def restoring(*inputs: object) -> object:
        return preserved(call, *inputs)  # a part that torch runs leaves autocast as it is at the part's end

    def call(*inputs: object) -> object:
        known = dict(zip(names, inputs))
        for part, run in zip(parts, made, strict=True):
            known.update(zip(part.outputs, run(*[known[n] for n in part.inputs])))
        found = tuple(known[n.name] if isinstance(n, fx.Node) else n for n in ((wanted,) if single else wanted))
        return found[0] if single else found

    return restoring if casts else call
