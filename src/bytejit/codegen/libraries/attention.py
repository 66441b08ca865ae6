"""Chooses the library of attention on the CPU: attention nodes become the call that timing found fastest.

torch's own call is the default. Ours (`kernels/attention.py`) serves float32; it is built when a graph has an attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    at_hints,
    aten,
    call_before,
    contiguous,
    is_static,
    plain_cpu,
    replace,
    spec_of,
    spec_or_none,
    specs_of,
)
from bytejit.codegen.ops.calls import named
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .choices import Choices, call_of, choose_each, timed

LEAST_WORK = 200_000  # multiply-adds below which a call's own cost decides and the choice is not worth timing
LEAST_ROWS = 4  # rows of q below which packing keys into panels costs more than they are read


@light_dataclass(frozen=True)
class AttentionNodes:
    """softmax(q k^T scale + mask) v. q [B, H, L, D], k [B, G, S, D], v [B, G, S, E]. aside: the result is that of a
    [B, L, H, E] with two dimensions exchanged, else row-major."""

    node: fx.Node
    q: fx.Node
    k: fx.Node
    v: fx.Node
    mask: fx.Node | None
    causal: bool
    scale: float
    aside: bool

    @property
    def work(self) -> int:
        """Multiply-adds."""
        (b, h, rows, d), (*_, keys, e) = (at_hints(spec_of(n)).shape for n in (self.q, self.v))
        return b * h * rows * keys * (d + e)


def match_attention(node: fx.Node) -> AttentionNodes | None:
    """A node as an `AttentionNodes`; None when it is none, or of a kind (dtype, device, dropout, rank, a mask of other
    dtype, sizes that broadcast) that the rows do not serve."""
    if node.op != "call_function" or node.target is not aten.scaled_dot_product_attention.default:
        return None
    given = named(node.target, node.args, node.kwargs)
    q, k, v, mask = (given.get(n) for n in ("query", "key", "value", "attn_mask"))
    specs = specs_of(q, k, v, node)
    if given.get("dropout_p", 0.0) or specs is None or not plain_cpu(*specs) or any(len(s.shape) != 4 for s in specs):
        return None
    of_q, of_k, of_v, result = specs
    groups = given.get("enable_gqa", False)
    if not all(is_static(Spec(s.shape[3:], (), s.dtype, s.device)) for s in specs) or of_q.shape[3] != of_k.shape[3]:
        return None
    if of_k.shape[:3] != of_v.shape[:3] or of_q.shape[0] != of_k.shape[0] or not _heads_fit(of_q, of_k, groups):
        return None
    if mask is not None and not _mask_fits(spec_or_none(mask)) or any(0 in s.shape for s in specs):
        return None
    aside = result.stride != contiguous(result).stride
    if aside and result.stride != aside_of(result).stride:
        return None
    scale = given.get("scale")
    scale = of_q.shape[3] ** -0.5 if scale is None else scale
    if not isinstance(scale, (int, float)):
        return None
    return AttentionNodes(node, q, k, v, mask, bool(given.get("is_causal", False)), float(scale), aside)


def _heads_fit(q: Spec, k: Spec, groups: bool) -> bool:
    """As many heads of keys as of queries, or each serving several where the program says so."""
    if q.shape[1] == k.shape[1]:
        return True
    return bool(groups) and all(isinstance(s.shape[1], int) for s in (q, k)) and q.shape[1] % k.shape[1] == 0


def _mask_fits(spec: Spec | None) -> bool:
    return (
        spec is not None and spec.dtype in (torch.bool, torch.float32) and spec.device.type == "cpu" and 2 <= len(spec.shape) <= 4
    )


def aside_of(spec: Spec) -> Spec:
    """The spec of the same tensor when it lies in memory as [B, L, H, E]."""
    b, h, rows, e = spec.shape
    inner = contiguous(Spec((b, rows, h, e), (), spec.dtype, spec.device)).stride
    return Spec(spec.shape, (inner[0], inner[2], inner[1], inner[3]), spec.dtype, spec.device)


def worth_timing(work: int, rows: int) -> bool:
    """Whether an attention of so many multiply-adds, and rows of q, may be faster by another call."""
    return work >= LEAST_WORK and rows >= LEAST_ROWS


def choose_attentions(graph: fx.Graph, choices: Choices) -> None:
    """Replace each attention whose default is not the fastest. Changes `graph`."""
    tune, library = choices.tune, choices.library
    rows = library.rows("attention")

    def decide(found: AttentionNodes) -> Any:
        if not worth_timing(found.work, at_hints(spec_of(found.q)).shape[2]):
            return None
        name = _time(found, rows, tune)  # once: what is not sure yet is timed again by each question
        return next((r for r in rows[1:] if r.name == name), None)

    def apply(found: AttentionNodes, row: Any) -> None:
        target, args = row.build(
            q=found.q, k=found.k, v=found.v, mask=found.mask, causal=found.causal, scale=found.scale, aside=found.aside
        )
        replace(found.node, call_before(graph, found.node, target, args, spec_of(found.node)))

    choose_each(graph, match_attention, decide, apply)


def _time(found: AttentionNodes, rows: tuple, tune: Any) -> str:
    """The name of the fastest row. A mask of bools is timed as numbers: where all is masked, rows would have nothing to
    do; torch converts bools to numbers in each call."""
    fixed: dict[str, Any] = {"causal": found.causal, "scale": found.scale, "aside": found.aside}
    ways = {row.name: call_of(row, ("q", "k", "v", "mask"), **fixed) for row in rows}
    operands = [writable(spec_of(n)) for n in (found.q, found.k, found.v)]
    if found.mask is not None:
        mask = spec_of(found.mask)
        operands.append(writable(Spec(mask.shape, mask.stride, torch.float32, mask.device), narrow=True))
    attrs = f"causal={found.causal} heads={'aside' if found.aside else 'apart'}"
    batched = [i for i, spec in enumerate(operands) if i < 3 or len(spec.shape) == 4 and spec.shape[0] > 1]
    choice = timed(tune, "attention", operands, ways, attrs=attrs, sample=1, along=batched)
    return rows[0].name if choice is None else choice.name


def writable(spec: Spec, narrow: bool = False) -> Spec:
    """A spec of which a tensor can be made and filled. Where a dim is expanded, the tensor is made dense; narrow: and the dim
    has size 1."""
    spec = at_hints(spec)
    wide = [n > 1 and s == 0 for n, s in zip(spec.shape, spec.stride, strict=True)]
    if not any(wide):
        return spec
    shape = tuple(1 if narrow and w else n for n, w in zip(spec.shape, wide, strict=True))
    return contiguous(Spec(shape, (), spec.dtype, spec.device))
