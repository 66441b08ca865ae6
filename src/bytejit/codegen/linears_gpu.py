"""Linear layers on a GPU: torch's own call, whose library adds the bias, or a bare product and an addition that its readers
take in. Timing decides: the libraries behind the two choose their kernels apart, and either may be three times slower."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ..spec import Spec, contiguous_stride
from .optable import table
from .rewrite import GPU_FLOATS, VIEWS, aten, call_before, is_static, replace, spec_of

LEAST_WORK = 1_000_000           # multiply-adds below which the choice is not worth timing
START, RATE = 2.5e-6, 2e12       # seconds of a kernel that only adds the bias, bytes a second that it moves


def choose_gpu_linears(graph: fx.Graph, tune: Any) -> None:
    """Replace each linear whose bias costs less elsewhere. Changes `graph`."""
    for node in list(graph.nodes):
        found = match(node)
        if found is None:
            continue
        x, w, b = found
        name = _time(node, *map(spec_of, found), tune)
        if name != "linear":
            _apply(graph, node, x, w, b, name)


def match(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """(x, weight, bias) of a linear with a bias, of one float dtype on a GPU; else None."""
    if node.op != "call_function" or node.target is not aten.linear.default or len(node.args) < 3 or node.args[2] is None:
        return None
    specs = [spec_of(n) for n in (*node.args, node)]
    x, w = specs[:2]
    if not all(map(is_static, specs)) or {(s.dtype, s.device) for s in specs} != {(x.dtype, x.device)}:
        return None
    if x.device.type != "cuda" or x.dtype not in GPU_FLOATS or 0 in (*x.shape, *w.shape) or len(specs[2].shape) != 1:
        return None
    if x.stride != contiguous_stride(x.shape) or math.prod(x.shape) * w.shape[0] < LEAST_WORK:
        return None
    return node.args


def _time(node: fx.Node, x: Spec, w: Spec, b: Spec, tune: Any) -> str:
    rows = math.prod(x.shape[:-1])
    flat = Spec((rows, x.shape[-1]), (x.shape[-1], 1), x.dtype, x.device)
    made = [tune.candidate("linear", lambda x, w, b: aten.linear.default(x, w, b)),
            tune.candidate("bare", lambda x, w, b: torch.mm(x, w.t())),
            tune.candidate("added", lambda x, w, b: torch.addmm(b.expand(x.shape[0], w.shape[0]), x, w.t()))]
    choice = tune.choose("linear", [flat, w, b], made, cold=[1])
    if choice is None:
        return "linear"
    seconds = dict(choice.seconds)
    if not _fuses(node) and "bare" in seconds:
        seconds["bare"] += START + 2 * rows * w.shape[0] * x.dtype.itemsize / RATE
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < 0.97 * seconds["linear"] else "linear"


def _fuses(node: fx.Node) -> bool:
    """Whether every reader, behind views, is an op that kernels of our own compute."""
    for user in node.users:
        if user.op == "output":
            return False
        row = table().by_aten.get(str(user.target))
        if user.target in VIEWS or row is not None and row.kind == "view":
            if not _fuses(user):
                return False
        elif row is None or row.kind == "extern":
            return False
    return True


def _apply(graph: fx.Graph, node: fx.Node, x: fx.Node, w: fx.Node, b: fx.Node, name: str) -> None:
    spec, ws, xs = spec_of(node), spec_of(w), spec_of(x)
    rows, n = math.prod(xs.shape[:-1]), ws.shape[0]

    def made(target: Any, args: tuple, shape: tuple, stride: tuple) -> fx.Node:
        return call_before(graph, node, target, args, Spec(shape, stride, spec.dtype, spec.device))
    flat = x if len(xs.shape) == 2 else made(aten.view.default, (x, [rows, xs.shape[-1]]), (rows, xs.shape[-1]),
                                             (xs.shape[-1], 1))
    turned = made(aten.t.default, (w,), ws.shape[::-1], ws.stride[::-1])
    if name == "bare":
        product = made(aten.mm.default, (flat, turned), (rows, n), (n, 1))
    else:
        wide = made(aten.expand.default, (b, [rows, n]), (rows, n), (0, *spec_of(b).stride))
        product = made(aten.addmm.default, (wide, flat, turned), (rows, n), (n, 1))
    result = product if len(spec.shape) == 2 else made(aten.view.default, (product, list(spec.shape)), spec.shape,
                                                       contiguous_stride(spec.shape))
    if name == "bare":
        result = made(aten.add.Tensor, (result, b), spec.shape, contiguous_stride(spec.shape))
    replace(node, result)
