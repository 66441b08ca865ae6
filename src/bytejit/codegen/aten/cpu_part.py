"""The parts of a graph on a GPU that run on the CPU before it (`torch.cos(x).cuda()`) and after it (`y.cpu().exp()`), as graphs
of their own: fused kernels in C++ instead of a library call an op. What the CPU computes in between, from results of the GPU
and for it, stays in the graph, through torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from bytejit.codegen.aten.recorded_values import is_view
from bytejit.common.spec import Spec

from .graph import Aten, Out, Value, base_of, renumbered
from .recorder import SEEDED
from .rewrite import at_hints, copy_graph

LEAST_POINTS = 4096  # elements of the largest tensor computed: fewer are not worth kernels
LEAST_OPS = 2  # one op is torch's own kernel


def cpu_part(aten: Aten) -> tuple[Aten, tuple[int, ...], Aten] | None:
    """(the part, the positions of the inputs that it takes, the graph without it); None where there is none worth it.

    The part returns a tuple, which the graph without it takes after its own inputs.
    """
    nodes = list(aten.graph.nodes)
    inside = _inside(nodes)
    made = _exported(nodes, inside)
    if aten.constants or not made or not _worth(inside):
        return None
    inputs = [n for n in nodes if n.op == "placeholder"]
    taken = _taken(inputs, inside)
    part = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for n in nodes:
        if n in inside or n.op == "placeholder" and inputs.index(n) in taken:
            env[n] = part.node_copy(n, env.__getitem__)
    part.output(tuple(env[n] for n in made))
    return Aten(part, tuple(map(Value, range(len(made))))), taken, replace(aten, graph=_without(aten.graph, inside, made))


@dataclass(frozen=True)
class Rest:
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


def cpu_rest(aten: Aten) -> Rest | None:
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
        *(Value(ends.index(n)) for n in given),
    ]
    order = tuple((is_late, late[:i].count(is_late)) for i, is_late in enumerate(late))
    first = Aten(_ending(aten.graph, after, ends), tuple(outs))
    last = Aten(part, tuple(renumbered(o, own.index) for o, is_late in zip(aten.outputs, late) if is_late))
    return Rest(first, last, taken, len(given), order)


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
    return len(work) >= LEAST_OPS and max(map(_points, work)) >= LEAST_POINTS


def _taken(inputs: list[fx.Node], part: set[fx.Node]) -> tuple[int, ...]:
    """The positions of the inputs that a part takes: its tensors, all numbers."""
    return tuple(i for i, n in enumerate(inputs) if not isinstance(n.meta.get("spec"), Spec) or any(u in part for u in n.users))


def _base(out: Out) -> int | None:
    """The position of the value that an output shows; None: it shows none."""
    of = base_of(out)
    return of.position if isinstance(of, Value) else None


def _inside(nodes: list[fx.Node]) -> set[fx.Node]:
    """Calls on the CPU that need nothing of the GPU, draw no numbers, and that the graph does not return as they are."""
    returned = {a for a in nodes[-1].args[0] if isinstance(a, fx.Node)}
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
    return [n for n in nodes if n in inside and any(u not in inside for u in n.users)]


def _on_cpu(n: fx.Node) -> bool:
    """Whether all that a node yields is on the CPU; sizes are anywhere."""

    def on(spec: Any) -> bool:
        if isinstance(spec, (tuple, list)):
            return all(map(on, spec))
        return not isinstance(spec, Spec) or spec.device.type == "cpu"

    return on(n.meta.get("spec"))


def _points(n: fx.Node) -> int:
    spec = n.meta.get("spec")
    return math.prod(at_hints(spec).shape) if isinstance(spec, Spec) else 0


def _without(graph: fx.Graph, inside: set[fx.Node], made: list[fx.Node]) -> fx.Graph:
    """A copy of the graph where these values are inputs, after the others."""
    new = copy_graph(graph)
    same = dict(zip(graph.nodes, new.nodes))
    last = [n for n in new.nodes if n.op == "placeholder"][-1]
    for i, old in enumerate(made):
        with new.inserting_after(last):
            last = new.placeholder(f"from_cpu_{i}")
        node = same[old]
        last.meta.update(node.meta)
        node.replace_all_uses_with(last, propagate_meta=False)
    for old in reversed([n for n in graph.nodes if n in inside]):
        new.erase_node(same[old])
    return new
