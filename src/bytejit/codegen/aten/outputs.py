"""How the outputs of a recorded graph are made from its values, and which inputs it writes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from bytejit.codegen.aten.recorded_values import Bound, Root
from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real, Sizes, same, same_spec
from bytejit.codegen.ops.calls import is_view
from bytejit.common.gradients import CREATION, creation
from bytejit.common.graph_info import GraphInfo, info_of
from bytejit.fake.tensor import Fake, fake_of_spec, spec_of

from .graph import Alias, Const, Input, Mutation, Out, OutputNumber, OutputValue, sized
from .mutation import CannotNormalise
from .recorder import Recorder

aten = torch.ops.aten


class Outputs:
    """The flat output tuple as it grows, and which storage each of its nodes stands for."""

    def __init__(self, rec: Recorder, flat: Sequence = (), kinds: Sequence[str | None] = ()) -> None:
        """flat: the user's outputs; kinds: how each of those that are views was made, if not as their texts make them now."""
        self.rec = rec
        fakes = [rec.fake(x) if isinstance(x, torch.Tensor) else x for x in flat]
        self.given = {id(x) for x in fakes}
        self.kinds = {id(x): kind for x, kind in zip(fakes, kinds)}
        self.bases: dict[Root, Fake] = {}  # which of a storage's tensors the one that is made is for autograd
        self.numbers: list[Fake] = []  # those that are detached from it
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

    def base(self, root: Root, x: Fake) -> bool:
        """Whether a tensor that is no view for autograd is the one that a root's outputs are made of."""
        if root.index is not None:
            return x is root.fake
        whole = x is root.fake or same(x.m.offset, root.offset) and same_spec(spec_of(x), root.spec)
        return whole and not counts_apart(x, root.fake) and self.bases.setdefault(root, x) is x

    def number(self, x: Fake) -> int:
        """The number of a detached tensor."""
        known = next((i for i, y in enumerate(self.numbers) if y is x), None)
        if known is None:
            self.numbers.append(x)
        return len(self.numbers) - 1 if known is None else known

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


def finish(rec: Recorder, flat: list, gm: torch.fx.GraphModule) -> tuple[tuple[Out, ...], tuple[Mutation, ...]]:
    """Make the output node. Returns how user outputs and mutations are made from it."""
    found = Outputs(rec, flat, kinds_of(gm, mode_of(info_of(gm))))
    outs = tuple(out_of(rec, found, x) for x in flat)
    mutations = mutations_of(rec, found)
    rec.graph.output(tuple(found.nodes))
    return outs, mutations


def kinds_of(gm: torch.fx.GraphModule, now: str) -> list[str | None]:
    """How the program made each output that is a view; None where that is as it is made now."""
    outputs = next(n for n in reversed(gm.graph.nodes) if n.op == "output").args[0]
    values = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in pytree.tree_leaves(outputs)]
    kinds = [creation(x) if type(x) is Fake and not x.m.store.inference else None for x in values]
    return [None if kind == now else kind for kind in kinds]


def mode_of(info: GraphInfo) -> str:
    """How views are made in the mode in which a graph's kernels run."""
    if info.inference or info.inference is None and torch.is_inference_mode_enabled():
        return CREATION.INFERENCE_MODE.name
    off = info.inference is None and (not info.grad_at_start or info.grads_off and not info.needs_grad)
    return (CREATION.NO_GRAD_MODE if off else CREATION.DEFAULT).name


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
    alias, whole = memory_of(found, x, root)
    if x.is_inference() or gradient:
        if whole and x is (root.fake if root.index is not None else found.whole.setdefault(root, x)):
            return made_itself(alias)
        return alias if x.is_inference() else replace(alias, detached=not x._is_view())
    of = x._base if x._is_view() else x
    if found.base(root, of):
        stands = x is of or root.index is None and id(of) not in found.given
        if whole and stands and (root.index is not None or found.whole.setdefault(root, x) is x):
            return made_itself(alias)
        # a view of all of it is another object: what is done to it later (resize_, requires_grad_) is not done to this one
        return replace(alias, kind=found.kinds.get(id(x))) if x is not of else alias
    if x is of:
        return replace(alias, detached=True, number=found.number(x))
    if x.m.dtype is not of.m.dtype or x.m.offset < of.m.offset:
        return replace(alias, detached=True)
    behind = replace(memory_of(found, of, root)[0], detached=True, number=found.number(of))
    return replace(alias, behind=behind, inside=x.m.offset - of.m.offset, kind=found.kinds.get(id(x)))


def made_itself(alias: Alias) -> OutputValue | Input:
    """The output that is all of what is made, not a view."""
    return alias.of if isinstance(alias.of, Input) else replace(alias.of, version=alias.version)


def memory_of(found: Outputs, x: Fake, root: Root) -> tuple[Alias, bool]:
    """The part of a storage that a tensor shows, and whether it is all of it. Raises: CannotNormalise."""
    base = Input(root.index) if root.index is not None else OutputValue(found.of_root(root))
    m, apart = x.m, found.apart(x, root.fake)
    version = 0 if x.is_inference() or root.index is not None and apart is None else x._version
    alias = Alias(base, m.shape, m.stride, 0, None, apart, False, version)
    if m.dtype is not root.spec.dtype:
        start, rest = divmod(root.offset * root.spec.dtype.itemsize, m.dtype.itemsize)
        if rest or m.offset < start:
            raise CannotNormalise(f"an output views a {root.spec.dtype} storage as {m.dtype}, and begins before its base")
        return replace(alias, offset=m.offset - start, dtype=m.dtype), False
    if same(m.offset, root.offset) and same_spec(spec_of(x), root.spec):
        return alias, apart is None
    if m.offset < root.offset:
        raise CannotNormalise("an output begins before its base")
    return replace(alias, offset=m.offset - root.offset), False


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
        behind = o.behind and _sized_alias(o.behind, sizes)
        return replace(_sized_alias(o, sizes), behind=behind, inside=sizes(o.inside))
    if isinstance(o, (OutputNumber, Const)):
        value = sizes(o.value)
        return OutputNumber(value) if isinstance(value, (Index, Real)) else Const(value)
    return o


def _sized_alias(o: Alias, sizes: Sizes) -> Alias:
    return replace(o, size=sizes(o.size), stride=sizes(o.stride), offset=sizes(o.offset))
