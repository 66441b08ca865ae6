"""Linear layers on a GPU: torch's own call, whose library adds the bias, or a bare product and an addition that its readers
take in. Timing decides: the libraries behind the two choose their kernels apart, and either may be three times slower."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import GPU_FLOATS, VIEWS, aten, call_before, is_static, replace, spec_of
from bytejit.codegen.ops.table import table
from bytejit.common.spec import Spec, contiguous_stride

from .linear_triton import fuse_products

LEAST_WORK = 1_000_000           # multiply-adds below which the choice is not worth timing
START, RATE = 2.5e-6, 2e12       # seconds of a kernel that only adds the bias, bytes a second that it moves


@dataclass(frozen=True)
class Linear:
    """x [..., K] times m [K, N], plus b [N]. m: the weight's node; turned: it holds [N, K]."""

    node: fx.Node
    x: fx.Node
    m: fx.Node
    b: fx.Node
    turned: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, K, N."""
        x, m = spec_of(self.x).shape, spec_of(self.m).shape
        return math.prod(x[:-1]), x[-1], m[0] if self.turned else m[1]


def choose_gpu_linears(graph: fx.Graph, tune: Any) -> None:
    """Replace each linear whose bias costs less elsewhere, or that a kernel of our own does faster (max-autotune: `tune` has
    `products`). Changes `graph`."""
    if getattr(tune, "products", None) is not None:
        fuse_products(graph, tune, _fuses)
    for node in list(graph.nodes):
        found = match(node)
        if found is not None and (name := _time(found, tune)) != "plain":
            _apply(graph, found, name)


def match(node: fx.Node) -> Linear | None:
    """A linear with a bias, of one float dtype on a GPU and worth timing; else None."""
    if node.op != "call_function" or node.kwargs or len(node.args) != 3 or not all(isinstance(a, fx.Node) for a in node.args):
        return None
    if node.target is aten.linear.default:
        found = Linear(node, node.args[0], node.args[1], node.args[2], True)
    elif node.target is aten.addmm.default:
        found = Linear(node, node.args[1], node.args[2], node.args[0], False)
    else:
        return None
    specs = [spec_of(n) for n in (found.x, found.m, found.b, node)]
    x, m, b = specs[:3]
    if not all(map(is_static, specs)) or {(s.dtype, s.device) for s in specs} != {(x.dtype, x.device)}:
        return None
    if x.device.type != "cuda" or x.dtype not in GPU_FLOATS or 0 in (*x.shape, *m.shape) or len(b.shape) != 1:
        return None
    return found if x.stride == contiguous_stride(x.shape) and math.prod(found.shape) >= LEAST_WORK else None


def _time(found: Linear, tune: Any) -> str:
    """The fastest way: "plain", "bare" or "added"."""
    rows, k, n = found.shape
    x, m, b = (spec_of(node) for node in (found.x, found.m, found.b))
    flat = Spec((rows, k), (k, 1), x.dtype, x.device)

    def right(m: torch.Tensor) -> torch.Tensor:
        return m.t() if found.turned else m
    made = [tune.candidate("plain", lambda x, m, b: torch.addmm(b, x, right(m))),
            tune.candidate("bare", lambda x, m, b: torch.mm(x, right(m))),
            tune.candidate("added", lambda x, m, b: torch.addmm(b.expand(rows, n), x, right(m)))]
    choice = tune.choose("gpu linear", [flat, m, b], made, cold=[1], attrs="turned" if found.turned else "")
    if choice is None:
        return "plain"
    seconds = dict(choice.seconds)
    if not _fuses(found.node) and "bare" in seconds:
        seconds["bare"] += START + 2 * rows * n * x.dtype.itemsize / RATE
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < 0.97 * seconds["plain"] else "plain"


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


def _apply(graph: fx.Graph, found: Linear, name: str) -> None:
    node, x, b = found.node, found.x, found.b
    spec, ms, xs = spec_of(node), spec_of(found.m), spec_of(x)
    rows, k, n = found.shape

    def made(target: Any, args: tuple, shape: tuple, stride: tuple) -> fx.Node:
        return call_before(graph, node, target, args, Spec(shape, stride, spec.dtype, spec.device))
    flat = x if len(xs.shape) == 2 else made(aten.view.default, (x, [rows, k]), (rows, k), (k, 1))
    right = made(aten.t.default, (found.m,), ms.shape[::-1], ms.stride[::-1]) if found.turned else found.m
    if name == "bare":
        product = made(aten.mm.default, (flat, right), (rows, n), (n, 1))
    else:
        wide = made(aten.expand.default, (b, [rows, n]), (rows, n), (0, *spec_of(b).stride))
        product = made(aten.addmm.default, (wide, flat, right), (rows, n), (n, 1))
    result = product
    if len(spec.shape) != 2:
        result = made(aten.view.default, (product, list(spec.shape)), spec.shape, contiguous_stride(spec.shape))
    if name == "bare":
        result = made(aten.add.Tensor, (result, b), spec.shape, contiguous_stride(spec.shape))
    replace(node, result)
