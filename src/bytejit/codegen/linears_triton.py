"""Matrix products with what follows them in one Triton kernel, where timing says so (max-autotune): bias, activation, residual.

What follows is only taken along where it would be a kernel of its own: an activation whose readers compute it themselves
(a norm, another chain) costs nothing there."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..spec import Spec, contiguous_stride
from . import ops_products  # noqa: F401  (defines the operator)
from .rewrite import VIEWS, aten, call_before, is_static, replace, sole_user, spec_of

LEAST_WORK = 1_000_000           # multiply-adds below which the choice is not worth timing
START, RATE = 2.5e-6, 2e12       # seconds of a pointwise kernel, bytes a second that it moves
HALVES = (torch.float16, torch.bfloat16)
GAIN = 0.97                      # part of the time of the way without that a fused product may take


@dataclass(frozen=True)
class Product:
    """x [..., k] times m, plus b, then post, then an addition. m: the weight's node; turned: it holds [n, k]; last: the node
    whose value all this is."""

    node: fx.Node
    x: fx.Node
    m: fx.Node
    b: fx.Node | None
    turned: bool
    post: str = ""
    other: fx.Node | None = None
    last: fx.Node | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, n, k."""
        x, m = spec_of(self.x).shape, spec_of(self.m).shape
        return math.prod(x[:-1]), m[0] if self.turned else m[1], x[-1]


def fuse_products(graph: fx.Graph, tune: Any, fuses: Callable[[fx.Node], bool]) -> None:
    """Replace each product that is faster so. Changes `graph`. tune: with `products`, the module `kernels.matmul_triton`;
    fuses(node): whether all readers of a node are kernels of our own."""
    for node in list(graph.nodes):
        found = match(node) if node.users else None
        if found is None:
            continue
        longer = follow(found)
        found = longer if longer.last is not node and not fuses(longer.last) else found
        way = _time(found, tune)
        if way is not None:
            _apply(graph, found, way)


def match(node: fx.Node) -> Product | None:
    """A product of halves on a GPU that is worth timing; else None."""
    if node.op != "call_function" or node.kwargs or not all(isinstance(a, (fx.Node, type(None))) for a in node.args):
        return None
    if node.target is aten.linear.default:
        found = Product(node, node.args[0], node.args[1], node.args[2] if len(node.args) > 2 else None, True, last=node)
    elif node.target is aten.addmm.default:
        found = Product(node, node.args[1], node.args[2], node.args[0], False, last=node)
    elif node.target is aten.mm.default:
        found = Product(node, node.args[0], node.args[1], None, False, last=node)
    else:
        return None
    specs = [spec_of(n) for n in (found.x, found.m, node, *([found.b] if found.b is not None else []))]
    x = specs[0]
    if not all(map(is_static, specs)) or {(s.dtype, s.device) for s in specs} != {(x.dtype, x.device)}:
        return None
    if x.device.type != "cuda" or x.dtype not in HALVES or 0 in (*x.shape, *specs[1].shape) or len(specs[1].shape) != 2:
        return None
    if found.b is not None and (len(specs[3].shape) != 1 or specs[3].stride != (1,)):
        return None
    dense = all(s.stride == contiguous_stride(s.shape) for s in (x, specs[2]))
    return found if dense and LEAST_WORK <= math.prod(found.shape) and _narrow(found) else None


def _narrow(found: Product) -> bool:
    """Whether all offsets fit i32."""
    rows, n, k = found.shape
    return max(rows * n, rows * k, n * k) < 1 << 31


def follow(found: Product) -> Product:
    """The product with the activation and the addition that alone read it."""
    node, post, other = _through(found.node), "", None
    user = sole_user(node)
    kind = _post(user) if user is not None else ""
    if kind:
        post, node = kind, _through(user)
        user = sole_user(node)
    if user is not None and user.target is aten.add.Tensor and not user.kwargs and _addend(user, node) is not None:
        other, node = _addend(user, node), user
    if not post and other is None:
        return found
    made = Product(found.node, found.x, found.m, found.b, found.turned, post, other, node)
    spec, size = spec_of(node), math.prod(found.shape[:2])
    dense = spec.stride == contiguous_stride(spec.shape) and math.prod(spec.shape) == size
    return made if dense and spec.dtype == spec_of(found.x).dtype else found


def _through(node: fx.Node) -> fx.Node:
    """The last of the views that alone read a node."""
    while (user := sole_user(node)) is not None and user.target in VIEWS:
        node = user
    return node


def _post(node: fx.Node) -> str:
    if node.target is aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate", "none") == "tanh" else "gelu"
    return {aten.relu.default: "relu", aten.silu.default: "silu"}.get(node.target, "")


def _addend(add: fx.Node, value: fx.Node) -> fx.Node | None:
    """What is added to a value, when it is laid out as the sum is."""
    others = [a for a in add.args if a is not value]
    spec = spec_of(others[0]) if len(others) == 1 else None
    return others[0] if spec is not None and spec == spec_of(add) else None


def _time(found: Product, tune: Any) -> Any:
    """The fastest way of our own, where it beats the library and a kernel behind it; else None."""
    products, (rows, n, k) = tune.products, found.shape
    x, m = spec_of(found.x), spec_of(found.m)
    step = m.stride[::-1] if found.turned else m.stride
    extra = [(name, node) for name, node in (("b", found.b), ("other", found.other)) if node is not None]
    problem = products.Problem(rows, n, k, k, *step, x.dtype, found.post, found.b is not None, found.other is not None)
    specs = [Spec((rows, k), (k, 1), x.dtype, x.device), m]
    specs += [Spec((rows, n), (n, 1), x.dtype, x.device) if name == "other" else spec_of(node) for name, node in extra]

    def call(run: Callable) -> Callable:
        def go(x: torch.Tensor, m: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            given = dict(zip((name for name, _ in extra), rest))
            return run(x, m.t() if found.turned else m, given.get("b"), given.get("other"))
        return go
    every = products.prepare(problem, products.ways(rows, n, k), x.device.index or 0)
    made = [tune.candidate("library", call(lambda x, w, b, other: products.plain(x, w, b, None, "")))]
    made += [tune.candidate(way.name, call(lambda x, w, b, other, way=way: products.gpu_linear(
        x, w, b, other, found.post, way.numbers))) for way in every]
    choice = tune.choose("gpu product", specs, made, cold=[1], attrs=f"{found.post} {'turned' if found.turned else ''}")
    if choice is None or "library" not in choice.seconds:
        return None
    seconds = dict(choice.seconds)
    behind = (2 + (found.other is not None)) * rows * n * x.dtype.itemsize / RATE + START
    limit = GAIN * (seconds.pop("library") + (behind if found.last is not found.node else 0))
    best = min(seconds, key=seconds.__getitem__, default=None)
    return next(w for w in every if w.name == best) if best is not None and seconds[best] < limit else None


def _apply(graph: fx.Graph, found: Product, way: Any) -> None:
    last, (rows, n, k) = found.last, found.shape
    spec, ms = spec_of(last), spec_of(found.m)

    def made(target: Any, args: tuple, shape: tuple, stride: tuple) -> fx.Node:
        return call_before(graph, last, target, args, Spec(shape, stride, spec.dtype, spec.device))

    def flat(node: fx.Node | None, width: int) -> fx.Node | None:
        if node is None or len(spec_of(node).shape) == 2:
            return node
        return made(aten.view.default, (node, [rows, width]), (rows, width), (width, 1))
    right = made(aten.t.default, (found.m,), ms.shape[::-1], ms.stride[::-1]) if found.turned else found.m
    args = (flat(found.x, k), right, found.b, flat(found.other, n), found.post, way.numbers)
    result = made(torch.ops.bytejit.gpu_linear.default, args, (rows, n), (n, 1))
    if len(spec.shape) != 2:
        result = made(aten.view.default, (result, list(spec.shape)), spec.shape, spec.stride)
    replace(last, result)
    for node in reversed(graph.nodes):           # what led there has no reader any more
        if node.op == "call_function" and not node.users and node.target in (*VIEWS, *_CHAIN):
            graph.erase_node(node)


_CHAIN = (aten.linear.default, aten.addmm.default, aten.mm.default, aten.relu.default, aten.gelu.default, aten.silu.default)
