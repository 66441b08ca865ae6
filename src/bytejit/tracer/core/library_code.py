"""Which classes and functions are Python's or an installed package's, and not the program's own."""

from __future__ import annotations

import functools
import os
import sys

from bytejit.common.quiet_reads import function_of


@functools.cache
def is_library(module: object) -> bool:
    """Whether a `__module__` names a module of Python or of an installed package. Their classes are assumed not to change
    after the first call."""
    if not isinstance(module, str):
        return False
    if module.partition(".")[0] in sys.stdlib_module_names:
        return module != "__main__"
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file


def is_of_library(value: object) -> bool:
    """Whether a method is of Python or of an installed package: its code has no effects that the program knows of."""
    return is_library(getattr(function_of(value), "__module__", None))
