"""What a graph calls that is no operation of torch: targets of nodes that the tracer makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.common import special_cases


class GraphCall:
    """The target of a node, which calls `run`.

    name: in the graph's text. said: what messages call it. opaque: why no kernel can compute it, so that the graph runs through
    torch; "" where it is looked into. parts: the graphs that it runs.
    """

    def __init__(
        self, run: Callable[..., Any], name: str = "", opaque: str = "", parts: tuple[torch.fx.GraphModule, ...] = ()
    ) -> None:
        self.run, self.opaque, self.parts = run, opaque, parts
        self.__name__ = self.__qualname__ = name or run.__name__
        self.said = opaque or self.__name__
        # torch.fx spells what says that it is of torch's modules as an expression, and such a name is another object's
        self.__module__ = __name__ if special_cases.TORCH.made(run) else run.__module__
        self.__doc__ = run.__doc__

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)


def opaque(why: str) -> Callable[[Callable[..., Any]], GraphCall]:
    """Declare a function as a node's target that no kernel can compute."""
    return lambda run: GraphCall(run, opaque=why)


def said_of(function: Any) -> str:
    """What messages call an operation."""
    return function.said if isinstance(function, GraphCall) else getattr(function, "__name__", None) or str(function)


def why_opaque(node: torch.fx.Node) -> str:
    """Returns why no kernel can compute what a node calls; "" where that is not known."""
    return node.target.opaque if isinstance(node.target, GraphCall) else ""


def parts_of(node: torch.fx.Node) -> tuple[torch.fx.GraphModule, ...]:
    """The graphs that a node runs."""
    return node.target.parts if isinstance(node.target, GraphCall) else ()


# functions and attributes that make a view of a complex tensor which torch conjugates when it is read
FLIPS = frozenset(("conj", "_conj", "mH", "H", "adjoint", "matrix_H"))


def called_name(node: torch.fx.Node) -> str:
    """The name of the function that a node calls, or of the attribute that it reads."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return str(node.args[1] if name == "getattr" else name).partition(".")[0]


def set_data(x: torch.Tensor, value: torch.Tensor) -> None:
    """`x.data = value`."""
    x.data = value
