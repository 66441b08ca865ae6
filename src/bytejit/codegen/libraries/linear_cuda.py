"""Linear layers on a GPU: torch's own call, whose library adds the bias, or a bare product and an addition that its readers
take in. Timing decides: the libraries behind the two choose their kernels apart, and either may be three times slower."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import GPU_FLOATS, VIEWS, aten, call_before, contiguous, is_static, replace, spec_of, specs_of
from bytejit.codegen.ops.calls import kind_of
from bytejit.common.spec import Spec, contiguous_stride

from .choices import Choices, choose_each, fastest
from .linear_triton import fuse_products
from .products import Product, match_product

LEAST_WORK = 1_000_000  # multiply-adds below which the choice is not worth timing
GAIN = 0.97  # part of the plain call's time that another way may take
START, RATE = 2.5e-6, 2e12  # seconds of a kernel that only adds the bias, bytes a second that it moves


def choose_gpu_linears(graph: fx.Graph, choices: Choices) -> None:
    """Replace each linear whose bias costs less as an addition, or that our own kernel computes faster (max-autotune: `tune`
    has `products`). Changes `graph`."""
    tune = choices.tune
    lay_rows(graph)
    if getattr(tune, "products", None) is not None:
        fuse_products(graph, tune, _fuses)
    choose_each(graph, match, lambda found: _decide(found, tune), lambda found, name: _apply(graph, found, name))


def lay_rows(graph: fx.Graph) -> None:
    """Copy a tensor to row-major strides before each linear that reads it transposed. torch would copy it by a general kernel and
    add the bias in another; our copy is often part of a kernel that runs anyway. Changes `graph`."""
    made: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not aten.linear.default:
            continue
        x, spec = node.args[0], spec_of(node.args[0])
        if not is_static(spec) or spec.stride[-1] == 1 or math.prod(spec.shape[:-2]) < 2 or spec.device.type != "cuda":
            continue  # a single column-major matrix is read without a copy
        if x not in made:
            form = {"memory_format": torch.contiguous_format}
            made[x] = call_before(graph, node, aten.clone.default, (x,), contiguous(spec), form)
        node.args = (made[x], *node.args[1:])


def match(node: fx.Node) -> Product | None:
    """A linear with a bias, of one float dtype on a GPU and worth timing; else None."""
    found = match_product(node)
    if found is None or not all(isinstance(a, fx.Node) for a in (found.x, found.m, found.b)):
        return None
    specs = specs_of(found.x, found.m, found.b, node)
    if specs is None:
        return None
    x, m, b = specs[:3]
    if not all(map(is_static, specs)) or {(s.dtype, s.device) for s in specs} != {(x.dtype, x.device)}:
        return None
    if x.device.type != "cuda" or x.dtype not in GPU_FLOATS or 0 in (*x.shape, *m.shape) or len(b.shape) != 1:
        return None
    return found if x.stride == contiguous_stride(x.shape) and math.prod(found.shape) >= LEAST_WORK else None


def _decide(found: Product, tune: Any) -> str | None:
    """The fastest way: "bare" or "added"; None: as it is."""
    rows, n, k = found.shape
    x, m, b = (spec_of(node) for node in (found.x, found.m, found.b))

    def right(m: torch.Tensor) -> torch.Tensor:
        return m.t() if found.transposed else m

    ways = {
        "plain": lambda x, m, b: torch.addmm(b, x, right(m)),
        "bare": lambda x, m, b: torch.mm(x, right(m)),
        "added": lambda x, m, b: torch.addmm(b.expand(rows, n), x, right(m)),
    }
    extra = {} if _fuses(found.node) else {"bare": START + 2 * rows * n * x.dtype.itemsize / RATE}
    flat, attrs = Spec((rows, k), (k, 1), x.dtype, x.device), "transposed" if found.transposed else ""
    best, _ = fastest(tune, "gpu linear", [flat, m, b], ways, cold=[1], attrs=attrs, extra=extra, gain=GAIN)
    return None if best == "plain" else best


def _fuses(node: fx.Node) -> bool:
    """Whether every reader, behind views, is an op that kernels of our own compute."""
    for user in node.users:
        if user.op == "output":
            return False
        kind = kind_of(user)
        if user.target in VIEWS or kind == "view":
            if not _fuses(user):
                return False
        elif kind in (None, "extern"):
            return False
    return True


def _apply(graph: fx.Graph, found: Product, name: str) -> None:
    node, x, b = found.node, found.x, found.b
    spec, ms, xs = spec_of(node), spec_of(found.m), spec_of(x)
    rows, n, k = found.shape

    def made(target: Any, args: tuple, shape: tuple, stride: tuple) -> fx.Node:
        return call_before(graph, node, target, args, Spec(shape, stride, spec.dtype, spec.device))

    flat = x if len(xs.shape) == 2 else made(aten.view.default, (x, [rows, k]), (rows, k), (k, 1))
    right = made(aten.t.default, (found.m,), ms.shape[::-1], ms.stride[::-1]) if found.transposed else found.m
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
