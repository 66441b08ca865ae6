"""Which buffers a step reads and writes."""

from __future__ import annotations

from typing import Any

from .ir import Extern, Kernel, View, updates
from .simplify import written


def views_in(x: Any) -> list[View]:
    """Every View in nested extern arguments."""
    if isinstance(x, View):
        return [x]
    return [v for part in x for v in views_in(part)] if isinstance(x, tuple) else []


def reads(step: Kernel | Extern) -> list[str]:
    """Buffers a step reads, in first-use order, each once."""
    if isinstance(step, Extern):
        return list(dict.fromkeys(v.buffer for v in views_in((step.args, step.kwargs))))
    return list(dict.fromkeys([*(e.name for e in step.loads), *updates(step)]))


def writes(step: Kernel | Extern) -> list[str]:
    """Buffers a step makes."""
    return [o for o in step.outs if o] if isinstance(step, Extern) else written(step)
