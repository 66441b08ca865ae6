"""Helpers for passes over the ATen graph: copy it, read specs, insert calls; and the constants that freezing adds to its
inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import fx

from bytejit.codegen.loops import index as ix
from bytejit.codegen.ops.calls import stays
from bytejit.common.errors import Bug
from bytejit.common.spec import Spec, contiguous_stride
from bytejit.fake.tensor import fake_of_spec, infer
from bytejit.fake.tensor import spec_of as fake_spec

aten = torch.ops.aten
VIEWS = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.alias.default,
    }
)


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A copy that can be changed; nodes keep their names, targets and meta."""
    new = fx.Graph()
    result = new.graph_copy(graph, {})
    new.output(result)
    return new


def spec_or_none(node: object) -> Spec | None:
    """Spec of a node that yields one tensor; None for anything else."""
    spec = node.meta.get("spec") if isinstance(node, fx.Node) else None
    return spec if isinstance(spec, Spec) else None


def spec_of(node: object) -> Spec:
    """Spec of a node that is known to yield one tensor. Raises: Bug."""
    spec = spec_or_none(node)
    if spec is None:
        raise Bug(f"{node} is no node that yields one tensor")
    return spec


def specs_of(*nodes: object) -> tuple[Spec, ...] | None:
    """Specs of nodes that yield one tensor each; None where one of them does not."""
    specs = tuple(spec for spec in map(spec_or_none, nodes) if spec is not None)
    return specs if len(specs) == len(nodes) else None


def is_static(spec: Spec | None) -> TypeGuard[Spec]:
    """All sizes and strides are plain ints."""
    return spec is not None and all(isinstance(n, int) for n in (*spec.shape, *spec.stride))


def plain_cpu(*specs: Spec) -> bool:
    """All are float32 tensors on the CPU: what the library rows are offered."""
    return all(s.dtype is torch.float32 and s.device.type == "cpu" for s in specs)


GPU_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})


def plain_floats(*specs: Spec) -> bool:
    """All are float32 on the CPU, or of one float dtype on a GPU: what the convolution rows are offered."""
    if plain_cpu(*specs):
        return True
    kinds = {(s.dtype, s.device.type) for s in specs}
    return len(kinds) == 1 and all(d in GPU_FLOATS and t == "cuda" for d, t in kinds)


def at_hints(spec: Spec) -> Spec:
    """The spec with its symbolic sizes replaced by those that the graph was made with."""
    return Spec(tuple(map(ix.hint, spec.shape)), tuple(map(ix.hint, spec.stride)), spec.dtype, spec.device)


def elements_of(spec: Spec) -> int:
    """The number of elements, with symbolic sizes as they were when the graph was made."""
    return math.prod(map(ix.hint, spec.shape))


def bytes_of(spec: Spec) -> int:
    """The size of a tensor, with symbolic sizes as they were when the graph was made. Units: bytes."""
    return elements_of(spec) * spec.dtype.itemsize


def call_before(
    graph: fx.Graph,
    node: fx.Node,
    target: object,
    args: tuple,
    spec: Spec | tuple[Spec, ...],
    kwargs: dict | None = None,
) -> fx.Node:
    """A new call just before `node`, with the user's line of `node`. spec: of the result, or a tuple with one for each
    result."""
    assert not node._erased, f"{node} has gone: what is placed before it may be lost"
    with graph.inserting_before(node):
        new = graph.call_function(target, args, kwargs or {})
    new.meta["spec"] = spec
    if "where" in node.meta:
        new.meta["where"] = node.meta["where"]
    return new


def order_of(view: fx.Node, rank: int) -> list[int] | None:
    """The order in which a transposed view has the dims of its operand. rank: the number of dims. None for other nodes."""
    if view.target is aten.permute.default:
        return [d % rank for d in view.args[1]]
    if view.target is aten.transpose.int:
        order, (a, b) = list(range(rank)), (d % rank for d in view.args[1:3])
        order[a], order[b] = order[b], order[a]
        return order
    return None


def is_cpu_number(node: fx.Node) -> bool:
    """Whether a node yields a 0-dim tensor on the CPU."""
    spec = spec_or_none(node)
    return spec is not None and spec.shape == () and spec.device.type == "cpu"


def infer_before(graph: fx.Graph, node: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """`call_before` of an ATen operator. The spec is inferred from those of the arguments, whose sizes are plain ints."""
    fakes = fx.node.map_arg(args, lambda a: fake_of_spec(a.meta["spec"]))
    return call_before(graph, node, target, args, fake_spec(infer(target, fakes, kwargs)), kwargs)


def replace(node: fx.Node, new: fx.Node) -> None:
    """Every user of `node` reads `new` from now on; `node` is removed."""
    node.replace_all_uses_with(new, propagate_meta=False)
    node.graph.erase_node(node)


def sole_user(node: fx.Node) -> fx.Node | None:
    """The only user, when there is one and it reads the node once and is not the output."""
    users = list(node.users)
    if len(users) != 1 or users[0].op == "output" or list(users[0].all_input_nodes).count(node) != 1:
        return None
    return users[0]


def drop_dead(graph: fx.Graph) -> None:
    """Erase calls that nothing reads, last first, except those with effects or checks (`stays`)."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and not stays(node):
            graph.erase_node(node)


def contiguous(spec: Spec) -> Spec:
    """The same tensor row-major."""
    return Spec(spec.shape, contiguous_stride(spec.shape), spec.dtype, spec.device)


def expanded(spec: Spec, shape: tuple) -> Spec | None:
    """The spec of a tensor expanded to a shape; None where it does not go."""
    ahead = len(shape) - len(spec.shape)
    if ahead < 0 or any(n not in (1, m) for n, m in zip(spec.shape, shape[ahead:])):
        return None
    strides = [s if n == m else 0 for n, m, s in zip(spec.shape, shape[ahead:], spec.stride)]
    return Spec(shape, (0,) * ahead + tuple(strides), spec.dtype, spec.device)


@dataclass
class Constants:
    """Tensors that go with a frozen graph: placeholders after the graph's own inputs, in this order."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, graph: fx.Graph, tensor: torch.Tensor, hint: str, spec: Spec | None = None) -> fx.Node:
        """A placeholder that is always fed `tensor`. spec: given for a tensor in a library's own layout, which has
        no strides."""
        name = f"const{len(self.tensors)}_{hint}"
        last = [n for n in graph.nodes if n.op == "placeholder"]
        if last:
            with graph.inserting_after(last[-1]):
                node = graph.placeholder(name)
        else:
            with graph.inserting_before(next(iter(graph.nodes))):
                node = graph.placeholder(name)
        node.meta["spec"] = spec or Spec.of(tensor)
        node.meta["opaque"] = spec is not None
        self.tensors[node.name] = tensor
        return node

    def of(self, node: object) -> torch.Tensor | None:
        """The real tensor behind a placeholder that is a plain constant; None for anything else."""
        if isinstance(node, fx.Node) and node.op == "placeholder" and not node.meta.get("opaque"):
            return self.tensors.get(node.name)
        return None

    def prune(self, graph: fx.Graph) -> None:
        """Forget constants that nothing reads."""
        for node in list(graph.nodes):
            if node.op == "placeholder" and node.name in self.tensors and not node.users:
                del self.tensors[node.name]
                graph.erase_node(node)

    def in_order(self, graph: fx.Graph) -> tuple[torch.Tensor, ...]:
        """The tensors as the graph's last placeholders want them."""
        return tuple(self.tensors[n.name] for n in graph.nodes if n.op == "placeholder" and n.name in self.tensors)
