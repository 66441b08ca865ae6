"""A traced FX graph of torch calls -> a functional ATen graph, by running it on fakes under a recording mode."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bytejit.common import attention_choice, inference, profiler_ranges, saved_tensors
from bytejit.common.ambient import preserved
from bytejit.common.applied import Applied
from bytejit.common.autocast import cast_resized
from bytejit.common.checkpointed import Checkpointed
from bytejit.common.graph_calls import GraphCall, why_opaque
from bytejit.common.graph_info import info_of
from bytejit.common.interrupts import poll
from bytejit.common.warned import silently, warnings_to
from bytejit.fake import plain_numbers, recurrent  # noqa: F401  # register how functions are composed
from bytejit.fake.composites import composite_of
from bytejit.fake.sized import infer_sized
from bytejit.fake.tensor import Fake, make, with_history
from bytejit.shapes import symbols
from bytejit.shapes.symbols import decomposes, manner_of

from .applied_functions import applied
from .checkpointed_parts import checkpointed
from .decompositions import RULES
from .encoder_layers import IN_PARTS, in_parts
from .float_marks import with_marks
from .fused_optimizers import FUSED
from .graph import Aten, check
from .known_masks import without_known_mask
from .masked_writes import set_item
from .mutation import CannotNormalise
from .outputs import finish, with_sizes
from .recorder import Recorder
from .refused_dtypes import check_function
from .rewrite import drop_dead
from .whole_functions import PADS, differentiates, pad, stays_whole, whole

__all__ = ["CannotNormalise", "normalise"]
aten = torch.ops.aten


def normalise(gm: torch.fx.GraphModule, fakes: Sequence, instead: Mapping[Callable, Callable] | None = None) -> Aten:
    """The functional ATen graph of `gm`, whose placeholders look like `fakes` (values that are no fakes are baked
    in). instead: functions of tensors that are run in place of operators.

    Raises: CannotNormalise when a write or an alias has no functional form here; what the program itself raises
    passes through.
    Cost: some 50 us an op.
    """
    return with_marks(gm, lambda marks: _normalise(gm, fakes, Recorder(RULES, instead, marks)), lambda aten: aten)


def _normalise(gm: torch.fx.GraphModule, fakes: Sequence, rec: Recorder) -> Aten:
    returned = preserved(FakeRun(rec, gm, fakes).run)
    single = not isinstance(returned, (list, tuple))
    flat = [returned] if single else list(returned)
    if any(isinstance(x, (list, tuple, dict)) and any(isinstance(t, torch.Tensor) for t in pytree.tree_leaves(x)) for x in flat):
        raise CannotNormalise("an output is a container of tensors: only flat tuples of outputs are taken")
    outputs, mutations = finish(rec, flat, gm)
    drop_dead(rec.graph)
    outputs = with_sizes(rec.graph, outputs)
    return check(Aten(rec.graph, outputs, mutations, tuple(rec.constants), single))


class FakeRun:
    """Executes the nodes of a graph module on fakes under a recorder."""

    def __init__(self, rec: Recorder, gm: torch.fx.GraphModule, fakes: Sequence) -> None:
        self.rec, self.gm, self.fakes = rec, gm, fakes
        self.env: dict[torch.fx.Node, object] = {}
        info = info_of(gm)
        self.backward, self.grad_at_start = info.backward, info.backward and info.grad_at_start
        self.attention_at_start = attention_choice.read()
        rec.asked = info.asked

    def run(self) -> object:
        """Runs the graph on fakes, and returns its outputs. Leaves the modes that the graph leaves."""
        env, rec = self.env, self.rec
        torch._C._set_grad_enabled(self.grad_at_start)
        rec.follows = self.backward
        given = iter(self.fakes)
        nodes = self.gm.graph.nodes
        for node in nodes:
            if node.op == "placeholder":
                env[node] = self.input(node, next(given))
        with rec, warnings_to(silently):
            for node in nodes:
                if node.op == "output":
                    return torch.fx.node.map_arg(node.args[0], env.__getitem__)
                if node.op != "placeholder":
                    self._record(node)
        return None

    def part(self, gm: torch.fx.GraphModule, inputs: Sequence) -> object:
        """Runs on fakes a graph that a node calls, and returns its outputs. It may run more than once."""
        given = iter(inputs)
        for node in gm.graph.nodes:
            if node.op == "output":
                return torch.fx.node.map_arg(node.args[0], self.env.__getitem__)
            if node.op == "placeholder":
                self.env[node] = next(given)
            else:
                self._record(node)
        return None

    def _record(self, node: torch.fx.Node) -> None:
        poll()
        self.rec.where = node.meta.get("where")
        with manner_of(node):
            self.env[node] = self._step(node) if node.kwargs.get("out") is None else self._written(node)

    def input(self, node: torch.fx.Node, fake: object) -> object:
        """A new fake for an input, so that the tracer's keeps its autograd state and is not written into."""
        if isinstance(fake, Fake):
            requires_grad, is_leaf = node.meta.get("autograd", (False, True)) if self.backward else (False, True)
            fake = make(fake.m, requires_grad)
            fake = fake if is_leaf else with_history(fake)
        elif isinstance(fake, torch.Tensor):
            raise CannotNormalise(f"input {node.name}: a real tensor where a fake is expected")
        self.rec.placeholder(node.name, fake)
        return fake

    def _step(self, node: torch.fx.Node) -> object:
        if symbols.is_symbolic(node.meta.get("val")):
            return node.meta["val"]  # arithmetic on sizes and floats: what it comes to is known
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(self.gm)
        args = torch.fx.node.map_aggregate(node.args, self._value)
        kwargs = torch.fx.node.map_aggregate(node.kwargs, self._value)
        target = getattr(torch.Tensor, node.target, None) if node.op == "call_method" else node.target
        if node.op == "call_function":
            check_function(target, args, kwargs)
        said = infer_sized(target, args, kwargs) if node.op != "call_module" else None
        if said is not None and not differentiates(args, kwargs):
            return self.rec.new(said[0], self.rec.fake(tuple(args)), {k: self.rec.fake(v) for k, v in kwargs.items()}, said[1])
        if node.op != "call_module" and (composed := composite_of(target, args, kwargs)) is not None:
            return composed(*args, **kwargs)
        if target is not None and decomposes(node):
            args, kwargs = cast_resized(target, args, kwargs)
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        if node.op == "call_module":
            with _Wholes(self):
                return self.gm.get_submodule(node.target)(*args, **kwargs)
        if node.target in (inference.enter, inference.leave, saved_tensors.refuse):
            return node.target(*args)  # as when it was traced: in inference mode composite ops arrive whole
        if node.target in profiler_ranges.NODES:  # they are around the whole
            return None
        if isinstance(node.target, Checkpointed):
            return checkpointed(self.rec, self.part, node.target, args)
        if isinstance(node.target, Applied):
            return applied(self.part, node.target, args)
        if why := why_opaque(node):
            raise CannotNormalise(why)
        if node.target is torch.manual_seed:
            raise CannotNormalise("the seed of random numbers is set within the graph")
        if node.target in FUSED:
            return FUSED[node.target](*args, **kwargs)
        if node.target is operator.setitem:
            set_item(*args)
            return None
        args, kwargs = without_known_mask(self.rec, node.target, args, kwargs)
        if (op := stays_whole(node.target, args, kwargs, self.attention_at_start)) is not None:
            return whole(self.rec, node.target, op, args, kwargs)
        if node.target in PADS and not differentiates(args, kwargs):
            return pad(self.rec, *args, **kwargs)
        if isinstance(node.target, (FunctionType, GraphCall)) or node.target in IN_PARTS:
            with _Wholes(self):
                return in_parts(node.target, args, kwargs)
        return node.target(*args, **kwargs)

    def _written(self, node: torch.fx.Node) -> object:
        """A call with out=. Raises: CannotNormalise where torch leaves that alone, as some composite ops do under a mode."""
        outs = [t for t in pytree.tree_leaves(torch.fx.node.map_aggregate(node.kwargs["out"], self._value)) if type(t) is Fake]
        before = [(t.bound, t.bound.root.version) for t in outs]
        made = self._step(node)
        if any(t.bound is bound and bound.root.version == version for t, (bound, version) in zip(outs, before)):
            name = getattr(node.target, "__name__", node.target)
            raise CannotNormalise(f"{name}: torch writes into out= only where no mode is on")
        return made

    def _value(self, x: object) -> object:
        return self.env[x] if isinstance(x, torch.fx.Node) else x


class _Wholes(TorchFunctionMode):
    """Records calls of functions that stay whole as one node, also inside Python functions and modules."""

    def __init__(self, run: FakeRun) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        check_function(func, args, kwargs)
        args, kwargs = without_known_mask(self.run.rec, func, args, kwargs)
        if (op := stays_whole(func, args, kwargs, self.run.attention_at_start)) is not None:
            return whole(self.run.rec, func, op, args, kwargs)
        if differentiates(args, kwargs):
            return func(*args, **kwargs)
        if func in IN_PARTS:
            with self:
                return in_parts(func, args, kwargs)
        return pad(self.run.rec, *args, **kwargs) if func in PADS else func(*args, **kwargs)
