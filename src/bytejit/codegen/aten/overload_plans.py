"""How single overloads are recorded, where their names do not say it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .lines import line
from .zero_tensors import FACTORS, TERMS, made, with_zeros

# overload -> what makes its plan, from that of other operators
PLANS: dict[object, Callable[[Callable], Callable]] = {
    torch.ops.aten.linspace.default: lambda plan: line,
    torch.ops.aten._efficientzerotensor.default: lambda plan: made,
    **dict.fromkeys((*FACTORS, *TERMS), with_zeros),
}
