"""Texts, times, bytes, large integers and other plain values that differ in each call cost a few compiles, then none: they are
carried through as they are, computed anew, or break the graph where the program needs one while tracing."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
import re
import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bytejit

START = datetime.datetime(2024, 2, 28, 23, 59, 58)
UTC = datetime.UTC
X = torch.randn(8)


class Held:
    """What programs write to."""


def compiles() -> int:
    return sum(sum(bytejit.counters[kind].values()) for kind in ("graphs", "recompiles"))


def shown(found: Any) -> Any:
    """A value with its types, for comparison: tensors by what they hold (the backend runs torch's own operations)."""
    if isinstance(found, torch.Tensor):
        return found.dtype, found.tolist()
    if isinstance(found, dict):
        return type(found), [(shown(k), shown(v)) for k, v in found.items()]
    return (type(found), [shown(v) for v in found]) if isinstance(found, (list, tuple)) else (type(found), repr(found))


def compare(f: Callable, calls: list[tuple], **settings: Any) -> list[int]:
    """Calls f plain and compiled, and compares results, effects and exceptions. Returns how much each call compiled."""
    made = bytejit.compile(f, backend="eager", **settings)
    worlds: list[tuple[Held, dict]] = [(Held(), {}), (Held(), {})]
    counts = []
    for args in calls:
        outcomes = []
        for function, world in zip((f, made), worlds):
            before = compiles()
            try:
                found: Any = function(X, *args, *world)
            except Exception as e:
                found = (type(e), str(e))
            outcomes.append(shown((found, vars(world[0]), world[1])))
        counts.append(compiles() - before)
        assert outcomes[1] == outcomes[0]
    return counts


def day(i: int) -> datetime.date:
    return datetime.date(2024, 2, 20) + datetime.timedelta(i)


# each takes a tensor, a value, and what it may write; (function, value of the i-th call, compiles at most)
CARRIED: dict[str, tuple[Callable, Callable]] = {
    "time kept": (lambda x, v, o, d: (x.sin(), setattr(o, "at", v)), lambda i: START + datetime.timedelta(hours=i)),
    "time as text": (lambda x, v, o, d: (x.sin(), v.isoformat(), f"{v:%Y-%m}", str(v), repr(v)), lambda i: START.replace(hour=i)),
    "time by name": (lambda x, v, o, d: (x.sin(), v.isoformat(timespec="minutes")), lambda i: START.replace(hour=i)),
    "parts of a time": (lambda x, v, o, d: (x * v.hour, v.date(), v.year), lambda i: START.replace(hour=i + 2)),
    "difference of times": (lambda x, v, o, d: (x.sin(), (v - START).seconds, v - START), lambda i: START.replace(hour=i)),
    "order of times": (lambda x, v, o, d: x.sin() if v > START else x.cos(), lambda i: START + datetime.timedelta(i - 5)),
    "date": (lambda x, v, o, d: (x.sin(), v.isoformat(), v.month, v + datetime.timedelta(1)), day),
    "with a zone": (lambda x, v, o, d: (x.sin(), v.isoformat(), v.utcoffset()), lambda i: START.replace(hour=i, tzinfo=UTC)),
    "large integer": (lambda x, v, o, d: (x.sin(), f"{v:x}", "%032x" % v, v >> 3, -v, v * 2 + 1), lambda i: 2**70 + i),  # noqa: UP031
    "integer as a key": (lambda x, v, o, d: d.__setitem__(v, x.sin()), lambda i: 2**40 + i),
    "bytes": (lambda x, v, o, d: (x.sin(), v.hex(), v.decode(), v + b"-", len(v), v[:1]), lambda i: f"k{i}".encode()),
    "number of bytes": (lambda x, v, o, d: (x.sin(), int.from_bytes(v, "big")), lambda i: bytes([9, 1, 2, 3, 4, i])),
    "complex": (lambda x, v, o, d: (x.sin(), v, v * 2), lambda i: complex(i, -0.0)),
    "uuid": (lambda x, v, o, d: (x.sin(), v, str(v), v.hex), lambda i: uuid.UUID(int=2**100 + i)),
    "text looked for": (lambda x, v, o, d: x.sin() if "1" in v or v in {"k3", "k5"} or v in ("k4",) else x.cos(), "k{}".format),
    "text of no use": (lambda x, v, o, d: (x.sin(), v is v, not v, v != "q", v is None, v), "k{}".format),
    "number in a text": (lambda x, v, o, d: x * int(v[1:]), lambda i: f"k{i + 2}"),
}


@pytest.mark.parametrize("name", CARRIED)
def test_values_are_carried(name: str) -> None:
    f, value = CARRIED[name]
    counts = compare(f, [(value(i),) for i in range(14)])
    assert sum(counts) <= 9 and not any(counts[10:]), counts
    assert not any("differs in each call" in reason for reason in bytejit.counters["breaks"])


def new_keys(x: torch.Tensor, v: Any, o: Held, d: dict) -> dict:
    y = x.sin()
    return {v: y + 1, "last": y}


def keys_of_text(x: torch.Tensor, v: str, o: Held, d: dict) -> dict:
    return {f"{v}/{name}": t * 2 for name, t in (("a", x), ("b", x + 1))}


def attributes(x: torch.Tensor, v: str, o: Held, d: dict) -> torch.Tensor:
    y = x.sin()
    setattr(o, v, y)
    return y * 2


def patterns(x: torch.Tensor, v: str, o: Held, d: dict) -> tuple:
    return x.sin(), re.sub("k", "j", v), json.dumps({"n": v}), os.path.join("folder", v)


def keys_that_come(x: torch.Tensor, v: dict, o: Held, d: dict) -> dict:
    return {k: t.sin() for k, t in v.items()}


def two_keys(x: torch.Tensor, v: tuple, o: Held, d: dict) -> dict:
    a, b = v
    made = {a: x.sin()}
    made[b] = x.cos()
    return made


NEEDED: dict[str, tuple[Callable, Callable]] = {
    "key: text": (new_keys, "k{}".format),
    "key: float": (new_keys, lambda i: i * 0.37),
    "key: int": (new_keys, lambda i: i + 2),
    "key: time": (new_keys, lambda i: START.replace(hour=i)),
    "key: bytes": (new_keys, lambda i: bytes([i])),
    "key: large": (new_keys, lambda i: 2**50 + i),
    "key: zeros": (new_keys, lambda i: (0.0, -0.0, float("inf"), -1.5)[i % 4] * (i + 1)),
    "keys of text": (keys_of_text, "k{}".format),
    "attribute": (attributes, "k{}".format),
    "patterns": (patterns, "k{}".format),
    "keys of a dict": (keys_that_come, lambda i: {f"k{i}": torch.ones(3)}),
    "keys that may be one": (two_keys, lambda i: (f"k{i}", f"k{i - i % 3}")),
}


# keys of dicts that the function makes, which stay open
OPEN = ("key: text", "key: time", "key: bytes", "key: large", "keys of text", "keys of a dict")


@pytest.mark.parametrize("name", NEEDED)
def test_what_needs_such_a_value_breaks_the_graph(name: str) -> None:
    f, value = NEEDED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no recompile limit
        counts = compare(f, [(value(i),) for i in range(20)])
    assert sum(counts[12:]) <= 2, counts  # a float that is inf is another class of floats
    broken = any("a value that differs in each call" in reason for reason in bytejit.counters["breaks"])
    assert broken == (name not in OPEN)


def test_a_value_that_comes_again() -> None:
    counts = compare(new_keys, [(v,) for v in ["train", "train", "test", "test", "other", "other", "more", "more"]])
    assert counts == [1, 0, 2, 0, 0, 0, 0, 0] and not bytejit.counters["breaks"]


def test_the_whole_graph_takes_constants() -> None:
    counts = compare(new_keys, [(f"k{i}",) for i in range(7)], fullgraph=True)
    assert counts == [1, 2, 0, 0, 0, 0, 0] and not bytejit.counters["breaks"]


def test_what_the_clock_gives() -> None:
    def f(x: torch.Tensor, o: Held, d: dict) -> torch.Tensor:
        began, name = datetime.datetime.now(), uuid.uuid4().hex
        y = x.sin()
        took = datetime.datetime.now() - began
        o.text = f"{name} {began.isoformat()} {took.total_seconds():.3f} {time.time_ns()}"
        return y * 2

    made, held = bytejit.compile(f, backend="eager"), Held()
    counts, texts = [], set()
    for _ in range(14):
        before = compiles()
        torch.testing.assert_close(made(X, held, {}), X.sin() * 2)
        counts.append(compiles() - before)
        texts.add(held.text)
    assert len(texts) == 14 and not any(counts[5:]), counts


class Zone(datetime.tzinfo):
    """A time zone of the program's, which counts how often it is asked."""

    asked = 0

    def utcoffset(self, at: datetime.datetime | None) -> datetime.timedelta:
        Zone.asked += 1
        return datetime.timedelta(hours=1)

    def dst(self, at: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(0)


def test_a_zone_of_the_programs_is_asked_as_often() -> None:
    def f(x: torch.Tensor, v: datetime.datetime, o: Held, d: dict) -> tuple:
        return x.sin(), v.isoformat()

    made = bytejit.compile(f, backend="eager")
    times = [START.replace(hour=i, tzinfo=UTC) for i in range(4)] + [START.replace(hour=i, tzinfo=Zone()) for i in range(4)]
    for at in times:
        assert made(X, at, Held(), {})[1] == at.isoformat()


def test_values_of_other_types_and_errors_in_later_calls() -> None:
    def number(x: torch.Tensor, v: str, o: Held, d: dict) -> torch.Tensor:
        return x * int(v)

    def order(x: torch.Tensor, v: datetime.datetime, o: Held, d: dict) -> torch.Tensor:
        return x.sin() if v < START else x.cos()

    compare(number, [(v,) for v in ("2", "3", "4", "x", "5", "", " 7 ", b"8", 9, "10")])
    aware = START.replace(tzinfo=UTC)
    compare(order, [(v,) for v in (START, START.replace(hour=1), START.replace(hour=2), aware, START.date())])


def test_random_values() -> None:
    """Values of any kind in any order, to a program that does many things with them."""

    def f(x: torch.Tensor, v: Any, w: Any, o: Held, d: dict) -> tuple:
        y = x.sin()
        o.last = v
        if v == w:
            y = y + 1
        d[f"{v}"] = w
        return y, f"{v} {w!r}", (v, w), type(v).__name__, v is w

    values = ["a", "b", b"a", 2**40, 2**41, 3, 3.5, START, START.date(), 1j, True, None, datetime.timedelta(1), "", b"", -(2**50)]
    rng = random.Random(0)
    for kinds in itertools.islice(itertools.combinations(values, 4), 0, None, 97):
        compare(f, [(rng.choice(kinds), rng.choice(kinds)) for _ in range(24)])
        bytejit.reset()
