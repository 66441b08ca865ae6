"""The timed choice between configurations of a kernel, with a pretended device and clock."""

from __future__ import annotations

import ctypes
import types

import pytest
import torch

import bytejit
from bytejit.codegen.cuda.source import Arg, Launch, LaunchConfig
from bytejit.common.options import Options
from bytejit.kernels import cuda_launch
from bytejit.kernels.build_triton import ModuleBuilder
from bytejit.kernels.tune_launches import BUDGET, MARGIN, ROUNDS, LaunchTuner, candidates, choose

CONFIGS = tuple(LaunchConfig((("X", n),), 4, 1, (4096 // n,)) for n in (1024, 512, 256))
ARGS = (Arg("buffer", "b0", "*fp32"), Arg("buffer", "b1", "*i64"), Arg("scratch", "", "*fp32", 64), Arg("fault", "", "*i32"))


def launch(kernel: str = "k0", args: tuple = ARGS, configs: tuple = CONFIGS) -> Launch:
    return Launch(0, kernel, args, configs[0], configs[1:])


class Bench:
    """A builder whose kernels take `seconds[X]` each; those without an entry are refused. ran: what was launched, in order."""

    def __init__(self, folder, seconds: dict[int, float]) -> None:
        self.options, self.chosen, self.seconds, self.now = Options(cache_dir=str(folder)), {}, seconds, 0.0
        self.torch_device, self.ran, self.seen = torch.device("cpu"), [], []
        self.binaries = types.SimpleNamespace(of=lambda jobs: [j.x for j in jobs])

    def job(self, one: Launch, config: LaunchConfig, aligned: bool) -> types.SimpleNamespace:
        return types.SimpleNamespace(key=f"{one.kernel} {config}", x=dict(config.constants)["X"])

    def try_load(self, job: object, binary: int) -> int | None:
        return binary if binary in self.seconds else None

    def alone(self, one: Launch, config: LaunchConfig, kernel: int, addresses: list[int], stream: int):
        self.seen.append((stream, [ctypes.c_int32.from_address(a).value for a in addresses]))

        def run() -> None:
            self.ran.append(kernel)
            self.now += self.seconds[kernel]

        return run

    def timer(self, run) -> float:
        before = self.now
        run()
        return self.now - before

    def tuner(self, room: int = 1 << 20, device: str = "a GPU") -> LaunchTuner:
        return LaunchTuner(self, lambda a: 4096, device, room, 7, self.timer, lambda: self.now)


def taken(bench: Bench, **facts: object) -> int:
    """The tile that is chosen; 0: nothing was."""
    bench.tuner(**facts).run([launch()])
    found = bench.chosen.get(("k0", CONFIGS[0]))
    return dict(found.constants)["X"] if found else 0


@pytest.mark.parametrize(
    "seconds, found",
    [
        ({1024: 3.0, 512: 1.0, 256: 2.0}, 512),
        ({1024: 1.0, 512: 2.0, 256: 3.0}, 1024),
        ({1024: 1.0, 512: 0.99, 256: 3.0}, 1024),
        ({1024: 3.0, 256: 2.0}, 256),
        ({512: 3.0, 256: 2.0}, 256),
        ({1024: 1.0}, 1024),
        ({}, 0),
    ],
)
def test_the_fastest_that_builds(tmp_path, seconds: dict, found: int) -> None:
    assert taken(Bench(tmp_path, seconds)) == found


def test_a_choice_needs_a_margin_and_the_least_time_counts() -> None:
    assert choose({0: [1.0, 9.0], 1: [5.0, MARGIN * 0.99]}) == 1 and choose({0: [1.0], 1: [MARGIN * 1.01]}) == 0
    assert choose({0: [1.0], 1: [0.5], 2: [0.5]}) == 1 and choose({2: [1.0], 1: [2.0]}) == 2


def test_it_is_kept_on_disk_by_content_and_device(tmp_path) -> None:
    seconds = {1024: 3.0, 512: 1.0, 256: 2.0}
    first = Bench(tmp_path, seconds)
    assert taken(first) == 512 and len(first.ran) == 3 * (1 + ROUNDS)
    again = Bench(tmp_path, {1024: 1.0, 512: 3.0, 256: 2.0})
    assert taken(again) == 512 and not again.ran
    assert taken(Bench(tmp_path, {1024: 1.0, 512: 3.0, 256: 2.0}), device="another") == 1024


def test_buffers_are_made_up_once_and_hold_indices_in_range(tmp_path) -> None:
    bench = Bench(tmp_path, {1024: 1.0, 512: 2.0})
    taken(bench)
    assert bench.seen == [(7, [0x3C3C3C3C, 0, 0x3C3C3C3C, 0])] * 2


def test_what_is_not_timed(tmp_path) -> None:
    symbolic = (*ARGS, Arg("size", "s0", "i64"))
    assert not candidates(launch(args=symbolic)) and not candidates(launch(configs=CONFIGS[:1]))
    assert not candidates(launch(configs=(CONFIGS[0], LaunchConfig((("X", 1),), 4, 1, ("s0",)))))
    bench = Bench(tmp_path, {1024: 3.0, 512: 1.0})
    assert taken(bench, room=100) == 0 and not bench.ran


def test_a_graph_has_a_budget(tmp_path) -> None:
    bench = Bench(tmp_path, {1024: BUDGET, 512: 1.0, 256: 1.0})
    bench.tuner().run([launch(), launch("k1"), launch()])
    assert list(bench.chosen) == [("k0", CONFIGS[0])]


def test_a_launch_of_its_own_has_the_launchers_table() -> None:
    tables = []

    def seen(address: int, stream: int, *args: int) -> None:
        tables.append((list((ctypes.c_int64 * 21).from_address(address)), stream, args))

    calls = {"launch": seen}
    builder = types.SimpleNamespace(calls=calls)
    ModuleBuilder.alone(builder, launch(), CONFIGS[1], cuda_launch.Loaded(77, 128, 0), [16, 32, 48, 64], 5)()
    ((table, stream, args),) = tables
    assert table == [1, 77, 8, 1, 1, 128, 0, 0, 4, 0, 0, 1, 1, 0, 1, 2, 0, 0, 3, 0, 0]
    assert stream == 5 and args == (16, 32, 48, 64)


def test_memory_that_earlier_launches_took_is_given_back(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches have buffers of their own; the device has room for those of one."""
    bench = Bench(tmp_path, {1024: 0.03, 512: 0.01, 256: 0.02})
    tuner, zeros = bench.tuner(), torch.zeros

    def scarce(*size: int, **kwargs: object) -> torch.Tensor:
        if len(tuner.memory) >= room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(*size, **kwargs)

    monkeypatch.setattr(torch, "zeros", scarce)
    others = tuple(Arg(a.kind, f"{a.name}2", a.type, a.offset) for a in ARGS)
    room = 4
    tuner.run([launch("k0"), launch("k1", others)])
    assert len(bench.chosen) == 2
    bench.chosen.clear()
    room = 3
    tuner.run([launch("k2"), launch("k3", others)])
    assert not bench.chosen and not tuner.memory
    assert bytejit.counters["fallbacks"] == {"a kernel's configurations are not timed: the GPU has no memory left for it": 2}
