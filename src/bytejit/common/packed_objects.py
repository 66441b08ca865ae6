"""Calls of operators with objects of torch's C++ classes among their arguments, as the packed weights of quantised layers are.

A graph's text cannot spell such an object, so it is a part of what the node calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .graph_calls import GraphCall


class PackedCall(GraphCall):
    """Calls `operator` with `held` put in: position -> an object, or a list of some; `named`: those given by name."""

    def __init__(self, operator: Callable[..., Any], held: dict[int, object], named: dict[str, object]) -> None:
        super().__init__(operator, name=getattr(operator, "__name__", ""))
        self.held, self.named = held, named

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = iter(args)
        count = len(args) + len(self.held)
        return self.run(*(self.held[i] if i in self.held else next(given) for i in range(count)), **kwargs, **self.named)
