"""A part of the tracer: what one family of operations needs, beside the others."""

from __future__ import annotations

from .tracer import Tracer


class Component:
    """`t`: the whole, by which the parts reach each other."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
