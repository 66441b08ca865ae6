"""Python functions that are inlined in place of C functions that iterate or call back."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from bytejit.common import profiler_ranges
from bytejit.common.registry import graph_break
from bytejit.tracer.core.models import STAYING, models, replaces, replaces_named
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Var


@replaces(functools._lru_cache_wrapper)
def lru_cache_wrapper(function: Callable, maxsize: Any, typed: Any, info: Callable) -> Callable:
    """A cached function made in the region, which cannot leave it."""
    cache: dict = {}
    hits, misses = 0, 0

    def cached(*args: Any, **kwargs: Any) -> Any:
        nonlocal hits, misses
        key: tuple = (args, tuple(kwargs.items()))
        if typed:
            key = (key, tuple(type(a) for a in args), tuple(type(a) for a in kwargs.values()))
        if key in cache:
            hits += 1
            value = cache.pop(key)
        else:
            misses += 1
            value = function(*args, **kwargs)
            if maxsize == 0:
                return value
            if maxsize is not None and len(cache) >= maxsize and key not in cache:
                del cache[next(iter(cache))]
        cache[key] = value
        return value

    def cache_info() -> Any:
        return info(hits, misses, maxsize, len(cache))

    def cache_clear() -> None:
        nonlocal hits, misses
        hits = misses = 0
        cache.clear()

    cached.cache_info, cached.cache_clear = cache_info, cache_clear  # type: ignore[attr-defined]
    return cached


@replaces(logging.Logger.isEnabledFor)
def is_enabled_for(logger: logging.Logger, level: int) -> bool:
    """logging.Logger.isEnabledFor, without filling its cache of results, which needs a lock."""
    if level in logger._cache:  # type: ignore[attr-defined]
        return not logger.disabled and logger._cache[level]  # type: ignore[attr-defined]
    off = logger._is_disabled() if hasattr(logger, "_is_disabled") else logger.disabled  # 3.14 has the method
    return not off and logger.manager.disable < level and level >= logger.getEffectiveLevel()


@replaces(logging.Manager.getLogger)
def get_logger(manager: logging.Manager, name: str) -> logging.Logger:
    """logging.getLogger of a logger that exists, without the lock."""
    found = manager.loggerDict.get(name)
    if not isinstance(found, logging.Logger):
        graph_break("a logger that does not exist yet")
    return found  # type: ignore[return-value]


@replaces(math.prod)
def prod(iterable: Iterable, /, *, start: Any = 1) -> Any:
    for x in iterable:
        start = start * x
    return start


@replaces(type.mro)
def mro(cls: type) -> list[type]:
    return list(cls.__mro__)


for _code in lru_cache_wrapper.__code__.co_consts:
    if type(_code) is types.CodeType:
        STAYING.set(_code, True)


@replaces(collections.Counter.update)
def counter_update(self: collections.Counter, iterable: Iterable | None = None, /, **kwds: Any) -> None:
    if iterable is not None:
        if not isinstance(iterable, Mapping):
            for key in iterable:
                self[key] = self.get(key, 0) + 1
        elif self:
            for key, n in iterable.items():
                self[key] = n + self.get(key, 0)
        else:
            dict.update(self, iterable)
    if kwds:
        self.update(kwds)


class SortKey:
    """What functools.cmp_to_key(f) gives for an item."""

    __slots__ = ("compare", "obj")

    def __init__(self, compare: Any, obj: object) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) == 0

    def __le__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) >= 0

    __hash__ = None  # type: ignore[assignment]


@replaces(functools.cmp_to_key)
def cmp_to_key(mycmp: Callable) -> Callable:
    return lambda obj: SortKey(mycmp, obj)


@replaces(torch.nn.Module.to)
def module_to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
    for t in [*self.parameters(), *self.buffers()]:
        wanted = dtype if dtype is not None and (t.is_floating_point() or t.is_complex()) else t.dtype
        if layout is not None or t.dtype != wanted or device is not None and t.device != device:
            graph_break("a module moved or cast")
    return self


class Range(contextlib.ContextDecorator):
    """torch.profiler.record_function in a region: its range is opened and ended by the graph."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args

    def __enter__(self) -> Range:
        profiler_ranges.enter(self.name, self.args)
        return self

    def __exit__(self, *exc: Any) -> None:
        profiler_ranges.leave()


@replaces(torch.profiler.record_function)
def record_function(name: str, args: str | None = None) -> Range:
    return Range(name, args)


def fixed(size: Any) -> Any:
    """A size, as a constant."""
    return size


@models(fixed)
def fix(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.values.constant(int(t.const(args[0])))


@replaces_named("torch._dynamo.decorators", "mark_static")
def mark_static(t: torch.Tensor, index: Any = None) -> None:
    """Makes these sizes constants from here on in a region."""
    for i in range(t.dim()) if index is None else [index] if isinstance(index, int) else index:
        fixed(t.size(i))
