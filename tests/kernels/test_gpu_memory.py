"""A compiler that finds no memory on the GPU, or must not touch it: the original code runs. With pretended devices."""

from __future__ import annotations

import pytest
import torch

import bytejit
from bytejit.backends import compiled as compiler
from bytejit.kernels.tune import Tuner
from bytejit.kernels.tune_gpu import GpuTuner
from bytejit.runtime import back_off, rollback


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def out_of_memory(*args: object, **kwargs: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_no_memory_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    x, compiled = torch.randn(10), bytejit.compile(doubled)
    with monkeypatch.context() as none_left:
        none_left.setattr(compiler.Compiled, "build", out_of_memory)
        assert torch.equal(compiled(x), x.sin() * 2)
    compiled(x)
    compiled(x)
    assert bytejit.counters["fallbacks"] == {"no memory on the GPU to compile doubled": 1}
    assert bytejit.counters["graphs"] == {"inductor": 2}  # the second try found room


def test_never_memory_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.Compiled, "build", out_of_memory)
    x, compiled = torch.randn(10), bytejit.compile(doubled, fullgraph=True)
    for _ in range(2 * back_off.POSTPONED_LIMIT):
        assert torch.equal(compiled(x), x.sin() * 2)
    given_up = dict(bytejit.counters["fallbacks"])
    assert list(given_up) == ["no memory on the GPU to compile doubled"]
    compiled(x)
    assert bytejit.counters["fallbacks"] == given_up


def test_the_original_runs_while_a_cuda_graph_is_recorded_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, compiled = torch.randn(10), bytejit.compile(doubled)
    with monkeypatch.context() as recorded:
        recorded.setattr(torch.cuda, "is_initialized", lambda: True)
        recorded.setattr(torch.cuda, "current_device", lambda: 0)
        recorded.setattr(torch.cuda, "current_stream", lambda: None)
        recorded.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert torch.equal(compiled(x), x.sin() * 2) and not bytejit.counters["graphs"]
        assert [g for g, _ in rollback.random_states()] == [torch.default_generator]
        strict = bytejit.compile(doubled, fullgraph=True)
        with pytest.raises(bytejit.exc.Unsupported, match="a CUDA graph that is recorded around the call"):
            strict(x)
    compiled(x)
    assert bytejit.counters["graphs"] == {"inductor": 1}


def test_no_memory_to_time_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90000)
    monkeypatch.setattr(Tuner, "choose", out_of_memory)
    assert GpuTuner(None, 0).choose("product", [], []) is None
    assert list(bytejit.counters["fallbacks"]) == ["a library is not timed: the GPU has no memory left for it"]
