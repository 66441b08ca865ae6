"""A joint graph -> a graph of the forward pass and one of the backward pass, with what is saved between them.

forward: inputs, constants -> results, saved values, sizes          backward: saved inputs, saved values, tangents, sizes,
                                                                              constants -> gradients
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import torch
from torch import fx

from bytejit.codegen.aten.graph import Aten, Const, Input, Out, OutputNumber, OutputValue, base_of, check, positions, renumbered
from bytejit.codegen.aten.rewrite import bytes_of
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.sizes import Real
from bytejit.codegen.ops.calls import acts, is_view, stays
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .joint import Joint
from .less_saved import with_less_saved
from .nodes import ancestors, copied, placed
from .nodes import base_of as root_of
from .recipes import Given, JointView, Recipe
from .symbols import names_in, symbols_of
from .versions import Kept


@light_dataclass(frozen=True)
class Parts:
    """What runs a graph whose outputs need gradients.

    forward: returns `results` results (the first `len(tangents)` have gradients), `saved` values, `numbers` numbers, and sizes
    and strides of tangents. backward: takes the inputs `saved_inputs`, the saved values, the tangents, the numbers. grads: for
    each input that needs a gradient, (input, position among the backward's outputs), None where it gets none.
    """

    forward: Aten
    backward: Aten
    inputs: int
    results: int
    saved_inputs: tuple[int, ...]
    saved: int
    numbers: int
    tangents: tuple[Spec, ...]
    layouts: tuple[tuple[int, int, int] | None, ...]  # begin of its sizes, its strides, their end; None: as its spec
    written: tuple[int, ...]  # inputs
    copied: tuple[int, ...]  # those that results with gradients are computed from
    random: bool  # whether the forward pass draws random numbers
    grads: tuple[tuple[int, int | None], ...]
    recipes: tuple[Recipe, ...]
    single: bool
    recomputed: tuple[str, ...] = ()  # calls of the forward pass that the backward pass makes again
    budget: str = ""  # what the memory budget says, where there is one
    kept: Kept = Kept()  # what eager would save
    read: tuple[int, ...] = ()  # the inputs that results with gradients are computed from

    def summary(self) -> str:
        """Returns in one line what is saved and what is computed again."""
        flat = list(self.forward.graph.nodes)[-1].args[0]
        outs = self.forward.outputs[self.results : self.results + self.saved]
        kept = sum(bytes_of(n.meta["spec"]) for n in dict.fromkeys(flat[i] for o in outs for i in positions(o)))
        again = ", ".join(f"{n} x {name}" for name, n in Counter(self.recomputed).items())
        said = f"{self.saved} values, {kept / 2**20:.2f} MiB, and {len(self.saved_inputs)} inputs"
        said += f"; {self.budget}" if self.budget else ""
        return f"{said}; computed again: {again}" if again else said


def partition(joint: Joint, weights: frozenset[int] = frozenset(), budget: float = 1.0) -> Parts:
    """Splits a joint graph into two.

    A value that the forward pass computed and the backward pass reads is saved, or computed again where that is cheap
    (`min_cut`) or the budget asks for it (`budget`). Views, and what is made of numbers alone, are computed again. weights:
    inputs that stay alive anyway.

    The program may write an input between the two passes. Where eager saves that input, it raises an error, or, after a write
    through `.data`, computes from the new values: so does the backward graph. Where eager does not save it, nothing happens in
    eager: the backward graph has a copy, where it computes something again from that input."""
    return _Partition(with_less_saved(joint), weights, budget).parts()


class _Partition:
    """Cuts one joint graph."""

    def __init__(self, joint: Joint, weights: frozenset[int], budget: float) -> None:
        self.joint, self.weights, self.budget, self.budget_summary = joint, weights, budget, ""
        self.recomputed: set[fx.Node] = set()
        self.saved_by_eager: set[fx.Node] = set()  # the inputs that eager saves as well; of others the backward graph gets copies
        *self.nodes, last = joint.aten.graph.nodes
        self.flat: tuple = last.args[0]
        self.inputs = self.nodes[: joint.inputs]
        tangents = joint.inputs + len(joint.tangents)
        self.tangents = self.nodes[joint.inputs : tangents]
        self.constants = [n for n in self.nodes[tangents:] if n.op == "placeholder"]
        self.results = joint.aten.outputs[: joint.results]
        self.gradients = joint.aten.outputs[joint.results :]
        self.written = {self.inputs[m.input] for m in joint.aten.mutations if m.input < joint.inputs}
        self.not_saved_by_eager = self.find_not_saved_by_eager()  # values that the program may write: saved as copies

    def parts(self) -> Parts:
        """Makes both graphs."""
        forward_nodes = self.forward_calls()
        followed = [self.flat[p] for o in self.results[: len(self.tangents)] for p in positions(o)]
        read = ancestors(followed)
        gradient_values = [self.flat[p] for o in self.gradients for p in positions(o)]
        returned_inputs = [
            self.inputs[o.index] for o in map(base_of, self.gradients) if isinstance(o, Input) and o.index < len(self.inputs)
        ]
        read_backward = {*self.backward_calls(gradient_values)[1], *returned_inputs}
        self.saved_by_eager = read_backward.intersection(self.inputs) - self.written
        self.recomputed = self.choose_recomputed(gradient_values)
        backward_nodes, used = self.backward_calls(gradient_values)
        used = dict.fromkeys([*used, *returned_inputs])
        saved_inputs = [n for n in self.inputs if n in used and n in self.saved_by_eager and isinstance(n.meta.get("spec"), Spec)]
        saved = self.values_to_save(used, self.available(saved_inputs))
        numbers = self.numbers([*backward_nodes, *gradient_values], [*saved_inputs, *saved])
        sizes, layouts = self.layouts()
        forward = self.forward_graph(forward_nodes, saved, (*numbers.values(), *sizes))
        backward, grads = self.backward_graph(backward_nodes, saved_inputs, saved, numbers)
        return Parts(
            forward,
            backward,
            len(self.inputs),
            len(self.results),
            tuple(map(self.inputs.index, saved_inputs)),
            len(saved),
            len(numbers),
            self.joint.tangents,
            layouts,
            tuple(sorted(map(self.inputs.index, self.written))),
            tuple(sorted(map(self.inputs.index, self.written & read))),
            any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in forward.graph.nodes),
            grads,
            self.joint.recipes,
            self.joint.single,
            self.names(backward_nodes & self.recomputed),
            self.budget_summary,
            self.joint.kept,
            tuple(i for i, n in enumerate(self.inputs) if n in read),
        )

    def names(self, calls: Set[fx.Node]) -> tuple[str, ...]:
        """The names of the ops of calls, in the order of the graph."""
        return tuple(
            n.target._schema.name.removeprefix("aten::") for n in self.nodes if n in calls and hasattr(n.target, "_schema")
        )

    # ---- which node goes where ---------------------------------------------------------------------------------------
    def find_not_saved_by_eager(self) -> set[fx.Node]:
        """The values in the memory of outputs that eager does not save."""
        kept = {i for h in self.joint.kept.holders for i in h.outputs}
        found: dict[bool, set[fx.Node]] = {False: set(), True: set()}
        for i, recipe in enumerate(self.joint.recipes):
            for r in (recipe, recipe.base) if isinstance(recipe, JointView) else (recipe,):
                if not isinstance(r, Given):
                    at = r.like if isinstance(r, JointView) else r.index
                    found[i in kept].update(root_of(self.flat[p]) for p in positions(self.results[at]))
        return found[False] - found[True]

    def is_not_saved_by_eager(self, n: fx.Node) -> bool:
        """Whether a value is in the memory of an output that eager does not save."""
        return bool(self.not_saved_by_eager) and root_of(n) in self.not_saved_by_eager

    def forward_calls(self) -> set[fx.Node]:
        """The calls of the forward graph: all that its results and writes are computed from, and calls with effects or checks."""
        wanted = [p for o in self.results for p in positions(o)] + [m.position for m in self.joint.aten.mutations]
        acting = [n for n in self.nodes if n in self.joint.forward and n.op == "call_function" and stays(n)]
        return ancestors([*(self.flat[p] for p in wanted), *acting])

    def choose_recomputed(self, gradient_values: Sequence[fx.Node]) -> set[fx.Node]:
        """Calls of the forward pass that the backward pass makes again, so that their values are not saved."""
        from .min_cut import Cut  # with the first graph: what it needs loads slowly

        calls, read = self.backward_calls(gradient_values)
        results = frozenset(self.flat[p] for o in self.results for p in positions(o)) - self.not_saved_by_eager
        weights = frozenset(self.inputs[i] for i in self.weights if self.inputs[i] in self.saved_by_eager)
        cheap = Cut(self.joint.forward, frozenset(calls), weights, frozenset(self.saved_by_eager), results).recomputed(read)
        return cheap if self.budget == 1 else self.choose_within_budget(cheap, gradient_values)

    def choose_within_budget(self, cheap: set[fx.Node], gradient_values: Sequence[fx.Node]) -> set[fx.Node]:
        """The calls that are made again so that what is saved fits the budget."""
        from .budget import LeastBytes, choose

        available = frozenset(self.available(self.inputs))
        calls, read = self.backward_calls(gradient_values)
        everything = LeastBytes(self.joint.forward, frozenset(calls), available, available, frozenset()).recomputed(read)

        def walk(again: set[fx.Node]) -> tuple[set[fx.Node], list[fx.Node]]:
            self.recomputed = again
            calls, read = self.backward_calls(gradient_values)
            return calls, self.values_to_save(read, available)

        found = choose(self.budget, cheap, everything, available, walk)
        ends = f"{found.most / 2**20:.2f} MiB at 1, {found.least / 2**20:.2f} MiB at 0"
        self.budget_summary = f"budget {self.budget:g} ({ends})"
        return found.again

    def available(self, inputs: Iterable[fx.Node]) -> set[fx.Node]:
        """Returns what the backward graph has without a value saved for it: inputs that eager saves too, constants, tangents."""
        return {*(n for n in inputs if n in self.saved_by_eager), *self.constants, *self.tangents}

    def values_to_save(self, read: Iterable[fx.Node], available: Set[fx.Node]) -> list[fx.Node]:
        """The values that the backward graph reads and that the forward graph must return for it."""
        read = set(read)
        return [n for n in self.nodes if n in read and n not in available and isinstance(n.meta.get("spec"), Spec)]

    def backward_calls(self, gradient_values: Sequence[fx.Node]) -> tuple[set[fx.Node], dict[fx.Node, None]]:
        """The calls of the backward graph, and the nodes of the forward graph and placeholders that they read."""
        behind_tangents = set(self.tangents)
        for n in self.nodes:
            if n.op == "call_function" and not behind_tangents.isdisjoint(n.all_input_nodes):
                behind_tangents.add(n)
        acting = [n for n in self.nodes if n.op == "call_function" and n not in self.joint.forward and acts(n)]
        calls: set[fx.Node] = set()
        read: dict[fx.Node, None] = {}
        stack = [*gradient_values, *acting]
        while stack:
            n = stack.pop()
            if n in calls or n in read:
                continue
            if n.op == "placeholder" or n not in behind_tangents and n in self.joint.forward and not self.is_recomputed(n):
                read[n] = None
            else:
                calls.add(n)
                stack += n.all_input_nodes
        return calls, read

    def is_recomputed(self, n: fx.Node) -> bool:
        """Whether the backward graph makes a call of the forward pass again: it was chosen, its result cannot be saved, or it
        costs nothing."""
        if n in self.recomputed:
            return True
        if n.target is operator.getitem:
            return False
        return not isinstance(n.meta.get("spec"), Spec) or is_view(n.target) or not n.all_input_nodes and not acts(n)

    def numbers(self, nodes: Iterable[fx.Node], given: Iterable[fx.Node]) -> dict[str, OutputNumber]:
        """The symbolic sizes and floats that the backward graph uses, by name. given: what it takes, with such strides too."""
        found: dict[str, OutputNumber] = {}
        specs = [n.meta.get("spec") for n in self.inputs]
        floats = {spec.symbol: OutputNumber(spec) for spec in specs if isinstance(spec, Real)}
        sizes = {name: s for spec in specs for name, s in symbols_of(spec).items()}
        spoken = [(n.args, n.kwargs, n.meta.get("spec")) for n in nodes] + [self.gradients]
        strides = [n.meta["spec"].stride for n in given if isinstance(n.meta.get("spec"), Spec)]
        for name in sorted({name for x in (*spoken, self.joint.tangents, strides) for name in names_in(x)}):
            found[name] = floats[name] if name in floats else OutputNumber(ix.index(sizes[name]))
        return found

    # ---- the graphs --------------------------------------------------------------------------------------------------
    def layouts(self) -> tuple[list[Out], tuple[tuple[int, int, int] | None, ...]]:
        """Outputs that are the sizes and strides of tangents with symbolic sizes, and for each tangent where these are among
        them."""
        found: list[Out] = []
        places: list[tuple[int, int, int] | None] = []
        for spec in self.joint.tangents:
            numbers = (*spec.shape, *spec.stride)
            if all(isinstance(n, int) for n in numbers):
                places.append(None)
                continue
            begin, rank = len(found), len(spec.shape)
            places.append((begin, begin + rank, begin + 2 * rank))
            found += [Const(n) if isinstance(n, int) else OutputNumber(n) for n in numbers]
        return found, tuple(places)

    def forward_graph(self, forward_nodes: set[fx.Node], saved: Sequence[fx.Node], numbers: Sequence[Out]) -> Aten:
        """Makes the forward graph: it returns results, saved values, numbers."""
        wanted = forward_nodes | ancestors(saved)
        graph, env = fx.Graph(), {}
        for n in (*self.inputs, *self.constants):
            env[n] = placed(graph, n)
        for n in self.nodes:
            if n.op == "call_function" and n in wanted:
                env[n] = graph.node_copy(n, env.__getitem__)
        places = positions_used(self.results, self.joint.aten.mutations)
        moved = {p: i for i, p in enumerate(places)}
        flat = [env[self.flat[p]] for p in places]
        outs = [renumbered(o, moved.__getitem__, self.index_in_forward) for o in self.results]
        for n in saved:
            # what may be written: as it was
            value = copied(graph, env[n]) if n.op == "placeholder" or self.is_not_saved_by_eager(n) else env[n]
            if value not in flat:
                flat.append(value)
            outs.append(OutputValue(flat.index(value)))
        graph.output(tuple(flat))
        mutations = tuple(
            replace(m, input=self.index_in_forward(m.input), position=moved[m.position]) for m in self.joint.aten.mutations
        )
        return check(Aten(graph, (*outs, *numbers), mutations, self.joint.aten.constants))

    def index_in_forward(self, index: int) -> int:
        """The number of an input or constant of the joint graph in the forward graph, which has no tangents."""
        return index if index < len(self.inputs) else index - len(self.tangents)

    def backward_graph(
        self,
        backward_nodes: set[fx.Node],
        saved_inputs: Sequence[fx.Node],
        saved: Sequence[fx.Node],
        numbers: dict[str, OutputNumber],
    ) -> tuple[Aten, tuple[tuple[int, int | None], ...]]:
        """Makes the backward graph. Returns it, and where in its outputs each gradient is."""
        graph, env = fx.Graph(), {}
        for i, n in enumerate((*saved_inputs, *saved, *self.tangents)):
            env[n] = placed(graph, n, f"p{i}_{n.name}")
        for name, number in numbers.items():
            graph.placeholder(name).meta["spec"] = number.value
        for n in self.constants:
            env[n] = placed(graph, n)
        given = {n: i for i, n in enumerate((*saved_inputs, *saved, *self.tangents))}
        first = len(given) + len(numbers)
        given |= {n: first + i for i, n in enumerate(self.constants)}
        for n in self.inputs:
            if n not in env and not isinstance(n.meta.get("spec"), Spec) and n.users:
                env[n] = None
        for n in self.in_order(backward_nodes):
            env[n] = graph.node_copy(n, env.__getitem__)
        places = positions_used(self.gradients, ())
        moved = {p: i for i, p in enumerate(places)}
        flat = [env[self.flat[p]] if self.flat[p] in backward_nodes else copied(graph, env[self.flat[p]]) for p in places]
        graph.output(tuple(flat))
        outs = tuple(renumbered(o, moved.__getitem__, lambda i: given[self.nodes[i]]) for o in self.gradients)
        grads = tuple((i, None if at is None else at - len(self.results)) for i, at in self.joint.grads)
        return check(Aten(graph, outs, (), self.joint.aten.constants)), grads

    def in_order(self, backward_nodes: set[fx.Node]) -> list[fx.Node]:
        """The calls of the backward graph in order. Under a memory budget a call that is made again comes just before its first
        use."""
        calls = [n for n in self.nodes if n in backward_nodes]
        if self.budget == 1:
            return calls
        order: dict[fx.Node, None] = {}
        for n in [*(n for n in calls if n not in self.joint.forward), *calls]:
            stack = [n]
            while stack:
                missing = [i for i in stack[-1].all_input_nodes if i in backward_nodes and i not in order]
                if missing:
                    stack += missing
                else:
                    order[stack.pop()] = None
        return list(order)


# ---- outputs ---------------------------------------------------------------------------------------------------------
def positions_used(outs: Iterable[Out], mutations: Iterable) -> list[int]:
    """The positions of the values that outputs and writes need, sorted."""
    return sorted({p for o in outs for p in positions(o)} | {m.position for m in mutations})
