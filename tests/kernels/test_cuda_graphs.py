"""When a call is recorded, replayed or left plain, and what is said about it: with a pretended device and clock."""
from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch

import bytejit
from bytejit import gpu
from bytejit.kernels import cuda_graphs
from bytejit.kernels.cuda_graphs import RERECORDS, SHAPES, TIMED, WARM, Policy, replayed
from bytejit.options import Options


class Device:
    """One GPU without any: streams are numbers, a recording's replay calls the function again, time passes as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.capturing, self.now, self.replays = 1, False, 0.0, 0
        self.queue, self.work, self.replay = 1.0, 0.0, 0.1      # seconds that the host, the device, a replay take
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: self.stream, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: self.capturing, raising=False)
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(cuda_graphs, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(cuda_graphs.Replayer, "capture", lambda *given: self.capture(*given))
        monkeypatch.setattr(cuda_graphs.Replayer, "check", lambda *given: self.check(*given))
        self.waiting = 0.0

    def wait(self, device: object = None) -> None:
        self.now, self.waiting = self.now + self.waiting, 0.0

    def called(self, fn: Callable) -> Callable:
        def call(*args: object) -> object:
            self.now += self.queue
            self.waiting += self.work
            return fn(*args)
        return call

    def capture(self, replayer: object, state: object, given: list) -> tuple:
        answer = replayer.call(*given)

        def replay() -> None:
            self.replays += 1
            self.now += self.replay
        replayer.policy.say("recorded")
        return types.SimpleNamespace(replay=replay), answer

    def check(self, replayer: object, addresses: tuple) -> Callable:
        def moved(*inputs: torch.Tensor) -> int:
            pairs = enumerate(zip(inputs, addresses))
            return next((i for i, (t, a) in pairs if a is not None and t.data_ptr() != a), -1)
        return moved


class OnDevice(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    device = torch.device("cuda", 0)


def tensor() -> torch.Tensor:
    return torch.ones(3).as_subclass(OnDevice)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def made(device: Device, how: str = "forced", **facts: object) -> tuple[Callable, list[str]]:
    """A replayed function, and the list of what is told about it."""
    told: list[str] = []
    return replayed(device.called(lambda x, *rest: (x + 1,)), Policy(how, 0, tell=told.append, **facts)), told


def test_recorded_after_plain_calls(device: Device) -> None:
    run, told = made(device)
    x = tensor()
    for _ in range(WARM):
        run(x)
    assert not told and not device.replays
    run(x)
    run(x)
    assert told == ["recorded"] and device.replays == 2 and bytejit.counters["cudagraphs"] == {"recorded": 1}


@pytest.mark.parametrize("reason", ["it draws random numbers", "a tensor is on the CPU"])
def test_what_is_known_before_is_said_at_once(device: Device, reason: str) -> None:
    _, told = made(device, reason=reason)
    assert told == [f"not recorded: {reason}"] == list(bytejit.counters["cudagraphs"])


def test_streams(device: Device) -> None:
    run, told = made(device)
    x = tensor()
    for _ in range(WARM + 1):
        run(x)
    device.stream = 2
    run(x)
    device.stream, device.capturing = 1, True
    run(x)
    assert device.replays == 1 and told == ["recorded"] + ["a call ran plain: on another stream"] * 2


def test_an_input_on_the_cpu(device: Device) -> None:
    run, told = made(device)
    x = torch.ones(3)
    for _ in range(WARM + 3):
        run(x)
    assert told == ["not recorded: an input is on the CPU"] and not device.replays


def test_many_sizes(device: Device) -> None:
    run, told = made(device)
    x = tensor()
    for n in range(SHAPES + 1):
        run(x, n)
    assert told == [f"a call ran plain: more than {SHAPES} combinations of sizes"]


def test_a_written_input_whose_address_changes(device: Device) -> None:
    run, told = made(device, written=frozenset([0]))
    kept = [tensor() for _ in range(20)]
    for x in kept:
        run(x)
    assert told[-1] == "not recorded: the address of an input that is written keeps changing"
    assert told.count("recorded again: an input's address changed") == 2


def test_addresses_that_keep_changing(device: Device) -> None:
    run, told = made(device, weights=frozenset([0]))
    kept = [tensor() for _ in range(20)]
    for x in kept:
        run(x)
    assert told.count("recorded again: an input's address changed") == RERECORDS + 1
    assert told[-1] == "not recorded: addresses of inputs keep changing"


@pytest.mark.parametrize("work, replay, verdict", [
    (100.0, 0.1, "not recorded: launching takes little of its time"), (0.0, 5.0, "not recorded: a replay is no faster"),
    (0.0, 0.1, "recorded")])
def test_by_itself_only_where_it_pays(device: Device, work: float, replay: float, verdict: str) -> None:
    device.work, device.replay = work, replay
    run, told = made(device, "auto")
    x = tensor()
    for _ in range(WARM + 2 * TIMED + 2):
        run(x)
    assert told[-1] == verdict


# ---- what explain and the log say ---------------------------------------------------------------------------------------
def graph_of() -> torch.fx.GraphModule:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    gm.meta["settings"] = types.SimpleNamespace(options=Options(logs=("cudagraphs",)))
    return gm


def test_each_reason_is_logged_once(capsys: pytest.CaptureFixture) -> None:
    gm = graph_of()
    tell = gpu.Told(gm, Options(logs=("cudagraphs",)))
    for what in ("a", "b", "a"):
        tell(what)
    assert gm.meta["cudagraphs"] == ["a", "b"]
    assert capsys.readouterr().err.splitlines() == ["[bytejit cudagraphs]  a", "[bytejit cudagraphs]  b"]


def test_explain_names_the_reason() -> None:
    report = bytejit.explain(bytejit.compile(lambda x: x + 1, backend="cudagraphs"), torch.ones(3))
    assert report.regions[0].cudagraphs == ("not recorded: no tensor is on a GPU",)
    assert "CUDA graphs:\n  graph 0: not recorded: no tensor is on a GPU" in str(report)
    assert "CUDA graphs" not in str(bytejit.explain(lambda x: x + 1, torch.ones(3)))
