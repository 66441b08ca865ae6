"""Tensors that torch's forward derivatives know to be zero.

They have no memory: a product with one is such a tensor, whatever the other factor holds, and a sum is the other term. With plain
zeros a product with infinity would be nan, and -0.0 + 0.0 is 0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.spec import contiguous_stride
from bytejit.fake.tensor import Fake, infer, spec_of

from .graph_writer import GraphWriter

aten = torch.ops.aten
FACTORS, TERMS = (aten.mul.Tensor, aten.div.Tensor), (aten.add.Tensor, aten.sub.Tensor)


def made(w: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a tensor that is known to be zero: plain zeros, which are remembered."""
    out = w.record(aten.zeros.default, args, kwargs)
    out.bound.root.nothing = True
    return out


def is_nothing(x: object) -> bool:
    """Whether a value is such a tensor, or a view of one, that nothing was written into."""
    return isinstance(x, Fake) and x.bound.root.nothing and x.bound.root.version == 0


def with_zeros(plan: Callable) -> Callable:
    """How a product, a quotient, a sum or a difference is recorded, where `plan` says so for other operands."""

    def recorded(w: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
        x, y = args[:2]
        left, right = is_nothing(x), is_nothing(y)
        if not (left or right) or func is aten.div.Tensor and not (left and isinstance(y, Fake) and not right):
            return plan(w, func, args, kwargs)
        spec = spec_of(infer(func, args, kwargs))
        if spec.stride != contiguous_stride(spec.shape):
            return plan(w, func, args, kwargs)
        if func in FACTORS or left and right:
            return made(w, aten.zeros.default, (list(spec.shape),), {"dtype": spec.dtype, "device": spec.device})
        other = y if left else x
        if len(args) > 2 or kwargs or left and func is aten.sub.Tensor or not isinstance(other, Fake) or spec_of(other) != spec:
            return plan(w, func, args, kwargs)
        return w.record(aten.clone.default, (other,), {})

    return recorded
