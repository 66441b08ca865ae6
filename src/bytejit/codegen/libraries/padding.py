"""Matrix products on a GPU whose sides are no multiples of 16 bytes, such as the 50257 words of GPT-2: libraries have only slow
kernels for them. Where timing says so, operands are padded with zeros and the result is sliced."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import aten, infer_before, is_static, order_of, replace, spec_of, spec_or_none
from bytejit.common.dtypes import NARROW_DTYPES
from bytejit.common.spec import Spec, contiguous_stride

from .choices import Choices, fastest
from .linear_cuda import START

LINE = 16  # bytes: rows of operands are fastest when they start at a multiple of this
LEAST_WORK = 1 << 26  # multiply-adds of a product worth timing
GAIN = 0.9  # padding, product and cut together may take this part of the plain product's time
Padded = dict[tuple[fx.Node, tuple[int, ...]], fx.Node]  # a node and zeros at its ends -> it with those


def pad_products(graph: fx.Graph, choices: Choices) -> None:
    """Changes `graph`. What several products read is padded once."""
    padded: Padded = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (aten.linear.default, aten.mm.default):
            continue
        a, b = _operands(node)
        if a is not None and b is not None and _odd(a, b) and _pays(a, b, choices.tune):
            _pad(graph, _as_product(graph, node), padded)


def _operands(node: fx.Node) -> tuple[Spec | None, Spec | None]:
    """The operands of a product of two matrices; None for another product."""
    x, w = (spec_or_none(a) for a in node.args[:2])
    if node.target is aten.mm.default or x is None or w is None:
        return x, w
    if not is_static(x) or len(w.shape) != 2 or x.stride != contiguous_stride(x.shape):
        return None, None
    rows, k = math.prod(x.shape[:-1]), x.shape[-1]
    return Spec((rows, k), (k, 1), x.dtype, x.device), Spec(w.shape[::-1], w.stride[::-1], w.dtype, w.device)


def _odd(a: Spec, b: Spec) -> bool:
    """Whether a product is large, and rows of an operand or of the result start at no multiple of LINE."""
    if not is_static(a) or not is_static(b) or a.device.type != "cuda" or a.dtype not in NARROW_DTYPES:
        return False
    if b.dtype is not a.dtype or 1 not in a.stride or 1 not in b.stride:
        return False
    (m, k), n = a.shape, b.shape[1]
    leading = (k if a.stride[1] == 1 else m, n if b.stride[1] == 1 else k, n)
    return m * k * n >= LEAST_WORK and any(size % (LINE // a.dtype.itemsize) for size in leading)


def _as_product(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A linear as a product of two matrices, and an addition of its bias."""
    if node.target is aten.mm.default:
        return node
    x, w, *rest = node.args
    call = partial(infer_before, graph, node)
    spec = spec_of(node)
    flat = x if len(spec.shape) == 2 else call(aten.view.default, x, [-1, spec_of(x).shape[-1]])
    product = made = call(aten.mm.default, flat, call(aten.t.default, w))
    made = made if len(spec.shape) == 2 else call(aten.view.default, made, list(spec.shape))
    if rest and rest[0] is not None:
        made = call(aten.add.Tensor, made, rest[0])
    replace(node, made)
    return product


def _ends(a: Spec, b: Spec) -> tuple[int, int, int]:
    """Rows, columns of the first and columns of the second operand to add: sides that no row begins by stay."""
    line = LINE // a.dtype.itemsize
    (m, k), n = a.shape, b.shape[1]
    across = a.stride[1] != 1
    return -m % line if across else 0, -k % line if not across or b.stride[1] != 1 else 0, -n % line


def _padded(call: Callable, a: Spec, b: Spec, x: Any, y: Any) -> Any:
    """The product of padded operands, cut. a, b: how x and y lie; call(operator, *args): of tensors, or of nodes."""
    m, k, n = _ends(a, b)

    def wide(x: Any, spec: Spec, rows: int, columns: int) -> Any:
        """Pads an operand in the order of its memory."""
        if not rows and not columns:
            return x
        if spec.stride[1] == 1:
            return call(aten.constant_pad_nd.default, x, [0, columns, 0, rows], 0)
        return call(aten.t.default, call(aten.constant_pad_nd.default, call(aten.t.default, x), [0, rows, 0, columns], 0))

    made = call(aten.mm.default, wide(x, a, m, k), wide(y, b, k, n))
    for dim, end, more in ((0, a.shape[0], m), (1, b.shape[1], n)):
        made = call(aten.slice.Tensor, made, dim, 0, end) if more else made
    return made


def _pays(a: Spec, b: Spec, tune: Any) -> bool:
    ways = {"plain": torch.mm, "padded": lambda x, y: _padded(lambda op, *args: op(*args), a, b, x, y)}
    best, _ = fastest(tune, "gpu padding", [a, b], ways, extra={"padded": START}, gain=GAIN)
    return best == "padded"


def _pad(graph: fx.Graph, node: fx.Node, padded: Padded) -> None:
    x, y = node.args

    def call(op: Any, x: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node, or one that is there."""
        if op is aten.t.default and (x.target is aten.t.default or order_of(x, 2) == [1, 0]):
            return x.args[0]
        if op is not aten.constant_pad_nd.default:
            return infer_before(graph, node, op, x, *args, **kwargs)
        key = x, tuple(args[0])
        if key not in padded:
            padded[key] = infer_before(graph, node, op, x, *args, **kwargs)
        return padded[key]

    made = _padded(call, spec_of(x), spec_of(y), x, y)
    cut = made.target is aten.slice.Tensor
    replace(node, call(aten.clone.default, made, memory_format=torch.contiguous_format) if cut else made)
