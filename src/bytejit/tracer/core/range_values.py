"""Ranges whose bounds change between calls. A loop over one needs to know how many elements it has, not where exactly it ends."""

from __future__ import annotations

from typing import Any

from bytejit.shapes.symbols import hint

from .values import Known, Var


class RangeVar(Known):
    """range(start, stop, step), of which start and stop may be symbols; the step is an int other than 0.

    Whoever reads `obj` gets the range that it was, and makes its bounds constants, as of a SymVar.
    """

    __slots__ = ("start", "stop", "step")

    def __init__(self, start: Any, stop: Any, step: int) -> None:
        Var.__init__(self, None)
        self.start, self.stop, self.step = start, stop, step

    @property
    def obj(self) -> range:  # type: ignore[override]  # what Known keeps in a slot
        """The range when traced, made a constant."""
        return range(int(self.start), int(self.stop), self.step)

    def __repr__(self) -> str:
        return f"RangeVar({self.start}, {self.stop}, {self.step})"

    def count(self) -> int:
        """The number of elements, which becomes a condition."""
        distance, step = (self.stop - self.start, self.step) if self.step > 0 else (self.start - self.stop, -self.step)
        if distance <= 0:
            return 0
        count = -(-hint(distance) // step)
        if distance > (count - 1) * step and distance <= count * step:
            return count
        raise AssertionError(f"{self} has not {count} elements")

    def element(self, at: int) -> Any:
        """The element at a place: an int or a symbol."""
        return self.start + at * self.step

    def after(self, count: int) -> RangeVar:
        """The range without its first elements."""
        return RangeVar(self.element(count), self.stop, self.step)
