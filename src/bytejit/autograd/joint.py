"""The joint graph: a traced graph and the gradients of its outputs, as one functional ATen graph.

The traced graph runs on fake tensors under a recorder. Then torch's autograd engine runs the backward pass under the same
recorder. Its inputs: those of the traced graph, a tangent for each of `primals`, the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import fx
from torch.utils import _pytree as pytree

from bytejit.codegen.aten.decompositions import RULES
from bytejit.codegen.aten.float_marks import FloatMarks, with_marks
from bytejit.codegen.aten.graph import Aten, check, renumbered
from bytejit.codegen.aten.mutation import CannotNormalise, overlaps
from bytejit.codegen.aten.normalise import FakeRun
from bytejit.codegen.aten.outputs import Outputs, kinds_of, mutations_of, out_of, with_sizes
from bytejit.codegen.aten.recorder import Recorder
from bytejit.codegen.aten.rewrite import drop_dead
from bytejit.codegen.loops.sizes import same
from bytejit.common.ambient import preserved
from bytejit.common.checkpointed import Checkpointed
from bytejit.common.gradients import checks_values, refused
from bytejit.common.graph_info import info_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.saved_tensors import unhooked
from bytejit.common.spec import Spec, contiguous_stride
from bytejit.fake.rules.core import Meta
from bytejit.fake.tensor import DataDependent, Fake, NoFake, fake_of_spec, fakes_in, make, spec_of

from .cut_graph import ByTorch, Dependent
from .leaf_order import ACCUMULATES
from .recipes import NO_GRAD, JointView, MadeLeaf, Recipe, Results, own
from .versions import Kept, kept_by_eager


@light_dataclass(frozen=True)
class Joint:
    """A joint graph. aten: its outputs are the forward's results, first those that have gradients, then gradients.

    inputs: number of the traced graph's inputs. tangents: specs, in the order of the results that they belong to. results:
    number of the forward's. grads: for each input that needs a gradient, (input, position among `aten.outputs`), None where
    it gets none. forward: the nodes recorded before the backward pass. recipes: the program's outputs. single: it has one.
    kept: what eager would save.
    """

    aten: Aten
    inputs: int
    tangents: tuple[Spec, ...]
    results: int
    grads: tuple[tuple[int, int | None], ...]
    forward: frozenset[fx.Node]
    recipes: tuple[Recipe, ...]
    single: bool
    kept: Kept = Kept()

    def changed(self, change: Callable[[Aten], Aten]) -> Joint:
        """The joint graph after `change` has changed it in place. New calls in front of the forward pass's last call belong to
        that pass."""
        last = next(n for n in reversed(self.aten.graph.nodes) if n in self.forward)
        made = change(self.aten)
        nodes = list(made.graph.nodes)
        return replace(self, aten=made, forward=frozenset(nodes[: nodes.index(last) + 1]))


def make_joint(gm: fx.GraphModule, fakes: Sequence) -> Joint:
    """The joint graph of `gm`, whose placeholders look like `fakes`. Raises: CannotNormalise."""

    def record(marks: FloatMarks | None) -> Joint:
        rec = Recorder(RULES, marks=marks)
        return preserved(_record, rec, GradRun(rec, gm, fakes))

    with unhooked(), torch.autograd.set_detect_anomaly(False):  # which looks for nan
        return with_marks(gm, record, lambda joint: joint.aten)


# ---- the forward pass ------------------------------------------------------------------------------------------------
class GradRun(FakeRun):
    """Executes a traced graph on fakes that need gradients where its inputs do."""

    def __init__(self, rec: Recorder, gm: fx.GraphModule, fakes: Sequence) -> None:
        super().__init__(rec, gm, fakes)
        self.backward, self.grad_at_start = True, info_of(gm).grad_at_start
        self.leaves: list[tuple[int, Fake]] = []  # (input, its fake) of what needs a gradient
        self.histories: dict[int, object] = {}  # of each input that is a tensor: its node of autograd at the start
        self.writers: list[tuple[fx.Node, frozenset[int]]] = []  # calls that write into inputs, and into which
        self.plain: dict[str, list[fx.Node]] = {}  # calls whose gradients only torch computes, by the reason

    def input(self, node: fx.Node, fake: object) -> object:
        """A fake that needs a gradient where the input does."""
        made = super().input(node, fake)
        if type(made) is Fake:
            self.histories[len(self.rec.inputs) - 1] = made.grad_fn
            if made.requires_grad:
                self.leaves.append((len(self.rec.inputs) - 1, made))
        return made

    def run(self) -> object:
        """Runs the graph, and returns its outputs. An input that it makes a leaf with gradients becomes one of the leaves."""
        returned, known = super().run(), {i for i, _ in self.leaves}
        new = [(i, root.fake) for i in self.histories if i not in known and (root := self.rec.inputs[i]) is not None]
        self.leaves = sorted([*self.leaves, *((i, x) for i, x in new if x.requires_grad and x.is_leaf)], key=lambda at: at[0])
        return returned

    def _record(self, node: fx.Node) -> None:
        before = len(self.rec.wrote)
        super()._record(node)
        if len(self.rec.wrote) > before and node.graph is self.gm.graph:
            self.writers.append((node, frozenset(self.rec.wrote[before:])))
            if isinstance(node.target, Checkpointed):  # statistics of a batch norm, say
                self.plain.setdefault("a checkpointed part writes an input, once more in the backward pass", []).append(node)
        if node.graph is not self.gm.graph:
            return
        made = fakes_in(self.env[node])
        if any(map(_is_sparse, made)):
            inner = [n for n in node.all_input_nodes if n.op != "placeholder"]
            if not any(x.requires_grad for n in inner for x in fakes_in(self.env[n])):
                self.plain.setdefault("a gradient is sparse", []).append(node)
        elif any(map(_is_checked, made)) and not any(_is_checked(x) for n in node.all_input_nodes for x in fakes_in(self.env[n])):
            self.plain.setdefault("a gradient is defined for some values only", []).append(node)


def _is_sparse(fake: Fake) -> bool:
    """Whether the operation that made a tensor has a sparse gradient: of an embedding, of `gather`."""
    step = None if refused(fake) else fake.grad_fn
    return getattr(step, "_saved_sparse", False) or getattr(step, "_saved_sparse_grad", False)


def _is_checked(fake: Fake) -> bool:
    step = None if refused(fake) else fake.grad_fn
    return step is not None and checks_values(step)


def _record(rec: Recorder, run: GradRun) -> Joint:
    returned = run.run()
    single = not isinstance(returned, (list, tuple))
    flat = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    if any(isinstance(x, (list, tuple, dict)) and any(isinstance(t, torch.Tensor) for t in pytree.tree_leaves(x)) for x in flat):
        raise CannotNormalise("an output is a container of tensors: only flat tuples of outputs are taken")
    inputs = len(run.fakes)
    _refuse_written(rec, run)
    if run.plain:  # the rest for other reasons is found in the parts
        raise ByTorch(*next(iter(run.plain.items())))
    results = Results(rec, flat, kinds_of(run.gm, NO_GRAD))
    _refuse_dependent(results, run.gm)
    mutations = mutations_of(rec, results.found)
    forward = frozenset(rec.graph.nodes)
    if results.primals and not run.leaves:
        raise CannotNormalise("an output needs a gradient only of tensors that were made inside")
    kept = kept_by_eager(results.primals, rec.inputs[:inputs], flat, run.leaves)
    grads, tangents = _backward(rec, results.primals, run.leaves)
    gradients = Outputs(rec)
    back = [out_of(rec, gradients, g, gradient=True) for g in grads if g is not None]
    shift = len(results.found.nodes)
    rec.graph.output((*results.found.nodes, *gradients.nodes))
    drop_dead(rec.graph)
    outs = with_sizes(rec.graph, (*results.outs(), *(renumbered(o, lambda n: n + shift) for o in back)))
    places = iter(range(len(results.outs()), len(outs)))
    moved = _constants_last(rec, inputs, len(tangents))
    made = Aten(
        rec.graph,
        tuple(renumbered(o, input=moved.__getitem__) for o in outs),
        tuple(replace(m, input=moved[m.input]) for m in mutations),
        tuple(rec.constants),
    )
    return Joint(
        check(made),
        inputs,
        tuple(t.meta["spec"] for t in list(rec.graph.nodes)[inputs : inputs + len(tangents)]),
        len(results.outs()),
        tuple((i, None if g is None else next(places)) for (i, _), g in zip(run.leaves, grads)),
        forward,
        tuple(results.recipes),
        single,
        kept,
    )


def _refuse_written(rec: Recorder, run: GradRun) -> None:
    """Raises: ByTorch where a write into an input is a step of autograd's; one without gradients is none."""
    roots = [(i, rec.inputs[i]) for i in run.histories]
    steps = {i for i, r in roots if r is not None and r.version > 0 and r.fake.grad_fn is not run.histories[i]}
    if steps:
        placeholders = [n for n in run.gm.graph.nodes if n.op == "placeholder"]
        new = [placeholders[i] for i in sorted(steps) if run.histories[i] is None]
        raise ByTorch("it writes an input that needs a gradient", [n for n, into in run.writers if into & steps], new)


def _refuse_dependent(results: Results, gm: fx.GraphModule) -> None:
    """Raises: Dependent where one result with a gradient is computed from another, from a leaf that the graph makes, or from a
    view that the program gets. As results of one autograd node, no gradient could flow between them. That is asked of no result
    that only other parts see."""
    inner = info_of(gm).inner
    outside = {getattr(getattr(r, "base", r), "index", None) for i, r in enumerate(results.recipes) if i not in inner}
    edges = {(p.grad_fn, p.output_nr): k for k, p in enumerate(results.primals) if k in outside}
    given = [(k, x, r) for k, (x, r) in enumerate(zip(results.flat, results.recipes)) if k not in inner]
    followed = [(k, x) for k, x, r in given if isinstance(r, JointView) and r.followed and x.requires_grad]
    views = {(x.grad_fn, x.output_nr): k for k, x in followed}
    made = {id(x): k for k, (x, r) in enumerate(zip(results.flat, results.recipes)) if isinstance(r, MadeLeaf)}
    seen, stack = set(), [edge for p in (*results.primals, *(x for _, x in followed)) for edge in p.grad_fn.next_functions]
    found, shown_at = set(), set()
    while stack:
        edge = stack.pop()
        if edge in edges:
            found.add(edges[edge])
        if edge in views:
            shown_at.add(views[edge])
        if made and edge[0] is not None and edge[0].name() == ACCUMULATES and id(edge[0].variable) in made:
            shown_at.add(made[id(edge[0].variable)])
        if edge[0] is not None and edge not in seen:
            seen.add(edge)
            stack += edge[0].next_functions
    if found or shown_at:
        order = list(gm.graph.nodes)
        shown = order[-1].args[0] if isinstance(order[-1].args[0], (tuple, list)) else order[-1].args
        nodes = [n for n, r in zip(shown, results.recipes) if getattr(getattr(r, "base", r), "index", None) in found and own(r)]
        nodes += [last_of(shown[k]) for k in shown_at]
        if not nodes:
            raise CannotNormalise("an output that needs a gradient is computed from another, of which only views are returned")
        raise Dependent(min(nodes, key=order.index))


def last_of(node: fx.Node) -> fx.Node:
    """The call that makes a tensor a leaf with gradients: its last `requires_grad_`, else the call that creates it."""
    sets = [n for n in node.users if n.op == "call_method" and n.target == "requires_grad_" and n.args[0] is node]
    return sets[-1] if sets else node


# ---- the backward pass -----------------------------------------------------------------------------------------------
def _backward(rec: Recorder, primals: Sequence[Fake], leaves: Sequence[tuple[int, Fake]]) -> tuple[tuple, list[Fake]]:
    """The gradients of the leaves, and the tangents that they were computed from. Raises: CannotNormalise."""
    tangents = []
    for i, primal in enumerate(primals):
        tangent = make(_tangent_of(primal))
        rec.placeholder(f"tangent{i}", tangent)
        tangents.append(tangent)
    if not primals or not leaves:
        return (None,) * len(leaves), tangents
    rec.where = None
    try:
        with rec, torch._C._DisableAutocast():
            grads = torch.autograd.grad(primals, [leaf for _, leaf in leaves], tangents, allow_unused=True)
    except (DataDependent, NoFake, RuntimeError) as e:
        raise CannotNormalise(f"its backward pass: {str(e).partition(chr(10))[0]}") from e
    return grads, tangents


def _tangent_of(fake: Fake) -> Meta:
    """The meta of a result's gradient: alone in its storage, laid out as the result. Where elements share memory (of an expanded
    tensor, of windows) each has a gradient of its own."""
    spec = spec_of(fake)
    if overlaps(spec) or any(same(step, 0) for step in spec.stride):
        spec = replace(spec, stride=contiguous_stride(spec.shape))
    return fake_of_spec(spec).m


# ---- numbers of inputs and outputs -----------------------------------------------------------------------------------
def _constants_last(rec: Recorder, inputs: int, tangents: int) -> dict[int, int]:
    """Move the placeholders of constants behind the tangents. Returns the new index of each."""
    nodes = [n for n in rec.graph.nodes if n.op == "placeholder"]
    early = [i for i in range(inputs, len(nodes)) if not nodes[i].name.startswith("tangent")]
    first = next((i for i in range(inputs, len(nodes)) if i not in early), len(nodes))
    order = [*range(inputs), *range(first, first + tangents), *early]
    for i, j in zip(order, order[1:]):
        nodes[i].append(nodes[j])
    return {old: new for new, old in enumerate(order)}
