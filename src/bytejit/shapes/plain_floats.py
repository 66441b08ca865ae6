"""Symbolic floats that an operator of torch takes as plain numbers (an epsilon, a momentum, a rate).

torch's C++ asks such a float for its value, which would make it a constant: one compile for each value. It may stay symbolic
where it decides nothing but computed values. The trace then relies on what torch's C++ compares such numbers with: that it is
finite, and its side of 0 and of 1 (a rate below 0 raises; dropout at a rate of 0 returns its input).
"""

from __future__ import annotations

import math
from typing import Any

from .arithmetic import compare
from .number import Number

EDGES = (0.0, 1.0)


def on_its_side(number: Number) -> float:
    """The value while tracing of a float that stays symbolic on its side of 0 and 1. 0, 1, infinities and nan become
    constants."""
    at: Any = number.hint
    if number.constant is not None or not math.isfinite(at) or at in EDGES:
        return number.float_()
    for edge in (-math.inf, *EDGES, math.inf):
        if not (edge == -math.inf and at > 0 or edge == math.inf and at < 1):  # what another of them says
            compare("gt" if at > edge else "lt", number, number.wrap_float(edge)).truth()
    return float(at)
