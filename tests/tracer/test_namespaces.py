"""A module's names, which a program also holds as a dict: what is written one way is read the other way"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bytejit

Z: Any = 0
D = globals()
ME = sys.modules[__name__]


def through_globals(x: torch.Tensor, v: int) -> Any:
    globals()["Z"] = v
    return x * Z


def through_a_held_dict(x: torch.Tensor, v: int) -> Any:
    D["Z"] = v
    return x * Z, x * ME.Z


def through_a_function(x: torch.Tensor, v: int) -> Any:
    through_a_function.__globals__["Z"] = v
    return x * Z


def through_a_default(x: torch.Tensor, v: int, d: dict = D) -> Any:
    d.update(Z=v)
    return x * Z


def through_vars(x: torch.Tensor, v: int) -> Any:
    vars(ME)["Z"] = v
    return x * Z, x * ME.__dict__["Z"]


def read_as_a_dict(x: torch.Tensor, v: int) -> Any:
    global Z
    Z = v
    first = x * D["Z"], x * ME.Z, "Z" in D
    ME.Z = v + 1
    second = x * Z, x * D["Z"]
    D["Z"] += 1
    return first, second, x * Z, x * ME.Z


def deleted(x: torch.Tensor, v: int) -> Any:
    global Z
    D["Z"] = v
    y = x * Z
    del Z
    try:
        y = y + Z
    except NameError as e:
        y = y + len(str(e))
    try:
        y = y + ME.Z
    except AttributeError as e:
        y = y + len(str(e))
    there = "Z" in D
    D["Z"] = v
    return y, there, D.pop("Z"), D.setdefault("Z", v + 1), x * Z  # noqa: F821


def hides_a_builtin(x: torch.Tensor, v: int) -> Any:
    D["abs"] = lambda y: y - v
    y = abs(x)  # noqa: F821
    del D["abs"]
    return y, abs(-x), len(x)


def after_a_break(x: torch.Tensor, v: int) -> Any:
    x.sum().item()
    D["Z"] = v
    y = Z + 1
    globals()["Z"] = y
    return x * Z + D["Z"]


def under_changing_names(x: torch.Tensor, v: int) -> Any:
    for name in ("Z", "W"):
        D[f"{name}{v}"] = v
    D["Z"] = D[f"Z{v}"] + D.pop(f"W{v}")
    return x * Z, D.pop(f"Z{v}")


def asked_for_all(x: torch.Tensor, v: int) -> Any:
    names = globals()
    names["Z"] = v
    kinds = [name for name, value in names.items() if name.startswith("through") and callable(value)]
    refused = ""
    try:
        globals(1)  # type: ignore[call-arg]
    except TypeError as e:
        refused = str(e)
    return x * Z, names is D, kinds, {**names}["Z"], [globals()["Z"] for _ in range(2)], len(names) == len(D), refused


PROGRAMS = (
    through_globals, through_a_held_dict, through_a_function, through_a_default, through_vars, read_as_a_dict, deleted,
    hides_a_builtin, after_a_break, under_changing_names, asked_for_all,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_names_and_items_are_one(program: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ME, "Z", 0)

    def results(f: Callable) -> str:
        D["Z"] = 100
        return repr([(f(torch.ones(2), v), Z, "abs" in D) for v in (1, 2, 2, 3)])

    assert results(bytejit.compile(program, backend="eager")) == results(program)


def test_globals_breaks_no_graph() -> None:
    compiled = bytejit.compile(through_globals, backend="eager", fullgraph=True)
    assert [compiled(torch.ones(1), v).item() for v in (1, 2, 2)] == [1, 2, 2]
    assert bytejit.compile(lambda: globals(), backend="eager")() is D
