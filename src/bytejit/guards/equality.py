"""Strict equality, by which guards compare constants."""

from __future__ import annotations

import math
from typing import Any

from bytejit.common.plain_types import ZONED, has_plain_zone
from bytejit.compat import numpy_types


def same(a: Any, b: Any) -> bool:
    """Equality that tells types, signs of zero and nans apart, all the way down tuples, lists, dicts and sets, and the order
    in which a set is gone through."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b) or issubclass(kind, type):
        return False
    if kind is float:
        return (a == b and math.copysign(1.0, a) == math.copysign(1.0, b)) or (a != a and b != b)
    if kind is complex:
        return same(a.real, b.real) and same(a.imag, b.imag)
    if kind in numpy_types.SCALARS:
        return numpy_types.same_scalar(a, b)
    if kind in (slice, range):  # ranges are equal by their elements, and say where they stop
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if kind in ZONED:  # equal ones may be one moment in two zones
        plain = has_plain_zone(a) and has_plain_zone(b)
        return plain and same((a.tzinfo, a.fold), (b.tzinfo, b.fold)) and bool(a.replace(tzinfo=None) == b.replace(tzinfo=None))
    if isinstance(a, (tuple, list, set, frozenset)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
    return bool(a == b)
