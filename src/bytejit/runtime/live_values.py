"""Modules and tensors among the values that reach a site; the entry for modules for which a region had nothing to compile."""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .entry import MISS, Args, Entry


def content(a: object) -> object:
    """The contents of a cell, None when it is empty; anything else is returned as it is."""
    if type(a) is types.CellType:
        try:
            return a.cell_contents
        except ValueError:
            return None
    return a


def modules_among(args: Args) -> tuple[torch.nn.Module, ...]:
    """The modules that a site's code was called on: nn.Modules among its live values and cells, the first two of them."""
    found = (content(a) for a in args)
    return tuple(m for m in found if issubclass(type(m), torch.nn.Module))[:2]  # by type: a weak proxy may be dead


def holds_work(args: Args) -> bool:
    """Whether a tensor or module is among live values and cells, or in their containers: a batch, keyword arguments."""
    return any(_is_work(content(a), DEEPEST) for a in args)


def _is_work(value: Any, depth: int) -> bool:
    """Looks at the first items of a container only, and runs no code of the program."""
    cls = type(value)
    if issubclass(cls, (torch.Tensor, torch.nn.Module)):
        return True
    inside: Iterable = next((items(value) for kind, items in ITEMS if issubclass(cls, kind)), ()) if depth else ()
    return any(_is_work(v, depth - 1) for v in itertools.islice(inside, WIDEST))


DEEPEST, WIDEST = 3, 16
ITEMS: tuple[tuple[type, Callable[[Any], Iterable]], ...] = ((tuple, tuple.__iter__), (list, list.__iter__), (dict, dict.values))


class ModulePass(Entry):
    """Passes calls on modules for which the region had nothing to compile. The same code may have work for other modules."""

    __slots__ = ()

    def __init__(self, modules: tuple, args: Args, flat: int, point: int, on_dead: Callable[[Entry], None]) -> None:
        places = [next(i for i, a in enumerate(args) if content(a) is m) for m in modules]
        this = weakref.ref(self)

        def died(_: weakref.ref) -> None:
            if (entry := this()) is not None:
                on_dead(entry)

        refs = tuple(weakref.ref(m, died) for m in modules)

        def run(*args: Any) -> Any:
            return (args[:flat], point) if all(content(args[i]) is r() for i, r in zip(places, refs)) else MISS

        super().__init__(run)

    def explain_failure(self, args: Args) -> str:
        """Always the same reason."""
        return "another module"
