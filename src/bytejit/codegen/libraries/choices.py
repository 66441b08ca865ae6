"""The common part of the passes that choose libraries: their context, the loops that match, decide and replace, and the
timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from bytejit.codegen.aten.graph import Aten, check, text
from bytejit.codegen.aten.rewrite import Constants
from bytejit.codegen.passes import Pass, Stage
from bytejit.common.errors import Bug
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

Found = TypeVar("Found")  # what a pass matched
Way = TypeVar("Way")  # what it decided on
ATEN = Stage("aten", check, text)


@light_dataclass(frozen=True)
class Choices:
    """tune: `kernels.tune.Tuner`. library: the module `kernels.library`. constants: the weights that may be prepacked (`freeze`);
    None where weights may change."""

    tune: Any
    library: Any
    constants: Constants | None = None

    def packs(self, weight: fx.Node) -> bool:
        """Whether a weight may be prepacked."""
        return self._real(weight) is not None

    def prepack(self, graph: fx.Graph, weight: fx.Node, pack: Callable[[torch.Tensor], torch.Tensor], spec: Spec) -> fx.Node:
        """A weight in the layout that `pack` makes for a library. spec: its spec for the graph. Raises: Bug."""
        real = self._real(weight)
        if self.constants is None or real is None:
            raise Bug(f"{weight} is no constant: it cannot be prepacked")
        return self.constants.add(graph, pack(real), "packed", spec=spec)

    def _real(self, weight: fx.Node) -> torch.Tensor | None:
        return None if self.constants is None else self.constants.of(weight)


def on_graph(change: Callable[[fx.Graph, Choices], None], why: str = "") -> Pass:
    """A pass over `Aten` from a function that changes its graph, named as the function."""

    def run(aten: Aten, choices: Choices) -> Aten:
        change(aten.graph, choices)
        return aten

    return Pass(change.__name__, run, why)


def choose_each(
    graph: fx.Graph,
    match: Callable[[fx.Node], Found | None],
    decide: Callable[[Found], Way | None],
    apply: Callable[[Found, Way], None],
) -> None:
    """At each node, call `match`; if it finds something, `decide` chooses a way to compute it, and `apply` writes that into
    the graph. `decide` returns None to leave the graph as it is."""
    for node in list(graph.nodes):
        found = match(node)
        if found is not None and (way := decide(found)) is not None:
            apply(found, way)


def choose_together(
    graph: fx.Graph,
    match: Callable[[fx.Node], Found | None],
    decide: Callable[[list[Found]], Sequence[Way | None]],
    apply: Callable[[Found, Way], None],
) -> None:
    """As `choose_each`, where one choice depends on the others: `decide` gets all that was found, and returns a way each."""
    found = [f for f in map(match, list(graph.nodes)) if f is not None]
    for one, way in zip(found, decide(found) if found else (), strict=True):
        if way is not None:
            apply(one, way)


def call_of(row: Any, names: Sequence[str], **fixed: Any) -> Callable:
    """A row of the library as a function of its operands, in the order of `names`; those at the end may be left out."""
    return lambda *operands: row(**dict(zip(names, operands, strict=False)), **fixed)


def timed(
    tune: Any,
    op: str,
    specs: Sequence[Spec],
    ways: Mapping[str, Callable],
    prepare: Mapping[str, Callable] | None = None,
    **how: Any,
) -> Any:
    """The tuner's `Choice` between `ways`, the default first; None when tuning is off and nothing is known.

    prepare: what is done to the operands of a way once, untimed (prepacking). op, specs, how: as `Tuner.choose` takes them.
    """
    return tune.choose(op, specs, [tune.candidate(name, call, (prepare or {}).get(name)) for name, call in ways.items()], **how)


def fastest(
    tune: Any,
    op: str,
    specs: Sequence[Spec],
    ways: Mapping[str, Callable],
    cold: Sequence[int] = (),
    attrs: str = "",
    extra: Mapping[str, float] | None = None,
    gain: float = 1.0,
) -> tuple[str, float]:
    """(the way to take, seconds that it saves), by timing; the first way and 0 where no other takes less than `gain` of its
    time. op, specs, cold, attrs: as `Tuner.choose` takes them. extra: seconds to add to the time of a way.
    """
    base = next(iter(ways))
    choice = timed(tune, op, specs, ways, cold=cold, attrs=attrs)
    if choice is None or base not in choice.seconds:
        return base, 0.0
    seconds = {name: s + (extra or {}).get(name, 0.0) for name, s in choice.seconds.items()}
    best = min(seconds, key=seconds.__getitem__)
    return (best, seconds[base] - seconds[best]) if seconds[best] < gain * seconds[base] else (base, 0.0)
