"""Calls of programs while the warnings that they give are recorded."""

import warnings
from collections.abc import Callable


def heard(tell: Callable[[list], None], f: Callable, *args) -> object:
    """For `drive`, with `tell` bound: call, and tell of the warnings given, while all are recorded."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            return f(*args)
        finally:
            tell(given)
