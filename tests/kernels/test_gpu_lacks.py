"""What a GPU's way does where something lacks or fails: each has a word for it and a way to go on. With pretended devices."""

from __future__ import annotations

import contextlib
import os
import re
import types
from collections.abc import Callable

import pytest
import torch

import bytejit
from bytejit import verify
from bytejit.backends import cuda, inductor, plan_cache
from bytejit.backends.devices import target_of
from bytejit.codegen.cuda.source import Arg, Launch, LaunchConfig, TritonSource
from bytejit.common import caches
from bytejit.common.graph_info import report_of
from bytejit.common.options import Options, config
from bytejit.kernels import build_triton, cuda_launch
from bytejit.kernels.build import BuildFailed, NoCompiler
from bytejit.kernels.build_triton import ModuleBuilder, triton_version

TEXT = """import triton
import triton.language as tl


@triton.jit
def k0(p0: "*fp32", X: tl.constexpr):
    tl.store(p0 + tl.arange(0, X), 1.0)
"""
CONFIGS = tuple(LaunchConfig((("X", n),), warps, 1, (4,)) for n, warps in ((1024, 8), (512, 4), (2048, 8), (256, 2)))
SOURCE = TritonSource(TEXT, (Launch(0, "k0", (Arg("buffer", "b0", "*fp32"),), CONFIGS[0], CONFIGS[1:]),), 0, 1, 0)


# ---- a kernel that cannot be built -----------------------------------------------------------------------------------------
@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Callable[..., ModuleBuilder]:
    """A builder of `SOURCE` whose compiler refuses tiles above `fits`, and whose device blocks of more than `threads`."""

    def made(fits: int = 1 << 20, threads: int = 1024) -> ModuleBuilder:
        def answer(job: dict) -> dict:
            n = job["constants"]["X"]
            if n > fits:
                return {"error": f"OutOfResources: X={n}\nshared memory: too much"}
            return {"name": f"k{n}", "shared": 0, "warps": job["warps"], "early": True, "binary": "AAAA"}

        calls = {
            "load": lambda code, name, shared: int(name[1:]),
            "attribute": lambda function, which: threads,
            "launch": lambda *args: args,
        }
        monkeypatch.setattr(build_triton, "workers", lambda: types.SimpleNamespace(map=lambda jobs: list(map(answer, jobs))))
        monkeypatch.setattr(cuda_launch, "driver", lambda options: calls)
        for table in ("BINARIES", "GPU_KERNELS"):
            monkeypatch.setattr(caches, table, {})
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(synchronize=lambda: None))
        return ModuleBuilder(SOURCE, 0, Options(cache_dir=str(tmp_path)))

    return made


def built(builder: ModuleBuilder) -> tuple[int, int]:
    """(the tile that was loaded, threads of a block)."""
    ((loaded, chosen),) = builder.load(SOURCE.launches, True)
    assert loaded.function == dict(chosen.constants)["X"]
    return loaded.function, loaded.threads


def test_the_first_configuration_where_it_can_be_built(builder) -> None:
    assert built(builder()) == (1024, 256) and not bytejit.counters["fallbacks"]


@pytest.mark.parametrize(
    "facts, found",
    [
        ({"fits": 600}, (512, 128)),
        ({"fits": 300}, (256, 64)),
        ({"threads": 128}, (512, 128)),
        ({"fits": 600, "threads": 64}, (256, 64)),
    ],
)
def test_a_smaller_configuration_counted_and_with_its_file(builder, facts: dict, found: tuple) -> None:
    made = builder(**facts)
    with pytest.warns(RuntimeWarning, match=r"built smaller, config X=\d+(.|\n)*where  .*\.py\n  why  ") as seen:
        assert built(made) == found
    path = str(seen[0].message).split("where  ")[1].split("\n")[0]
    assert os.path.exists(path) and "def k0" in open(path).read()
    (reason,) = bytejit.counters["fallbacks"]
    assert reason.startswith("a kernel is built smaller: ") and ("memory" in reason or "threads" in reason)
    assert built(made) == found and bytejit.counters.total("fallbacks") == 1  # what was found is kept


def test_none_fits(builder) -> None:
    with pytest.raises(BuildFailed, match=r"cannot be built\n  where  .*\.py\n  why    OutOfResources: X=1024"):
        built(builder(fits=100))


needs_interpreter = pytest.mark.skipif(
    not triton_version() or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs triton and TRITON_INTERPRET=1 (set where there is no GPU)",
)


@needs_interpreter
@pytest.mark.parametrize("fails", [0, 1, 2])
def test_then_smaller_tiles_then_torch(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    monkeypatch.setattr(plan_cache, "load", lambda key, options: None)  # kept plans have no schedules
    plans, launch = [], cuda.compile_plan_cuda

    def refuse(plan, *args, **kwargs):
        plans.append(plan)
        if len(plans) <= fails:
            raise BuildFailed("a Triton kernel cannot be built\n  where  k.py\n  why    too large")
        return launch(plan, *args, **kwargs)

    monkeypatch.setattr(cuda, "compile_plan_cuda", refuse)
    x = torch.randn(2, 5000)
    compiled = bytejit.compile(lambda x: x.softmax(-1), options={"interpret": True})
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="k.py") if fails else contextlib.nullcontext():
        torch.testing.assert_close(compiled(x), x.softmax(-1))
    assert [any(s.schedule.looped for s in p.steps) for p in plans] == [False, True][: fails + 1]
    assert (
        list(bytejit.counters["fallbacks"])
        == [
            "a graph is planned with smaller tiles: a GPU kernel cannot be built",
            "a graph runs through torch: a GPU kernel cannot be built",
        ][:fails]
    )


# ---- no GPU, an old one, no triton, no driver -------------------------------------------------------------------------------
class Elsewhere(torch.Tensor):
    """A tensor that says that it lies on a device of our naming."""

    on: torch.device

    @property
    def device(self) -> torch.device:
        return self.on


def graph_on(*devices: str) -> torch.fx.GraphModule:
    """A graph whose inputs lie on these devices."""
    gm = torch.fx.symbolic_trace(lambda x, y: x + y)
    for n, d in zip(gm.graph.nodes, devices):
        n.meta["val"] = torch.ones(2).as_subclass(Elsewhere)
        n.meta["val"].on = torch.device(d)
    return gm


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What this machine pretends to have."""

    def have(triton: str = "3.6.0", capability: tuple[int, int] = (9, 0)) -> None:
        cuda.lacks.cache_clear()
        monkeypatch.setattr(build_triton, "triton_version", lambda: triton)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=0: capability)
        monkeypatch.setattr(cuda, "begin", lambda device, options: None)

    yield have
    cuda.lacks.cache_clear()


@pytest.mark.parametrize(
    "have, devices, words",
    [
        ({}, ("cuda:0", "cuda:0"), ""),
        ({}, ("cuda:1", "cpu"), ""),
        ({"triton": ""}, ("cuda:0", "cuda:0"), "triton is not installed (pip install 'bytejit[gpu]')"),
        ({"capability": (7, 5)}, ("cuda:0", "cuda:0"), "the GPU is sm_75, kernels need sm_80"),
        ({}, ("cuda:0", "cuda:1"), "its tensors are on cuda:0 and cuda:1"),
        ({}, ("meta", "cpu"), "a tensor is on meta"),
    ],
)
def test_why_a_graph_gets_no_kernels(machine, have: dict, devices: tuple, words: str) -> None:
    machine(**have)
    assert target_of(graph_on(*devices))[1] == words
    if words:
        gm = graph_on(*devices)
        run = inductor.inductor(gm, [])
        assert torch.equal(run(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
        assert report_of(gm).through_torch == words
        assert bytejit.counters["fallbacks"] == {f"a graph runs through torch: {words}": 1}


@pytest.mark.parametrize(
    "error, words",
    [
        (cuda_launch.NoDriver("CUDA driver: libcuda.so.1 cannot be loaded"), "no CUDA driver"),
        (NoCompiler("no C++ compiler found"), "no C++ compiler"),
    ],
)
@needs_interpreter
def test_nothing_to_launch_with(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr(cuda, "compile_plan_cuda", refuse)
    compiled = bytejit.compile(lambda x: x * 2, options={"interpret": True})
    # who looks for the compiler has warned already
    told = isinstance(error, NoCompiler)
    with contextlib.nullcontext() if told else pytest.warns(RuntimeWarning, match=re.escape(str(error))):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert bytejit.counters["fallbacks"] == {f"a graph runs through torch: {words}": 1}


def test_the_interpreter_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_triton, "triton_version", lambda: "")
    compiled = bytejit.compile(lambda x: x * 2, options={"interpret": True})
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert "triton is not installed" in next(iter(bytejit.counters["fallbacks"]))


def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("CUDA driver: libcuda.so.1 cannot be loaded")

    monkeypatch.setattr(cuda_launch, "functions", lambda unit, options: {"open": missing})
    with pytest.raises(cuda_launch.NoDriver, match="libcuda.so.1 cannot be loaded: graphs on a GPU run through torch"):
        cuda_launch.driver.__wrapped__(config.current)


@pytest.mark.parametrize(
    "built_for, there, capability, found",
    [
        (None, False, (0, 0), ("missing", "torch is a CPU build", "install a CUDA build")),
        ("13.0", False, (0, 0), ("missing", "no device found", "nvidia-smi")),
        ("13.0", True, (7, 5), ("missing", "sm_75", "before sm_80 run through torch")),
        ("13.0", True, (9, 0), ("works", "sm_90", "")),
    ],
)
def test_verify_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, there: bool, capability: tuple, found: tuple
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.version, "hip", None)
    for name, value in {
        "is_available": there,
        "device_count": 1,
        "get_device_name": "a GPU",
        "get_device_capability": capability,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value: value)
    check = verify.check_cuda()
    assert check.state == found[0] and found[1] in check.found and found[2] in check.do
    monkeypatch.setattr(verify, "_version", lambda package: None)
    assert verify.check_triton().state == ("broken" if there else "missing")
