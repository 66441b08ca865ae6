"""FlexAttention: the tracer wrote the attention out as ATen operations and marked it (`common/attention_marks.py`). Where one
expression gives the new score of a place, it becomes one kernel; else the operations stay."""

from __future__ import annotations

import operator

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    GPU_FLOATS,
    aten,
    call_before,
    contiguous,
    drop_dead,
    infer_before,
    is_static,
    replace,
    spec_of,
    specs_of,
)
from bytejit.codegen.cuda.score_functions import function_of_places
from bytejit.codegen.ops.calls import kind_of

from .choices import Choices

MOST_DIM = 256  # of a head
THROUGH = "pointwise", "composite", "view", "create"  # rows that say what happens at one place


def choose_flex(graph: fx.Graph, choices: Choices) -> None:
    """Take each mark away; its results are a kernel's, or what was written out. Changes `graph`."""
    marks = [n for n in graph.nodes if n.op == "call_function" and n.target is torch.ops.bytejit.flex_mark.default]
    for node in marks:
        made = _kernel(graph, node)
        for user in list(node.users):
            assert user.target is operator.getitem
            at = user.args[1]
            if made is None:
                replace(user, node.args[6 + at])
            else:
                replace(user, call_before(graph, user, operator.getitem, (made, at), spec_of(user)))
        graph.erase_node(node)
    if marks:
        drop_dead(graph)


def _kernel(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    """The call of the kernel in a mark's place; None where there is none for it."""
    q, k, v, scores, changed, seen, _, _, _, few, few_at, full, full_at, rows, keys, scale = node.args
    tensors = [n for n in (q, k, v, scores, few, few_at, full, full_at) if n is not None]
    specs = specs_of(*tensors)
    if specs is None or not all(map(is_static, specs)) or any(0 in s.shape for s in specs) or not isinstance(scale, float):
        return None
    own = specs[0]
    if any(s.dtype != own.dtype for s in specs[:3]) or own.dtype not in GPU_FLOATS or specs[3].dtype is not torch.float32:
        return None
    if max(own.shape[3], specs[2].shape[3]) > MOST_DIM or max(own.shape[2], specs[1].shape[2]) >= 1 << 30:
        return None
    captured: list[fx.Node] = []
    texts = [_text(scores, what, name, captured) for what, name in ((changed, "score"), (seen, "seen"))]
    read = specs_of(*captured)
    if None in texts or read is None or not all(is_static(s) and s.device == own.device for s in read):
        return None
    results = node.meta["spec"]
    if any(s != contiguous(s) for s in results[1:]):
        return None
    args = (q, k, v, few, few_at, full, full_at, captured, list(results[0].stride), rows, keys, scale, *texts)
    return call_before(graph, node, torch.ops.bytejit.gpu_flex.default, args, results)


def _text(scores: fx.Node, value: fx.Node, name: str, captured: list[fx.Node]) -> str | None:
    """What makes a value of all places, as a function of one; what it reads is added to `captured`. None where it is not one."""
    part, known = fx.Graph(), {}
    names = []
    for n in _leading_to(value, scores):
        if n is scores or not _through(n):
            made = known[n] = part.placeholder(n.name)
            made.meta = dict(n.meta)
            if n is not scores and n not in captured:
                captured.append(n)
            names.append("s" if n is scores else f"c{captured.index(n)}")
        else:
            known[n] = part.node_copy(n, known.__getitem__)
    result = known[value]
    ends = part.output((result,))
    whole = infer_before(part, ends, aten.expand.default, result, list(spec_of(scores).shape))
    copied = infer_before(part, ends, aten.clone.default, whole, memory_format=torch.contiguous_format)
    ends.args = ((copied,),)
    return function_of_places(part, name, names)


def _through(n: fx.Node) -> bool:
    """Whether a node's value at a place is known from others'."""
    return n.op == "call_function" and kind_of(n) in THROUGH


def _leading_to(value: fx.Node, scores: fx.Node) -> list[fx.Node]:
    """The nodes that a value is made from, in their order, no further than the scores and what is computed apart."""
    found: set[fx.Node] = set()
    todo = [value]
    while todo:
        n = todo.pop()
        if n not in found:
            found.add(n)
            if n is not scores and _through(n):
                todo.extend(n.all_input_nodes)
    placeholders = [n for n in value.graph.nodes if n in found and (n is scores or not _through(n))]
    return placeholders + [n for n in value.graph.nodes if n in found and n not in placeholders]
