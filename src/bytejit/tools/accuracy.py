"""The option `check`: each compiled graph runs once beside eager and float64; the first operation that is off is named.

The graph runs on copies of the inputs at hand. Where an output is off, the graph is compiled again with all values as outputs:
the first one that is off is the operation's. A fault that shows only as the graph is, is looked for by halving the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bytejit.common.dtypes import NARROW_DTYPES
from bytejit.common.errors import IncorrectResult
from bytejit.common.graph_info import INFO, info_of
from bytejit.common.graph_modules import copy_of, module_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.where import Where, with_source
from bytejit.runtime.verification import TOLERANCE

from .compare import Difference, difference, in_float64, run

Backend = Callable[[torch.fx.GraphModule, list], Callable]


@light_dataclass(frozen=True)
class Culprit:
    """The first operation of a graph whose value is off, and how."""

    node: torch.fx.Node
    off: Difference

    @property
    def where(self) -> Where | None:
        """The user's line."""
        where = self.node.meta.get("where")
        return with_source(where) if isinstance(where, Where) else None

    def __str__(self) -> str:
        return f"{op_name(self.node)} at {self.where}: {self.off}" if self.where else f"{op_name(self.node)}: {self.off}"


def op_name(node: torch.fx.Node) -> str:
    """An operation as messages name it."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def check_region(gm: torch.fx.GraphModule, made: Callable, backend: Backend, inputs: Sequence, name: str, where: Where) -> None:
    """Compare `made(*inputs)` with the graph in eager and in float64. Raises: IncorrectResult, naming the first operation that
    is off; what the graph raises."""
    off = differences(gm, made, inputs)
    wrong = next(((i, d) for i, d in enumerate(off) if d is not None), None)
    if wrong is None:
        return
    culprit = first_off(gm, backend, inputs)
    first = f"\n  first  {culprit}" if culprit is not None else "\n  first  no operation is off when the graph is cut there"
    raise IncorrectResult(
        f"incorrect result of backend {name!r}: output {wrong[0]} {wrong[1]}\n  where  {where}{first}\n"
        "  do     bytejit.minify(fn, *args) writes the shortest program that shows it"
    )


def differences(
    gm: torch.fx.GraphModule, made: Callable, inputs: Sequence, tolerance: float | None = None, exactly: bool = True
) -> list[Difference | None]:
    """How each output, and each input that may have been written, is off. exactly: beside float64, not only eager."""
    eager, drew = run(gm.forward, inputs)
    got, _ = run(made, inputs)
    exact = in_float64(gm, inputs) if exactly and not drew else None
    if len(got) != len(eager):
        return [Difference(f"is one of {len(got)} values, in eager of {len(eager)}")]
    if exact is None and tolerance is None:  # eager's own roundings within the graph are part of the difference
        tolerance = coarsest(gm)
    beside = exact if exact is not None and len(exact) == len(eager) else [None] * len(eager)
    return [difference(a, b, c, tolerance) for a, b, c in zip(got, eager, beside)]


def coarsest(gm: torch.fx.GraphModule) -> float | None:
    """The tolerance of the least precise 16 bit dtype that the graph computes in; None where it does in none."""
    dtypes = {v.dtype for n in gm.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)}
    return max((TOLERANCE[d] for d in dtypes & NARROW_DTYPES), default=None)


def first_off(gm: torch.fx.GraphModule, backend: Backend, inputs: Sequence) -> Culprit | None:
    """The first operation whose value is off; None where none is as soon as the graph is cut there."""
    values = [n for n in gm.graph.nodes if n.op.startswith("call_") and isinstance(n.meta.get("val"), torch.Tensor)]

    def off_in(some: list[torch.fx.Node]) -> Culprit | None:
        part = returning(gm, some)
        try:
            found = differences(part, backend(copy_of(part), list(inputs)), inputs)
        except Exception:  # a part that cannot be compiled or run says nothing
            return None
        return next((Culprit(n, d) for n, d in zip(some, found) if d is not None), None)

    if (found := off_in(values)) is not None:
        return found
    low, high, found = 0, len(values), None  # the last value is off: an output is
    while low < high:
        middle = (low + high) // 2
        here = off_in([values[middle]])
        low, high, found = (low, middle, here) if here is not None else (middle + 1, high, found)
    return found


def returning(gm: torch.fx.GraphModule, values: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
    """The graph with these values as its outputs."""
    graph = torch.fx.Graph()
    env: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(gm.graph, env)
    graph.output(tuple(env[n] for n in values))
    part = module_of(graph, gm)
    part.meta[INFO] = info_of(gm)
    return part
