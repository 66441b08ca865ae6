"""The program's hooks on saved tensors, and what is done without them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_autograd = torch._C._autograd


@contextlib.contextmanager
def unhooked() -> Iterator[None]:
    """Save tensors as they are: the program's hooks are not for fakes."""
    hooked = _autograd._top_saved_tensors_default_hooks(False) is not None
    if hooked:
        _autograd._push_saved_tensors_default_hooks(_as_it_is, _as_it_is)
    try:
        yield
    finally:
        if hooked:
            _autograd._pop_saved_tensors_default_hooks()


def _as_it_is(x: Any) -> Any:
    return x
