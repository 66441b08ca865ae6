"""Library calls and layouts, chosen by time for every convolution and matmul; strides inside the graph follow.

Layouts are a property of the whole graph, not of one call: a convolution with the channels innermost pays for
turning its input unless its neighbours have them innermost too. The pass times every convolution both ways, assigns
layouts so that calls plus conversions cost least, rewrites the strides of the tensors in between, and turns what the
user sees back. Ops that do not care (pointwise, pooling) take the layout of their input; in front of any other op a
tensor is turned back.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    Constants,
    at_hints,
    aten,
    call_before,
    channels_last_stride,
    contiguous,
    copy_graph,
    drop_dead,
    replace,
    sole_user,
    spec_of,
)
from bytejit.common.spec import Spec, contiguous_stride

from .attention import choose_attentions
from .convolution import EVERY_POST, Conv, is_nhwc, match_conv, turnable, what_follows
from .convolution_cuda import fuse_convs
from .linear import choose_linears
from .linear_cuda import choose_gpu_linears

FOLLOWS = frozenset({                 # not tagged pointwise, but the result has the layout of the first operand
    aten._native_batch_norm_legit_no_training.default, aten.native_batch_norm.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool2d.default, aten.avg_pool2d.default, aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
    aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec, aten.hardswish.default,
})
# the result is as recorded, whatever the operand has
READS_ANY = frozenset({aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.var_mean.correction})
TURN_RATE = 8e9                       # bytes a second, read and written, of a tensor being turned
PASS_RATE = 2e10                      # bytes a second, read and written, of what follows a convolution in a kernel of its own
TURN_START = 4e-6                     # seconds a call on top
GPU_TURN_RATE = 1.5e12                # the same on a GPU, in a kernel that often does other work along the way


@dataclass(frozen=True)
class Times:
    """Seconds of a convolution per layout, and the name of the best row with the channels innermost; turns: that row
    reads its input in either layout."""

    nchw: float
    nhwc: float
    nhwc_call: str
    turns: bool = False


def choose_libraries(aten_graph: Any, target: Any, tune: Any, library: Any, constants: Constants | None = None) -> Any:
    """The same graph with the fastest library calls and layouts for them.

    aten_graph: `Aten` (a dataclass with `graph`); a new one is returned. target: what schedule gets; on a GPU the
    libraries are torch's, and a bias becomes an addition that its readers take in. tune: `kernels.tune.Tuner`. library:
    the module `kernels.library`. Both are arguments because codegen does not import kernels. constants: given by
    `freeze`: weights found there may be prepacked and get added to it.
    """
    graph = copy_graph(aten_graph.graph)
    if target.name == "cpu":
        choose_linears(graph, tune, library, constants)
        choose_attentions(graph, tune, library)
    else:
        choose_gpu_linears(graph, tune)
        split_biases(graph)
    choose_convs(graph, tune, library, constants)
    if target.name != "cpu":
        fuse_convs(graph, tune)
    drop_dead(graph)
    if constants is not None:
        constants.prune(graph)
    graph.lint()
    return dataclasses.replace(aten_graph, graph=graph)


def split_biases(graph: fx.Graph) -> None:
    """The bias of each convolution as an addition of its own: cuDNN through torch adds it in a kernel of its own anyway."""
    for node in list(graph.nodes):
        conv = match_conv(node)
        if conv is None or conv.b is None:
            continue
        spec, bias = spec_of(node), spec_of(conv.b)
        bare = call_before(graph, node, node.target, (conv.x, conv.w, None, *node.args[3:]), spec)
        column = Spec((bias.shape[0], 1, 1), (bias.stride[0], 1, 1), bias.dtype, bias.device)
        turned = call_before(graph, node, aten.view.default, (conv.b, list(column.shape)), column)
        replace(node, call_before(graph, node, aten.add.Tensor, (bare, turned), spec))


# ---- what each convolution costs -----------------------------------------------------------------------------------

def _time(conv: Conv, tune: Any, library: Any, packs: bool) -> Times | None:
    geometry = conv.geometry
    x, w = contiguous(at_hints(spec_of(conv.x))), spec_of(conv.w)
    bias = [] if conv.b is None else [spec_of(conv.b)]

    def turned(x, *rest):
        return (x.contiguous(memory_format=torch.channels_last), *rest)

    made, outputs = [], w.shape[0]
    for row in _rows(conv, packs, library):
        if row.pack:
            def prepare(x, w, *b, _row=row):
                return (*turned(x), _row.pack(w, **geometry, shape=x.shape), *b)
        else:
            prepare = turned if row.layout == "nhwc" else None

        def call(x, w, b=None, _row=row, _outputs=outputs):
            return _row(x=x, w=w, b=b, n=_outputs, **geometry)

        made.append(tune.candidate(row.name, call, prepare))
    innermost = is_nhwc(spec_of(conv.node)) and any(c.name == "conv_nhwc" for c in made)
    on_cpu = spec_of(conv.node).device.type == "cpu"
    choice = tune.choose("conv", [x, w, *bias], made, cold=[1], attrs=conv.attrs, sample=int(on_cpu),
                         base="conv_nhwc" if innermost else "")
    if choice is None:
        return None
    seconds = {n: s + _left_over(conv, library.ROWS[n]) for n, s in choice.seconds.items()}
    other = {n: s for n, s in seconds.items() if n != "conv_nchw"}
    best = min(other, key=other.__getitem__) if other else "conv_nhwc"
    # with such a weight torch's own call answers with the channels innermost whatever the input has
    inner = w.stride == channels_last_stride(w.shape) != contiguous(w).stride
    plain = float("inf") if inner else seconds.get("conv_nchw", float("inf"))
    return Times(plain, other.get(best, float("inf")), best, library.ROWS[best].turns)


def _left_over(conv: Conv, row: Any) -> float:
    """Seconds of a pass over the result, when more follows than the row takes along."""
    on_gpu = spec_of(conv.node).device.type != "cpu"                # there the rows take nothing along: see `convs_gpu`
    if on_gpu or what_follows(conv.node, row.posts).last is what_follows(conv.node, EVERY_POST).last:
        return 0.0
    return TURN_START + 2 * _bytes(spec_of(conv.node)) / PASS_RATE


def _rows(conv: Conv, packs: bool, library: Any) -> list:
    """Few, for each costs a run: a prepacked call beats all others with channels innermost; without it oneDNN's own
    is worth a run only where it can take the relu along."""
    rows = {r.name: r for r in library.rows("conv", packed=packs, device=spec_of(conv.x).device.type)}
    rows = {n: r for n, r in rows.items() if r.fits(spec_of(conv.w).shape, **conv.geometry)}
    if packs and "conv_onednn_packed" in rows:
        return [r for r in rows.values() if r.name == "conv_nchw" or (r.pack and r.name != "conv_nhwc_packed")]
    user = sole_user(conv.node)
    fuses = user is not None and user.target in (aten.relu.default, aten.add.Tensor)
    return [r for r in rows.values() if fuses or r.name != "conv_onednn_nhwc"]


def _default(conv: Conv, packs: bool, library: Any) -> Times:
    """Without timing: channels innermost, in torch's own call; prepacked when allowed. No machine met so far is
    slower so."""
    names = [r.name for r in library.rows("conv", packs, spec_of(conv.x).device.type) if r.layout == "nhwc" and not r.turns]
    return Times(1.0, 0.5, names[-1] if packs and names else "conv_nhwc")


# ---- which layout each tensor gets ---------------------------------------------------------------------------------

@dataclass(frozen=True)
class Place:
    """A node as the choice of layouts sees it. kind: conv, follows, reads or other; inner: whether its result has its channels
    innermost as the graph stands; operands: those that can be turned; alike: operands of the result's shape; first: what a
    follower takes its layout from; seconds: of turning the result, 0 where it cannot be."""

    node: fx.Node
    kind: str
    inner: bool
    operands: tuple[fx.Node, ...]
    alike: tuple[fx.Node, ...]
    first: fx.Node | None
    seconds: float


def _places(graph: fx.Graph) -> list[Place]:
    """What stays the same whichever layouts are chosen, of every node."""
    found = []
    for node in graph.nodes:
        spec, kind = spec_of(node), "input" if node.op == "placeholder" else _kind(node)
        inputs = node.all_input_nodes
        alike = tuple(a for a in inputs if spec is not None and spec_of(a) is not None and spec_of(a).shape == spec.shape)
        found.append(Place(node, kind, is_nhwc(spec), tuple(a for a in inputs if turnable(spec_of(a))), alike,
                           _first(node, spec), _turn_seconds(spec)))
    return found


def _first(node: fx.Node, spec: Spec | None) -> fx.Node | None:
    """The operand whose layout a result has whatever the others': of several results, of pooling, of a part."""
    first = node.args[0] if node.args else None
    leads = spec is None or turnable(spec) and (_is_getitem(node) or node.target in FOLLOWS)
    return first if leads and isinstance(first, fx.Node) else None


def _layouts(places: list[Place], nhwc: frozenset[fx.Node], times: dict[fx.Node, Times],
             ) -> tuple[dict[fx.Node, bool], list[tuple[fx.Node, fx.Node]]]:
    """Whether each node's result has its channels innermost, when the convolutions in `nhwc` run so; and (reader,
    tensor) pairs where the tensor has to be turned on the way."""
    inner: dict[fx.Node, bool] = {}
    turns: list[tuple[fx.Node, fx.Node]] = []
    asis = {p.node: p.inner for p in places}
    for p in places:
        node = p.node
        if p.kind == "conv":
            inner[node] = node in nhwc
            if inner[node.args[0]] != inner[node] and not (node in nhwc and times[node].turns):
                turns.append((node, node.args[0]))
        elif p.kind == "follows":
            inner[node] = _follows(p, inner)
            # an op that torch runs itself takes its result's layout from all operands: a mix would make it a guess
            if inner[node]:
                turns.extend((node, a) for a in p.operands if not inner[a] and a in p.alike)
        else:
            inner[node] = p.inner
            if p.kind == "other":
                turns.extend((node, a) for a in p.operands if inner[a] != asis[a])
    return inner, turns


def _kind(node: fx.Node) -> str:
    if node.op == "call_function":
        if match_conv(node) is not None and turnable(spec_of(node)) and turnable(spec_of(node.args[0])):
            return "conv"
        tagged = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
        own = node.target is aten.clone.default or "memory_format" in node.kwargs
        if (tagged and not own) or node.target in FOLLOWS or _is_getitem(node):
            return "follows"
        if node.target in READS_ANY:
            return "reads"
    return "other"


def _is_getitem(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _follows(p: Place, inner: dict[fx.Node, bool]) -> bool:
    """Channels innermost in the result: when those of an operand of full shape are (the first one, for pooling)."""
    if p.first is not None:
        return inner[p.first]
    if not p.seconds:
        return False
    return any(inner[a] for a in p.alike) if p.alike else p.inner


def _cost(places: list[Place], times: dict[fx.Node, Times], nhwc: frozenset[fx.Node], turning: dict[fx.Node, float]) -> float:
    """Seconds of all convolutions and conversions."""
    _, turns = _layouts(places, nhwc, times)
    calls = sum(t.nhwc if node in nhwc else t.nchw for node, t in times.items())
    return calls + sum(turning[t] for t in dict.fromkeys(t for _, t in turns))


def _turn_seconds(spec: Spec | None) -> float:
    """What it costs to turn a tensor; 0 where it cannot be."""
    if not turnable(spec):
        return 0.0
    return TURN_START + 2 * _bytes(spec) / (TURN_RATE if spec.device.type == "cpu" else GPU_TURN_RATE)


def _bytes(spec: Spec) -> int:
    total = spec.dtype.itemsize
    for size in at_hints(spec).shape:
        total *= size
    return total


def _assign(places: list[Place], times: dict[fx.Node, Times]) -> frozenset[fx.Node]:
    """The convolutions to run with channels innermost: all or none or what is there, then each flipped where that
    pays."""
    eligible = frozenset(times)
    now = frozenset(n for n in times if is_nhwc(spec_of(n)))
    turning = {p.node: p.seconds for p in places}
    costs = {s: _cost(places, times, s, turning) for s in (eligible, frozenset(), now)}
    best = min(costs, key=costs.__getitem__)
    cost = costs[best]
    if len(eligible) <= 40:           # quadratic; large graphs repeat a few shapes, one layout is right for all
        for node in times:
            flipped = best ^ {node}
            changed = _cost(places, times, flipped, turning)
            if changed < cost:
                best, cost = flipped, changed
    return best


# ---- writing it into the graph -------------------------------------------------------------------------------------

def choose_convs(graph: fx.Graph, tune: Any, library: Any, constants: Constants | None = None) -> None:
    """Choose layout and call of every convolution. Changes `graph`."""
    places = _places(graph)
    convs = [match_conv(p.node) for p in places if p.kind == "conv"]
    if not convs:
        return
    times = {}
    for conv in convs:
        packs = constants is not None and constants.of(conv.w) is not None
        times[conv.node] = _time(conv, tune, library, packs) or _default(conv, packs, library)
    nhwc = _assign(places, times)
    inner, turns = _layouts(places, nhwc, times)
    _turn(graph, inner, turns)
    for node, is_inner in inner.items():
        _restride(node, is_inner)
    for conv in convs:
        if conv.node in nhwc:
            _use(graph, conv, library.ROWS[times[conv.node].nhwc_call], constants)


def _turn(graph: fx.Graph, inner: dict[fx.Node, bool], turns: list[tuple[fx.Node, fx.Node]]) -> None:
    """Insert a conversion before each reader that needs the other layout; readers of one tensor share it."""
    made: dict[fx.Node, fx.Node] = {}
    for reader, tensor in turns:
        if tensor not in made:
            spec = spec_of(tensor)
            to_inner = not inner[tensor]
            form = torch.channels_last if to_inner else torch.contiguous_format
            stride = channels_last_stride(spec.shape) if to_inner else contiguous_stride(spec.shape)
            made[tensor] = call_before(graph, reader, aten.clone.default, (tensor,),
                                       Spec(spec.shape, stride, spec.dtype, spec.device), {"memory_format": form})
        reader.replace_input_with(tensor, made[tensor])


def _restride(node: fx.Node, is_inner: bool) -> None:
    specs = node.meta.get("spec")
    if isinstance(specs, Spec):
        if turnable(specs) and is_inner != is_nhwc(specs) and node.op == "call_function":
            node.meta["spec"] = _as(specs, is_inner)
    elif isinstance(specs, tuple) and is_inner:
        node.meta["spec"] = tuple(_as(s, True) if turnable(s) else s for s in specs)


def _as(spec: Spec, is_inner: bool) -> Spec:
    if not is_inner:
        return contiguous(spec)
    return Spec(spec.shape, channels_last_stride(spec.shape), spec.dtype, spec.device)


def _use(graph: fx.Graph, conv: Conv, row: Any, constants: Constants | None) -> None:
    """Make a convolution the call that `row` builds, with a lone relu (or addition and relu) behind it fused where
    the row can."""
    node, spec = conv.node, spec_of(conv.node)
    x, w = node.args[0], conv.w
    if row.pack:
        real = constants.of(w)
        w = constants.add(graph, row.pack(real, **conv.geometry, shape=at_hints(spec_of(x)).shape), "packed", spec=spec_of(w))
    elif spec.device.type != "cpu" and turnable(spec_of(w)) and not is_nhwc(spec_of(w)):
        # cuDNN through torch would turn the weight by a general copy, slower than a kernel of our own
        turned = Spec(spec_of(w).shape, channels_last_stride(spec_of(w).shape), spec_of(w).dtype, spec_of(w).device)
        w = call_before(graph, node, aten.clone.default, (w,), turned, {"memory_format": torch.channels_last})
    after = what_follows(node, row.posts)
    place = after.last if (after.other or after.scale or after.shift) is not None else node
    target, args = row.build(x=x, w=w, b=conv.b, n=spec_of(conv.w).shape[0], scale=after.scale, shift=after.shift,
                             post=after.post, other=after.other, **conv.geometry)
    replace(after.last, call_before(graph, place, target, args, spec))
    if after.last is not node:
        drop_dead(graph)
