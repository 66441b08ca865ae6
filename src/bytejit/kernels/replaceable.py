"""A graph's callable that may be replaced after the first call, by one with the strides that its libraries returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.common import registry


class Replaceable:
    """Runs `now`; from the second call on, what `again` makes of the strides that libraries returned in the first one, if
    anything. returned: those strides. Cost: 0.1 us a call."""

    def __init__(
        self, now: Callable[..., Any], returned: dict[str, tuple], again: Callable[[dict[str, tuple]], Callable[..., Any] | None]
    ) -> None:
        self.now, self.returned, self.again, self.first = now, returned, again, True

    def __call__(self, *inputs: Any) -> Any:
        made = self.now(*inputs)
        if self.first:
            self.first = False
            if self.returned and (better := self.again(dict(self.returned))) is not None:
                registry.count("externs", "a graph is laid out anew, by the strides that its libraries return")
                self.now = better
        return made
