"""Masks of attention whose values follow from the graph alone: all pairs see each other, or each query sees the keys up to it.

Programs that are compiled make a mask where eager code passes none or says `is_causal`, as whether one is needed may depend on
values. A kernel without a mask reads less, and a causal one does half the work. The operations that make the mask are lowered to
loops, which say its values for all sizes at once (`loops/mask_values.py`).
"""

from __future__ import annotations

from typing import Any

import torch

from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.mask_values import mask_values
from bytejit.codegen.loops.sizes import same
from bytejit.codegen.ops.calls import named
from bytejit.fake.rules.core import Meta
from bytejit.fake.tensor import Fake

from .graph import Aten, OutputValue, sized
from .graph_writer import SEEDED, GraphWriter
from .rewrite import contiguous

MOST = 64  # operations that make a mask
ALL, CAUSAL = "all", "causal"


def without_known_mask(rec: GraphWriter, function: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Drop the mask from a call of torch's attention if it has no effect. Returns the arguments of the call. A mask that
    gets a gradient stays. So does a mask beside dropout on a GPU, because torch's kernels differ in the random numbers that
    they draw; but it is dropped if the program asked whether it is compiled, because then eager code would not have made
    it."""
    if function is not torch.nn.functional.scaled_dot_product_attention:
        return args, kwargs
    given = named(torch.ops.aten.scaled_dot_product_attention.default, args, kwargs)
    mask = given.get("attn_mask")
    if type(mask) is not Fake or not hasattr(mask, "bound") or given.get("is_causal") or not _fits(mask.m, given):
        return args, kwargs
    draws = given.get("dropout_p", 0.0) != 0 and mask.m.device.type != "cpu"
    if mask.requires_grad or draws and not rec.asked:
        return args, kwargs
    node = rec.node(mask)
    if node not in rec.masks:
        with torch.utils._python_dispatch._disable_current_modes():
            rec.masks[node] = _kind_of(node)
    kind = rec.masks[node]
    return (args, kwargs) if kind is None else ((), given | {"attn_mask": None, "is_causal": kind == CAUSAL})


def _fits(mask: Meta, given: dict[str, Any]) -> bool:
    """Whether torch takes a mask, and it has a row for each query and a column for each key."""
    query, key = given.get("query"), given.get("key")
    if type(query) is not Fake or type(key) is not Fake or mask.device != query.m.device or len(key.m.shape) < 2:
        return False
    scores = (*query.m.shape[:-1], key.m.shape[-2])
    if mask.dtype not in (torch.bool, query.m.dtype) or not 2 <= len(mask.shape) <= len(scores):
        return False
    return same(mask.shape[-2:], scores[-2:]) and all(
        same(n, 1) or same(n, m) for n, m in zip(mask.shape[-3::-1], scores[-3::-1])
    )


def _kind_of(mask: torch.fx.Node) -> str | None:
    """ALL or CAUSAL; None for other masks, and for those that depend on an input."""
    graph = _made_of(mask)
    values = mask_values(lower(Aten(graph, (OutputValue(0),)))) if graph is not None else None
    if values is None or values.behind is None:
        return None
    dtype = mask.meta["spec"].dtype
    if dtype is torch.bool:
        return None if values.upto is not True else ALL if values.behind else CAUSAL
    if not dtype.is_floating_point or values.upto != 0:
        return None
    return ALL if values.behind == 0 else CAUSAL if values.behind <= torch.finfo(dtype).min else None


def _made_of(mask: torch.fx.Node) -> torch.fx.Graph | None:
    """A graph of the operations that make a mask; None where one reads an input or draws numbers, or they are many."""
    needed: dict[torch.fx.Node, None] = {}
    left = [mask]
    while left:
        node = left.pop()
        if node.op != "call_function" or SEEDED in getattr(node.target, "tags", ()) or len(needed) > MOST:
            return None
        if node not in needed:
            needed[node] = None
            left += node.all_input_nodes
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in sorted(needed):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    sized(graph)
    # an expanded mask in memory of its own: the expression is then one of all coordinates
    own = graph.call_function(torch.ops.aten.clone.default, (copies[mask],), {"memory_format": torch.contiguous_format})
    own.meta["spec"] = contiguous(copies[mask].meta["spec"])
    graph.output((own,))
    return graph
