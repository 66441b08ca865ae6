"""Iterators over containers that a region changes, kept over a graph break: before they are made, after, or not at all."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bytejit

MADE: dict[str, Callable[[torch.Tensor], Any]] = {
    "deque": lambda x: collections.deque([x, x + 1, x + 2], maxlen=5),
    "full deque": lambda x: collections.deque([x, x + 1], maxlen=2),
    "dict": lambda x: {"a": x, "b": x + 1},
    "ordered dict": lambda x: collections.OrderedDict(a=x, b=x + 1),
    "set": lambda x: {1, 2},
    "list": lambda x: [x, x + 1],
}
ADD: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "deque": lambda c, x: c.append(x * 3),
    "full deque": lambda c, x: c.append(x * 3),
    "dict": lambda c, x: c.update(z=x * 3),
    "ordered dict": lambda c, x: c.update(z=x * 3),
    "set": lambda c, x: c.add(7),
    "list": lambda c, x: c.append(x * 3),
}
ITERATE: dict[str, Callable[[Any], Any]] = {
    "iter": iter,
    "reversed": reversed,
    "items": lambda c: iter(c.items()),
    "enumerate": enumerate,
    "zip": lambda c: zip(c, c),
    "map": lambda c: map(str, c),
    "generator": lambda c: (v for v in c),
}


def outcome(f: Callable, made: Callable[[torch.Tensor], Any], x: torch.Tensor) -> str:
    """What a call gives, or raises, and what became of the container."""
    given = made(x)
    try:
        return repr((f(x, given), given))
    except RuntimeError as e:
        return repr((e, given))


@pytest.mark.parametrize("how", ITERATE)
@pytest.mark.parametrize("kind", MADE)
def test_an_iterator_over_what_changes(kind: str, how: str, capsys: pytest.CaptureFixture) -> None:
    if how == "items" and "dict" not in kind or how == "reversed" and kind == "set":
        pytest.skip("Python has no such iterator")
    make, add, iterate = MADE[kind], ADD[kind], ITERATE[how]
    for outside in (False, True):
        for when in ("before", "after", "never"):

            def f(x, given):
                kept = given if outside else make(x)  # noqa: B023
                if when == "before":  # noqa: B023
                    add(kept, x)
                steps = iterate(kept)
                first = next(steps)
                if when == "after":  # noqa: B023
                    add(kept, x)
                y = x * 2
                print("between")
                return y, first, list(steps), list(kept)

            compiled = bytejit.compile(f, backend="eager")
            for n in range(2):
                x = torch.ones(1) + n
                assert outcome(compiled, make, x) == outcome(f, make, x), (outside, when, n)


def test_a_list_iterator_that_has_passed_what_the_region_appended(capsys: pytest.CaptureFixture) -> None:
    def f(x, kept):
        kept += [x + 1, x + 2]
        steps = iter(kept)
        found = next(steps), next(steps), next(steps)
        print("between")
        return found, list(steps), kept

    x = torch.ones(1)
    assert repr(bytejit.compile(f, backend="eager")(x, [x])) == repr(f(x, [x]))


def test_a_full_deque_that_is_appended_to_within_its_loop() -> None:
    def f(x, kept):
        for part in kept:
            kept.append(part * x)
        return kept

    x = torch.ones(1)
    for call in (f, bytejit.compile(f, backend="eager")):
        with pytest.raises(RuntimeError, match="deque mutated during iteration"):
            call(x, collections.deque([x, x], maxlen=2))


CHANGING: dict[str, tuple[Callable, Callable]] = {
    "set": (iter, lambda c: c.add(7)),
    "set, as many": (iter, lambda c: (c.discard(2), c.add(7))),
    "dict": (reversed, lambda c: c.update(z=1)),
    "ordered dict": (reversed, lambda c: c.update(z=1)),
    "list": (iter, lambda c: c.append(1)),
}


@pytest.mark.parametrize("kind", CHANGING)
def test_a_container_that_changes_once_its_iterator_was_kept(kind: str, capsys: pytest.CaptureFixture) -> None:
    iterate, change = CHANGING[kind]
    make = MADE[kind.split(",")[0]]
    for outside in (False, True):
        for again in (False, True):

            def f(x, given):
                kept = given if outside else make(x)  # noqa: B023
                steps = iterate(kept)
                first = next(steps)
                print("between")
                if not again:  # noqa: B023
                    change(kept)
                    return x * 2, first, list(steps), kept
                y = x * 2
                second = next(steps)
                change(kept)
                print(second)
                return y, first, second, list(steps), kept

            compiled = bytejit.compile(f, backend="eager")
            for n in range(2):
                x = torch.ones(1) + n
                assert outcome(compiled, make, x) == outcome(f, make, x), (outside, again, n)


def test_a_set_with_other_items_within_its_loop() -> None:
    def f(x, members):
        seen = []
        for n in members:
            if len(seen) < 3:
                members.discard(n)
                members.add(n + 100)
            seen.append(n)
        return x, seen

    x = torch.ones(1)
    assert bytejit.compile(f, backend="eager")(x, {1, 2, 3}) == f(x, {1, 2, 3})


def test_frozen_sets_and_texts_over_a_break(capsys: pytest.CaptureFixture) -> None:
    def f(x, kept):
        steps = iter(kept)
        y, first = x * 2, next(steps)
        print("between")
        return y, first, type(steps), list(steps)

    x = torch.ones(1)
    for kept in (frozenset([1, 2, 3]), "abc", "\u0100b", b"abc"):
        bytejit.reset()
        assert repr(bytejit.compile(f, backend="eager")(x, kept)) == repr(f(x, kept))
