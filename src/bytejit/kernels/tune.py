"""Timed choice between libraries: which of several equal calls is fastest for these shapes, on this machine.

A choice is made once per operation, operand specs, thread count and machine; it is kept in memory and, through a store,
on disk. What decides is the least time of a few alternating runs: other processes only ever make a run slower.
Two processes that tune at once still find a right order most of the time, and the record says how far apart the
candidates were; a candidate must beat the default by `MARGIN` to replace it, so that noise alone changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch

from ..spec import Spec

MARGIN = 0.95            # a candidate replaces the default when it needs less than this part of its time
ROUNDS = 5               # timed runs a candidate, at most
BUDGET = 0.030           # seconds a choice, after which no further round starts
DROP = 1.4               # a candidate this much slower than the best after a round is not run again
LONG = 0.003             # seconds of a call from which on warming up is a small part of it
ARENA = 48 << 20         # bytes that cold operands are cut from: more than the last-level cache gives one process


@dataclass(frozen=True)
class Choice:
    """The outcome: name of the fastest candidate, strides of its result, seconds of each candidate (absent: it
    raised)."""

    name: str
    stride: tuple[int, ...]
    seconds: dict[str, float]
    errors: dict[str, str]

    def __repr__(self) -> str:
        times = " ".join(f"{n}={s * 1e6:.0f}us" for n, s in sorted(self.seconds.items(), key=lambda kv: kv[1]))
        return f"choice {self.name}: {times}" + (f" failed: {' '.join(sorted(self.errors))}" if self.errors else "")


@dataclass(frozen=True)
class Candidate:
    """A way to run an operation. call(*operands) -> tensor; prepare(*operands) -> operands runs once, untimed
    (prepacking)."""

    name: str
    call: Callable[..., torch.Tensor]
    prepare: Callable[..., tuple] | None = None


class Store(Protocol):
    """Where choices outlive the process: text to JSON values; `disk.json_cache` makes one."""

    def load(self) -> dict: ...
    def merge(self, entries: Mapping[str, object]) -> None: ...


def machine() -> str:
    """What a timing depends on: CPU model, vector extension in use, torch version."""
    model = "cpu"
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text().split("\n\n")[0].splitlines() if ":" in line)
        named = {k.strip(): v.strip() for k, v in fields.items()}
        model = "/".join(named.get(k, "?") for k in ("vendor_id", "cpu family", "model", "model name"))
    return f"{model}|{torch.backends.cpu.get_cpu_capability()}|torch {torch.__version__}"


class Tuner:
    """Chooses between candidates by timing, remembering every choice. With `enabled=False` it only recalls, else
    takes the default.

    `threads` is part of the key: torch's own thread count while tuning must equal it. Time spent is in `spent`
    (seconds).
    """

    def __init__(self, store: Store | None = None, enabled: bool = True, threads: int | None = None) -> None:
        self.store = store
        self.enabled = enabled
        self.threads = threads or torch.get_num_threads()
        self.machine = machine()
        self.known: dict[str, object] | None = None
        self.fresh: dict[str, object] = {}
        self.spent = 0.0
        self._arena: torch.Tensor | None = None
        self._offset = 0

    @staticmethod
    def candidate(name: str, call: Callable[..., torch.Tensor],
                  prepare: Callable[..., tuple] | None = None) -> Candidate:
        """A `Candidate`; here so that passes that are handed a tuner need not import this module."""
        return Candidate(name, call, prepare)

    def choose(self, op: str, specs: Sequence[Spec], candidates: Sequence[Candidate], cold: Sequence[int] = (),
               attrs: object = "") -> Choice | None:
        """The fastest of `candidates` on operands like `specs`; the first candidate is the default.

        cold: operands that the real program reads from memory, not from cache (weights): they come from many places
        in turn. attrs: whatever else tells one operation from another (stride, padding). None when tuning is off and
        nothing is known: the caller takes its default. Raises: what the default candidate raises.
        """
        key = f"{self.machine}|{self.threads} threads|{op} {attrs}|{list(specs)}|{','.join(c.name for c in candidates)}"
        if self.known is None:
            self.known = dict(self.store.load()) if self.store is not None else {}
        found = self.known.get(key)
        if isinstance(found, dict) and found.get("name") in {c.name for c in candidates}:
            return Choice(found["name"], tuple(found["stride"]), found["seconds"], found["errors"])
        if not self.enabled:
            return None
        start = time.perf_counter()
        choice = self._time(specs, candidates, frozenset(cold))
        self.spent += time.perf_counter() - start
        self.known[key] = self.fresh[key] = asdict(choice)
        return choice

    def save(self) -> None:
        """Write the choices made since the last save, and give the timing buffer back."""
        self._arena = None
        if self.store is not None and self.fresh:
            self.store.merge(self.fresh)
        self.fresh = {}

    def _time(self, specs: Sequence[Spec], candidates: Sequence[Candidate], cold: frozenset[int]) -> Choice:
        sets = self._operands(specs, cold)
        ready, strides, errors, first = {}, {}, {}, {}
        with torch.no_grad():
            for candidate in candidates:
                try:
                    runs = [candidate.prepare(*s) for s in sets] if candidate.prepare else sets
                    start = time.perf_counter()
                    strides[candidate.name] = tuple(candidate.call(*runs[-1]).stride())
                    first[candidate.name] = time.perf_counter() - start
                except (RuntimeError, NotImplementedError) as error:
                    if candidate is candidates[0]:
                        raise
                    # kept in the record: the library refused these operands
                    errors[candidate.name] = str(error).split("\n")[0][:200]
                    continue
                ready[candidate.name] = (candidate.call, runs)
            seconds = self._rounds(ready, first)
        default = candidates[0].name
        best = min(seconds, key=seconds.__getitem__)
        name = best if seconds[best] < MARGIN * seconds[default] else default
        return Choice(name, strides[name], seconds, errors)

    @staticmethod
    def _rounds(ready: Mapping[str, tuple], first: Mapping[str, float]) -> dict[str, float]:
        """Least seconds of each. A run longer than LONG needs no warming: its first time counts, and those far
        behind are out."""
        seconds = dict.fromkeys(ready, float("inf"))
        stop = time.perf_counter() + BUDGET
        active = list(ready)
        if min(first.values()) > LONG:
            seconds = dict(first)
            active = [n for n in active if first[n] <= DROP * min(first.values())]
            if len(active) == 1:
                return seconds
        for turn in range(ROUNDS):
            for name in active:
                call, runs = ready[name]
                operands = runs[turn % len(runs)]
                start = time.perf_counter()
                call(*operands)
                seconds[name] = min(seconds[name], time.perf_counter() - start)
            # of short runs two rounds at least: the first pays for pages and code that the later ones find warm
            if turn > 0 or min(seconds.values()) > LONG:
                least = min(seconds.values())
                active = [n for n in active if seconds[n] <= DROP * least]
                if len(active) == 1 or time.perf_counter() > stop:
                    break
        return seconds

    def _operands(self, specs: Sequence[Spec], cold: frozenset[int]) -> list[tuple[torch.Tensor, ...]]:
        size = sum(_bytes(specs[i]) for i in cold)
        count = max(1, min(ROUNDS, ARENA // max(size, 1))) if cold else 1
        warm = {i: torch.empty_strided(s.shape, s.stride, dtype=s.dtype).zero_()
                for i, s in enumerate(specs) if i not in cold}
        return [tuple(self._cut(s) if i in cold else warm[i] for i, s in enumerate(specs)) for _ in range(count)]

    def _cut(self, spec: Spec) -> torch.Tensor:
        need = -(-_bytes(spec) // 4096) * 4096
        if need > ARENA:
            return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype).zero_()
        if self._arena is None:
            # written once: pages that were only reserved would all read as one cached page of zeros
            self._arena = torch.empty(ARENA, dtype=torch.uint8).zero_()
        if self._offset + need > ARENA:
            self._offset = 0
        piece = self._arena[self._offset:self._offset + need].view(spec.dtype)
        self._offset += need
        return piece.as_strided(spec.shape, spec.stride)


def _bytes(spec: Spec) -> int:
    """Bytes that a tensor of this spec spans."""
    last = sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True) if n > 0)
    return (last + 1) * spec.dtype.itemsize
