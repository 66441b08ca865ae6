"""The program's hooks on saved tensors, what is done without them, and whether there may be some."""

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


def refusal() -> str | None:
    """What torch says to a program that would put on hooks; None where it may."""
    return _autograd._saved_tensors_hooks_get_disabled_error_message()


def refuse(message: str | None) -> None:
    """Let nobody put on hooks, as `torch.autograd.graph.disable_saved_tensors_hooks`; None: they may again."""
    _autograd._saved_tensors_hooks_enable() if message is None else _autograd._saved_tensors_hooks_disable(message)


def hooks_state() -> tuple[bool, str | None]:
    """Whether there are hooks, and whether there may be."""
    return _autograd._top_saved_tensors_default_hooks(True) is not None, refusal()
