"""Tables keyed by the identity of objects that can die: the one place where `id` may be the key of a long-lived table."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class IdentityMap(Generic[V]):
    """Values by the identity of objects, which are held weakly where they take weak references, else strongly.

    Each entry holds a reference to its object, which every look-up compares. So the entry of a dead object is never found
    for another object at the same address, even if the callback that removes it did not run to its end (Python drops
    exceptions of such callbacks, as a KeyboardInterrupt or a RecursionError).
    A value must not refer to its object, or neither of them ever dies.
    """

    __slots__ = ("_table", "_lock", "__weakref__")

    def __init__(self) -> None:
        self._table: dict[int, tuple[Callable[[], object], V]] = {}
        self._lock = threading.RLock()  # reentrant: a collection may call `gone` while an entry is set

    def get(self, obj: object, default: V | None = None) -> V | None:
        """The value of this very object, else `default`. Cost: 0.1 us."""
        item = self._table.get(id(obj))
        return item[1] if item is not None and item[0]() is obj else default

    def set(self, obj: object, value: V) -> V:
        """Set the object's value, and return it."""
        ident, this = id(obj), weakref.ref(self)

        def gone(ref: weakref.ref) -> None:
            owner = this()
            if owner is not None:
                owner._drop(ident, ref)

        try:
            ref: Callable[[], object] = weakref.ref(obj, gone)
        except TypeError:  # takes no weak references, as some of torch's own
            ref = lambda: obj  # noqa: E731
        with self._lock:
            self._table[ident] = ref, value
        return value

    def pop(self, obj: object) -> None:
        """Forget the object; nothing happens when it is not there."""
        item = self._table.get(id(obj))
        if item is not None and item[0]() is obj:
            self._drop(id(obj), item[0])

    def _drop(self, ident: int, ref: Callable[[], object]) -> None:
        with self._lock:
            item = self._table.get(ident)
            if item is not None and item[0] is ref:
                del self._table[ident]

    def __contains__(self, obj: object) -> bool:
        item = self._table.get(id(obj))
        return item is not None and item[0]() is obj

    def __len__(self) -> int:
        return len(self._table)

    def values(self) -> Iterator[V]:
        """The values of living objects."""
        return iter([value for ref, value in list(self._table.values()) if ref() is not None])
