"""Counts of what happened: graphs, breaks, recompiles, fallbacks, faults. Imports no torch.

counters   owner: whoever counts   size: bounded by distinct reasons   cleared: counters.clear(), reset()
"""

from __future__ import annotations

from collections import Counter


class Counters(dict):
    """Groups of counters: `counters["breaks"]["a tensor decides a branch at model.py:14"]`. Groups are always there."""

    GROUPS = ("graphs", "breaks", "recompiles", "fallbacks", "faults")

    def __init__(self) -> None:
        super().__init__((name, Counter()) for name in self.GROUPS)

    def __missing__(self, group: str) -> Counter:
        return self.setdefault(group, Counter())

    def clear(self) -> None:
        """Set all counts to zero."""
        for group in self.values():
            group.clear()

    def total(self, group: str) -> int:
        """The sum of a group."""
        return self[group].total()


counters = Counters()


def count(group: str, what: str, n: int = 1) -> None:
    """Add to a counter: what happened, in words that stay the same from run to run."""
    counters[group][what] += n
