"""On a GPU, cuDNN computes what follows a convolution in the same call: a batch norm in evaluation, an addition, a relu.

With the channels innermost cuDNN adds a bias and another tensor and takes the relu in the registers of the product. A batch
norm's scale goes into the weight, in the kernel that converts the weight to that layout anyway; its shift is the bias. The scales
and shifts of many batch norms are computed by one kernel. Timing decides for each convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    VIEWS,
    at_hints,
    aten,
    call_before,
    drop_dead,
    replace,
    sole_user,
    spec_of,
    spec_or_none,
)
from bytejit.codegen.ops.calls import is_tagged
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec, channels_last_stride

from .choices import Choices, choose_together, fastest
from .convolution import EVERY_EPILOGUE, After, ConvNode, convertible, is_nhwc, match_plain_conv, what_follows

TOGETHER = 12  # batch norms whose numbers one kernel computes
VECTOR = 16  # bytes: where numbers that cuDNN reads begin at a multiple of
GAIN = 0.97  # the fused call must take less than this part of the other's time


@light_dataclass(frozen=True)
class FusedConv:
    """A convolution with the channels innermost, and what cuDNN could compute with it. w: its weight before the conversion."""

    conv: ConvNode
    after: After
    w: fx.Node


def fuse_convs(graph: fx.Graph, choices: Choices) -> None:
    """Fuse convolutions with the operations that follow them into one call of cuDNN, where that is faster. Changes `graph`."""

    def decide(found: list[FusedConv]) -> list:
        """The scales and shifts of each fused convolution, which are computed together."""
        faster = [_faster(f, choices.tune) for f in found]
        numbers = _numbers(graph, [f.after for f, taken in zip(found, faster) if taken])
        return [numbers if taken else None for taken in faster]

    choose_together(graph, _match, decide, lambda f, numbers: _apply(graph, f, numbers))
    drop_dead(graph)


def _match(node: fx.Node) -> FusedConv | None:
    conv = match_plain_conv(node)
    if conv is None or conv.b is not None or spec_of(node).device.type != "cuda" or not torch.backends.cudnn.enabled:
        return None
    if not is_nhwc(spec_of(node)) or not is_nhwc(spec_of(conv.x)):
        return None
    after = what_follows(node, EVERY_EPILOGUE)
    if after.epilogue not in ("relu", "add_relu"):
        return None
    w = conv.w
    if w.target is aten.clone.default and sole_user(w) is node:
        w = w.args[0]
    return FusedConv(conv, after, w)


# ---- timing ----------------------------------------------------------------------------------------------------------------
def _faster(f: FusedConv, tune: Any) -> bool:
    """Whether the fused call is faster than a plain convolution followed by a kernel. The time to scale the weight, where
    the call needs that, counts too."""
    geometry = (list(f.conv.geometry["stride"]), list(f.conv.geometry["padding"]), list(f.conv.geometry["dilation"]))
    groups, adds = f.conv.geometry["groups"], f.after.epilogue == "add_relu"
    scales = f.after.scale is not None and f.w is f.conv.w
    x, w, y = (at_hints(spec_of(n)) for n in (f.conv.x, f.conv.w, f.conv.node))
    bias = Spec((w.shape[0],), (1,), w.dtype, w.device)

    def plain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        y = torch.convolution(x, w, None, *geometry, False, [0, 0], groups)
        return y.add_(z) if adds else y.relu_()  # as many bytes as our kernel behind it moves

    def fused(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        w = w * 0.5 if scales else w
        return (
            torch.cudnn_convolution_add_relu(x, w, z, 1.0, b, *geometry, groups)
            if adds
            else torch.cudnn_convolution_relu(x, w, b, *geometry, groups)
        )

    attrs = f"{f.conv.attrs} {f.after.epilogue} {scales}"
    best, _ = fastest(tune, "gpu conv and after", [x, w, bias, y], {"plain": plain, "fused": fused}, [1], attrs, gain=GAIN)
    return best == "fused"


# ---- scales and shifts -------------------------------------------------------------------------------------------------------
def _numbers(graph: fx.Graph, afters: Sequence[After]) -> dict[fx.Node, fx.Node]:
    """Scale and shift nodes -> tensors [C] of the same numbers. What is computed from parameters in the same steps for many
    convolutions is computed for them together, on their parameters end to end, where each begins at a multiple of
    `VECTOR` then."""
    groups: dict[Any, list[After]] = {}
    for after in afters:
        spec = spec_of(after.last)
        if spec.shape[1] * spec.dtype.itemsize % VECTOR:
            continue
        key = tuple(None if n is None else _steps(_flat(n)) for n in (after.scale, after.shift))
        if any(k is not None for k in key):
            groups.setdefault(key, []).append(after)
    made: dict[fx.Node, fx.Node] = {}
    place = next(n for n in graph.nodes if n.op != "placeholder")
    for group in groups.values():
        for start in range(0, len(group), TOGETHER):
            part = group[start : start + TOGETHER]
            memo: dict[tuple[fx.Node, ...], fx.Node] = {}
            for pick in (lambda a: a.scale, lambda a: a.shift):
                nodes = [n for n in map(pick, part) if n is not None]  # of all or of none: the key says which
                bases = tuple(map(_flat, nodes))
                if len(nodes) > 1 and _steps(bases[0]) is not None and bases[0].op != "placeholder":
                    made |= zip(nodes, _pieces(graph, place, bases, memo))
    return made


def _flat(node: fx.Node) -> fx.Node:
    """The tensor [C] that a node [1, C, 1, 1] is a view of, or the node itself."""
    while node.target in VIEWS and len(spec_of(node.args[0]).shape) <= len(spec_of(node).shape):
        node = node.args[0]
    return node


def _steps(node: fx.Node) -> Any:
    """How a tensor [C] is computed from placeholders [C], in a form that can be compared; None where it is not."""
    spec = spec_or_none(node)
    if spec is None or len(spec.shape) != 1 or spec.stride != (1,) or not isinstance(spec.shape[0], int):
        return None
    if node.op == "placeholder":
        return spec.dtype
    if node.op != "call_function" or node.kwargs or not is_tagged(node):
        return None
    parts = [_steps(a) if isinstance(a, fx.Node) else ("number", repr(a)) for a in node.args]
    return None if None in parts else (node.target, *parts)


def _pieces(graph: fx.Graph, place: fx.Node, nodes: tuple[fx.Node, ...], memo: dict) -> list[fx.Node]:
    """Each of these tensors as a piece of one that holds all of them, computed before `place`."""
    whole = _together(graph, place, nodes, memo)
    out, start = [], 0
    for node in nodes:
        spec = spec_of(node)
        out.append(call_before(graph, place, aten.slice.Tensor, (whole, 0, start, start + spec.shape[0]), spec))
        start += spec.shape[0]
    return out


def _together(graph: fx.Graph, place: fx.Node, nodes: tuple[fx.Node, ...], memo: dict) -> fx.Node:
    """The tensors end to end, computed by one call for all where each is computed by a call."""
    if nodes not in memo:
        spec = spec_of(nodes[0])
        joined = Spec((sum(spec_of(n).shape[0] for n in nodes),), (1,), spec.dtype, spec.device)
        if nodes[0].op == "placeholder":
            memo[nodes] = call_before(graph, place, aten.cat.default, (list(nodes), 0), joined)
        else:
            args = [
                _together(graph, place, column, memo) if isinstance(column[0], fx.Node) else column[0]
                for column in zip(*(n.args for n in nodes))
            ]
            memo[nodes] = call_before(graph, place, nodes[0].target, tuple(args), joined)
    return memo[nodes]


# ---- writing it into the graph -------------------------------------------------------------------------------------------
def _apply(graph: fx.Graph, f: FusedConv, numbers: dict[fx.Node, fx.Node]) -> None:
    x, after = f.conv.node.args[0], what_follows(f.conv.node, EVERY_EPILOGUE)  # an earlier one may have replaced what it reads
    if after.epilogue != f.after.epilogue:
        return  # of two convolutions that are added, the earlier one has taken the addition and the relu
    place, spec, ws = after.last, spec_of(f.conv.node), spec_of(f.w)
    channels = spec.shape[1]
    one = Spec((channels,), (1,), spec.dtype, spec.device)

    def number(n: fx.Node | None, shape: list[int], at: Spec) -> fx.Node | None:
        return None if n is None else call_before(graph, place, aten.view.default, (numbers.get(n, n), shape), at)

    w = f.conv.w
    if after.scale is not None:
        column = Spec((channels, 1, 1, 1), (1, 1, 1, 1), spec.dtype, spec.device)
        inner = Spec(ws.shape, channels_last_stride(ws.shape), ws.dtype, ws.device) if convertible(ws) else ws
        w = call_before(graph, place, aten.mul.Tensor, (f.w, number(after.scale, [channels, 1, 1, 1], column)), inner)
    bias = number(after.shift, [channels], one)
    geometry = (
        [*f.conv.geometry["stride"]],
        [*f.conv.geometry["padding"]],
        [*f.conv.geometry["dilation"]],
        f.conv.geometry["groups"],
    )
    target, args = (
        (aten.cudnn_convolution_relu.default, (x, w, bias, *geometry))
        if after.other is None
        else (aten.cudnn_convolution_add_relu.default, (x, w, after.other, 1.0, bias, *geometry))
    )
    replace(place, call_before(graph, place, target, args, spec))
