"""What of the GPU's way runs without one: kernels compiled to binaries, the tables of launches, the interpreter end to end."""

from __future__ import annotations

import array
import os
import subprocess
import sys
import weakref

import pytest
import torch

import bytejit
from bytejit.common.options import config
from bytejit.guards.native_checker import exchange_fill
from bytejit.kernels import cuda_launch as cl
from bytejit.kernels.build_cpp import functions
from bytejit.kernels.build_triton import Binaries, KernelJob, parameters, split_module, triton_version
from bytejit.kernels.triton_worker import unpacked
from bytejit.kernels.workers import WARM, Workers

needs_triton = pytest.mark.skipif(not triton_version(), reason="needs triton")
TEXT = WARM + "\n\n# of another op\n@triton.jit\ndef other(a, b, N: tl.constexpr):\n    tl.store(b, tl.load(a))\n"


def test_a_module_is_split_into_one_for_each_kernel() -> None:
    parts = split_module(TEXT)
    assert list(parts) == ["warm", "other"]
    assert "def other" not in parts["warm"] and "import triton" in parts["other"]
    assert parameters(parts["other"], "other") == ["a", "b", "N"]


def test_a_call_keeps_its_table() -> None:
    table = array.array("q", [3, 5])
    address, alive = table.buffer_info()[0], weakref.ref(table)
    run = cl.bind({"launch": lambda *given: given}, table)
    del table
    assert alive() is not None and run(7, 8) == (address, 7, 8)
    del run
    assert alive() is None


def job(text: str = WARM, kernel: str = "warm", n: int = 128) -> KernelJob:
    return KernelJob(text, kernel, (("x", "*fp32"),), (("N", n),), ("x",), 4, 1, 80)


def test_comments_and_names_do_not_tell_kernels_apart() -> None:
    assert job().key == job(WARM.replace("def warm", "def k7").replace("tl.store", "# here\n    tl.store"), "k7").key
    assert job().key != job(n=256).key


@needs_triton
def test_binaries_are_made_side_by_side_kept_and_found(tmp_path) -> None:
    with config.patch(cache_dir=str(tmp_path)):
        first = Binaries(config.current)
        made = first.of([job(), job(n=256), job(n=3), job()])
        assert [type(m).__name__ for m in made] == ["Binary", "Binary", "str", "Binary"] and made[0] is made[3]
        assert "power of 2" in made[2] and made[0].code[:4] == b"\x7fELF" and first.fresh == 3
        bytejit.reset()
        again = Binaries(config.current)
        assert again.of([job()])[0].code == made[0].code and again.fresh == 0


EARLY = """import triton
import triton.language as tl
from bytejit.kernels.prelude.triton_math import bj_after_previous


@triton.jit
def early(x, N: tl.constexpr):
    bj_after_previous()
    tl.store(x + tl.arange(0, N), tl.load(x + tl.arange(0, N)) + 1)
"""


@needs_triton
def test_a_kernel_that_may_begin_early_waits_before_it_touches_memory(tmp_path) -> None:
    with config.patch(cache_dir=str(tmp_path)):
        jobs = [KernelJob(EARLY, "early", (("x", "*fp32"),), (("N", 128),), ("x",), 4, 1, 90), job()]
        waits, plain = Binaries(config.current).of(jobs)
        bytejit.reset()
        assert (waits.early, plain.early) == (True, False) == tuple(b.early for b in Binaries(config.current).of(jobs))


PACKED = """import triton
import triton.language as tl


@triton.jit
def packed(x, y, R: tl.constexpr):
    r = tl.arange(0, R)
    at = 158 * (r // 157) + r % 157 + 79
    tl.store(y + r, tl.load(x + 79 * (at // 157) + at % 157, (r < 12403) & (at % 157 < 79), other=0), mask=r < 12403)
"""
COMPILES = """import sys, triton
from bytejit.kernels import triton_worker
if sys.argv[1] == "unpack":
    triton_worker.unpack_sums()
made, compile = [], triton.compile
triton.compile = lambda *args, **kwargs: made.append(compile(*args, **kwargs)) or made[0]
triton_worker.compile_job(dict(text=sys.stdin.read(), name="k", kernel="packed", signature={"x": "*fp32", "y": "*fp32"},
    constants={"R": 16384}, aligned=["x", "y"], arch=90, warps=32, stages=1, contracts=True))
print(made[0].asm["ptx"].count("16x2"))
"""


@needs_triton
def test_sums_of_two_16_bit_numbers_in_a_register_are_unpacked(tmp_path) -> None:
    """ptxas loses a constant in some of them"""
    env = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    counts = []
    for how in ("as it is", "unpack"):
        env["TRITON_CACHE_DIR"] = str(tmp_path / how)
        done = subprocess.run([sys.executable, "-c", COMPILES, how], input=PACKED, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        counts.append(int(done.stdout))
    assert counts[0] > 0 and counts[1] == 0  # where the first is 0, LLVM packs no more: `unpacked` can go
    assert unpacked("add.f32 %f1, %f2, %f3;\n\tadd.s16x2 \t%r3, %r1, %r2;\n") == (
        "add.f32 %f1, %f2, %f3;\n\t{ .reg .b16 %bj<4>; mov.b32 {%bj0, %bj1}, %r1; mov.b32 {%bj2, %bj3}, %r2; "
        "add.s16 %bj0, %bj0, %bj2; add.s16 %bj1, %bj1, %bj3; mov.b32 %r3, {%bj0, %bj1}; }\n"
    )


@needs_triton
def test_a_worker_that_dies_is_replaced() -> None:
    pool = Workers(1)
    request = {
        "text": "import os\nos._exit(3)\n" + WARM,
        "name": "k",
        "kernel": "warm",
        "signature": {"x": "*fp32"},
        "constants": {"N": 128},
        "aligned": [],
        "arch": 80,
        "warps": 4,
        "stages": 1,
        "contracts": True,
    }
    assert "ended with 3" in pool.ask(request)["error"]
    assert "binary" in pool.ask({**request, "text": WARM})
    pool.stop()


@pytest.mark.cxx
def test_addresses_are_compared_in_one_call() -> None:
    if exchange_fill() is None:
        pytest.skip("this torch has no exchange table")
    calls = functions(cl.UNIT, config.current)
    x, y = torch.randn(4), torch.randn(10)[2:]
    moved = cl.address_check(calls, exchange_fill(), [x.data_ptr(), None, y.data_ptr()])
    assert moved(x, 5, y) == -1 and moved(x, 5, x) == 2 and moved(y, 5, y) == 0


def test_a_table_holds_what_the_launcher_reads() -> None:
    kernel = cl.Loaded(77, 128, 1024)
    table = cl.launch_table([(kernel, (4, 1, -2), (cl.Param(0, 64, True), cl.Param(1)))])
    early = cl.launch_table([(cl.Loaded(77, 128, 0, early=True), (1, 1, 1), ())])
    assert list(early) == [1, 77, 1, 1, 1, 128, 0, 1, 0]
    assert list(table) == [1, 77, 4, 1, -2, 128, 1024, 0, 2, 0, 64, 1, 1, 0, 0]


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 (set where there is no GPU)")
def test_a_kernels_file_in_the_debug_folder_can_be_run(tmp_path) -> None:
    def normed(x):
        return torch.softmax(x * 0.5, -1).cumsum(0)

    bytejit.compile(normed, options={"interpret": True, "debug": True, "debug_dir": str(tmp_path)})(torch.randn(5, 16))
    text = next(tmp_path.rglob("*kernel.py")).read_text()
    assert "return torch.softmax(x * 0.5, -1).cumsum(0)\n" in text and "test_gpu_build.py:" in text  # the user's line
    assert "f32[5,16] stride (16,1) input" in text and "measure(globals(), BUFFERS, STEPS, SCRATCH)" in text
    compile(text, "kernel.py", "exec")


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 (set where there is no GPU)")
@pytest.mark.parametrize("name", ["pointwise", "softmax", "module", "mutation"])
def test_graphs_run_in_the_interpreter(name: str) -> None:
    def mutate(x):
        x.mul_(2)
        return x.sum(-1)

    torch.manual_seed(1)
    fn = {
        "pointwise": lambda x: torch.sin(x) * 2 + x[:, :1],
        "softmax": lambda x: torch.softmax(x, -1),
        "mutation": mutate,
        "module": torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 8), torch.nn.GELU()).eval(),
    }[name]
    x = torch.randn(5, 16)
    mine, theirs = x.clone(), x.clone()
    compiled = bytejit.compile(fn, fullgraph=True, options={"interpret": True})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(mine), fn(theirs))
            torch.testing.assert_close(mine, theirs)
    assert not bytejit.counters["fallbacks"]


@pytest.mark.parametrize("backend", ["cudagraphs", "aot_cudagraphs"])
def test_graph_backends_run_plain_without_a_gpu(backend: str) -> None:
    x = torch.randn(4)
    assert torch.equal(bytejit.compile(lambda x: x + 1, backend=backend)(x), x + 1)
    assert any("no tensor is on a GPU" in reason for reason in bytejit.counters["cudagraphs"])
