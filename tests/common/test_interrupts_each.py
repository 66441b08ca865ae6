"""An interrupt at every moment of a warm call, in entries, their graphs and all of ours around them: all is put back."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bytejit
from bytejit.common import inference
from bytejit.common.ambient import capture
from bytejit.common.ambient_kinds import KINDS, WATCHED
from bytejit.common.interrupts import SIGNALS, Noted
from bytejit.runtime import dispatch
from bytejit.runtime.rollback import rewinding

from .moments import Moment, again, each_moment

if sys.platform == "win32":
    pytest.skip("no SIGALRM", allow_module_level=True)

OURS = str(Path(bytejit.__file__).parent)


def ours(code: types.CodeType) -> bool:
    """Code of the compiler's: its files, and what it generated."""
    return code.co_filename.startswith((OURS, "<bytejit", "<aten", "<eval_with_key"))


def within_managers(moment: Moment) -> bool:
    """Whether one of torch's managers was cut short, which are Python and run as in eager where a graph breaks in them."""
    return any(file.endswith(("autocast_mode.py", "grad_mode.py", "torch/overrides.py")) for file in moment.files)


def straight(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + x.shape[0]


def break_in_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
        print(end="")
        y = y + 1
    return y * x


def break_in_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        print(end="")
        y = y @ x
    return y.float()


def break_in_inference_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x.cos() * 2
        print(end="")
        y = y + 1
    return x + 1


def inference_mode_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x.cos() * 2
    return x + y.shape[0]


def many_modes(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(False):
        y = x @ x
        with torch.autocast("cpu", enabled=False), torch.inference_mode():
            z = x @ x
            print(end="")
            z = z + 1
        y = y + z.shape[0]
    return x + y.float()


def sets_the_mode(x: torch.Tensor) -> torch.Tensor:
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(False)
        y = x * 2
        print(end="")
        torch.set_grad_enabled(True)
    finally:
        torch.set_grad_enabled(before)
    return y


def within_a_function_mode(x: torch.Tensor) -> torch.Tensor:
    with Doubling():
        y = torch.add(x, 1)
        print(end="")
        y = torch.add(y, 1)
    return y


class Doubling(torch.overrides.TorchFunctionMode):
    """Counts on torch telling it of each addition."""

    def __torch_function__(self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None) -> object:
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.add else out


PROGRAMS = (
    straight,
    break_in_no_grad,
    break_in_autocast,
    break_in_inference_mode,
    inference_mode_inside,
    many_modes,
    sets_the_mode,
    within_a_function_mode,
)
BASE = torch.arange(16.0).reshape(4, 4) / 16
INPUTS = (BASE, BASE[:3, :3].clone(), BASE.double())
# how many entries a site has, and which calls come before the one that is interrupted: its entry is the first, another, or
# another that becomes the first
BEFORE = {"first": (1, ()), "another": (3, (2, 2)), "becomes first": (3, (2, 2, 0))}


WAYS = [*((backend, how) for backend in ("eager", "inductor") for how in BEFORE), ("aot_eager", "first")]


@pytest.mark.parametrize(("backend", "how"), WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_state_is_put_back(program: Callable, backend: str, how: str) -> None:
    entries, earlier = BEFORE[how]
    compiled = bytejit.compile(program, backend=backend)
    for x in INPUTS[:entries]:
        for _ in range(2):
            compiled(x)
    state, x, places = capture(KINDS + WATCHED), INPUTS[0], []
    expected = compiled(x)

    def prepare() -> None:
        for i in earlier:
            compiled(INPUTS[i])

    for moment in each_moment(lambda: compiled(x), ours, prepare):
        places.append(moment.place)
        different = {} if within_managers(moment) else state.differences()
        state.restore()
        assert not different and not inference.depth() and not dispatch._COMPILING.locked(), (moment, different)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-6)
        assert not state.differences(), moment
    assert len(places) >= 3 and not bytejit.counters["faults"]
    assert not any("raised" in why for why in bytejit.counters["fallbacks"])


class Refused(Exception):
    """What a graph raises here."""


@pytest.mark.parametrize("raises", [False, True])
def test_writes_and_random_numbers_are_put_back(raises: bool) -> None:
    """An interrupt in the graph, and one while what a graph that raised has written is undone."""
    generator = torch.default_generator

    def graph(x: torch.Tensor, y: torch.Tensor) -> tuple:
        x.add_(torch.rand(4))
        y.data = torch.zeros(4)
        y.add_(1)
        if raises:
            raise Refused
        return (x,)

    settled = []
    made = rewinding(graph, (0, 1), settled.append)
    x, y = torch.ones(4), torch.full((4,), 2.0)
    with contextlib.suppress(Refused):
        made(torch.ones(4), torch.ones(4))
    made = settled[0] if settled else made
    own, began, places = y.data_ptr(), generator.get_state(), []

    def call() -> None:
        with contextlib.suppress(Refused):
            made(x, y)
            x.fill_(1)
            y.data = at
            y.fill_(2)
        generator.set_state(began)

    at = y.data
    for moment in each_moment(call, lambda code: ours(code) or code is graph.__code__):
        places.append(moment.place)
        assert x.tolist() == [1] * 4 and y.tolist() == [2] * 4 and y.data_ptr() == own, moment
        assert torch.equal(generator.get_state(), began) and torch.is_grad_enabled(), moment
    assert any(place.startswith("put_back ") for place in places) == raises
    assert any("locals>.graph " in place for place in places)


def test_what_captures_the_state_leaves_it() -> None:
    """`capture` enters and leaves what has no getter."""
    state = capture(KINDS + WATCHED)
    places = []
    for moment in each_moment(capture, ours):
        places.append(moment.place)
        assert not state.differences(), moment
    assert any("_read_overrides_off" in place for place in places)


def test_moments_of_a_compile_while_handlers_are_replaced_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that is held back asks for its signal again, so that each moment before and after counts, too."""

    def comes_again(self: Noted, number: int, frame: types.FrameType | None) -> None:
        again(number)

    monkeypatch.setattr(Noted, "__call__", comes_again)
    files = ("common/interrupts.py", "common/ambient.py", "runtime/dispatch.py")
    compiled = []

    def compile_anew() -> None:
        space = {"torch": torch}
        exec(f"def f(x): return x.sin() + {len(compiled)}", space)
        compiled.append(bytejit.compile(space["f"], backend="eager"))

    places = set()
    for moment in each_moment(lambda: compiled[-1](BASE), lambda code: code.co_filename.endswith(files), compile_anew):
        places.add(moment.place.partition(" ")[0])
        assert not SIGNALS.holding and not SIGNALS.noted and not SIGNALS.pending, moment.place
        assert not dispatch.compiling(), moment.place
    assert {"Signals.hold", "Signals._put_in", "Noted.put_back", "SiteState.miss"} <= places
