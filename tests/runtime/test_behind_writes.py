"""Whatever raises before, within or behind a graph's writes: nothing is written twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import FunctionType
from typing import Any

import pytest
import torch

import bytejit
from bytejit.backends import surround
from bytejit.exc import BehindWrites

BACKENDS = [pytest.param("inductor", marks=pytest.mark.cxx), "aot_eager"]


def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def trained(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * w.requires_grad_()


def silent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.data.add_(1)
    return x * 2


def several(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    w.mul_(2)
    return x + w


def failing(place: str, error: Exception) -> Callable:
    """`in_mode`, with a step of bytejit's before or behind the graph that raises in its second call."""
    own, calls = surround.in_mode, iter(range(100))

    def in_mode(gm: torch.fx.GraphModule, call: Callable) -> Callable:
        inner = own(gm, call)

        def step(*inputs: Any) -> Any:
            fails = next(calls) > 0
            if fails and place == "before":
                raise error
            found = inner(*inputs)
            if fails:
                raise error
            return found

        return FunctionType(step.__code__, {"__name__": surround.__name__, "next": next}, closure=step.__closure__)

    return in_mode


@pytest.mark.parametrize("error", [ValueError, RecursionError, torch.OutOfMemoryError])
@pytest.mark.parametrize("place", ["before", "behind"])
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("program", [plain, trained, silent, several])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_around_the_writes_raises(
    program: Callable, inference: bool, place: str, error: type, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind them the exception is a fault that the program sees. Before them the original code runs, where versions tell."""
    if inference and program is trained:
        pytest.skip("inference tensors have no gradients")
    monkeypatch.setattr(surround, "in_mode", failing(place, error("of a step")))
    compiled = bytejit.compile(program, backend=backend)
    untold = inference or program is silent
    with torch.inference_mode() if inference else nullcontext():
        for n in range(2):
            x, w = torch.zeros(3), torch.ones(3)
            if n and (place == "behind" or untold):
                with pytest.raises(BehindWrites, match=f"{error.__name__} behind the writes of a graph") as raised:
                    compiled(x, w)
                assert type(raised.value.__cause__) is error
                assert x.tolist() == [float(place == "behind")] * 3
                continue
            expected = program(torch.zeros(3), torch.ones(3))
            assert torch.equal(compiled(x, w), expected) and x.tolist() == [1.0] * 3


def chosen(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return w.index_select(0, i) * x


def trained_and_chosen(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return (w.requires_grad_() * x.exp()).index_select(0, i)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("program", [chosen, trained_and_chosen])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_behind_a_write_raises(program: Callable, hooks: bool, shared: bool, backend: str) -> None:
    """Also where the graph runs op by op: a written input shares memory with another, or hooks see what is saved."""
    compiled = bytejit.compile(program, backend=backend)
    for last in (0, 0, 9):
        seen = []
        for f in (program, compiled):
            base = torch.zeros(6)
            x, w = (base[:4], base[2:]) if shared and last and program is chosen else (torch.zeros(4), torch.ones(4))
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t) if hooks and last else nullcontext():
                try:
                    found: object = f(x, w, torch.tensor([last])).tolist()
                except (IndexError, RuntimeError) as e:
                    found = type(e)
            seen.append((found, x.tolist(), w.tolist(), x._version))
        assert seen[0] == seen[1]


class Refused(Exception):
    """Of the program."""


def refuse(t: torch.Tensor) -> torch.Tensor:
    raise Refused


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_of_the_programs_raises(backend: str) -> None:
    """It is called once, behind the write, as in eager."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (w * x).exp()

    compiled = bytejit.compile(program, backend=backend)
    for n in range(3):
        x, w = torch.zeros(3), torch.ones(3, requires_grad=True)
        if n == 0:
            compiled(x, w)
            continue
        with torch.autograd.graph.saved_tensors_hooks(refuse, refuse), pytest.raises(Refused):
            compiled(x, w)
        assert x.tolist() == [1.0] * 3


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("write", ["x.add_(1)", "x.data.add_(1)"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_check_of_the_graph_raises(write: str, inference: bool, backend: str) -> None:
    """What the graph itself says of an index is the program's exception, whether versions tell of its writes or not."""
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def f(x, i):\n    y = x[i] * 2\n    {write}\n    return y", scope)
    compiled = bytejit.compile(scope["f"], backend=backend)
    with torch.inference_mode() if inference else nullcontext():
        for n in (1, 7, 2):
            x, same = torch.zeros(3), torch.zeros(3)
            if n > 3:
                for f, own in ((compiled, x), (scope["f"], same)):
                    with pytest.raises(IndexError):
                        f(own, torch.tensor([n]))
            else:
                assert torch.equal(compiled(x, torch.tensor([n])), scope["f"](same, torch.tensor([n])))
            assert torch.equal(x, same)
