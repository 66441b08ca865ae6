"""When a call is recorded, replayed or left plain, and what is said about it: with a pretended device and clock."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable

import pytest
import torch

import bytejit
from bytejit.backends import recording
from bytejit.codegen.aten.graph import Aten, OutputValue
from bytejit.codegen.cuda.call import Fault
from bytejit.common import caches
from bytejit.common.errors import DeviceFault
from bytejit.common.graph_info import INFO, GraphInfo, report_of
from bytejit.common.options import Options
from bytejit.common.spec import Spec
from bytejit.kernels import cuda_capture, cuda_graphs, other_streams
from bytejit.kernels.cuda_graphs import PUT_OFF, RERECORDS, SHAPES, STREAMS, TIMED, WARM, Policy, replayed
from bytejit.kernels.replaceable import Replaceable


class Device:
    """One GPU without any: streams are numbers, a recording's replay calls the function again, time passes as told.
    fn: the function of the last recording."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.capturing, self.now, self.replays = 1, False, 0.0, 0
        self.queue, self.work, self.replay = 1.0, 0.0, 0.1  # seconds that the host, the device, a replay take
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: self.stream, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: self.capturing, raising=False)
        monkeypatch.setattr(cuda_graphs.Replayer, "wait", lambda replayer: self.wait())
        monkeypatch.setattr(cuda_graphs, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(cuda_graphs.Replayer, "capture", lambda *given: self.capture(*given))
        monkeypatch.setattr(cuda_graphs.Replayer, "check", lambda *given: self.check(*given))
        self.waiting = 0.0

    def wait(self) -> None:
        self.now, self.waiting = self.now + self.waiting, 0.0

    def called(self, fn: Callable) -> Callable:
        self.fn = fn

        def call(*args: object) -> object:
            self.now += self.queue
            self.waiting += self.work
            return fn(*args)

        return call

    def capture(self, replayer: object, lane: object, state: object, given: list) -> tuple:
        result = replayer.call(*given)

        def replay() -> None:
            self.replays += 1
            self.now += self.replay
            for out, again in zip(result, self.fn(*given)):
                if isinstance(out, torch.Tensor) and not any(out is t for t in given):
                    out.copy_(again)

        replayer.policy.say("recorded")
        outside = cuda_capture.Outside(None, cuda_capture.Pool(None, None, None))
        outside.fault = getattr(self.fn, "fault", None)
        return types.SimpleNamespace(replay=replay), result, outside

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


def plus_one(x: torch.Tensor, *rest: object) -> tuple[torch.Tensor]:
    return (x + 1,)


def made(device: Device, how: str = "forced", fn: Callable = plus_one, **facts: object) -> tuple[Callable, list[str]]:
    """A replayed function, and the list of what is told about it."""
    told: list[str] = []
    return replayed(device.called(fn), Policy(how, 0, tell=told.append, **facts)), told


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


kept_memory: dict = {}


def test_each_stream_has_recordings_of_its_own(device: Device) -> None:
    run, told = made(device)
    x = tensor()
    for turn in range(WARM + 2):
        for device.stream in range(STREAMS):
            run(x)
            assert device.replays == max(0, turn - WARM) * STREAMS + (turn >= WARM) * (device.stream + 1)
    assert told == ["recorded"] * STREAMS
    device.stream = STREAMS
    run(x)
    assert told[STREAMS:] == [f"a call ran plain: on more than {STREAMS} streams"] and device.replays == 2 * STREAMS


def test_within_a_recording_of_the_programs(device: Device) -> None:
    run, told = made(device)
    x, word = tensor(), "a call ran plain: within a CUDA graph that the program records"
    device.stream, device.capturing = 7, True
    run(x)
    device.stream, device.capturing = 1, False
    for _ in range(WARM + 1):
        run(x)
    device.capturing = True
    run(x)
    assert device.replays == 1 and told == [word, "recorded", word] and list(run.lanes) == [1]


def test_another_thread_meanwhile(device: Device) -> None:
    run, told = made(device)
    x = tensor()
    for _ in range(WARM + 1):
        run(x)
    with run.lanes[1].lock:
        assert torch.equal(run(x)[0], x + 1) and device.replays == 1
    with cuda_capture.RECORDING:
        device.stream = 2
        for _ in range(WARM + 2):
            run(x)
    assert device.replays == 1 and told == ["recorded"]
    run(x)
    assert device.replays == 2 and told == ["recorded"] * 2


@pytest.mark.parametrize("how, word", [("auto", "not recorded: several threads use torch"), ("forced", "recorded")])
def test_calls_of_several_threads(device: Device, how: str, word: str) -> None:
    run, told = made(device, how)
    x = tensor()
    first = threading.Thread(target=run, args=(x,))
    first.start()
    first.join()
    for _ in range(WARM + TIMED + 2):
        run(x)
    assert told == [word]


def wait_beside_torch(begun: threading.Event, end: threading.Event) -> None:
    begun.set()
    end.wait()


@pytest.mark.parametrize(
    "how, calls, words",
    [("auto", 3, ["recorded"]), ("auto", PUT_OFF + 2, ["not recorded: several threads use torch"]), ("forced", 3, ["recorded"])],
)
def test_another_thread_uses_torch(device: Device, how: str, calls: int, words: list[str]) -> None:
    run, told = made(device, how)
    x, begun, end = tensor(), threading.Event(), threading.Event()
    other = threading.Thread(target=wait_beside_torch, args=(begun, end))
    other.start()
    begun.wait()
    for _ in range(WARM + TIMED + calls):
        run(x)
    assert (device.replays > 0) == (how == "forced")
    end.set()
    other.join()
    for _ in range(2):
        run(x)
    assert told == words


@pytest.mark.parametrize("module", ["somewhere", "torch.utils.data._utils.pin_memory"])
def test_threads_without_the_programs_torch_do_no_harm(device: Device, module: str) -> None:
    run, told = made(device, "auto")
    x, end = tensor(), threading.Event()
    names = {"__name__": module, "end": end, **({"torch": torch} if module.startswith("torch") else {})}
    exec("def wait():\n    end.wait()", names)
    other = threading.Thread(target=names["wait"])
    other.start()
    for _ in range(WARM + TIMED + 2):
        run(x)
    end.set()
    other.join()
    assert told == ["recorded"]


# ---- outputs ---------------------------------------------------------------------------------------------------------------
def and_a_part(x: torch.Tensor) -> tuple:
    """Two outputs in one memory, and one that is no tensor."""
    y = x * 2
    return y, y[1:], 7


def test_outputs_that_the_caller_keeps(device: Device) -> None:
    run, told = made(device, "forced", and_a_part)
    x, kept = tensor(), []
    for turn in range(WARM + 6):
        x.fill_(turn)
        kept.append(run(x))
    assert told == ["recorded"] * 3
    for turn, (whole, part, number) in enumerate(kept):
        assert number == 7 and part.untyped_storage()._cdata == whole.untyped_storage()._cdata and part.storage_offset() == 1
        assert torch.equal(whole, torch.full((3,), 2.0 * turn))
    del kept, whole, part
    for _ in range(4):
        run(x)
    assert told == ["recorded"] * 3


def test_a_stream_that_works_on_outputs_is_waited_for(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(other_streams, "wait_for", lambda others, device: (waited.append(list(others)), others.clear()))
    run, _ = made(device, "forced", and_a_part)
    x, other = tensor(), torch.Stream(stream_id=3, device_index=0, device_type=1)
    for _ in range(WARM + 1):
        whole, part, _ = run(x)
    for t in (part, torch.ones(3)):
        with pytest.raises(NotImplementedError, match="CPU"):  # noted on its way to the tensor's own device
            t.record_stream(other)
    del whole, part, t
    run(x)
    run(x)
    (recording,) = run.lanes[1].sized[()].recordings
    (storage,) = recording.places
    assert waited == [[other]] and caches.GRAPH_OUTPUTS[storage]() is recording
    del run, recording
    assert storage not in caches.GRAPH_OUTPUTS


@pytest.mark.parametrize("relaid", [False, True])
def test_outputs_are_allocated_outside(relaid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory of the allocator's own, which a thread that captures may take where the driver is told so"""
    told: list[str] = []

    @contextlib.contextmanager
    def allocating():
        told.append("allocates")
        yield

    monkeypatch.setattr(cuda_capture, "allocating", allocating)

    def call(x, new_f32=torch.empty(0).new_empty_strided, pool=kept_memory, fault="a word"):
        assert pool is not kept_memory
        out, written = new_f32((3,), (1,)), new_f32((3,), (1,))
        written.fill_(7)
        return out.copy_(x), x, x[1:], (inner := x * 2), inner[1:]

    outside = cuda_capture.Outside(None, cuda_capture.Pool(None, None, None))
    recorded = outside.through(Replaceable(call, {}, lambda returned: None) if relaid else call)
    x = torch.arange(3.0)
    result = recorded(x)
    out, same, part, moved, moved_part = outside.moved_out(result, (x,))
    assert out is result[0] and same is x and part is result[2] and outside.kept is kept_memory
    assert len(told) == 3  # two outputs, and what is moved
    assert outside.fault == "a word"
    assert len(outside.made) == 2 and any(set(t.view(torch.float32).tolist()) == {7} for t in outside.made.values())
    assert moved is not result[3] and torch.equal(moved, x * 2) and torch.equal(moved_part, x[1:] * 2)
    assert moved_part.untyped_storage()._cdata == moved.untyped_storage()._cdata != result[3].untyped_storage()._cdata


# ---- inputs -------------------------------------------------------------------------------------------------------------------
LAID = {
    "plain": lambda x: x,
    "expanded": lambda x: x[:1].expand(4),
    "rows": lambda x: x[:, None].expand(3, 2),
    "windows": lambda x: x.as_strided((2, 2), (1, 1)),
    "every second": lambda x: x[::2],
    "turned": lambda x: x[None].t(),
    "later": lambda x: x[1:],
    "empty": lambda x: x[:0],
    "number": lambda x: x[0],
}


@pytest.mark.parametrize("name", LAID)
def test_inputs_that_are_copied(device: Device, name: str) -> None:
    def f(x: torch.Tensor) -> tuple:
        return (x * 2,)

    run, _ = made(device, "forced", f)
    kept = []
    for turn in range(WARM + TIMED + 3):
        kept.append(tensor() * turn + torch.arange(3))
        assert torch.equal(run(LAID[name](kept[-1]))[0], LAID[name](kept[-1]) * 2)
    assert device.replays == (6 if name == "empty" else 3)  # no elements have no address that could change


def test_a_replay_counts_as_a_write(device: Device) -> None:
    run, _ = made(device, "forced", lambda x, y: (x + y,), written=frozenset([1]))
    x, y = tensor(), tensor()
    for _ in range(WARM):
        run(x, y)
    before = x._version, y._version
    for turn in range(3):
        run(x, y)
        assert (x._version, y._version) == (before[0], before[1] + turn + 1)
    assert device.replays == 3


def test_outputs_that_are_inputs(device: Device) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple:
        return x, y[1:], x + y

    run, _ = made(device, "forced", f)
    kept = []
    for turn in range(WARM + TIMED + 3):
        kept.append(tensor() * turn)
        x, y = kept[-1], tensor()
        same, part, made_new = run(x, y)
        assert same is x and part.data_ptr() == y[1:].data_ptr() and part.shape == (2,) and torch.equal(made_new, x + y)
    assert device.replays == 3


# ---- what fails ----------------------------------------------------------------------------------------------------------------
def test_an_index_out_of_range_is_told_by_a_later_replay(device: Device) -> None:
    def f(x: torch.Tensor) -> tuple:
        if x[0] > 5:
            f.fault.word.value = 2
        return (x + 1,)

    f.fault = Fault(False)
    run, _ = made(device, "forced", f)
    x = tensor()
    for _ in range(WARM + 2):
        run(x)
    x.fill_(6)
    run(x)
    x.fill_(1)
    before = device.replays
    with pytest.raises(DeviceFault, match="earlier call"):
        run(x)
    assert device.replays == before and torch.equal(run(x)[0], x + 1)


def test_no_memory_to_record(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    run, told = made(device)
    x = tensor()
    monkeypatch.setattr(cuda_graphs.Replayer, "capture", none_left)
    for _ in range(WARM + 2):
        assert torch.equal(run(x)[0], x + 1)
    assert told == ["not recorded: recording failed: OutOfMemoryError: CUDA out of memory"]
    assert not device.replays and not cuda_capture.RECORDING.locked()


def test_no_memory_for_copies_of_outputs(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    run, told = made(device, "forced")
    x, kept = tensor(), []
    for _ in range(WARM + 3):
        kept.append(run(x))
    before, empty_like = device.replays, torch.empty_like

    def none_left(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty_like", none_left)
    with pytest.raises(torch.OutOfMemoryError):
        run(x)
    assert device.replays == before  # nothing was written: the original code can run in its place
    monkeypatch.setattr(torch, "empty_like", empty_like)
    assert torch.equal(run(x)[0], x + 1) and device.replays == before + 1 and told == ["recorded"] * 3


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


@pytest.mark.parametrize(
    "work, replay, verdict",
    [
        (100.0, 0.1, "not recorded: launching takes little of its time"),
        (0.0, 5.0, "not recorded: a replay is no faster"),
        (0.0, 0.1, "recorded"),
    ],
)
def test_by_itself_only_where_it_pays(device: Device, work: float, replay: float, verdict: str) -> None:
    device.work, device.replay = work, replay
    run, told = made(device, "auto")
    x = tensor()
    for _ in range(WARM + 2 * TIMED + 2):
        run(x)
    assert told[-1] == verdict


# ---- which graphs ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("bytejit_test_cuda_graphs::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize(
    "target, how, words",
    [
        (torch.ops.aten.sin.default, "auto", recording.WAITING["auto"]),
        (
            torch.ops.bytejit_test_cuda_graphs.counted.default,
            "auto",
            "not recorded: bytejit_test_cuda_graphs.counted.default is the program's own: it may do something else in each call",
        ),
        (torch.ops.bytejit_test_cuda_graphs.counted.default, "forced", recording.WAITING["forced"]),
        (torch.ops.aten.nonzero.default, "forced", "not recorded: aten.nonzero.default waits for the GPU"),
        (torch.ops.aten.rand_like.default, "auto", "not recorded: it draws random numbers"),
    ],
)
def test_operations(device: Device, target: object, how: str, words: str) -> None:
    gm = graph_of()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(target, (x,))
    graph.output((y,))
    for n in (x, y):
        n.meta["spec"] = Spec((3,), (1,), torch.float32, torch.device("cuda", 0))
    recording.record_graph(gm, Aten(graph, (OutputValue(0),)), lambda x: (x,), 0, how)
    assert report_of(gm).cudagraphs == [words]


# ---- what explain and the log say ---------------------------------------------------------------------------------------
def graph_of() -> torch.fx.GraphModule:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    gm.meta[INFO] = GraphInfo(settings=types.SimpleNamespace(options=Options(logs=("cudagraphs",))))
    return gm


def test_each_reason_is_logged_once(capsys: pytest.CaptureFixture) -> None:
    gm = graph_of()
    tell = recording.Told(gm, Options(logs=("cudagraphs",)))
    for what in ("a", "b", "a"):
        tell(what)
    assert report_of(gm).cudagraphs == ["a", "b"]
    assert capsys.readouterr().err.splitlines() == ["[bytejit cudagraphs]  a", "[bytejit cudagraphs]  b"]


def test_explain_names_the_reason() -> None:
    report = bytejit.explain(bytejit.compile(lambda x: x + 1, backend="cudagraphs"), torch.ones(3))
    assert report.regions[0].cudagraphs == ("not recorded: no tensor is on a GPU",)
    assert "CUDA graphs:\n  graph 0: not recorded: no tensor is on a GPU" in str(report)
    assert "CUDA graphs" not in str(bytejit.explain(lambda x: x + 1, torch.ones(3)))


def test_inputs_made_anew_for_each_call_are_copied_from_the_first_recording_on(device: Device) -> None:
    run, told = made(device, fresh=frozenset({1}))
    x, kept = tensor(), [tensor() for _ in range(WARM + 4)]  # each lies elsewhere
    for row in kept:
        run(x, row)
    assert told == ["recorded"] and device.replays == 4
