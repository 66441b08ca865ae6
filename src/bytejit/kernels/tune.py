"""Timed choice between libraries: which of several equal calls is fastest for these shapes, on this machine.

A choice is made once per operation, operand specs, thread count and machine; it is kept in memory and, through a store, on
disk. Other processes can only make a run slower, so the least times of interleaved runs are compared. But on a busy machine a
single fast run proves nothing. So a candidate replaces the default only when its least time is less by `MARGIN` and it was the
faster one in `WINS` of the rounds; rounds go on while the least times have not been met twice, as long as the budget lasts. A
choice whose times were never met twice is not sure: it is kept, and timed again by later compilations, `TRIES` times at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import torch

from bytejit.common.interrupts import poll
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec, span_of
from bytejit.common.text import first_line

from .distance import too_far

MARGIN = 0.95  # a candidate replaces the default when it needs less than this part of its time
WINS = 0.65  # and was faster than it in this part of the rounds
ROUNDS = 5  # timed runs a candidate, when they agree
NEAR = 1.10  # the second least time within this of the least: the least was no accident
BUDGET = 0.030  # seconds a choice, after which no further round starts when the runs agree
PATIENCE = 0.150  # the same when they do not
TOTAL = 1.0  # seconds of one compilation; from then on no choice gets more than BUDGET
AGAIN = 0.3  # seconds of one compilation that may go into timing again what an earlier one was not sure of
TRIES = 4  # measurements of one choice, at most
DROP = 1.4  # a candidate this much slower than the best after two rounds is not run again
LONG = 0.003  # seconds of a call from which on warming up is a small part of it
ARENA = 48 << 20  # bytes that cold operands are cut from: more than the last-level cache gives one process


@light_dataclass(frozen=True)
class Choice:
    """The outcome: name of the fastest candidate, strides of its result, seconds of each candidate (absent: it
    raised, or is too far from exact: errors say so). sure: the times that decided were met twice; tries: measurements
    that went into it. near: whether distances from exact were looked at."""

    name: str
    stride: tuple[int, ...]
    seconds: dict[str, float]
    errors: dict[str, str]
    sure: bool = True
    tries: int = 1
    near: bool = False

    def __repr__(self) -> str:
        times = " ".join(f"{n}={s * 1e6:.0f}us" for n, s in sorted(self.seconds.items(), key=lambda kv: kv[1]))
        unsure = "" if self.sure else f" (not sure after {self.tries})"
        return f"choice {self.name}{unsure}: {times}" + (f" failed: {' '.join(sorted(self.errors))}" if self.errors else "")


@light_dataclass(frozen=True)
class Candidate:
    """A way to run an operation. call(*operands) -> tensor; prepare(*operands) -> operands runs once, untimed
    (prepacking)."""

    name: str
    call: Callable[..., torch.Tensor]
    prepare: Callable[..., tuple] | None = None


class ChoiceStore(Protocol):
    """Keeps choices after the process has ended: text to JSON values. `json_cache.json_cache` makes one."""

    def load(self) -> dict: ...
    def merge(self, entries: Mapping[str, object]) -> None: ...


def machine() -> str:
    """Returns what a timing depends on: CPU model, vector extension in use, torch version."""
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
    (seconds of `clock`). without: candidates whose names begin so are never chosen. copies, cold_bytes: of a cold operand, and
    of all of them, at most.
    """

    copies = ROUNDS
    cold_bytes = ARENA

    def __init__(
        self,
        store: ChoiceStore | None = None,
        enabled: bool = True,
        threads: int | None = None,
        clock: Callable[[], float] | None = None,
        without: tuple[str, ...] = (),
    ) -> None:
        self.store = store
        self.without = without
        self.enabled = enabled
        self.threads = threads or torch.get_num_threads()
        self.machine = machine()
        self.known: dict[str, object] | None = None
        self.fresh: dict[str, object] = {}
        # what one thread does is timed by the time that the processor gave it: no other program adds to that
        self.clock = clock or (time.thread_time if self.threads == 1 else time.perf_counter)
        self.spent = 0.0
        self.again = 0.0
        self._arena: torch.Tensor | None = None
        self._offset = 0

    @staticmethod
    def candidate(name: str, call: Callable[..., torch.Tensor], prepare: Callable[..., tuple] | None = None) -> Candidate:
        """A `Candidate`; here so that passes that are handed a tuner need not import this module."""
        return Candidate(name, call, prepare)

    def choose(
        self,
        op: str,
        specs: Sequence[Spec],
        candidates: Sequence[Candidate],
        cold: Sequence[int] = (),
        attrs: object = "",
        *,
        sample: int = 0,
        along: Sequence[int] = (0,),
        base: str = "",
        measured: Sequence[Spec] = (),
    ) -> Choice | None:
        """The fastest of `candidates` on operands like `specs`; the first candidate is the default.

        cold: operands that the real program reads from memory, not from cache (weights): they come from many places
        in turn. attrs: whatever else tells one operation from another (stride, padding). sample: rows of the result (and of
        the operands `along`) by which distances from float64 are compared (`distance.too_far`), 0: not; base: the candidate
        that eager runs, the first one if not given; measured: specs to measure distances on, where the operands are
        large. None when tuning is off and nothing is known:
        the caller takes its default. Raises: what the default candidate raises.
        """
        candidates = [c for c in candidates if not c.name.startswith(self.without)]
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        key = f"{self.machine}|{threads}|{op} {attrs}|{list(specs)}|{','.join(c.name for c in candidates)}"
        if self.known is None:
            self.known = dict(self.store.load()) if self.store is not None else {}
        key += f"|as {base}" if base else ""
        found = self._recall(key, candidates)
        if found is not None and sample and not found.near:
            found = None
        if found is not None and (found.sure or found.tries >= TRIES or not self.enabled or self.again > AGAIN):
            return found
        if not self.enabled:
            return None
        poll()
        start = self.clock()
        far = (
            {}
            if not sample
            else dict(found.errors)
            if found is not None
            else too_far(
                measured or specs, {c.name: (c.call, c.prepare) for c in candidates}, base or candidates[0].name, sample, along
            )
        )
        near = [c for c in candidates if c.name not in far] or list(candidates)
        choice = self._time(specs, near, frozenset(cold), found)
        choice = replace(choice, errors=far | choice.errors, near=bool(sample))
        took = self.clock() - start
        self.spent += took
        self.again += took if found is not None else 0.0
        self.known[key] = self.fresh[key] = asdict(choice)
        return choice

    def _recall(self, key: str, candidates: Sequence[Candidate]) -> Choice | None:
        """A choice that is stored already. None if there is none, or if its candidate no longer exists."""
        found = (self.known or {}).get(key)
        if not isinstance(found, dict) or found.get("name") not in {c.name for c in candidates}:
            return None
        return Choice(
            found["name"],
            tuple(found["stride"]),
            found["seconds"],
            found["errors"],
            found.get("sure", False),
            found.get("tries", 1),
            found.get("near", False),
        )

    def save(self) -> None:
        """Write the choices made since the last save, and give the timing buffer back."""
        self._arena = None
        if self.store is not None and self.fresh:
            self.store.merge(self.fresh)
        self.fresh = {}

    def _time(
        self, specs: Sequence[Spec], candidates: Sequence[Candidate], cold: frozenset[int], earlier: Choice | None = None
    ) -> Choice:
        sets = self._operands(specs, cold)
        ready, strides, errors, first = {}, {}, {}, {}
        with torch.no_grad():
            for candidate in candidates:
                poll()
                try:
                    runs = [candidate.prepare(*s) for s in sets] if candidate.prepare else sets
                    start = self.clock()
                    strides[candidate.name] = tuple(candidate.call(*runs[-1]).stride())
                    first[candidate.name] = self.clock() - start
                except (RuntimeError, NotImplementedError) as error:
                    if candidate is candidates[0]:
                        raise
                    # kept in the record: the library refused these operands
                    errors[candidate.name] = first_line(error)[:200]
                    continue
                ready[candidate.name] = (candidate.call, runs)
            samples = self._rounds(ready, first, candidates[0].name)
        return _decide(samples, candidates[0].name, strides, errors, earlier)

    def _rounds(self, ready: Mapping[str, tuple], first: Mapping[str, float], default: str) -> dict[str, list[float]]:
        """Seconds of each run, a number a round. A run longer than LONG needs no warming: its first time counts."""
        samples: dict[str, list[float]] = {n: [first[n]] if min(first.values()) > LONG else [] for n in ready}
        begin = self.clock()
        patient = begin + (PATIENCE if self.spent < TOTAL else BUDGET)
        active, turn = list(ready), 0
        while len(active) > 1:
            poll()
            for name in active if turn % 2 == 0 else active[::-1]:
                call, runs = ready[name]
                operands = runs[turn % len(runs)]
                start = self.clock()
                call(*operands)
                samples[name].append(self.clock() - start)
            turn += 1
            done = min(map(len, (samples[n] for n in active)))
            if done < 2:
                continue
            active = still_near(active, samples, default)
            best = min(active, key=lambda n: min(samples[n]))
            now = self.clock()
            if now > patient or (_met(samples[best]) and _met(samples[default]) and (done >= ROUNDS or now > begin + BUDGET)):
                break
        return samples

    def _operands(self, specs: Sequence[Spec], cold: frozenset[int]) -> list[tuple[torch.Tensor, ...]]:
        """The operands of each run, in turn: several of a cold one, the same of the others."""
        size = sum(span_bytes(specs[i]) for i in cold)
        count = max(1, min(self.copies, self.cold_bytes // max(size, 1))) if cold else 1
        warm = {i: self._warm(s) for i, s in enumerate(specs) if i not in cold}
        return [tuple(self._cold(s) if i in cold else warm[i] for i, s in enumerate(specs)) for _ in range(count)]

    def _warm(self, spec: Spec) -> torch.Tensor:
        """An operand that is in the cache."""
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype).zero_()

    def _cold(self, spec: Spec) -> torch.Tensor:
        """An operand that is read from memory."""
        need = -(-span_bytes(spec) // 4096) * 4096
        if need > ARENA:
            return self._warm(spec)
        if self._arena is None:
            # written once: pages that were only reserved would all read as one cached page of zeros
            self._arena = torch.empty(ARENA, dtype=torch.uint8).zero_()
        if self._offset + need > ARENA:
            self._offset = 0
        piece = self._arena[self._offset : self._offset + need].view(spec.dtype)
        self._offset += need
        return piece.as_strided(spec.shape, spec.stride)


def still_near(active: Sequence[str], samples: Mapping[str, Sequence[float]], default: str) -> list[str]:
    """The candidates that are timed further: the default, and those that are not much slower than the best."""
    least = min(min(samples[n]) for n in active)
    return [n for n in active if n == default or min(samples[n]) <= DROP * least]


def _met(samples: Sequence[float]) -> bool:
    """Whether the least time was met a second time."""
    low = sorted(samples)[:2]
    return len(low) == 2 and low[1] <= NEAR * low[0]


def _decide(
    samples: Mapping[str, list[float]],
    default: str,
    strides: Mapping[str, tuple[int, ...]],
    errors: dict[str, str],
    earlier: Choice | None,
) -> Choice:
    """The choice from the runs of all rounds, the least times of an earlier, unsure measurement taken into account."""
    seconds = {n: min(t) for n, t in samples.items() if t} or {default: 0.0}
    sure = len(samples) == 1 or all(_met(t) for n, t in samples.items() if n in (default, min(seconds, key=seconds.__getitem__)))
    if earlier is not None and not sure:
        seconds = {n: min(s, earlier.seconds.get(n, s)) for n, s in seconds.items()}
    best = min(seconds, key=seconds.__getitem__)
    pairs = list(zip(samples[best], samples[default], strict=False))
    wins = sum(a < b for a, b in pairs)
    better = seconds[best] < MARGIN * seconds[default] and wins >= WINS * len(pairs)
    return Choice(
        best if better else default,
        strides[best if better else default],
        seconds,
        errors,
        sure,
        1 if earlier is None else earlier.tries + 1,
    )


def span_bytes(spec: Spec) -> int:
    """Bytes that a tensor of this spec spans."""
    return span_of(spec.shape, spec.stride) * spec.dtype.itemsize
