"""Matrix products fused with their producers and readers in one Triton kernel, where timing says so (max-autotune): a cast, an
activation and a factor of the first operand; bias, activation and residual of the result.

What follows is only taken along where it would be a kernel of its own: an activation whose readers compute it themselves
(a norm, another chain) costs nothing there. So is what leads to a product, where it reads what lies in memory anyhow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    GPU_FLOATS,
    VIEWS,
    aten,
    call_before,
    contiguous,
    expanded,
    is_static,
    replace,
    sole_user,
    spec_of,
    spec_or_none,
    specs_of,
)
from bytejit.codegen.ops.calls import kind_of
from bytejit.codegen.ops.rows import products as ops_products  # noqa: F401  (defines the operator)
from bytejit.common.errors import Bug
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec, contiguous_stride

from .choices import choose_each, fastest
from .products import Product, match_product

LEAST_WORK = 1_000_000  # multiply-adds below which the choice is not worth timing
START, RATE = 2.5e-6, 2e12  # seconds of a pointwise kernel, bytes a second that it moves
GAIN = 0.97  # part of the time of the way without that a fused product may take


@light_dataclass(frozen=True)
class FusedProduct(Product):
    """prologue(x) * y times m, plus b, then epilogue, then an addition. last: the node whose value all this is. x, y: read where
    they lie, y expanded to the shape of the product's own operand."""

    epilogue: str = ""
    other: fx.Node | None = None
    last: fx.Node | None = None
    prologue: str = ""
    y: fx.Node | None = None
    saves: int = 0  # bytes that the kernels before it would move


def fuse_products(graph: fx.Graph, tune: Any, fuses: Callable[[fx.Node], bool]) -> None:
    """Replace each product that is faster so. Changes `graph`. tune: with `products`, the module `kernels.matmul_triton`;
    fuses(node): whether all readers of a node are kernels of our own."""

    def decide(found: FusedProduct) -> tuple | None:
        longer = follow(found)
        every = [longer if longer.last is not found.node and not fuses(longer.last) else found]
        if (led := lead(every[0])) is not None:
            every.append(led)
        timed = [(*way, made) for made in every if (way := _time(made, tune)) is not None]
        return max(timed, key=lambda t: t[0])[1:] if timed else None

    choose_each(graph, match, decide, lambda found, best: _apply(graph, best[1], best[0]))


def match(node: fx.Node) -> FusedProduct | None:
    """A product of one float dtype on a GPU that is worth timing; else None."""
    found = match_product(node) if node.users else None
    if found is None or not all(isinstance(a, (fx.Node, type(None))) for a in node.args):
        return None
    found = FusedProduct(node, found.x, found.m, found.b, found.transposed, last=node)
    specs = specs_of(found.x, found.m, node, *([found.b] if found.b is not None else []))
    if specs is None:
        return None
    x, m = specs[:2]
    if not all(map(is_static, specs)) or {(s.dtype, s.device) for s in specs} != {(x.dtype, x.device)}:
        return None
    if x.device.type != "cuda" or x.dtype not in GPU_FLOATS or 0 in (*x.shape, *m.shape):
        return None
    if found.b is not None and (len(specs[3].shape) != 1 or specs[3].stride != (1,)) or len(m.shape) not in (2, 3):
        return None
    strides = flat_strides(x, found.batched)
    if specs[2].stride != contiguous_stride(specs[2].shape) or strides is None:
        return None
    return found if LEAST_WORK <= found.batch * math.prod(found.shape) and _narrow(found, *strides[1:]) else None


def _narrow(found: FusedProduct, step: int, inner: int) -> bool:
    """Whether all offsets within one product fit i32, and the products the grid. step, inner: strides of its first operand."""
    rows, n, k = found.shape
    m = spec_of(found.m)
    return (
        max(rows * n, rows * step, k * inner, m.shape[-2] * m.stride[-2], m.shape[-1] * m.stride[-1]) < 1 << 30
        and found.batch < 1 << 16
    )


def flat_strides(spec: Spec, batched: bool) -> tuple[int, int, int] | None:
    """Strides of a tensor seen as [batch, rows, k], 0 first where there is no batch; None where no strides say that."""
    ahead = list(zip(spec.shape[:-1], spec.stride[:-1]))
    outer = ahead.pop(0)[1] if batched else 0
    ahead = [(size, step) for size, step in ahead if size != 1]
    for (_, step), (size, within) in zip(ahead, ahead[1:]):
        if step != size * within:
            return None
    return outer, ahead[-1][1] if ahead else spec.shape[-1] * max(spec.stride[-1], 1), spec.stride[-1]


def follow(found: FusedProduct) -> FusedProduct:
    """The product with the activation and the addition behind it, which nothing else reads."""
    node, epilogue, other = _through(found.node), "", None
    user = sole_user(node)
    kind = _epilogue(user) if user is not None else ""
    if kind:
        epilogue, node = kind, _through(user)
        user = sole_user(node)
    if user is not None and user.target is aten.add.Tensor and not user.kwargs and _addend(user, node) is not None:
        other, node = _addend(user, node), user
    if not epilogue and other is None:
        return found
    made = dataclasses.replace(found, epilogue=epilogue, other=other, last=node)
    spec, size = spec_of(node), found.batch * math.prod(found.shape[:2])
    dense = spec.stride == contiguous_stride(spec.shape) and math.prod(spec.shape) == size
    return made if dense and spec.dtype == spec_of(found.x).dtype else found


def lead(found: FusedProduct) -> FusedProduct | None:
    """Let the product compute its first operand itself: act(x) * y, act(x) or x * y, with a cast. Returns None if the
    operand is none of these, if something else reads it, or if x and y are not in memory yet."""
    node, y, prologue = found.x, None, ""
    while _alone(node) and node.target in VIEWS:
        node = node.args[0]
    top, own = node, spec_of(node)
    if not is_static(own) or own.stride != contiguous_stride(own.shape) or own.shape[-1:] != spec_of(found.x).shape[-1:]:
        return None
    if found.batched and own.shape != spec_of(found.x).shape:
        return None
    if _alone(node) and node.target is aten._to_copy.default and set(node.kwargs) == {"dtype"}:
        node = node.args[0]
    if _alone(node) and node.target is aten.mul.Tensor and all(isinstance(a, fx.Node) for a in node.args):
        first, second = node.args
        of_first = spec_or_none(first)
        if _epilogue(second) or of_first is None or of_first.shape != own.shape:
            first, second = second, first
        if first is second:
            return None
        node, y = first, second
    if _alone(node) and (kind := _epilogue(node)):
        node, prologue = node.args[0], kind
    specs = specs_of(node) if y is None else specs_of(node, y)
    if node is top or specs is None or not all(is_static(s) and s.device == own.device for s in specs):
        return None
    if specs[0].shape != own.shape:
        return None
    if (
        specs[0].dtype not in GPU_FLOATS
        or specs[-1].dtype not in (*GPU_FLOATS, torch.bool)
        or not all(map(_lies, (node,) if y is None else (node, y)))
    ):
        return None
    wide = [specs[0]] if y is None else [specs[0], expanded(specs[1], own.shape)]
    if any(s is None or flat_strides(s, found.batched) is None for s in wide):
        return None
    moved = sum(math.prod(own.shape) * s.dtype.itemsize for s in (*specs, own))
    return dataclasses.replace(found, x=node, prologue=prologue, y=y, saves=moved)


def _alone(node: fx.Node) -> bool:
    """Whether a call's result is read once."""
    return node.op == "call_function" and sole_user(node) is not None


def _lies(node: fx.Node) -> bool:
    """Whether a value is in memory whatever reads it: an input, or a library's result, behind views."""
    while node.op == "call_function":
        kind = kind_of(node)
        if node.target not in VIEWS and kind != "view":
            return kind in (None, "extern")
        node = node.args[0]
    return node.op == "placeholder"


def _wide(node: fx.Node, shape: tuple) -> Spec:
    """The spec of a tensor expanded to a shape that it goes to. Raises: Bug."""
    spec = expanded(spec_of(node), shape)
    if spec is None:
        raise Bug(f"{node} does not go to {shape}")
    return spec


def _through(node: fx.Node) -> fx.Node:
    """The last of the views that alone read a node."""
    while (user := sole_user(node)) is not None and user.target in VIEWS:
        node = user
    return node


def _epilogue(node: fx.Node) -> str:
    if node.target is aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate", "none") == "tanh" else "gelu"
    return {aten.relu.default: "relu", aten.silu.default: "silu"}.get(node.target, "")


def _addend(add: fx.Node, value: fx.Node) -> fx.Node | None:
    """Returns what is added to a value, when it is laid out as the sum is."""
    others = [a for a in add.args if a is not value]
    spec = spec_or_none(others[0]) if len(others) == 1 else None
    return others[0] if spec is not None and spec == spec_of(add) else None


def _operands(found: FusedProduct) -> dict[str, Spec]:
    """Returns what the operator takes beside x and w, in its form."""
    rows, n, k = found.shape
    front = (found.batch,) if found.batched else ()
    own = spec_of(found.m)

    def flat(spec: Spec) -> Spec:
        strides = flat_strides(spec, found.batched)
        if strides is None:
            raise Bug(f"{spec} is no [rows, k]")
        return Spec((*front, rows, k), strides if front else strides[1:], spec.dtype, spec.device)

    x = spec_of(found.x)
    made = {"x": flat(x)}
    if found.b is not None:
        made["b"] = spec_of(found.b)
    if found.other is not None:
        made["other"] = contiguous(Spec((*front, rows, n), (), own.dtype, own.device))
    if found.y is not None:
        made["y"] = flat(_wide(found.y, x.shape))
    return made


def _time(found: FusedProduct, tune: Any) -> tuple[float, Any] | None:
    """Time our own kernels against the library's product with kernels around it. Returns (seconds saved, way) of the
    fastest; None if the library is faster."""
    products, (rows, n, _) = tune.products, found.shape
    given, m = _operands(found), spec_of(found.m)
    extra = [name for name in ("b", "other", "y") if name in given]
    w = Spec(m.shape[::-1], m.stride[::-1], m.dtype, m.device) if found.transposed else m
    problem = products.problem_of(
        given["x"], w, given.get("b"), given.get("other"), found.epilogue, given.get("y"), found.prologue
    )
    plain = contiguous(Spec(given["x"].shape, (), m.dtype, m.device))

    def call(run: Callable) -> Callable:
        def go(whole: torch.Tensor, x: torch.Tensor, m: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            named = dict(zip(extra, rest))
            return run(whole, x, m.t() if found.transposed else m, named.get("b"), named.get("other"), named.get("y"))

        return go

    every = products.prepare(problem, products.ways(rows, m.dtype, products.uses_tf32()), m.device.index or 0)
    ways = {"library": call(lambda whole, x, w, b, other, y: products.plain(whole, w, b, None, ""))}
    for way in every:
        ways[way.name] = call(
            lambda whole, x, w, b, other, y, way=way: products.gpu_linear(
                x, w, b, other, found.epilogue, way.numbers, y, found.prologue
            )
        )
    around = 0.0  # seconds of the kernels that the library's call needs beside it
    if found.last is not found.node:
        around += START + (2 + (found.other is not None)) * found.batch * rows * n * m.dtype.itemsize / RATE
    if found.saves:
        around += START + found.saves / RATE
    attrs = f"{found.prologue} {found.epilogue} {'transposed' if found.transposed else ''}"
    specs = [plain, given["x"], m, *(given[name] for name in extra)]
    best, saved = fastest(tune, "gpu product", specs, ways, cold=[2], attrs=attrs, extra={"library": around}, gain=GAIN)
    return None if best == "library" else (saved, next(w for w in every if w.name == best))


def _apply(graph: fx.Graph, found: FusedProduct, way: Any) -> None:
    last, n = found.last, found.shape[1]
    spec, ms, given = spec_of(last), spec_of(found.m), _operands(found)

    def made(target: Any, args: tuple, spec: Spec) -> fx.Node:
        return call_before(graph, last, target, args, spec)

    def flat(node: fx.Node | None, name: str) -> fx.Node | None:
        if node is None or spec_of(node).shape == given[name].shape:
            return node
        return made(aten.view.default, (node, list(given[name].shape)), given[name])

    y = found.y
    if y is not None and spec_of(y).shape != spec_of(found.x).shape:
        wide = _wide(y, spec_of(found.x).shape)
        y = made(aten.expand.default, (y, list(wide.shape)), wide)
    right = found.m
    if found.transposed:
        right = made(aten.t.default, (found.m,), Spec(ms.shape[::-1], ms.stride[::-1], ms.dtype, ms.device))
    args = (
        flat(found.x, "x"),
        right,
        found.b,
        flat(found.other, "other"),
        found.epilogue,
        way.numbers,
        flat(y, "y"),
        found.prologue,
    )
    own = contiguous(Spec((*given["x"].shape[:-1], n), (), spec.dtype, spec.device))
    result = made(torch.ops.bytejit.gpu_linear.default, args, own)
    if spec.shape != own.shape:
        result = made(aten.view.default, (result, list(spec.shape)), spec)
    replace(last, result)
    for node in reversed(graph.nodes):  # what led there has no reader any more
        if node.op == "call_function" and not node.users and node.target in (*VIEWS, *_CHAIN):
            graph.erase_node(node)


_CHAIN = (
    aten.linear.default,
    aten.addmm.default,
    aten.mm.default,
    aten.bmm.default,
    aten.relu.default,
    aten.gelu.default,
    aten.silu.default,
    aten.mul.Tensor,
    aten._to_copy.default,
)
