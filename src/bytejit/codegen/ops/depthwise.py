"""The row of depthwise convolutions: each channel's window, weighted. Kernels of our own, with what stands around them; a library
moves the same bytes in a call of its own, on a GPU at a part of the bandwidth."""

from __future__ import annotations

import functools
from typing import Any

from bytejit.codegen.aten.depthwise import TAPS
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule, Value
from bytejit.common.dtypes import FLOATS, acc_dtype

from .composite import F
from .gather import row
from .pools import Window


@row("conv_depthwise2d", "_conv_depthwise2d")
def conv_depthwise2d(
    ctx: Lowering, x: Value, w: Value, kernel: Any, bias: Value | None, stride: Any, padding: Any, dilation: Any
) -> Value:
    """x [B, C, H, W], w [C, 1, KH, KW], bias [C] or None."""
    window = Window(ctx, x, 2, kernel, stride, padding, dilation)
    if len(window.places()) > TAPS or x.dtype not in FLOATS or w.shape[0] != x.shape[1]:
        raise NoRule("a large window, or several results a channel")
    acc = acc_dtype(x.dtype)

    def element(c: tuple) -> Expr:
        weights = [F(ctx, ctx.read(w, (c[-3], ix.ZERO, *map(ix.index, k)), acc)) for k in window.places()]
        terms = [e * v for (e, _), v in zip(window.elements(c, 0.0), weights, strict=True)]
        if bias is not None:
            terms.append(F(ctx, ctx.read(bias, (c[-3],), acc)))
        return functools.reduce(F.__add__, terms).e  # one after another: each is one instruction with its product

    return ctx.map(element)
