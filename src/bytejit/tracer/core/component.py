"""The base class of the tracer's parts. Each part serves one family of operations."""

from __future__ import annotations

from .tracer import Tracer


class Component:
    """`t`: the tracer, through which the parts reach each other."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
