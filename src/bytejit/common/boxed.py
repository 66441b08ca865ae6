"""Calls that take their inputs in one list, which they empty: what no later step of a call reads is freed while it runs.

A function's argument lives as long as its caller holds it, and a call with a starred list holds all of it until the end. A
backward pass would so hold all that the forward pass saved while it makes the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Boxed:
    """A function of inputs that the caller keeps. boxed: the same for a caller that gives them up in a list."""

    __slots__ = ("boxed",)

    def __init__(self, boxed: Callable[[list], Any]) -> None:
        self.boxed = boxed

    def __repr__(self) -> str:
        return f"Boxed({self.boxed!r})"

    def __call__(self, *inputs: Any) -> Any:
        return self.boxed([*inputs])


def inner(call: Callable) -> Callable:
    """What takes the list, where a call is boxed."""
    return call.boxed if isinstance(call, Boxed) else call


def wrapped(wrap: Callable[[Callable], Callable], call: Callable) -> Callable:
    """`wrap(call)`, which is boxed where `call` is. wrap: passes all arguments on as they are."""
    return Boxed(wrap(call.boxed)) if isinstance(call, Boxed) else wrap(call)
