"""Which sizes a trace makes symbolic, and a symbol as an input of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass
from bytejit.guards.sources import Source
from bytejit.tracer.core.named_sources import NamedSources


@light_dataclass(frozen=True)
class Dynamic:
    """Which sizes a trace makes symbolic. Keys are sources: TensorSize, TensorStride, or that of an int.

    `at_once`: all that can be; `changed`: those seen to change between calls, with a size above 1 that each had (0: none
    known); `static`: those that must not be. `guarded`: the tensors that entries of the site know already. `unlike`: plain
    values that differ in each call: what needs one as a constant breaks the graph. `of_modules`: integers that differ between
    modules of one class: left open where they are keys, constants elsewhere.
    """

    at_once: bool = False
    changed: Mapping[Source, int] = field(default_factory=dict)
    static: frozenset[Source] = frozenset()
    guarded: frozenset[Source] = frozenset()
    hysteresis: bool = True  # whether a size that is 1 now may be traced as what it was (sizes/size_hysteresis.py)
    unlike: frozenset[Source] = frozenset()
    of_modules: frozenset[Source] = frozenset()
    named: NamedSources = NamedSources()  # those that are symbolic from the first trace, by name
    refused: tuple[tuple[Source, Any], ...] = ()  # of `static`, those that an operation (its Where) would not take

    def without(self, sources: frozenset[Source], where: Any) -> Dynamic:
        """A copy in which sizes that an operation refused as symbols are static."""
        return replace(self, static=self.static | sources, refused=self.refused + tuple((s, where) for s in sources))

    def as_it_is(self) -> Dynamic:
        """A copy in which every size is traced with its present value."""
        return replace(self, hysteresis=False)

    @property
    def some(self) -> bool:
        """Whether a number from outside may become a symbol."""
        return self.at_once or bool(self.changed or self.unlike)

    def has_changed(self, source: Source) -> bool:
        """Whether this value was another one in another call."""
        return source in self.changed or source in self.unlike

    def is_unlike(self, source: Source) -> bool:
        """Whether a value differs in each call, or is computed from one that does."""
        return bool(self.unlike) and (source in self.unlike or any(map(self.is_unlike, source.bases())))

    def wants(self, key: Source) -> bool:
        """Whether this size or int becomes a symbol, without a mark of the user."""
        return (self.at_once or key in self.changed) and key not in self.static


@light_dataclass(frozen=True)
class Feed:
    """A symbol as an input of the graph."""

    source: Source
    value: torch.SymInt | torch.SymFloat
    node: torch.fx.Node
    now: int | None = None  # its value in this call, if it was traced with another one

    @property
    def origin(self) -> Source:
        """Returns the source, as a tensor's `origin` does."""
        return self.source

    @property
    def real(self) -> int | float:
        """Its value in the traced call."""
        return self.value.node.hint if self.now is None else self.now


@light_dataclass(frozen=True)
class DrawnTensor:
    """Random numbers as an input of the graph. `real`: those that the traced call draws."""

    origin: Source
    real: torch.Tensor
    node: torch.fx.Node
