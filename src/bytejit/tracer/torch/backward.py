"""Backward passes in a region: `Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` are nodes of the graph.

The fakes have torch's autograd, so their history says which leaves a pass reaches and what each gradient looks like. A pass
into what was computed before the region breaks the graph: its history is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from bytejit.common.applied import Applied
from bytejit.common.gradients import accumulate, checks_values, gradients, leaf_gradients, refused
from bytejit.common.graph_calls import called_name
from bytejit.guards.sources import Attr
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break, CannotReconstruct
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, NONE, DictVar, Known, SeqVar, TensorVar, Var, expect, is_object

from .histories import is_leaf, step_of
from .transform_levels import check_no_level

HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # attributes of a tensor
TWICE = "a second time"  # in torch's text
OUTSIDE = "the backward pass into what was computed before the region"
BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
GRAD = (
    "outputs",
    "inputs",
    "grad_outputs",
    "retain_graph",
    "create_graph",
    "only_inputs",
    "allow_unused",
    "is_grads_batched",
    "materialize_grads",
)


class Backward(Component):
    """The tracer's part for backward passes. `looked_at`: how often `.grad` of a tensor was read or set: what runs within the
    graph must not, since the exit sets it."""

    def __init__(self, t: Tracer) -> None:
        super().__init__(t)
        self.passes: list[int] = []  # their steps
        self.refused_at: int | None = None  # the step of a pass that torch refused after others: it has freed what it came by
        self.looked_at = 0
        self._spent: dict[int, bool] = {}

    # ---- what a pass reaches --------------------------------------------------------------------------------------
    def reached(self, outputs: Sequence[TensorVar]) -> tuple[list[TensorVar], list[torch.autograd.graph.Node]]:
        """The leaves in the history of some tensors, and the nodes at which that goes on outside of the region."""
        steps = [step_of(v.fake) for v in outputs]
        leaves = [v for v, step in zip(outputs, steps) if v.fake.requires_grad and step is None]
        outside, todo = [], [step for step in steps if step is not None]
        seen = set(todo)
        while todo:
            node = todo.pop()
            name = node.name()
            if name == "torch::autograd::AccumulateGrad":
                leaves.append(self.leaf_of(node.variable))
            elif name == "_NonLeafBackward":
                outside.append(node)
                continue  # its next function belongs to the fake of the input
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    todo.append(following)
        return list(dict.fromkeys(leaves)), outside

    def leaf_of(self, fake: torch.Tensor) -> TensorVar:
        found = self.t.by_fake.get(id(fake))
        if found is None:
            raise Break("the backward pass to a tensor that is unknown here")
        return found

    def check_leaves(self, leaves: Sequence[TensorVar]) -> None:
        """No hook sees these gradients, and guards say so; each is where its history leads. Raises: Break."""
        if any(v.watched is not None for v in self.t.deferred_calls):
            raise Break("the backward pass after a hook was put on a tensor in the region")
        given_memory = [n.args[0].meta["val"] for n in self.t.graph.nodes if called_name(n) == "set_"]
        for v in leaves:
            if any(fake is v.fake for fake in given_memory):  # with it, it got another accumulator than its history has
                raise Break("the backward pass to a tensor that got other memory in the region")
            if v.real is not None and accumulator_has_hooks(v.real):
                raise Break("the backward pass to a tensor with hooks on its gradient accumulator")
            for name in HOOKS if v.real is not None else ():
                hooks = getattr(v.real, name)
                if hooks:
                    raise Break("the backward pass to a tensor with hooks")
                self.t.guard(*(("ID_IS", Attr(v.origin, name), None) if hooks is None else ("LEN_IS", Attr(v.origin, name), 0)))

    def check_no_reentrant(self) -> None:
        """Raises: Break where torch refuses to go back through a checkpoint."""
        if any(n.kwargs.get("use_reentrant") for n in self.t.graph.nodes if n.op == "call_function"):
            raise Break("a backward pass for some inputs after a reentrant checkpoint", "pass use_reentrant=False")

    # ---- passes ---------------------------------------------------------------------------------------------------
    def into_leaves(
        self, outputs: list[TensorVar], grads: list[Var], retain: bool | None, inputs: list[TensorVar] | None
    ) -> None:
        """Set each leaf's gradient, or add to it."""
        leaves, outside = self.reached(outputs)
        if outside:
            raise Break(OUTSIDE)
        if inputs is not None:
            self.check_no_reentrant()
            if not all(is_leaf(v.fake) for v in inputs):
                raise Break("Tensor.backward with inputs that are no leaves")
            leaves = list(dict.fromkeys(inputs))
        self.check_leaves(leaves)
        before = [self.t.values.real(self.t.tensor_attributes.tensor_getattr(v, "grad")) for v in leaves]
        fresh = SeqVar([Known(g is NONE or isinstance(g, Known)) for g in before], tuple)
        args = [SeqVar(outputs, tuple), SeqVar(leaves, tuple), SeqVar(grads, tuple), Known(retain), fresh]
        with self.t.overrides.without_overrides():  # what is accumulated is a plain tensor
            found = expect(self.run(leaf_gradients, args), SeqVar)
            for leaf, old, new in zip(leaves, before, found.items):
                if not isinstance(new, TensorVar):
                    continue
                if isinstance(old, TensorVar):
                    self.t.tensors.call_tensor_op(accumulate, [old, new], {})
                else:
                    self.t.tensor_attributes.tensor_setattr(leaf, "grad", new)

    def of_inputs(self, outputs: list[TensorVar], inputs: list[TensorVar], grads: list[Var], flags: list[Var]) -> list[Var]:
        """`torch.autograd.grad`: the gradients themselves."""
        self.check_no_reentrant()
        _, outside = self.reached(outputs)
        if any(node is not step_of(inputs[0].fake) for node in outside) or outside and len(inputs) > 1:
            raise Break(OUTSIDE)
        self.check_leaves([v for v in inputs if is_leaf(v.fake)])
        args = [SeqVar(outputs, tuple), SeqVar(inputs, tuple), SeqVar(grads, tuple), *flags]
        found = self.run(gradients, args)
        return found.items if isinstance(found, SeqVar) else [NONE] * len(inputs)

    def run(self, function: Callable, args: list[Var]) -> Var:
        """A backward pass as a node of the graph. Raises: Break; CannotReconstruct if an earlier pass has freed the history
        that this one needs: the original code then runs, and torch raises its error."""
        changing = next((n.target for n in self.t.graph.nodes if isinstance(n.target, Applied) and n.target.changes), None)
        if changing is not None:  # where it raises, the original code runs it again
            raise Break(f"the backward pass of {changing.__name__.removeprefix('apply_')}, which may change what is outside")
        for v in expect(args[0], SeqVar).items:
            step = step_of(expect(v, TensorVar).fake)
            if step is not None and any(checks_values(n) for n in (step, *(n for n, _ in history(step)))):
                raise Break("a backward pass that may refuse the phase of complex eigenvectors or singular vectors")
        try:
            found = self.t.tensors.call_tensor_op(function, args, {})
        except Break as e:
            if self.passes and TWICE in e.reason:
                raise CannotReconstruct("a history that a backward pass has freed", self.passes[-1]) from None
            self.refused_at = self.t.limits.steps if self.passes else None
            raise
        self.passes.append(self.t.limits.steps)
        return found

    # ---- what is left of the history ------------------------------------------------------------------------------
    def is_spent(self, v: TensorVar) -> bool:
        """Whether a pass of the region has freed what any other one from this tensor would need. Raises: CannotReconstruct where
        one for some inputs is left: then torch runs the pass of the region."""
        if not self.passes or v.node is None or not v.fake.requires_grad or refused(v.fake) or v.fake.grad_fn is None:
            return False
        if self.refused_at is not None:
            raise CannotReconstruct("the history that a refused backward pass went through", self.refused_at)
        if id(v) not in self._spent:
            self._spent[id(v)] = self._raises(v)
        return self._spent[id(v)]

    def _raises(self, v: TensorVar) -> bool:
        leaves, outside = self.reached([v])
        if outside or not leaves:
            return False
        try:
            with self.t.fake_mode:
                ones = torch.ones_like(v.fake)
                torch.autograd.grad([v.fake], [leaf.fake for leaf in leaves], [ones], retain_graph=True, allow_unused=True)
        except RuntimeError as e:
            if TWICE in str(e) and is_open(v.fake.grad_fn):
                raise CannotReconstruct("a tensor of whose history a backward pass has freed a part", self.passes[-1]) from None
            return TWICE in str(e)
        return False

    def ends_of(self, v: TensorVar, outputs: Sequence[torch.fx.Node]) -> list[TensorVar]:
        """What a tensor's history leads to, of all that the program has behind the region: leaves from outside, and the tensors
        whose nodes are outputs."""
        shown = {edge_of(u.fake): u for n in outputs if (u := self.t.by_fake.get(id(n.meta["val"]))) is not None}
        found = [u for edge in history(v.fake.grad_fn) if (u := shown.get(edge)) is not None]
        leaves = [u for u in self.reached([v])[0] if u.real is not None and u.source is not None or u.node in outputs]
        return list(dict.fromkeys((*leaves, *found)))

    def without_history(self, outputs: list[torch.fx.Node], places: set[int]) -> list[torch.fx.Node]:
        """The graph's outputs; those at some places are returned without history, and the exit marks them as freed."""
        for i in places:
            node = self.t.graph.call_method("detach", (outputs[i],))
            node.meta.update(outputs[i].meta, val=outputs[i].meta["val"].detach())
            outputs[i] = node
        return outputs


def edge_of(x: torch.Tensor) -> tuple[torch.autograd.graph.Node | None, int] | None:
    """The step of autograd that made a tensor, and as which of its results; None where there is none or autograd refuses."""
    return None if refused(x) or x.grad_fn is None else (x.grad_fn, x.output_nr)


def history(node: torch.autograd.graph.Node) -> set[tuple[torch.autograd.graph.Node, int]]:
    """The edges behind a step of autograd."""
    todo = [node]
    seen: set[tuple[torch.autograd.graph.Node, int]] = set()
    while todo:
        new = {edge for edge in todo.pop().next_functions if edge[0] is not None} - seen
        seen |= new
        todo += [n for n, _ in new]
    return seen


def is_open(node: torch.autograd.graph.Node) -> bool:
    """Whether a way to a leaf is left beside the nodes that are freed. Where none of those is found, there is none."""
    todo, seen = [node], {node}
    freed = ends = 0
    while todo:
        node = todo.pop()
        if is_freed(node):
            freed += 1
            continue
        ends += node.name() == "torch::autograd::AccumulateGrad"
        following = [n for n, _ in node.next_functions if n is not None and n not in seen]
        seen.update(following)
        todo += following
    return freed > 0 and ends > 0


def is_freed(node: torch.autograd.graph.Node) -> bool:
    """Whether a node has saved something and holds it no more."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            try:
                if getattr(getattr(node, name), "unpack_hook", None) is None:
                    getattr(node, name.removeprefix("_raw"), None)
            except RuntimeError as e:
                return TWICE in str(e)
    return False


def accumulator_has_hooks(leaf: torch.Tensor) -> bool:
    """Whether hooks may be on the node that accumulates a leaf's gradient. torch lists none: a hook that is put there says what
    else is in its dict. Those of torch.distributed are in C++ and in no dict: there each node counts that something holds (a
    node without other references is made here, and has one reference)."""
    with torch.enable_grad(), torch._C.DisableTorchFunction():
        if not leaf.requires_grad:
            return False
        held = sys.getrefcount(leaf.view_as(leaf).grad_fn.next_functions[0][0]) > 1
        node = leaf.view_as(leaf).grad_fn.next_functions[0][0]
    if held and torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    return any(_others(register) for register in (node.register_hook, node.register_prehook))


def _others(register: Callable) -> bool:
    """Whether there are hooks beside the one that is registered, and removed, here."""
    handle = register(_no_change)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return bool(hooks)


def _no_change(*_: object) -> None:
    """A hook that changes nothing."""


# ---- the calls -------------------------------------------------------------------------------------------------------------
def _given(names: tuple[str, ...], args: list[Var], kwargs: dict[str, Var]) -> dict[str, Var]:
    if len(args) > len(names) or any(k not in names for k in kwargs):
        raise Break("the backward pass with these arguments")
    return {**dict(zip(names, args)), **kwargs}


def _tensors(t: Tracer, v: Var | None) -> list[TensorVar]:
    """The tensors that an argument names. Raises: Break for anything else."""
    v = NONE if v is None else t.values.real(v)
    if isinstance(v, TensorVar):
        return [v]
    items = [x for _, x in t.iteration.mapping_items(v) or ()] if isinstance(v, DictVar) else t.iteration.iterate(v)
    found = [x for x in map(t.values.real, items) if isinstance(x, TensorVar)]
    if not found or len(found) != len(items):
        raise Break("a backward pass of values that are not tensors")
    return found


def _grads(t: Tracer, v: Var | None, n: int) -> list[Var]:
    """The gradients that a pass starts with; None where none is given."""
    v = NONE if v is None else t.values.real(v)
    if isinstance(v, TensorVar):
        return [v]
    if is_object(v, None):
        return [NONE] * n
    found = [t.values.real(x) for x in t.iteration.iterate(v)]
    if len(found) != n:
        raise Break("a backward pass with a wrong number of gradients")
    return found


def _flag(t: Tracer, given: dict[str, Var], name: str, default: bool | None = None) -> bool | None:
    return t.const(given[name]) if name in given else default


@models(torch.Tensor.backward)
def tensor_backward(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    given = _given(("tensors", "grad_tensors", "retain_graph", "create_graph", "inputs"), args, _renamed(kwargs))
    return _backward(t, given)


def _renamed(kwargs: dict[str, Var]) -> dict[str, Var]:
    return {{"gradient": "grad_tensors", "self": "tensors"}.get(k, k): v for k, v in kwargs.items()}


@models(torch.autograd.backward)
def backward(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return _backward(t, _given(BACKWARD, args, kwargs))


def _backward(t: Tracer, given: dict[str, Var]) -> Var:
    check_no_level(t)
    if _flag(t, given, "create_graph", False):
        raise Break("Tensor.backward with create_graph=True", "use torch.autograd.grad")
    if t.values.real(given.get("grad_variables", NONE)) is not NONE:
        raise Break("the backward pass with grad_variables")
    outputs = _tensors(t, given.get("tensors"))
    inputs = given.get("inputs")
    wanted = None if inputs is None or t.values.real(inputs) is NONE else _tensors(t, inputs)
    t.backward.into_leaves(outputs, _grads(t, given.get("grad_tensors"), len(outputs)), _flag(t, given, "retain_graph"), wanted)
    return NONE


@models(torch.autograd.grad)
def grad(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    given = _given(GRAD, args, kwargs)
    if _flag(t, given, "is_grads_batched", False) or not _flag(t, given, "only_inputs", True):
        raise Break("torch.autograd.grad with is_grads_batched or without only_inputs")
    outputs, inputs = _tensors(t, given.get("outputs")), _tensors(t, given.get("inputs"))
    flags = [given.get("retain_graph", NONE), given.get("create_graph", FALSE), given.get("allow_unused", NONE)]
    flags.append(given.get("materialize_grads", FALSE))
    found = t.backward.of_inputs(outputs, inputs, _grads(t, given.get("grad_outputs"), len(outputs)), flags)
    named = t.values.real(given["inputs"])
    if isinstance(named, DictVar):
        return DictVar({k: (key, g) for (k, (key, _)), g in zip(named.items.items(), found)})
    return SeqVar(found, tuple)
