"""Modules of one class that look alike share what is compiled for them, each block of a model on its own included.

Which modules look alike is only a guess, made when they are compiled: from the plain values, the parameters' and buffers' shapes
and the submodules that they have; integers may be others (its number in the model, by which it finds its part of a cache: see
`Recompiles.of_modules`). Guards decide in each call, so a wrong guess costs a compile and no result. What differs otherwise gets
code of its own, and so sites that ask few entries.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from bytejit.common.identity import IdentityMap
from bytejit.common.plain_types import PLAIN_TYPES

T = TypeVar("T")
HANDLE = "__bytejit_handle__"  # attribute of a compiled function: its Handle (runtime/function.py)
MOST_PARTS = 20_000  # parts of a module that are compared
MOST_NUMBERS = 16  # kinds of modules that share code though their integers differ: each may want an entry of its own
CONTAINERS = (tuple, list, dict, set, frozenset)
NOT_COMPARED = ("_compiled_call_impl",)  # what Module.compile stores
PLAIN = frozenset((*PLAIN_TYPES, torch.dtype, torch.device, torch.Size))


class Looks(NamedTuple):
    """What is compared of a module; integers that are its attributes, or its submodules', for themselves."""

    parts: tuple
    numbers: tuple[int, ...]


class _Group:
    """Modules of one class that share `made`, which is held weakly. Their likeness is told when a second module comes, by the
    attributes that the first had when it was noted: the program may give it more once it is compiled."""

    __slots__ = ("made", "first", "names", "looks", "numbers")

    def __init__(self, made: Any, m: torch.nn.Module) -> None:
        self.made, self.first = weakref.ref(made), weakref.ref(m)
        self.names = frozenset(object.__getattribute__(m, "__dict__"))
        self.looks: Looks | None = None
        self.numbers: set[tuple[int, ...]] = set()  # of the modules that share it

    def takes(self, looks: Looks) -> bool:
        """Whether a module that looks so is like the first, but for integers, of which only so many others share code."""
        if self.looks is None and (first := self.first()) is not None:
            self.looks = looks_of(first, self.names)
            self.numbers.add(self.looks.numbers)
        if self.looks is None or not looks.parts or self.looks.parts != looks.parts:
            return False
        if looks.numbers not in self.numbers and len(self.numbers) >= MOST_NUMBERS:
            return False
        self.numbers.add(looks.numbers)
        return True


class Groups:
    """Of each class the groups of its modules. It holds nothing of the program's."""

    def __init__(self) -> None:
        self.of: IdentityMap[list[_Group]] = IdentityMap()
        self.lock = threading.RLock()

    def shared(self, cls: type, m: torch.nn.Module, fits: Callable[[T], bool]) -> T | None:
        """What was made for a module like this one and fits; None where there is none."""
        with self.lock:
            living = [(group, made) for group in self.of.get(cls) or () if (made := group.made()) is not None]
            fitting = [(group, made) for group, made in living if fits(made)]
            looks = looks_of(m) if fitting else Looks((), ())
            return next((made for group, made in fitting if group.takes(looks)), None)

    def note(self, cls: type, made: Any, m: torch.nn.Module) -> None:
        """Note what was made for a module, the first of its group."""
        with self.lock:
            living = [group for group in self.of.get(cls) or () if group.made() is not None]
            self.of.set(cls, [*living, _Group(made, m)])


def looks_of(m: torch.nn.Module, names: frozenset[str] | None = None) -> Looks:
    """All that is compared of a module; names: of its attributes, these only. Without parts for one with too many. Holds no
    object of the program's: other objects than plain values are compared by their addresses."""
    reader = _Reader()
    reader.top(m, names)
    return Looks(tuple(reader.parts), tuple(reader.numbers)) if len(reader.parts) <= MOST_PARTS else Looks((), ())


class _Reader:
    """Collects the parts of a module. What is met again is told by when it was met first: tied parameters."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.numbers: list[int] = []
        self.seen: dict[int, int] = {}

    def value(self, value: Any) -> None:
        """The parts of a value."""
        cls = type(value)
        if cls in PLAIN:
            self.parts.append((id(cls), repr(value) if cls in (float, complex) else value))
        elif len(self.parts) > MOST_PARTS:
            return
        elif id(value) in self.seen:
            self.parts.append(("again", self.seen[id(value)]))
        elif issubclass(cls, CONTAINERS):
            self.container(value, cls)
        elif issubclass(cls, torch.Tensor):
            self.note(value)
            self.parts.append(_spec(value) if cls in (torch.Tensor, torch.nn.Parameter) else id(cls))
        elif issubclass(cls, torch.nn.Module):
            self.module(value)
        elif cls is types.MethodType:
            self.parts.append(("method", id(value.__func__)))
            self.value(value.__self__)
        elif cls is functools.partial:
            self.note(value)
            self.parts.append("partial")
            for part in (value.func, value.args, value.keywords):
                self.value(part)
        else:
            self.parts.append(id(value))

    def note(self, value: Any) -> None:
        """A value that may be met again. It lives as long as the module."""
        self.seen[id(value)] = len(self.seen)

    def container(self, value: Any, cls: type) -> None:
        """The parts of a container, read past methods of the program's."""
        self.note(value)
        kind = next(c for c in CONTAINERS if issubclass(cls, c))
        self.parts.append((id(cls), kind.__len__(value)))  # type: ignore[attr-defined]
        if kind is dict:
            for key, item in dict.items(value):
                self.value(key)
                self.value(item)
        elif kind in (set, frozenset):
            plain = all(type(item) in PLAIN for item in kind.__iter__(value))  # type: ignore[attr-defined]
            self.parts.append(frozenset(value) if plain else id(value))
        else:
            for item in kind.__iter__(value):  # type: ignore[attr-defined]
                self.value(item)

    def top(self, m: torch.nn.Module, names: frozenset[str] | None) -> None:
        """The parts of the module that is compared, whose class is known to be the same."""
        self.note(m)
        self.attributes(m, names)

    def module(self, m: torch.nn.Module) -> None:
        """The parts of a module, those of its submodules included."""
        self.note(m)
        self.parts.append(id(type(m)))
        self.attributes(m)

    def attributes(self, m: torch.nn.Module, names: frozenset[str] | None = None) -> None:
        """The parts of a module's attributes, or of those that are named."""
        for name, value in object.__getattribute__(m, "__dict__").items():
            if name in NOT_COMPARED or names is not None and name not in names:
                continue
            if not _is_compiled_method(value, m):
                self.parts.append(name)
                if type(value) is int:
                    self.numbers.append(value)
                else:
                    self.value(value)


def _is_compiled_method(value: Any, m: torch.nn.Module) -> bool:
    """Whether it is what `m.forward = compile(m.forward)` puts into a module."""
    return type(value) is types.MethodType and value.__self__ is m and HANDLE in getattr(value.__func__, "__dict__", ())


def _spec(t: torch.Tensor) -> tuple:
    """What guards ask of a tensor."""
    if t.layout is not torch.strided or torch.nn.parameter.is_lazy(t):
        return (t.layout, id(t))
    return (tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad)
