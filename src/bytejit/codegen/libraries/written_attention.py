"""Attention that a program writes out: softmax(q k^T scale + masks) v as two batched products and a softmax between them.

The scores go to memory and back between the three, and libraries are slow on batches of small matrices. Our own attention
(`kernels/attention.py`) keeps the scores of a few rows in the cache. Timing decides.
"""

from __future__ import annotations

import math
from dataclasses import replace as changed
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    aten,
    call_before,
    contiguous,
    infer_before,
    is_static,
    plain_cpu,
    replace,
    sole_user,
    spec_of,
    spec_or_none,
)
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .attention import AttentionNodes, aside_of, match_attention, worth_timing, writable
from .choices import Choices, choose_each, timed

PASS_RATE = 8e9  # bytes a second, read and written, of masks that are added up first
# Part of the time of products and softmax that ours may take. Masks of -100 and the like make weights below the smallest normal
# float, at which libraries take up to 70 times as long (ours makes them 0); the masks that are timed are 0.
PLAIN, MASKED = 0.95, 1.25
OWN, WRITTEN = "attention_own", "written"
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
Shape = tuple[int, ...]


@light_dataclass(frozen=True)
class Scores:
    """What is between the first product and the softmax: product scale + masks, a mask with the shape that it is added at."""

    product: fx.Node
    scale: float = 1.0
    masks: tuple[tuple[fx.Node, Shape], ...] = ()


@light_dataclass(frozen=True)
class Written:
    """An attention that the program writes as two products and a softmax; node: the second product. Shapes: q [N, L, D], k
    [N, D, S] (transposed), v [N, S, E]; or four dims, of which the first two are `lead` (batch, heads), with N their product.
    strict: rows whose scores are all -inf give NaN, as in a plain softmax."""

    node: fx.Node
    q: fx.Node
    k: fx.Node
    v: fx.Node
    scale: float
    masks: tuple[tuple[fx.Node, Shape], ...]
    lead: Shape
    strict: bool

    @property
    def size(self) -> Shape:
        """N, L, S, D, E."""
        (*_, rows, d), (*_, keys, e) = spec_of(self.q).shape, spec_of(self.v).shape
        return math.prod(self.lead), rows, keys, d, e


def join_attentions(graph: fx.Graph, choices: Choices) -> None:
    """Make attentions that are written out one call, where that is faster. Changes `graph`."""
    if OWN not in {row.name for row in choices.library.rows("attention")}:
        return
    row = choices.library.ROWS[OWN]

    def decide(found: Written) -> Any:
        n, rows, keys, d, e = found.size
        return row if worth_timing(n * rows * keys * (d + e), rows) and pays(found, row, choices.tune) else None

    choose_each(graph, match_written, decide, lambda found, row: join(graph, found, row))


# ---- what is one ----------------------------------------------------------------------------------------------------


def match_written(node: fx.Node) -> Written | None:
    """An attention at its second product, of float32 and known sizes, of whose parts nothing else reads any; None for others."""
    if node.op != "call_function" or node.target is not aten.bmm.default or not is_plain(node):
        return None
    weights = before_views(node.args[0])
    if weights is None or weights.target not in (aten._softmax.default, aten._safe_softmax.default):
        return None
    if weights.args[1] not in (-1, len(spec_of(weights).shape) - 1) or weights.kwargs or True in weights.args[2:]:
        return None
    scores = before_softmax(weights.args[0], 1.0)
    if scores is None:
        return None
    (q, by), (k, by_too) = (source_of(n) for n in scores.product.args)
    v = unviewed(node.args[1])
    shapes = [spec_of(n).shape for n in (q, k, v)] + [shape for _, shape in scores.masks]
    lead = next((shape[:2] for shape in shapes if len(shape) == 4), (spec_of(node).shape[0], 1))
    if any(len(s.shape) == 4 and s.shape[:2] != lead for s in map(spec_of, (q, k, v))):
        return None
    if not all(fits(shape, lead) for _, shape in scores.masks):
        return None
    strict = weights.target is aten._softmax.default
    return Written(node, q, k, v, scores.scale * by * by_too, scores.masks, lead, strict)


def match_any_attention(node: fx.Node) -> AttentionNodes | Written | None:
    """An attention, as one call or written out."""
    return match_attention(node) or match_written(node)


def is_plain(node: fx.Node) -> bool:
    """Whether a product's operands and result are float32 on the CPU, of known sizes, none of them empty."""
    specs = [spec_or_none(n) for n in (node, *node.args)]
    return all(s is not None and is_static(s) and plain_cpu(s) and 0 not in s.shape for s in specs)


def before_views(node: fx.Node) -> fx.Node | None:
    """Follows views that keep the last two dims back from a node. Returns their source; None where one is read elsewhere too."""
    while sole_user(node) is not None:
        if node.op != "call_function" or not shows_rows(node):
            return node
        node = node.args[0]
    return None


def shows_rows(node: fx.Node) -> bool:
    """Whether a node is a view that keeps the last two dims."""
    if node.target not in VIEWS and not is_idle(node):
        return False
    return spec_of(node).shape[-2:] == spec_of(node.args[0]).shape[-2:]


def is_idle(node: fx.Node) -> bool:
    """Whether a node has the values of its operand at the same places: an expansion to the same shape, a copy."""
    if node.target not in (aten.expand.default, aten.clone.default):
        return False
    return spec_of(node).shape == spec_of(node.args[0]).shape


def before_softmax(node: fx.Node, factor: float) -> Scores | None:
    """The scores from the softmax's operand back to the first product. factor: what the node is multiplied with."""
    node = before_views(node) if isinstance(node, fx.Node) else None
    if node is None or node.op != "call_function" or node.kwargs or not plain_cpu(spec_of(node)):
        return None
    if node.target is aten.bmm.default:
        return Scores(node, factor) if is_plain(node) else None
    by = times_number(node)
    if by is not None:
        return before_softmax(node.args[0], factor * by)
    if node.target is not aten.add.Tensor or factor != 1.0:
        return None
    for inner, mask in (node.args[:2], node.args[1::-1]):
        spec = spec_or_none(mask)
        found = before_softmax(inner, factor) if spec is not None and spec_or_none(inner) is not None else None
        if found is None or spec_of(inner).shape != spec_of(node).shape:
            continue
        good = is_static(spec) and plain_cpu(spec) and 2 <= len(spec.shape) <= len(spec_of(node).shape)
        return changed(found, masks=(*found.masks, (mask, spec_of(node).shape))) if good else None
    return None


def times_number(node: fx.Node) -> float | None:
    """The number that a node multiplies its operand with; None where it does something else."""
    if node.target not in (aten.mul.Tensor, aten.div.Tensor) or node.kwargs or type(node.args[1]) not in (int, float):
        return None
    by = node.args[1]
    if node.target is aten.mul.Tensor:
        return float(by)
    return 1.0 / by if by else None


def fits(shape: Shape, lead: Shape) -> bool:
    """Whether masks for scores of a shape can be brought to [batch, heads, L, S]."""
    if len(shape) == 3:
        return shape[0] == math.prod(lead)
    return len(shape) > 3 and shape[-3] == lead[1] and math.prod(shape[:-3]) == lead[0]


# ---- whether it pays ------------------------------------------------------------------------------------------------


def pays(found: Written, row: Any, tune: Any) -> bool:
    """Whether our own attention takes less time than the products and a softmax."""
    n, rows, keys, d, e = found.size
    scale = found.scale
    specs = [writable(in_fours(spec_of(s), found.lead)) for s in (found.q, found.k, found.v)]
    specs[1] = turned(specs[1])
    if found.masks:
        specs.append(Spec((1, found.lead[1], rows, keys), (0, rows * keys, keys, 1), specs[0].dtype, specs[0].device))

    def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        scores = q.mul(scale) @ k.transpose(2, 3)
        return (scores.add_(*mask) if mask else scores).softmax(-1) @ v

    def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return row(q=q, k=k, v=v, mask=mask, scale=scale, aside=True)

    choice = timed(tune, "attention", specs, {WRITTEN: written, OWN: own}, attrs=f"written {scale}", sample=1, along=[0, 1, 2])
    if choice is None or OWN not in choice.seconds:
        return False
    more = 3 * 4 * n * rows * keys / PASS_RATE if len(found.masks) > 1 else 0.0
    return choice.seconds[OWN] + more < (MASKED if found.masks else PLAIN) * choice.seconds[WRITTEN]


def in_fours(spec: Spec, lead: Shape) -> Spec:
    """A spec of three dims as [batch, heads, ...]; one of four as it is."""
    if len(spec.shape) == 4:
        return spec
    step = spec.stride[0]
    return changed(spec, shape=(*lead, *spec.shape[1:]), stride=(lead[1] * step, step, *spec.stride[1:]))


def turned(spec: Spec) -> Spec:
    """A spec with its last two dims exchanged."""
    (*shape, a, b), (*stride, c, d) = spec.shape, spec.stride
    return changed(spec, shape=(*shape, b, a), stride=(*stride, d, c))


# ---- the call -------------------------------------------------------------------------------------------------------


def unviewed(node: fx.Node) -> fx.Node:
    """Returns the tensor of four dims behind the view and the copies of a product's operand; else the operand."""
    if node.target in VIEWS and len(spec_of(node.args[0]).shape) == 4 and shows_rows(node):
        node = node.args[0]
        while node.op == "call_function" and is_idle(node):
            node = node.args[0]
    return node


def source_of(node: fx.Node) -> tuple[fx.Node, float]:
    """Returns the tensor behind a product's operand, and the number that it is multiplied with on the way."""
    by, node = 1.0, unviewed(node)
    while node.op == "call_function" and (more := times_number(node)) is not None and plain_cpu(spec_of(node.args[0])):
        by, node = by * more, unviewed(node.args[0])
        while node.op == "call_function" and is_idle(node):
            node = node.args[0]
    return node, by


def join(graph: fx.Graph, found: Written, row: Any) -> None:
    """Replace an attention by one call. Changes `graph`."""
    node, (batch, heads) = found.node, found.lead
    q, k, v = (operand(graph, node, n, found.lead) for n in (found.q, found.k, found.v))
    k = call_before(graph, node, aten.transpose.int, (k, 2, 3), turned(spec_of(k)))
    mask = None
    for m, shape in found.masks:
        m = mask_in_fours(graph, node, m, shape, found.lead)
        mask = m if mask is None else infer_before(graph, node, aten.add.Tensor, mask, m)
    _, rows, _, _, e = found.size
    result = contiguous(changed(spec_of(node), shape=(batch, heads, rows, e)))
    copy = copied_aside(node, result)
    target, args = row.build(q=q, k=k, v=v, mask=mask, scale=found.scale, aside=copy is not None, strict=found.strict)
    made = call_before(graph, node, target, args, result if copy is None else aside_of(result))
    if copy is None:
        replace(node, call_before(graph, node, aten.view.default, (made, list(spec_of(node).shape)), contiguous(spec_of(node))))
    else:
        replace(copy, call_before(graph, copy, aten.transpose.int, (made, 1, 2), spec_of(copy)))


def operand(graph: fx.Graph, node: fx.Node, given: fx.Node, lead: Shape) -> fx.Node:
    """An operand of four dims."""
    source = unviewed(given)
    spec = spec_of(source)
    return (
        source
        if len(spec.shape) == 4
        else call_before(graph, node, aten.view.default, (source, [*lead, *spec.shape[1:]]), in_fours(spec, lead))
    )


def mask_in_fours(graph: fx.Graph, node: fx.Node, mask: fx.Node, shape: Shape, lead: Shape) -> fx.Node:
    """Reshape a mask to [batch, heads, L, S]. A dimension along which all values are equal has size 1. shape: of the scores
    that the mask is for."""

    def view(t: fx.Node, *sizes: int) -> fx.Node:
        return t if spec_of(t).shape == sizes else infer_before(graph, node, aten.view.default, t, list(sizes))

    own = spec_of(mask).shape
    own = (1,) * (len(shape) - len(own)) + own
    mask = view(mask, *own)
    if len(shape) == 3:
        return view(mask, *(lead if own[0] != 1 else (1, 1)), *own[1:])
    if math.prod(own[:-3]) == 1:
        return view(mask, 1, *own[-3:])
    if len(shape) > 4:
        if own[:-3] != shape[:-3]:
            mask = infer_before(graph, node, aten.expand.default, mask, [*shape[:-3], *own[-3:]])
        mask = infer_before(graph, node, aten.clone.default, mask, memory_format=torch.contiguous_format)
    return view(mask, lead[0], *own[-3:])


def copied_aside(node: fx.Node, result: Spec) -> fx.Node | None:
    """The copy of a product's result with the heads side by side in each row, where nothing else reads the result."""
    view = sole_user(node)
    if view is None or view.target not in VIEWS or spec_of(view).shape != result.shape:
        return None
    swap = sole_user(view)
    if swap is None or not (
        swap.target is aten.transpose.int
        and sorted(d % 4 for d in swap.args[1:3]) == [1, 2]
        or swap.target is aten.permute.default
        and [d % 4 for d in swap.args[1]] == [0, 2, 1, 3]
    ):
        return None
    copy = sole_user(swap)
    return copy if copy is not None and copy.target is aten.clone.default and spec_of(copy) == contiguous(spec_of(swap)) else None
