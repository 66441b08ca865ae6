"""The parts of a graph on a GPU that run on the CPU before it (`torch.cos(x).cuda()`) and after it (`y.cpu().exp()`) become
graphs of their own: fused kernels in C++ instead of a library call for each op. What the CPU computes in between, from results
of the GPU and for it, stays in the graph and runs through torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from bytejit.codegen.ops.calls import is_view
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .graph import Aten, Input, Mutation, Out, OutputValue, base_of, positions, renumbered
from .recorder import SEEDED
from .rewrite import copy_graph, drop_dead, elements_of, spec_or_none

LEAST_POINTS = 4096  # elements of the largest tensor computed: fewer are not worth kernels
LEAST_OPS = 2  # one op is torch's own kernel
MANY_OPS = 6  # so many are worth kernels whatever they compute: each is 2 us of torch's


@light_dataclass(frozen=True)
class Before:
    """A graph without what the CPU computes from inputs alone. before: computes a tuple of values on the CPU, which `first`
    takes after its own inputs. sent: the device and dtype of each in `first`; None if it stays on the CPU. writes: computes
    the values that are written into inputs on the CPU. taken: the inputs of `before` and `writes`. unread: those of them
    that `first` does not use.
    """

    first: Aten
    before: Aten | None
    writes: Aten | None
    sent: tuple[tuple[torch.device, torch.dtype] | None, ...]
    taken: tuple[int, ...]
    unread: frozenset[int]

    def joined(self, first: Callable, before: Callable | None, writes: Callable | None) -> Callable:
        """The callable of the whole graph, from those of its parts. Writes come last, so an error before them leaves everything
        as it was."""
        taken, unread, sent = self.taken, self.unread, self.sent

        def call(*inputs: Any) -> Any:
            given = [inputs[i] for i in taken]
            made = before(*given) if before is not None else ()
            there = [t if to is None else t.to(*to, non_blocking=True) for t, to in zip(made, sent)]
            read = list(inputs)
            for i in unread:
                read[i] = None
            result = first(*read, *there)
            if writes is not None:
                writes(*given)
            return result

        return call


def cpu_part(aten: Aten) -> Before | None:
    """A graph and what the CPU computes before it; None where there is nothing that is worth it."""
    nodes = list(aten.graph.nodes)
    ends = nodes[-1].args[0]
    inside = _inside(nodes, _only_written(aten, nodes))
    sent = {n: user for n in inside if (user := _copy_of(n)) is not None}
    made = _exported(nodes, inside)
    late = [m for m in aten.mutations if ends[m.position] in inside]
    if aten.constants or not made and not late or not _worth(inside):
        return None
    inputs = [n for n in nodes if n.op == "placeholder"]
    written = [inputs[m.input] for m in late]
    taken = _taken(inputs, inside, written)
    given = [inputs[i] for i in taken]
    before = writes = None
    if made:
        before = Aten(_part(nodes, given, inside, made), tuple(map(OutputValue, range(len(made)))))
    if late:
        part = _part(nodes, given, inside, [ends[m.position] for m in late])
        writes = Aten(part, (), tuple(Mutation(given.index(x), k) for k, x in enumerate(written)))
    first = _first(aten, inside, [sent.get(n, n) for n in made], late)
    to = tuple((s.device, s.dtype) if n in sent and (s := spec_or_none(sent[n])) is not None else None for n in made)
    return Before(first, before, writes, to, taken, _unread(first, inputs, taken))


def _part(nodes: list[fx.Node], inputs: list[fx.Node], inside: set[fx.Node], ends: list[fx.Node]) -> fx.Graph:
    """Makes the graph of these inputs that computes `ends` by the calls inside."""
    part = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for n in (*inputs, *(n for n in nodes if n in inside)):
        env[n] = part.node_copy(n, env.__getitem__)
    part.output(tuple(env[n] for n in ends))
    drop_dead(part)
    return part


def _first(aten: Aten, inside: set[fx.Node], made: list[fx.Node], late: list[Mutation]) -> Aten:
    """The graph without the calls inside and what is only written of them; `made` are its inputs, after the others."""
    dropped = {m.position for m in late}
    kept = [p for p in range(len(list(aten.graph.nodes)[-1].args[0])) if p not in dropped]
    new = copy_graph(aten.graph)
    same = dict(zip(aten.graph.nodes, new.nodes))
    end = next(n for n in reversed(new.nodes) if n.op == "output")
    end.args = (tuple(end.args[0][p] for p in kept),)
    last = [n for n in new.nodes if n.op == "placeholder"][-1]
    for i, old in enumerate(made):
        with new.inserting_after(last):
            last = new.placeholder(f"from_cpu_{i}")
        node = same[old]
        last.meta.update(node.meta)
        last.meta["fresh"] = True
        node.replace_all_uses_with(last, propagate_meta=False)
    for old in reversed([n for n in aten.graph.nodes if n in inside or n in made]):
        new.erase_node(same[old])
    mutations = tuple(replace(m, position=kept.index(m.position)) for m in aten.mutations if m.position not in dropped)
    return replace(aten, graph=new, outputs=tuple(renumbered(o, kept.index) for o in aten.outputs), mutations=mutations)


def _only_written(aten: Aten, nodes: list[fx.Node]) -> set[fx.Node]:
    """Returns the nodes that the graph returns only to write them into inputs on the CPU."""
    ends, inputs = nodes[-1].args[0], [n for n in nodes if n.op == "placeholder"]
    written = {m.position for m in aten.mutations if _on_cpu(inputs[m.input])}
    written -= {p for o in aten.outputs for p in positions(o)}
    others = {n for p, n in enumerate(ends) if p not in written}
    return {ends[p] for p in written if isinstance(ends[p], fx.Node) and ends[p] not in others}


def _copy_of(n: fx.Node) -> fx.Node | None:
    """The call that copies a value to a GPU, if it is the only reader of the value; else None."""
    user = next(iter(n.users)) if len(n.users) == 1 else None
    if user is None or user.target is not torch.ops.aten._to_copy.default or _on_cpu(user) or spec_or_none(user) is None:
        return None
    return user if set(user.kwargs) <= {"dtype", "device", "non_blocking"} else None


def _unread(first: Aten, inputs: list[fx.Node], taken: tuple[int, ...]) -> frozenset[int]:
    """The tensors on the CPU among the inputs taken that a graph neither reads nor writes nor returns."""
    shown = {m.input for m in first.mutations} | {b.index for o in first.outputs if isinstance(b := base_of(o), Input)}
    own = [n for n in first.graph.nodes if n.op == "placeholder"]
    return frozenset(i for i in taken if i not in shown and not own[i].users and spec_or_none(inputs[i]) is not None)


@light_dataclass(frozen=True)
class CpuRest:
    """A graph without what the CPU computes after it. first: returns the outputs that it makes, then what `after` takes beside
    the inputs at `taken`: so many as `given`; order: for each output of the whole whether `after` makes it, and its position
    there."""

    first: Aten
    after: Aten
    taken: tuple[int, ...]
    given: int
    order: tuple[tuple[bool, int], ...]

    def joined(self, first: Callable, after: Callable, single: bool) -> Callable:
        """The whole, from the callables of both."""

        def call(*inputs: Any) -> Any:
            made = first(*inputs)
            late = after(*[inputs[i] for i in self.taken], *made[len(made) - self.given :])
            outputs = tuple((late if is_late else made)[i] for is_late, i in self.order)
            return outputs[0] if single else outputs

        return call


def cpu_rest(aten: Aten) -> CpuRest | None:
    """A graph and what the CPU computes from its results; None where that is not worth it. Graphs that write inputs have none:
    what raises after the writes could not be undone."""
    nodes = list(aten.graph.nodes)
    after = set() if aten.mutations or aten.constants else _after(nodes)
    if not _worth(after):
        return None
    inputs, flat = [n for n in nodes if n.op == "placeholder"], nodes[-1].args[0]
    given = [n for n in nodes if n.op == "call_function" and n not in after and any(u in after for u in n.users)]
    taken = _taken(inputs, after)
    part, env = fx.Graph(), {}
    for i in taken:
        env[inputs[i]] = part.node_copy(inputs[i])
    for i, n in enumerate(given):
        env[n] = part.placeholder(f"from_gpu_{i}")
        env[n].meta.update(n.meta)
    for n in (n for n in nodes if n in after):
        env[n] = part.node_copy(n, env.__getitem__)
    own, kept = ([p for p, n in enumerate(flat) if (n in after) is late] for late in (True, False))
    part.output(tuple(env[flat[p]] for p in own))
    late = [_base(o) in own for o in aten.outputs]
    ends = [*(flat[p] for p in kept), *given]
    outs = [
        *(renumbered(o, kept.index) for o, is_late in zip(aten.outputs, late) if not is_late),
        *(OutputValue(ends.index(n)) for n in given),
    ]
    order = tuple((is_late, late[:i].count(is_late)) for i, is_late in enumerate(late))
    first = Aten(_ending(aten.graph, after, ends), tuple(outs))
    last = Aten(part, tuple(renumbered(o, own.index) for o, is_late in zip(aten.outputs, late) if is_late))
    return CpuRest(first, last, taken, len(given), order)


def _ending(graph: fx.Graph, without: set[fx.Node], ends: list[fx.Node]) -> fx.Graph:
    """A copy of the graph that returns `ends`, without some nodes that nothing else needs."""
    new = copy_graph(graph)
    same = dict(zip(graph.nodes, new.nodes))
    next(n for n in reversed(new.nodes) if n.op == "output").args = (tuple(same[n] for n in ends),)
    for old in reversed([n for n in graph.nodes if n in without]):
        new.erase_node(same[old])
    return new


def _after(nodes: list[fx.Node]) -> set[fx.Node]:
    """Calls on the CPU that only need tensors of the CPU, draw no numbers, and that nothing else needs."""
    after: set[fx.Node] = set()
    for n in reversed(nodes[:-1]):
        if (
            n.op == "call_function"
            and _on_cpu(n)
            and SEEDED not in getattr(n.target, "tags", ())
            and all(map(_on_cpu, n.all_input_nodes))
            and all(u in after or u is nodes[-1] for u in n.users)
        ):
            after.add(n)
    while True:  # what is handed on must be a tensor of its own
        left = {
            n
            for n in after
            if all(u in after or u is nodes[-1] for u in n.users)
            and all(a in after or a.op == "placeholder" or not _shared(a) for a in n.all_input_nodes)
        }
        if left == after:
            return after
        after = left


def _worth(part: set[fx.Node]) -> bool:
    """Whether a part is worth kernels."""
    work = [n for n in part if not _shared(n)]
    return len(work) >= LEAST_OPS and (len(work) >= MANY_OPS or max(map(_points, work)) >= LEAST_POINTS)


def _taken(inputs: list[fx.Node], part: set[fx.Node], written: Collection[fx.Node] = ()) -> tuple[int, ...]:
    """The positions of the inputs that a part takes: the tensors that it reads or writes, all numbers."""
    return tuple(i for i, n in enumerate(inputs) if spec_or_none(n) is None or n in written or any(u in part for u in n.users))


def _base(out: Out) -> int | None:
    """The position of the value that an output shows; None: it shows none."""
    of = base_of(out)
    return of.position if isinstance(of, OutputValue) else None


def _inside(nodes: list[fx.Node], written: set[fx.Node]) -> set[fx.Node]:
    """Calls on the CPU that need nothing from the GPU, draw no random numbers, and whose values the graph does not return,
    except to write them."""
    returned = {a for a in nodes[-1].args[0] if isinstance(a, fx.Node)} - written
    inside: set[fx.Node] = set()
    for n in nodes:
        if n.op != "call_function" or n in returned or not _on_cpu(n) or SEEDED in getattr(n.target, "tags", ()):
            continue
        if all(a in inside or a.op == "placeholder" and _on_cpu(a) for a in n.all_input_nodes):
            inside.add(n)
    while True:  # what is handed on must be a tensor of its own
        left = {
            n
            for n in inside
            if not (_shared(n) and any(u not in inside for u in n.users))
            and all(a in inside or a.op == "placeholder" for a in n.all_input_nodes)
        }
        if left == inside:
            return inside
        inside = left


def _shared(n: fx.Node) -> bool:
    """Whether a value is no tensor in memory of its own."""
    return n.target is operator.getitem or is_view(n.target) or not isinstance(n.meta.get("spec"), Spec)


def _exported(nodes: Iterable[fx.Node], inside: set[fx.Node]) -> list[fx.Node]:
    return [n for n in nodes if n in inside and any(u not in inside and u.op != "output" for u in n.users)]


def _on_cpu(n: fx.Node) -> bool:
    """Whether all that a node yields is on the CPU; sizes are anywhere."""

    def on(spec: Any) -> bool:
        if isinstance(spec, (tuple, list)):
            return all(map(on, spec))
        return not isinstance(spec, Spec) or spec.device.type == "cpu"

    return on(n.meta.get("spec"))


def _points(n: fx.Node) -> int:
    spec = n.meta.get("spec")
    return elements_of(spec) if isinstance(spec, Spec) else 0
