"""Dependencies between steps, updated while steps are merged. A search visits only steps that lie between the two steps."""

from __future__ import annotations

from collections.abc import Iterable


class Dependencies:
    """before: step -> the steps that it needs directly; after: step -> those that need it directly; at: step -> its position in a
    topological order."""

    def __init__(self, before: dict[int, set[int]], order: Iterable[int]):
        self.before = before
        self.after: dict[int, set[int]] = {i: set() for i in before}
        for i, found in before.items():
            for b in found:
                self.after[b].add(i)
        self.at = {i: place for place, i in enumerate(order)}

    def needs(self, step: int, other: int, indirect: bool = False) -> bool:
        """Whether `step` needs `other`, directly or not. indirect: only a way through a third step counts."""
        least, seen, stack = self.at[other], {step}, [step]
        while stack:
            i = stack.pop()
            for b in self.before[i]:
                if b == other:
                    if not indirect or i != step:
                        return True
                elif self.at[b] > least and b not in seen:
                    seen.add(b)
                    stack.append(b)
        return False

    def join(self, first: int, second: int) -> None:
        """Merge the first into the second. Neither may need the other through a third step."""
        low, high = sorted((first, second), key=self.at.__getitem__)
        self.put_together(low, high, second)
        for old, back in ((self.before, self.after), (self.after, self.before)):
            for other in old.pop(first):
                back[other].discard(first)
                if other != second:
                    back[other].add(second)
                    old[second].add(other)
        del self.at[first]

    def put_together(self, low: int, high: int, both: int) -> None:
        """Give `both` a place in the order that fits both steps, of which `low` comes first. Others are moved only where between
        the two lie a step that needs `low` and one that `high` needs."""
        begin, end = self.at[low], self.at[high]
        if not any(begin < self.at[i] < end for i in self.after[low]):
            self.at[both] = end
        elif not any(begin < self.at[i] < end for i in self.before[high]):
            self.at[both] = begin
        else:
            down = self._within(low, self.after, begin, end)
            up = self._within(high, self.before, begin, end)
            places = sorted(self.at[i] for i in (*up, low, high, *down))
            for i, place in zip((*up, both), places):
                self.at[i] = place
            for i, place in zip(reversed(down), reversed(places)):
                self.at[i] = place

    def _within(self, start: int, steps: dict[int, set[int]], low: int, high: int) -> list[int]:
        """The steps that can be reached from `start` and whose positions are between `low` and `high`, in order of position."""
        seen, stack = {start}, [start]
        while stack:
            found = [i for i in steps[stack.pop()] if low < self.at[i] < high and i not in seen]
            seen.update(found)
            stack.extend(found)
        return sorted(seen - {start}, key=self.at.__getitem__)
