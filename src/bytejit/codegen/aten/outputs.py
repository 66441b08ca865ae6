"""How the outputs of a recorded graph are made from its values, and which inputs it writes."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch

from bytejit.codegen.aten.recorded_values import Bound, Root
from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real, Sizes, same, same_spec
from bytejit.codegen.ops.calls import is_view
from bytejit.fake.tensor import Fake, fake_of_spec, spec_of

from .graph import Alias, Const, Input, Mutation, Out, OutputNumber, OutputValue, sized
from .mutation import CannotNormalise
from .recorder import Recorder

aten = torch.ops.aten


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
