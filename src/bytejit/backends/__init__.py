"""The built-in backends, and the compilers of a graph for each device."""

from __future__ import annotations

from collections.abc import Callable


def aot(forward: Callable, backward: Callable | None = None) -> Callable:
    """A backend that hands ATen graphs to compilers of the user's own.

    forward, backward: `(gm, example_inputs) -> callable`, for the forward graph and, where gradients are needed, the backward
    graph (None: `forward` gets both). `gm` is functional: calls of ATen overloads, no writes; its output is a flat tuple, which
    the callable returns. `example_inputs`: meta tensors. A graph with symbolic sizes runs through torch.
    """
    from .aot_backend import aot_backend  # with the first backend: torch alone is imported here

    return aot_backend(forward, backward)
