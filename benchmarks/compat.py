"""Import torchvision where its compiled operators do not load, such as a CUDA wheel beside a CPU build of torch.

Its models are Python. What fails is the registration of shape functions for operators that nobody declared, so each
operator that the import asks for is declared, and the import tried again.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from types import ModuleType

import torch

_MISSING = re.compile(r"operator (torchvision::\w+) does not exist")
_declared: list[torch.library.Library] = []  # a Library takes its declarations back when it is collected


def _forget(package: str) -> None:
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]


def import_torchvision() -> ModuleType:
    """torchvision, imported. Raises: ImportError (not installed), RuntimeError (fails for another reason)."""
    for _ in range(50):
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            found = _MISSING.search(str(error))
            if found is None:
                raise
        if not _declared:
            _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
        _declared[0].define(found[1].partition("::")[2] + "(Tensor x) -> Tensor")
        _forget("torchvision")
    raise RuntimeError("torchvision asks for more operators than expected")


def import_timm() -> ModuleType:
    """timm, imported; it imports torchvision."""
    import_torchvision()
    return importlib.import_module("timm")


def import_transformers() -> ModuleType:
    """transformers, imported; its models import torchvision where it is installed."""
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()
    return importlib.import_module("transformers")
