"""The functions behind operators that are called through torch.

`FAST` names torch's own Python entry of an overload where its arguments are the overload's: 1 to 3 us a call less than
`torch.ops`. A target adds the functions behind operators of ours that are written in Python: the dispatcher takes 57 us more (a
busy CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FAST: dict[str, Callable] = {
    "aten.mm.default": torch.mm,
    "aten.addmm.default": torch.addmm,
    "aten.bmm.default": torch.bmm,
    "aten.baddbmm.default": torch.baddbmm,
    "aten.mv.default": torch.mv,
    "aten.dot.default": torch.dot,
    "aten.linear.default": torch._C._nn.linear,
    "aten.convolution.default": torch.convolution,
    "aten.cudnn_convolution_relu.default": torch.cudnn_convolution_relu,
    "aten.cudnn_convolution_add_relu.default": torch.cudnn_convolution_add_relu,
    "aten.scaled_dot_product_attention.default": torch._C._nn.scaled_dot_product_attention,
}


def resolve(target: str) -> Callable:
    """The operator "namespace.op.overload". Raises: AttributeError when torch has none of that name."""
    if target in FAST:
        return FAST[target]
    fn: Any = torch.ops
    for part in target.split("."):
        fn = getattr(fn, part)
    if not isinstance(fn, torch._ops.OpOverload):
        raise AttributeError(f"{target} is no operator")
    return fn


def is_window(target: str) -> bool:
    """Whether an op returns a view of what it is given, by its schema."""
    if not target.startswith("aten."):
        return False
    op: Any = None if target in FAST else resolve(target)
    alias = op._schema.returns[0].alias_info if op is not None and op._schema.returns else None
    return alias is not None and not alias.is_write
