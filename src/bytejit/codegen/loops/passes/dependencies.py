"""Dependencies between steps, updated while steps are merged. A search visits only steps that lie between the two steps; a merge
looks at the smaller side of what it changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

ROOM = 1 << 32  # between the positions of neighbours at first


class Order:
    """Steps in an order, into which steps are put anywhere. at: step -> a number that grows along the order."""

    def __init__(self, steps: Iterable[int]):
        found = list(steps)
        self.next: dict[int | None, int | None] = dict(zip((None, *found), (*found, None)))  # None: both ends
        self.previous = {b: a for a, b in self.next.items()}
        self.at: dict[int, int] = {}
        self._number()

    def _number(self) -> None:
        """Give all steps numbers with room between them."""
        step, at = self.next[None], ROOM
        while step is not None:
            self.at[step], at = at, at + ROOM
            step = self.next[step]

    def remove(self, step: int) -> None:
        """Take a step out."""
        before, after = self.previous.pop(step), self.next.pop(step)
        self.next[before], self.previous[after] = after, before
        del self.at[step]

    def put(self, step: int, before: int | None) -> None:
        """Put a step right behind another one; None: first."""
        after = self.next[before]
        self.next[before] = self.previous[after] = step
        self.previous[step], self.next[step] = before, after
        low = 0 if before is None else self.at[before]
        high = low + 2 * ROOM if after is None else self.at[after]
        self.at[step] = (low + high) // 2
        if self.at[step] == low:
            self._number()


class Dependencies:
    """Which steps need which. before: name -> the steps that it needs directly. after: name -> the steps that need it
    directly. order: all names in a topological order. A step is at first named by its number; when two are merged, the one
    with more neighbours keeps its name. names: number -> name. numbers: name -> number."""

    def __init__(self, before: dict[int, set[int]], order: Iterable[int]):
        self.before = before
        self.after: dict[int, set[int]] = {i: set() for i in before}
        for i, found in before.items():
            for b in found:
                self.after[b].add(i)
        self.order = Order(order)
        self.names = {i: i for i in before}
        self.numbers = dict(self.names)

    def needed(self, step: int) -> set[int]:
        """The numbers of the steps that a step needs directly."""
        return {self.numbers[b] for b in self.before[self.names[step]]}

    def needs(self, step: int, other: int, indirect: bool = False) -> bool:
        """Whether a step needs another one, directly or not. indirect: only a way through a third step counts."""
        step, other, at = self.names[step], self.names[other], self.order.at
        least, seen, stack = at[other], {step}, [step]
        while stack:
            i = stack.pop()
            for b in self.before[i]:
                if b == other:
                    if not indirect or i != step:
                        return True
                elif at[b] > least and b not in seen:
                    seen.add(b)
                    stack.append(b)
        return False

    def join(self, first: int, second: int) -> None:
        """Merge the first step into the second. Neither may need the other through a third step."""
        old, new = self.names.pop(first), self.names[second]
        if len(self.before[old]) + len(self.after[old]) > len(self.before[new]) + len(self.after[new]):
            old, new = new, old
        self._put_together(old, new)
        for edges, back in ((self.before, self.after), (self.after, self.before)):
            for other in edges.pop(old):
                back[other].discard(old)
                if other != new:
                    back[other].add(new)
                    edges[new].add(other)
        del self.numbers[old]
        self.names[second], self.numbers[new] = new, second

    def _put_together(self, old: int, new: int) -> None:
        """Remove `old` from the order, and put `new` at a place that is legal for both. low, high: the first and the second
        of the two. Either the steps that need `low` move behind `high`, or the steps that `high` needs move before `low`.
        Both searches run in alternation; the one that ends first decides."""
        at, order = self.order.at, self.order
        low, high = sorted((old, new), key=at.__getitem__)
        begin, end = at[low], at[high]
        up, down = self._between(high, self.before, begin, end), self._between(low, self.after, begin, end)
        found, turn, others = None, down, up
        while found is None:
            turn, others = others, turn
            found = next(turn)
        moved = sorted(found, key=at.__getitem__)
        place = order.previous[low] if turn is up else order.previous[high]
        steps = [*moved, new] if turn is up else [new, *moved]
        for i in {*moved, old, new}:
            if i == place:
                place = order.previous[i]
            order.remove(i)
        for i in steps:
            order.put(i, place)
            place = i

    def _between(self, start: int, edges: dict[int, set[int]], low: int, high: int) -> Iterator[list[int] | None]:
        """None for each edge that is looked at; last the names that can be reached and lie between two positions."""
        at, seen, stack = self.order.at, {start}, [start]
        while stack:
            for i in edges[stack.pop()]:
                if low < at[i] < high and i not in seen:
                    seen.add(i)
                    stack.append(i)
                yield None
        yield [i for i in seen if i != start]
