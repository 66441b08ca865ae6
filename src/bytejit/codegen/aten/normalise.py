"""A traced FX graph of torch calls -> a functional ATen graph, by running it on fakes under a recording mode."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bytejit.codegen.aten.recorded_values import Bound, Root
from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real, Sizes, same, same_spec
from bytejit.codegen.ops.calls import is_view
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
from bytejit.fake.tensor import Fake, fake_of_spec, make, spec_of, with_history
from bytejit.shapes import symbols
from bytejit.shapes.symbols import decomposes, manner_of

from .applied_functions import applied
from .checkpointed_parts import checkpointed
from .decompositions import RULES
from .encoder_layers import IN_PARTS, in_parts
from .float_marks import with_marks
from .fused_optimizers import FUSED
from .graph import Alias, Aten, Const, Input, Mutation, Out, OutputNumber, OutputValue, check, sized
from .known_masks import without_known_mask
from .masked_writes import set_item
from .mutation import CannotNormalise
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
    outputs, mutations = finish(rec, flat)
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


# --- outputs --------------------------------------------------------------------------------------


class Outputs:
    """The flat output tuple as it grows, and which storage each of its nodes stands for."""

    def __init__(self, rec: Recorder) -> None:
        self.rec = rec
        self.nodes: list[torch.fx.Node] = []
        self.owner: dict[torch.fx.Node, Root] = {}
        self.position: dict[Root, int] = {}
        self.whole: dict[Root, Fake] = {}  # which of a fresh storage's tensors is the one that is made
        self.shown: dict[Root, Root] = {}  # storage -> how it is read
        self.data: list[Fake] = []  # one of those that count their writes together, and apart from their storage's

    def show(self, root: Root) -> None:
        """Note an output. Raises: CannotNormalise if one output is a conjugated or negated view of a tensor, and another
        shows the tensor itself."""
        of = root.lazy or root
        if root.stale() or root.lazy is not None and of.index is not None or self.shown.setdefault(of, root) is not root:
            raise CannotNormalise("an output is conjugated or negated when it is read, and what it views is seen as well")

    def apart(self, x: Fake, of: Fake) -> int | None:
        """A number for those outputs that count their writes together, and apart from `of`, in whose memory they are."""
        if not counts_apart(x, of):
            return None
        known = next((i for i, y in enumerate(self.data) if y.bound.root is x.bound.root and not counts_apart(x, y)), None)
        if known is None:
            self.data.append(x)
        return len(self.data) - 1 if known is None else known

    def add(self, node: torch.fx.Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def of_root(self, root: Root) -> int:
        """The position of a fresh storage's value, which is a tensor of its own."""
        at = self.position.get(root)
        if at is None:
            node = root.node
            shared = self.owner.get(node, root) is not root or storage_node(node) is not node or node.op == "placeholder"
            if shared or not same(node.meta["spec"].stride, root.spec.stride):
                node = _own_copy(self.rec, node, root)
            self.owner[node] = root
            at = self.position[root] = self.add(node)
        return at


def storage_node(node: torch.fx.Node) -> torch.fx.Node:
    """The node in whose memory a node's value lies: through view ops."""
    while node.op == "call_function" and node.target is not operator.getitem and is_view(node.target):
        node = node.args[0]
    return node


def _own_copy(rec: Recorder, node: torch.fx.Node, root: Root) -> torch.fx.Node:
    """A copy that shares memory and node with nothing else, in the storage's own layout, gaps included."""
    rec.where = node.meta.get("where")
    spec, wanted = node.meta["spec"], root.spec
    if same(spec.stride, wanted.stride):
        return rec._create(aten.clone.default, (node,), {}, None, fake_of_spec(spec))
    given = {"dtype": wanted.dtype, "device": wanted.device}
    empty = rec.emit(aten.empty_strided.default, (list(wanted.shape), list(wanted.stride)), given)
    return rec._create(aten.copy.default, (empty, node), {}, None, fake_of_spec(wanted))


def finish(rec: Recorder, flat: list) -> tuple[tuple[Out, ...], tuple[Mutation, ...]]:
    """Make the output node. Returns how user outputs and mutations are made from it."""
    found = Outputs(rec)
    outs = tuple(out_of(rec, found, x) for x in flat)
    mutations = mutations_of(rec, found)
    rec.graph.output(tuple(found.nodes))
    return outs, mutations


def mutations_of(rec: Recorder, found: Outputs) -> tuple[Mutation, ...]:
    """Puts the final values of the inputs that were written among the outputs, and returns the mutations."""
    written = [(r.index, r) for r in rec.inputs if r is not None and r.index is not None and r.version > 0]
    sources = {n for n in rec.graph.nodes if n.op == "placeholder"}
    mutations = []
    for index, root in written:
        node = root.node
        if storage_node(node) in sources and (len(written) > 1 or storage_node(node) is _placeholder_of(rec, index)):
            node = rec._create(aten.clone.default, (node,), {}, None, fake_of_spec(node.meta["spec"]))
        elif node in sources and node.meta["spec"].dtype.is_complex:  # loops do not copy it into the other input
            node = rec.emit(aten.clone.default, (node,))
        mutations.append(Mutation(index, found.add(node), versions_of(root.fake)))
    return tuple(mutations)


def versions_of(fake: Fake) -> int:
    """Returns how many writes into a new fake its version counts; of an inference tensor, which has none, that does not
    matter."""
    return 1 if fake.m.store.inference else fake._version


def _placeholder_of(rec: Recorder, index: int) -> torch.fx.Node:
    for i, node in enumerate(rec.graph.nodes):
        if i == index:
            return node
    raise IndexError(index)


def out_of(rec: Recorder, found: Outputs, given: object, gradient: bool = False) -> Out:
    """Returns how to make one of the user's outputs. gradient: of a backward pass, which nobody else holds."""
    if not isinstance(given, torch.Tensor):
        return OutputNumber(given) if isinstance(given, torch.SymInt) else Const(given)
    x = rec.fake(given)
    bound: Bound = x.bound
    root = bound.root
    if not gradient:
        found.show(root)
    base = Input(root.index) if root.index is not None else OutputValue(found.of_root(root))
    m, apart = x.m, found.apart(x, root.fake)
    version = 0 if x.is_inference() or root.index is not None and apart is None else x._version
    alias = Alias(base, m.shape, m.stride, 0, None, apart, not x.is_inference() and not x._is_view(), version)
    if m.dtype is not root.spec.dtype:
        start, rest = divmod(root.offset * root.spec.dtype.itemsize, m.dtype.itemsize)
        if rest or m.offset < start:
            raise CannotNormalise(f"an output views a {root.spec.dtype} storage as {m.dtype}, and begins before its base")
        return replace(alias, offset=m.offset - start, dtype=m.dtype)
    if same(m.offset, root.offset) and same_spec(spec_of(x), root.spec):
        # a view of all of it is another object: what is done to it later (resize_, requires_grad_) is not done to this one
        if apart is None and x is (root.fake if root.index is not None else found.whole.setdefault(root, x)):
            return base if isinstance(base, Input) else replace(base, version=version)
        return alias
    if m.offset < root.offset:
        raise CannotNormalise("an output begins before its base")
    return replace(alias, offset=m.offset - root.offset)


def counts_apart(x: Fake, of: Fake) -> bool:
    """Whether writes into a tensor leave the version of another one in its memory as it is: `.data` counts its own."""
    if x is of or x.is_inference() or of.is_inference():
        return False
    if x._version != of._version:
        return True
    before = x._version
    torch._C._autograd._unsafe_set_version_counter((x,), (before + 1,))
    found = of._version == before
    torch._C._autograd._unsafe_set_version_counter((x,), (before,))
    return found


def with_sizes(graph: torch.fx.Graph, outputs: tuple[Out, ...]) -> tuple[Out, ...]:
    """Symbolic numbers of the tracer become sizes of codegen, in the graph and in the outputs."""
    sizes = sized(graph)
    return tuple(_sized_output(o, sizes) for o in outputs)


def _sized_output(o: Out, sizes: Sizes) -> Out:
    if isinstance(o, Alias):
        return replace(o, size=sizes(o.size), stride=sizes(o.stride), offset=sizes(o.offset))
    if isinstance(o, (OutputNumber, Const)):
        value = sizes(o.value)
        return OutputNumber(value) if isinstance(value, (Index, Real)) else Const(value)
    return o
