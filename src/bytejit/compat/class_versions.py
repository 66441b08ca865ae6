"""The version of a class: a number that CPython gives a class and takes away when the class or one of its bases changes.

CPython's own caches of attributes rely on it. It lies among the fields of `PyTypeObject` behind those that the stable ABI
names, so its place is found here, in classes of our own: all that is read are bytes of their objects.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from bytejit.common.quiet_reads import FLAGS, HEAP_TYPE

WORD = 4  # bytes of a version


@functools.cache
def place() -> int | None:
    """Where in a class its version lies, in bytes; None where no place or several behave so. Costs 1 ms, once."""
    base, other = type("Base", (), {}), type("Other", (), {})
    cls = type("Sub", (base,), {})
    changes: tuple[Callable[[], None], ...] = (
        lambda: setattr(cls, "a", 1),
        lambda: setattr(cls, "a", 2),
        lambda: delattr(cls, "a"),
        lambda: setattr(base, "b", 1),
        lambda: setattr(base, "__len__", len),
        lambda: delattr(base, "b"),
        lambda: setattr(cls, "__bases__", (other,)),
        lambda: setattr(other, "c", 1),
    )
    found: set[int] | None = None
    for change in changes:
        give(cls)
        first = _words(cls)
        give(cls)
        again = _words(cls)
        change()
        changed = _words(cls)
        give(cls)
        last = _words(cls)
        fits = {i for i, w in enumerate(first) if w and again[i] == w != changed[i] and last[i] not in (0, w)}
        found = fits if found is None else found & fits
    return WORD * found.pop() if found is not None and len(found) == 1 else None


def _words(cls: type) -> list[int]:
    size: int = vars(type)["__basicsize__"].__get__(type)
    return list((ctypes.c_uint32 * (size // WORD)).from_address(id(cls)))


def give(cls: type) -> None:
    """Look for an attribute in a class: CPython then gives a class without a version one. No code of the program runs."""
    try:
        type.__getattribute__(cls, "\0")
    except AttributeError:
        pass


def view(cls: type) -> ctypes.c_uint32 | None:
    """A view of the version of a class made by a class statement; None where none can be read. To be read while the class
    lives."""
    at = place()
    return None if at is None or not FLAGS(cls) & HEAP_TYPE else ctypes.c_uint32.from_address(id(cls) + at)
