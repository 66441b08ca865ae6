"""An object of another class than in the calls before: none of its code runs while it is asked what has changed"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bytejit

ran: list[str] = []


class Loud:
    """Tells of all that is asked of it."""

    def __getitem__(self, key: object) -> int:
        ran.append(f"item {key}")
        return 5

    def __getattr__(self, name: str) -> int:
        ran.append(f"attribute {name}")
        return 6

    def __len__(self) -> int:
        ran.append("length")
        return 2

    def __iter__(self) -> Any:
        ran.append("iterator")
        return iter([1, 2])

    def __contains__(self, key: object) -> bool:
        ran.append(f"whether {key} is there")
        return True


class Plain:
    def __init__(self, n: int) -> None:
        self.n, self.of = n, [n]


def used(x: torch.Tensor, v: object) -> object:
    if isinstance(v, dict):
        return x * v["a"] + len(v) if "a" in v else [k for k in v]
    if isinstance(v, (list, tuple)):
        return x * v[0] + len(v) + v[-1][0] if isinstance(v[-1], tuple) else v[0]
    if isinstance(v, Plain):
        return x * v.n + v.of[0]
    return x * v if isinstance(v, torch.Tensor) else x


def inside(x: torch.Tensor, v: SimpleNamespace) -> object:
    return used(x, v.held)


@pytest.mark.parametrize("place", [used, inside])
def test_objects_of_other_classes(place: Callable) -> None:
    compiled = bytejit.compile(place, backend="eager")
    objects = (
        {"a": 1},
        [1, (2,)],
        Loud(),
        Plain(4),
        {"b": 1},
        Loud(),
        {"a": 2, "b": 3},
        (3, (4,)),
        Loud(),
        torch.ones(2),
        Plain(7),
        Loud(),
    )
    for obj in objects:
        given = obj if place is used else SimpleNamespace(held=obj)
        ran.clear()
        assert str(compiled(torch.ones(2), given)) == str(place(torch.ones(2), given))
        assert not ran


def test_no_warning_of_an_index_that_the_program_does_not_use(recwarn: pytest.WarningsRecorder) -> None:
    compiled = bytejit.compile(
        lambda x, v: x * (v[0] if isinstance(v, list) else v["a"] if isinstance(v, dict) else v), backend="eager"
    )
    for v in (2.0, [3.0], {"a": 4.0}, torch.ones(2), {"a": 5.0}, torch.ones(2) * 2):
        compiled(torch.ones(2), v)
    assert not [w for w in recwarn if "index" in str(w.message)]
