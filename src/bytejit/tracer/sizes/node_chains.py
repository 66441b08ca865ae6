"""What the value of a node takes: the nodes behind it, which may run again with real tensors before the graph does."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.fake.tensor import Fake, fakes_in, was_written

# what may be on the way: operations without effects that return the same for the same arguments
PURE = frozenset(
    """abs add all alias amax amin any arange argmax argmin as_tensor bitwise_and bitwise_not bitwise_or bitwise_xor bool
    bucketize cat ceil chunk clamp clone concat concatenate contiguous count_nonzero cpu cumsum detach diag diagonal
    diff div divide double eq equal expand expand_as eye flatten flip float floor floor_divide floordiv fmod full
    full_like ge getattr getitem greater greater_equal gt int interpolate pad one_hot _is_all_true _is_any_true
    is_nonzero isin isinf isneginf isposinf isnan isfinite
    item le len less less_equal lerp logical_and logical_not logical_or logical_xor long lt max
    maximum min minimum mod movedim mul multiply narrow ne neg negative not_ new_full new_ones new_tensor new_zeros
    ones ones_like outer permute pow prod ravel remainder repeat reshape reshape_as roll round rsub scalar_tensor
    select sign size sort split squeeze stack sub subtract sum swapaxes t take_along_dim tensor tile to transpose tril
    triu truediv trunc type type_as unbind unflatten unsqueeze view view_as where zeros zeros_like and_ or_ xor invert
    matmul inv lshift rshift searchsorted gather index_select masked_fill __and__ __or__ __xor__ __invert__ __rsub__
    __radd__ __rmul__ nonzero argwhere unique _unique2 unique_dim unique_consecutive masked_select bincount
    repeat_interleave meshgrid broadcast_to
    numel dim index_fill square movedim swapdims roll expm1 mT hstack vstack""".split()
)
# what writes into its first argument, and has no other effect
WRITES = frozenset(
    """setitem fill_ zero_ copy_ add_ sub_ mul_ div_ floor_divide_ remainder_ clamp_ masked_fill_ index_fill_ scatter_ index_add_
    index_copy_ iadd isub imul ifloordiv iand ior ixor __setitem__ __iadd__ __isub__ __imul__ __iand__ __ior__""".split()
)
# what makes memory without a value: the value that is found must not depend on it
UNSET = {"empty": ("zeros", "ones"), "empty_like": ("zeros_like", "ones_like"), "new_empty": ("new_zeros", "new_ones")}


def nodes_behind(
    graph: torch.fx.Graph, last: torch.fx.Node, longest: int, accepts: Callable[[torch.fx.Node], bool]
) -> list[torch.fx.Node] | None:
    """The nodes that a node is computed from, in the graph's order. Nodes that write into their tensors count too. Returns
    None if `accepts` refuses one of them, if there are more than `longest`, or if the writers are not known."""
    found: dict[torch.fx.Node, None] = {}
    todo = [last]
    while todo:
        node = todo.pop()
        if node in found:
            continue
        found[node] = None
        if len(found) > longest or not accepts(node):
            return None
        todo.extend(node.all_input_nodes)
        for made in fakes_in(node.meta.get("val")):
            if was_written(made):
                writers = writers_of(graph, made)
                if writers is None:
                    return None
                todo.extend(writers)
    return [n for n in graph.nodes if n in found]


def writers_of(graph: torch.fx.Graph, made: Fake) -> list[torch.fx.Node] | None:
    """The nodes that write into the storage of a tensor; None where that is not known of a node."""
    writers = []
    for node in graph.nodes:
        if not any(f.m.store is made.m.store for n in node.all_input_nodes for f in fakes_in(n.meta.get("val"))):
            continue
        if called(node) in WRITES:
            writers.append(node)
        elif called(node) not in PURE or "out" in node.kwargs:
            return None
    return writers


def called(node: torch.fx.Node) -> str:
    """The name of a node's operation."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def copied(nodes: list[torch.fx.Node]) -> tuple[torch.fx.Graph, dict[torch.fx.Node, torch.fx.Node]]:
    """A new graph of the nodes, and the copy of each. It has no output yet."""
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    return graph, made
