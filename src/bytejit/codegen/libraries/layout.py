"""Library calls and layouts, chosen by time for every convolution and matmul; strides inside the graph follow.

Layouts are a property of the whole graph, not of one call: a convolution with the channels innermost pays for
converting its input unless its neighbours have them innermost too. The pass times every convolution both ways, assigns
layouts so that calls plus conversions cost least, rewrites the strides of the tensors in between, and converts what the
user sees back. Ops that do not care (pointwise, pooling) take the layout of their input; in front of any other op a
tensor is converted back.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from bytejit.codegen.aten.concatenations import alike
from bytejit.codegen.aten.rewrite import (
    VIEWS,
    at_hints,
    aten,
    bytes_of,
    call_before,
    drop_dead,
    elements_of,
    replace,
    spec_of,
    spec_or_none,
)
from bytejit.codegen.ops.calls import kind_of, of_each_element
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from . import folded, patches
from .choices import Choices, choose_together
from .convolution import ConvBackward, ConvNode, convertible, is_nhwc, match_conv, match_conv_backward, what_follows
from .convolution_times import (
    APART,
    CONVERT_START,
    GPU_CONVERT_RATE,
    GPU_CONVERT_START,
    REWRITTEN,
    Times,
    time_backward,
    time_conv,
    untimed,
)
from .relayout import convert, restride, share_weights, take_apart, weight_inner

FOLLOWS = frozenset(
    {  # not of each element, but the result has the layout of the first operand
        aten._native_batch_norm_legit_no_training.default,
        aten.native_batch_norm.default,
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d.default,
        aten.avg_pool2d.default,
        aten.upsample_nearest2d.default,
        aten.upsample_bilinear2d.default,
        aten.upsample_nearest2d.vec,
        aten.upsample_bilinear2d.vec,
        aten.native_group_norm.default,
        aten.native_batch_norm_backward.default,
        aten.cudnn_batch_norm_backward.default,
        aten.batch_norm_backward.default,
        aten.upsample_nearest2d_backward.default,
        aten.upsample_bilinear2d_backward.default,
        aten.max_pool2d_with_indices_backward.default,
        aten.avg_pool2d_backward.default,
        aten._adaptive_avg_pool2d_backward.default,
        aten.native_group_norm_backward.default,
        aten.constant_pad_nd.default,
        aten.reflection_pad2d.default,
        aten.replication_pad2d.default,
    }
)
# the result is as recorded, whatever the operand has
READS_ANY = frozenset({aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.var.correction, aten.var_mean.correction})
WRITERS = {patches.PATCHES: patches, folded.FOLDED: folded}
CONVERT_RATE = 8e9  # bytes a second, read and written, of a tensor being converted


# ---- which layout each tensor gets ---------------------------------------------------------------------------------


@light_dataclass(frozen=True)
class LayoutNode:
    """A node, as the choice of layouts sees it. kind: conv, weight, follows, joins, part, reads or other. inner: whether the
    channels of its result are innermost before any choice. operands: those that can be converted; of a convolution, those
    that have to be laid out as it is. alike: operands with the shape of the result. first: the operand that gives a follower
    its layout. seconds: what it takes to convert the result, 0: it cannot be converted."""

    node: fx.Node
    kind: str
    inner: bool
    operands: tuple[fx.Node, ...]
    alike: tuple[fx.Node, ...]
    first: fx.Node | None
    seconds: float


def _places(graph: fx.Graph) -> list[LayoutNode]:
    """Returns for every node the facts that do not depend on the chosen layouts."""
    found = []
    for node in graph.nodes:
        spec, kind = spec_or_none(node), "input" if node.op == "placeholder" else _kind(node)
        inputs = node.all_input_nodes
        alike = tuple(a for a in inputs if spec is not None and (s := spec_or_none(a)) is not None and s.shape == spec.shape)
        found.append(
            LayoutNode(
                node,
                kind,
                is_nhwc(_main(node)),
                node.args[: 1 + _is_backward(node)] if kind == "conv" else tuple(filter(_can_convert, inputs)),
                alike,
                _first(node, spec),
                _convert_seconds(spec),
            )
        )
    return found


def _main(node: fx.Node) -> Spec | None:
    """The spec of a node's result, or of its first result."""
    spec = node.meta.get("spec")
    return spec[0] if isinstance(spec, tuple) and spec else spec if isinstance(spec, Spec) else None


def _can_convert(node: fx.Node) -> bool:
    return convertible(spec_or_none(node))


def _first(node: fx.Node, spec: Spec | None) -> fx.Node | None:
    """The operand that alone decides the layout of the result: of an op with several results, of pooling, of a part."""
    first = node.args[0] if node.args else None
    leads = spec is None or convertible(spec) and (_is_getitem(node) or node.target in FOLLOWS)
    return first if leads and isinstance(first, fx.Node) else None


def _layouts(
    places: list[LayoutNode],
    nhwc: frozenset[fx.Node],
    times: dict[fx.Node, Times],
) -> tuple[dict[fx.Node, bool], list[tuple[fx.Node, fx.Node]]]:
    """Whether each node's result has its channels innermost, when the convolutions in `nhwc` run so; and (reader,
    tensor) pairs where the tensor has to be converted on the way."""
    inner: dict[fx.Node, bool] = {}
    conversions: list[tuple[fx.Node, fx.Node]] = []
    asis, parts = {p.node: p.inner for p in places}, {p.node for p in places if p.kind == "part"}
    weights: list[fx.Node] = []
    for p in places:
        node = p.node
        if p.kind == "weight":  # its readers get it in the recorded layout
            inner[node] = p.inner
            if (inner[node.args[0]] and not _own(node, nhwc, times)) != p.inner:
                weights.append(node)
                conversions.extend((user, node) for user in sorted(node.users))
        elif p.kind == "conv":
            inner[node] = node in nhwc
            read = p.operands[:-1] if node in nhwc and times[node].any_layout else p.operands
            conversions.extend((node, a) for a in read if inner[a] != inner[node] or a in parts)
        elif p.kind == "part":  # lies as what it is a part of; a convolution wants it dense
            inner[node] = inner[node.args[0]]
        elif p.kind == "joins":  # our own kernel, which reads each part in any layout: on a CPU, where caches are small, slowly
            inner[node] = sum(elements_of(spec_of(a)) * (1 if inner[a] else -1) for a in p.operands) > 0
            if not _on_gpu(node):
                conversions.extend((node, a) for a in p.operands if inner[a] != inner[node])
        elif p.kind == "follows":
            inner[node] = _follows(p, inner, asis) and not _own(node, nhwc, times)
            # an op that torch runs takes its result's layout from all operands: it cannot be predicted for mixed ones
            if inner[node]:
                conversions.extend((node, a) for a in p.operands if not inner[a] and a in p.alike)
        else:
            inner[node] = p.inner
            if p.kind == "other":
                conversions.extend((node, a) for a in p.operands if inner[a] != asis[a])
    inner.update((w, not inner[w]) for w in weights)
    return inner, conversions


def _match(node: fx.Node) -> ConvNode | ConvBackward | None:
    """A convolution, or the backward pass of one, whose images can have either layout."""
    conv, back = match_conv(node), match_conv_backward(node)
    if conv is not None:
        return conv if convertible(spec_of(node)) and convertible(spec_of(conv.x)) else None
    return back if back is not None and convertible(spec_of(back.grad)) and convertible(spec_of(back.x)) else None


def _kind(node: fx.Node) -> str:
    if node.op == "call_function":
        if _match(node) is not None:
            return "conv"
        each = of_each_element(node) or _is_cast(node)
        own = node.target is aten.clone.default or "memory_format" in node.kwargs
        if _is_weight(node):
            return "weight"
        if _is_getitem(node):  # of an op that keeps its layouts: as recorded
            return "follows" if _kind(node.args[0]) in ("conv", "follows") else "reads"
        if (each and not own) or node.target in FOLLOWS:
            return "follows"
        if node.target is aten.cat.default and alike(node) and all(map(convertible, map(spec_of, (node, *node.args[0])))):
            return "joins"
        if node.target in READS_ANY or _on_gpu(node) and _is_kernel(node):
            return "reads"
        if node.target is aten.slice.Tensor and convertible(spec_or_none(node)):
            return "part" if all(u.op != "output" and _kind(u) != "other" for u in node.users) else "other"
    return "other"


def _on_gpu(node: fx.Node) -> bool:
    """Whether the first operand lies on a GPU."""
    spec = spec_or_none(node.all_input_nodes[0]) if node.all_input_nodes else None
    return spec is not None and spec.device.type != "cpu"


def _is_kernel(node: fx.Node) -> bool:
    """Whether a kernel of ours computes an op: it reads any strides."""
    return kind_of(node) not in (None, "view", "extern") and node.target not in VIEWS


def _is_cast(node: fx.Node) -> bool:
    """A cast and nothing else. Around norms of half precision and under autocast, there are casts beside each convolution."""
    return node.target is aten._to_copy.default and node.kwargs.keys() <= {"dtype"}


def _is_weight(node: fx.Node) -> bool:
    """The gradient of a weight on a GPU. It comes laid out as the images are, and meets what is laid out as the weight is."""
    if not _is_getitem(node) or node.args[1] != 1 or not _is_backward(node.args[0]):
        return False
    spec = spec_or_none(node)
    return convertible(spec) and spec.device.type != "cpu" and _match(node.args[0]) is not None


def _own(node: fx.Node, nhwc: frozenset[fx.Node], times: dict[fx.Node, Times]) -> bool:
    """Whether a value is the gradient of a weight that our own kernel or a product makes: row-major."""
    of = node.args[0] if _is_getitem(node) and node.args[1] == 1 else None
    return of in nhwc and times[of].nhwc_call in (APART, *REWRITTEN)


def _is_backward(node: fx.Node) -> bool:
    return node.target is aten.convolution_backward.default


def _is_getitem(node: fx.Node) -> bool:
    return node.target is operator.getitem


def _follows(p: LayoutNode, inner: dict[fx.Node, bool], asis: dict[fx.Node, bool]) -> bool:
    """Channels innermost in the result: when those of an operand of full shape are (the first one, for pooling). Of a part with
    gaps, which has neither layout, the result is as recorded."""
    if p.first is not None:
        return inner[p.first] if asis[p.first] == p.inner else p.inner
    if not p.seconds:
        return False
    return any(inner[a] for a in p.alike) if p.alike else p.inner


def _cost(
    places: list[LayoutNode], times: dict[fx.Node, Times], nhwc: frozenset[fx.Node], converting: dict[fx.Node, float]
) -> float:
    """Seconds of all convolutions and conversions."""
    _, conversions = _layouts(places, nhwc, times)
    calls = sum(t.nhwc if node in nhwc else t.nchw for node, t in times.items())
    return calls + sum(converting[t] for t in dict.fromkeys(t for _, t in conversions))


def _convert_seconds(spec: Spec | None) -> float:
    """Returns the seconds that it takes to convert a tensor; 0 where that is not possible."""
    if not convertible(spec):
        return 0.0
    if spec.device.type != "cpu":
        return GPU_CONVERT_START + 2 * bytes_of(spec) / GPU_CONVERT_RATE
    return CONVERT_START + 2 * bytes_of(spec) / CONVERT_RATE


def _assign(places: list[LayoutNode], times: dict[fx.Node, Times]) -> frozenset[fx.Node]:
    """The convolutions to run with channels innermost: the best of all, none and the present ones; then each is flipped where
    that pays."""
    eligible = frozenset(times)
    now = frozenset(n for n in times if is_nhwc(spec_of(n.args[1] if _is_backward(n) else n)))
    converting = {p.node: p.seconds for p in places}
    costs = {s: _cost(places, times, s, converting) for s in (eligible, frozenset(), now)}
    best = min(costs, key=costs.__getitem__)
    cost = costs[best]
    if len(eligible) <= 40:  # quadratic; large graphs repeat a few shapes, one layout is right for all
        for node in times:
            flipped = best ^ {node}
            changed = _cost(places, times, flipped, converting)
            if changed < cost:
                best, cost = flipped, changed
    return best


# ---- writing it into the graph -------------------------------------------------------------------------------------


def choose_convs(graph: fx.Graph, choices: Choices) -> None:
    """Choose layout and call of every convolution. Changes `graph`."""

    def decide(convs: list) -> list:
        """The row of each that gets its channels innermost, once all strides are as chosen."""
        calls = _lay_out(graph, convs, choices)
        return [choices.library.ROWS.get(calls[c.node], calls[c.node]) if calls.get(c.node) else None for c in convs]

    def use(conv: ConvNode | ConvBackward, row: Any) -> None:
        if isinstance(conv, ConvBackward):
            if row in WRITERS:
                WRITERS[row].write_backward(graph, conv)
            else:
                take_apart(graph, conv, choices.library.weight_grad())
        elif row in WRITERS:
            WRITERS[row].write(graph, conv)
        else:
            _use(graph, conv, row, choices)

    choose_together(graph, _match, decide, use)
    share_weights(graph)


def choose_layouts(graph: fx.Graph, choices: Choices) -> None:
    """Choose the layout of every convolution, forward and backward: what is saved between the passes has one. Changes `graph`."""
    convs = [conv for conv in map(_match, graph.nodes) if conv is not None]
    if convs:
        _lay_out(graph, convs, choices)


def _lay_out(graph: fx.Graph, convs: list, choices: Choices) -> dict[fx.Node, str]:
    """Write the best layouts into a graph. Returns: of convolutions with their channels innermost, the name of the best row."""
    tune, library = choices.tune, choices.library
    times = {}
    for conv in convs:
        if isinstance(conv, ConvBackward):
            times[conv.node] = time_backward(conv, tune, library.weight_grad())
        else:
            packs = choices.packs(conv.w)
            times[conv.node] = time_conv(conv, tune, library, packs) or untimed(conv, packs, library)
    places = _places(graph)
    nhwc = _assign(places, times)
    inner, conversions = _layouts(places, nhwc, times)
    convert(graph, inner, conversions)
    for p in places:
        restride(p.node, inner[p.node], p.kind)
    for node in [p.node for p in places if _own(p.node, nhwc, times)]:
        whole = node.args[0].meta
        whole["spec"] = (whole["spec"][0], spec_of(node), *whole["spec"][2:])
    return {n: times[n].nhwc_call for n in nhwc}


def _use(graph: fx.Graph, conv: ConvNode, row: Any, choices: Choices) -> None:
    """Make a convolution the call that `row` builds, with a lone relu (or addition and relu) behind it fused where
    the row can."""
    node, spec = conv.node, spec_of(conv.node)
    x, w = node.args[0], conv.w
    if row.pack:
        shape = at_hints(spec_of(x)).shape
        w = choices.prepack(graph, w, lambda real: row.pack(real, **conv.geometry, shape=shape), spec_of(w))
    elif spec.device.type != "cpu" and convertible(spec_of(w)) and not is_nhwc(spec_of(w)):
        w = weight_inner(graph, node, w)
    after = what_follows(node, row.epilogues)
    place = after.last if (after.other or after.scale or after.shift) is not None else node
    target, args = row.build(
        x=x,
        w=w,
        b=conv.b,
        n=spec_of(conv.w).shape[0],
        scale=after.scale,
        shift=after.shift,
        epilogue=after.epilogue,
        other=after.other,
        **conv.geometry,
    )
    replace(after.last, call_before(graph, place, target, args, spec))
    if after.last is not node:
        drop_dead(graph)
