"""Calls in one process over models and functions that come and go: results, memory, tables and latency stay.

    python -m tests.soak [--calls 10000] [--backend inductor]

Fifty kinds (ten programs in five sizes each). A life: make one of a kind, compile it, call it with a few sizes beside eager,
drop it. The first rounds over all kinds warm up; after them nothing may grow with the number of lives: neither what is
resident, nor the containers and caches of bytejit's modules, nor the living objects of its classes.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import statistics
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import bytejit

WARM_ROUNDS = 2
CALLS_A_LIFE = 10
SLACK = 5  # how much a table may grow: what is met by chance after the warm-up
BYTES_A_LIFE = 20_000  # resident: the allocator's own unrest


class Pair(NamedTuple):
    """Two tensors, as batches are."""

    x: torch.Tensor
    y: torch.Tensor


class Attention(nn.Module):
    """One head over a short sequence."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(n, 3 * n), nn.LayerNorm(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + torch.softmax(q @ k.transpose(-1, -2), -1) @ v


class Branching(nn.Module):
    """Breaks its graph in the middle."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inner, self.other = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        if y.sum() > 0:
            y = y * 2
        return self.other(y) + 1


def pointwise(n: int) -> Callable:
    shift = torch.full((n,), float(n))
    return lambda x: torch.sin(x) * n + torch.tanh(x + shift)


def of_named_tuple(n: int) -> Callable:
    def use(pair: Pair) -> torch.Tensor:
        x, y = pair
        return (x * y + pair.x).sum(-1)

    return lambda x: use(Pair(x, x + n))


def of_dict(n: int) -> Callable:
    table = {f"k{i}": torch.full((n,), float(i)) for i in range(3)}

    def use(x: torch.Tensor) -> torch.Tensor:
        return sum(x * v for v in table.values()) + len(table)

    return use


def of_method(n: int) -> Callable:
    class Holder:
        def __init__(self) -> None:
            self.gain = torch.full((n,), 2.0)

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.gain + n

    return Holder().step


def of_training(n: int) -> Callable:
    model = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    return loss


PROGRAMS: dict[str, Callable[[int], Callable]] = {
    "pointwise": pointwise,
    "named tuple": of_named_tuple,
    "dict": of_dict,
    "method": of_method,
    "training": of_training,
    "mlp": lambda n: nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n)),
    "conv": lambda n: nn.Sequential(nn.Unflatten(-1, (1, n)), nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU()).eval(),
    "attention": Attention,
    "branching": Branching,
    "partial": lambda n: functools.partial(lambda k, x: torch.relu(x - k).cumsum(-1), n / 8),
}
WIDTHS = (4, 6, 8, 12, 16)
KINDS = [(name, n) for n in WIDTHS for name in PROGRAMS]


@dataclass
class Reading:
    """What is there at one time."""

    resident: int
    tables: dict[str, int]
    objects: Counter[str] = field(default_factory=Counter)
    latency: float = 0.0  # seconds: a call of a function that lives throughout


def compiled(made: Any, backend: str) -> Callable:
    if isinstance(made, functools.partial):
        return functools.partial(bytejit.compile(made.func, backend=backend), *made.args)
    return bytejit.compile(made, backend=backend)


def life(kind: tuple[str, int], backend: str, calls: int) -> None:
    """One model or function, from its making to its end. Raises: AssertionError where a result is not eager's."""
    name, n = kind
    made = PROGRAMS[name](n)
    f = compiled(made, backend)
    for i in range(calls):
        x = torch.randn(3 if i % 3 else 2, 2, n) if name == "attention" else torch.randn(3 if i % 3 else 2, n)
        with torch.set_grad_enabled(name == "training"):
            got, want = f(x), made(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        if name == "training":
            got.backward()


def size_of(value: Any) -> int | None:
    if isinstance(value, functools._lru_cache_wrapper):
        return value.cache_info().currsize
    if isinstance(value, Counter):
        return None  # counters: bounded by distinct reasons
    sized = (dict, list, set) if not isinstance(value, type) else ()
    return len(value) if isinstance(value, sized) or type(value).__module__ == "weakref" and hasattr(value, "__len__") else None


def tables() -> dict[str, int]:
    """The sizes of all containers and caches that bytejit's modules hold by name."""
    found = {}
    for module in [
        m for n, m in list(sys.modules.items()) if n.partition(".")[0] == "bytejit" and isinstance(m, types.ModuleType)
    ]:
        for name, value in list(vars(module).items()):
            if not name.startswith("__") and (size := size_of(value)) is not None:
                found[f"{module.__name__}.{name}"] = size
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for attr, inner in list(vars(value).items()):
                    if not attr.startswith("__") and (size := size_of(inner)) is not None:
                        found[f"{module.__name__}.{name}.{attr}"] = size
    import linecache
    import weakref

    return found | {"linecache.cache": len(linecache.cache), "weakref.finalize": len(weakref.finalize._registry)}


def objects() -> Counter[str]:
    """Living objects of bytejit's classes, entries, graphs, and code that was made."""
    found: Counter[str] = Counter()
    for x in gc.get_objects():
        cls = type(x)
        if str(cls.__module__).partition(".")[0] == "bytejit" or cls is torch.fx.GraphModule:
            found[cls.__qualname__] += 1
        elif cls is types.FunctionType and x.__code__.co_filename.startswith("<bytejit"):
            found["a generated function"] += 1
        elif issubclass(cls, type) and cls.__module__ != "builtins":
            found["a class"] += 1
    return found


def reading(steady: Callable, x: torch.Tensor) -> Reading:
    for _ in range(3):
        gc.collect()
    here = ctypes.CDLL(None)
    here.malloc_trim(0)
    if hasattr(here, "__sanitizer_purge_allocator"):  # the address sanitizer keeps what was freed for a while
        here.__sanitizer_purge_allocator()
    words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    # without pages of files, which the system takes and gives back as it likes
    resident = sum(int(words[name].split()[0]) for name in ("RssAnon", "VmSwap")) * 1024
    times = []
    for _ in range(300):
        begin = time.perf_counter()
        steady(x)
        times.append(time.perf_counter() - begin)
    return Reading(resident, tables(), objects(), statistics.median(times))


def grown(before: Reading, after: Reading, lives: int) -> Iterator[str]:
    """What grew with the lives between two readings, a line each."""
    slack = SLACK + lives // 100
    for what, old, new in (("table", before.tables, after.tables), ("living", before.objects, after.objects)):
        for name, size in new.items():
            if size > old.get(name, 0) + slack:
                yield f"{what} {name}: {old.get(name, 0)} -> {size}"
    if after.resident - before.resident > BYTES_A_LIFE * lives + 4_000_000:
        yield f"resident: {before.resident >> 20} -> {after.resident >> 20} MB"


def soak(calls: int, backend: str, kinds: list[tuple[str, int]], say: Callable[[str], None]) -> list[str]:
    """Run; what grew. Raises: AssertionError where a result is not eager's."""
    bytejit.config.recompile_limit = 8
    steady, x = bytejit.compile(pointwise(8), backend=backend), torch.randn(3, 8)
    for _ in range(WARM_ROUNDS):
        for kind in kinds:
            life(kind, backend, 4)
    first = last = reading(steady, x)
    say(f"warm: {first.resident >> 20} MB resident, a call {first.latency * 1e6:.1f} us")
    lives = calls // CALLS_A_LIFE
    for i in range(lives):
        life(kinds[i % len(kinds)], backend, CALLS_A_LIFE)
        if (i + 1) % max(lives // 5, 1) == 0:
            last = reading(steady, x)
            say(
                f"{(i + 1) * CALLS_A_LIFE} calls, {i + 1} lives: {last.resident >> 20} MB resident, "
                f"a call {last.latency * 1e6:.1f} us"
            )
    return list(grown(first, last, lives))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--backend", default="inductor")
    args = parser.parse_args()
    torch.manual_seed(0)
    found = soak(args.calls, args.backend, KINDS, lambda text: print(text, flush=True))
    faults = bytejit.counters.total("faults")
    print("\n".join(found) or f"nothing grew; {faults} faults")
    return 1 if found or faults else 0


if __name__ == "__main__":
    sys.exit(main())
