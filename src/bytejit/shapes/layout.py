"""Questions about the layout of a symbolic shape: sizes and strides are lists of nodes (`nodes.Node`)."""

from __future__ import annotations

from typing import Any


def is_size(node: Any, n: int) -> bool:
    """Whether a size is n."""
    return node.eq(node.wrap_int(n)).truth()


def in_order(one: Any, sizes: list, strides: list, order: Any) -> bool:
    """Whether memory is dense with the dims in this order, fastest first. Sizes 1 do not count."""
    step = one.wrap_int(1)
    for d in order:
        if sizes[d].value == 1:
            continue
        # in this order: whether a symbol is 1 is asked only where it matters
        if not strides[d].eq(step).truth() and not is_size(sizes[d], 1):
            return any(is_size(s, 0) for s in sizes)
        step = step.mul(sizes[d])
    return True


def channels_last(sizes: list, strides: list, order: Any) -> bool:
    """torch's question whether strides look like channels last, whatever their density."""
    if is_size(strides[1], 0):
        return False
    least = sizes[0].wrap_int(0)
    for d in order:
        if is_size(sizes[d], 0) or strides[d].lt(least).truth():
            return False
        if d == 0 and (least.value == strides[1].value):
            return False
        least = strides[d] if is_size(sizes[d], 1) else strides[d].mul(sizes[d])
    return True


def dense(one: Any, sizes: list, strides: list) -> bool:
    """Whether some order of the dims makes it contiguous. The order is the hints'."""
    order = sorted((d for d in range(len(sizes)) if not is_size(sizes[d], 1)), key=lambda d: (strides[d].hint, sizes[d].hint))
    step = one.wrap_int(1)
    for d in order:
        if not strides[d].eq(step).truth():
            return False
        step = step.mul(sizes[d])
    return True
