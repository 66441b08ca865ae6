"""Imports that `import bytejit` leaves to the first compile, without the garbage collector: what is imported stays, and one full
collection among them goes through all objects of torch, which takes longer than half of the imports."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType


def import_module(name: str) -> ModuleType:
    """The module of that name, imported on first use."""
    if name in sys.modules or not gc.isenabled():
        return importlib.import_module(name)
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.enable()
