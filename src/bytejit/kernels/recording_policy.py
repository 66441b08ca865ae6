"""What is known about a graph before it is recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.registry import count


@light_dataclass(frozen=True)
class Policy:
    """What is known about a graph before it runs. weights: inputs whose addresses rarely change; written: inputs that it
    writes; reason: why it cannot be recorded, "" when it may; tell: is told what becomes of it, the same words as the
    counters; fresh: inputs that are new tensors in each call: small, and always copied; new_grads: (output, input): the output
    becomes the input's `.grad`, and nothing reads what that was."""

    how: str
    device: int
    weights: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    reason: str = ""
    tell: Callable[[str], None] | None = field(default=None, compare=False)
    fresh: frozenset[int] = frozenset()
    new_grads: tuple[tuple[int, int], ...] = ()

    @property
    def gradients(self) -> frozenset[int]:
        """The outputs that become some input's `.grad`."""
        return frozenset(o for o, _ in self.new_grads)

    @property
    def warm(self) -> bool:
        """Whether its first calls share memory with recordings."""
        return self.how == "forced" and bool(self.new_grads)

    def say(self, what: str) -> None:
        """Count what became of the graph's recording, and tell it."""
        count("cudagraphs", what)
        if self.tell is not None:
            self.tell(what)
