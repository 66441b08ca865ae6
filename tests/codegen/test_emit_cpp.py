"""Plans as C++: results against eager, kernels told apart by their code alone, loops that become vector code."""

from __future__ import annotations

import subprocess
import threading
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from graphs import aten, stages

from bytejit.backends.cpu import CompiledGraph, compile_plan
from bytejit.codegen.cpu.emit import emit_cpp
from bytejit.codegen.cpu.expressions import constant
from bytejit.common.options import config
from bytejit.kernels.build import PRELUDE, find_compiler
from bytejit.kernels.disk import disk_of

cxx = pytest.mark.cxx
r = torch.randn
EYE = torch.eye(3)
PROGRAMS = {
    "sin_cos": (lambda x, y: torch.sin(x) + torch.cos(y), (r(10000), r(10000))),
    "huge_sines": (lambda x, y: torch.sin(x * 1e7) + torch.cos(y * 1e30), (r(3001), r(3001))),
    "sines_in_one_block": (lambda x: (x.sin(), y := torch.stack([x, x + 1], -3), y.exp().sum(-3).cos()), (r(16, 9, 8),)),
    "far_quotients": (lambda x, y: (x % y, x.fmod(y), x // y, (x % 0.3).sum()), (torch.cat([r(3000), r(51) * 1e20]), r(3051))),
    "far_wholes": (lambda x, y: (x // y, x % y, x.fmod(y)), (torch.randint(-(1 << 62), 1 << 62, (999,)), torch.arange(1, 1000))),
    "beside_the_ends": (lambda x: x.erfinv(), (1 - torch.logspace(-16, 0, 2100, dtype=torch.float64),)),
    "sine_rows": (lambda x: x.sin().softmax(-1), (r(40, 70) * 1e5,)),
    "softmax": (lambda x: x.softmax(-1), (r(64, 131),)),
    "norm_gelu": (lambda x, w, b: F.gelu(F.layer_norm(x + x.sin(), (128,), w, b)), (r(64, 128), r(128), r(128))),
    "columns": (lambda x: ((x * x).sum(0), x.amax(0), x.argmin(0)), (r(300, 77),)),
    "matmul": (lambda x, w: (x @ w.t()).relu().sum(1), (r(32, 16), r(8, 16))),
    "pad_cat": (lambda x: torch.cat([F.pad(x, (1, 1)), x.flip(1)[:, :2]], 1), (r(4, 6),)),
    "arg": (lambda x: (x.argmax(1), x.argmin(0), x.argmax()), (r(40, 70),)),
    "arg_lanes": (lambda x: (x.argmax(1), x.argmin(1), x.relu().argmin(1)), (torch.randint(-3, 3, (50, 41)).float(),)),
    "arg_nan": (lambda x: (x.argmax(1), x.argmin(1)), (torch.where(r(9, 36) > 1.5, float("nan"), r(9, 36)),)),
    "gathered_rows": (lambda i, w, x: (w[i] * x).sum(-1), (torch.randint(-30, 30, (40,)), r(30, 32), r(40, 32))),
    "long_gathered_rows": (lambda i, w, x: (w[i] * x).sum(-1), (torch.randint(0, 30, (5,)), r(30, 1999), r(5, 1999))),
    "sums_of_gathered": (lambda i, w: w[i].sum(-1), (torch.randint(-300, 300, (9, 70)), r(300))),
    "sums_of_few_rows": (lambda x: (x.view(20, 300).sum(0), x.view(75, 80).sum(1)), (r(6000),)),
    "scan": (lambda x: x.cumsum(1), (r(5, 33),)),
    "ints": (lambda x, y: (x // y, x % y, (x + y).sum()), (torch.randint(-50, 50, (100,)), torch.randint(1, 9, (100,)))),
    "bools": (lambda x: ((x > 0).any(1), (x > 0).all(), torch.where(x > 0, x, -x)), (r(20, 30),)),
    "transpose": (lambda x, y: x.t() + y, (r(100, 120), r(120, 100))),
    "long_sum": (lambda x: (x.double().sum(), x.amax(), x.abs().mean()), (r(300, 401),)),
    "mean_2d": (lambda x: x.mean((2, 3)), (r(4, 8, 14, 14),)),
    "embedding": (lambda i, w: F.embedding(i, w) * 2, (torch.randint(0, 30, (4, 7)), r(30, 16))),
    "pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (r(2, 3, 17, 17),)),
    "pool_last": (
        lambda x: F.max_pool2d((x * 2).relu(), 3, 2, 1, return_indices=True),
        (r(2, 64, 17, 17).contiguous(memory_format=torch.channels_last),),
    ),
    "pad_last": (
        lambda x: F.pad(x, (1, 2, 0, 1), value=3.5) * 2,
        (r(2, 64, 9, 9).contiguous(memory_format=torch.channels_last),),
    ),
    "conv": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), (r(1, 3, 8, 8), r(4, 3, 3, 3), r(4))),
    "double": (lambda x: x.exp().log1p().tanh(), (r(1000).double(),)),
    "scalar": (lambda x: x * 2 + 1, (torch.tensor(3.0),)),
    "strided": (lambda x: x[::2, 1:] * 2, (r(9, 9),)),
    "scan_read_elsewhere": (lambda i, w: w[i.ne(0).int().cumsum(1)] * 2, (torch.randint(0, 2, (2, 16)), r(50, 64))),
    "a_choice_in_two_nests": (lambda m: projected(m / m.sum((1, 2), keepdim=True), ramps(16)), (r(2, 3, 3) / 10 + EYE + 1,)),
    "passes_of_other_lengths": (lambda t, i, x: rotated(x, *t[i].split(4, -1)), (r(50, 8), torch.arange(16), r(2, 16, 4, 8))),
}


def rotated(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    """Rotary positions by pairs: a row of a table is read by rows of other lengths."""
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos[:, None].repeat_interleave(2, -1) + turned * sin[:, None].repeat_interleave(2, -1)


def ramps(n: int) -> torch.Tensor:
    """Two ramps over a grid; one number chooses, for all elements, how they are made."""
    count, made = torch.scalar_tensor(n), []
    for _ in range(2):
        at = torch.arange(n, dtype=torch.float32)
        made.append(torch.where(count > 1, at / (count - 1) - 0.5, at * 0.0))
    return torch.stack(torch.meshgrid(made, indexing="ij"), -1).permute(1, 0, 2)[None]


def projected(m: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    x, y = grid[..., 0], grid[..., 1]
    at = [m[:, i, 0, None, None] * x + m[:, i, 1, None, None] * y + m[:, i, 2, None, None] for i in range(3)]
    return torch.stack([at[0] / at[2], at[1] / at[2]], -1)


def recurrence(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Each step reads its part of a sequence and of the step before, half of it shifted, and writes its part of the result."""
    h, out = torch.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        a, b = (x[t] + h @ w).chunk(2, 1)
        h = torch.cat([a.tanh(), F.pad(b, (3, 0))[:, :-3].sigmoid() * x[t, :, 1:2]], 1)
        out.append(h.sum(1))
    return torch.stack(out)


PROGRAMS |= {
    "recurrence": (recurrence, (r(7, 3, 10), r(10, 10))),
    "masks": (lambda m, x: (m.any(1), m & (x > 0), x.masked_fill(m, 1).softmax(1)), (r(40, 70) > 0, r(40, 70))),
    "masks_and_not": (lambda m, x: (~m & (x > 0)).double() * 2, (r(40, 70) > 0, r(40, 70))),
    "masks_as_floats": (lambda m, x: ((x > 0) * x.exp().log1p(), m.float() * x, m.long() + 1), (r(40, 70) > 0, r(40, 70))),
    "masks_as_halves": (lambda m, x: (m.bfloat16() + x.bfloat16(), torch.where(m, x, -x)), (r(40, 70) > 0, r(40, 70))),
    "masks_in_rows": (lambda m, x: ((x * m / 0.9 + x).softmax(-1), m.all(1)), (r(40, 70) > 0, r(40, 70))),
    "pools": (
        lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.max_pool2d(x, 2, 2, 0)),
        (r(2, 3, 40, 70),),
    ),
    "parts": (lambda x: (x[2:4].exp(), x[5:7].exp(), x[7:, 3:].exp(), F.pad(x[1:3], (2, 1)).exp()), (r(9, 8),)),
}


def compiled(fn, args, threads: int = 2) -> CompiledGraph:
    plan = stages(aten(fn, *args), threads)[2]
    return compile_plan(plan, config.current)


@cxx
@pytest.mark.parametrize("name", PROGRAMS)
def test_against_eager(name: str) -> None:
    fn, args = PROGRAMS[name]
    graph = compiled(fn, args)
    with torch.no_grad():
        expected = fn(*args)
        for _ in range(2):
            got = graph.call(*args)
    for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
        assert a.stride() == b.stride() or a.numel() < 2
    assert len({a.data_ptr() for a in got}) == len(got)


@cxx
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_are_at_least_as_near_as_eager(dtype: torch.dtype) -> None:
    def fn(x, y):
        return (x * y + x).softmax(-1)

    args = (r(20, 67).to(dtype), r(20, 67).to(dtype))
    wide = fn(*(a.double() for a in args))
    ours = (compiled(fn, args).call(*args)[0].double() - wide).abs().max()
    assert ours <= 1.01 * (fn(*args).double() - wide).abs().max()


@cxx
def test_faults_raise_and_nothing_is_written() -> None:
    graph = compiled(lambda x, y: x // y, (torch.tensor([4, 5]), torch.tensor([2, 1])))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        graph.call(torch.tensor([4, 5]), torch.tensor([2, 0]))
    graph = compiled(lambda i, w: F.embedding(i, w), (torch.tensor([0, 1]), r(3, 4)))
    with pytest.raises(IndexError, match="out of range"):
        graph.call(torch.tensor([0, 3]), r(3, 4))
    graph = compiled(lambda i, w: w[i].sum(-1), (torch.arange(64).view(2, 32), r(64)))
    with pytest.raises(IndexError, match="out of range"):
        graph.call(torch.arange(1, 65).view(2, 32), r(64))


MADE: list[weakref.ref] = []  # the results of the operator below
ALIVE: list[int] = []  # how many of them were there at each of its calls


@torch.library.custom_op("bytejit_tests_emit::plus_one", mutates_args=())
def plus_one(x: torch.Tensor) -> torch.Tensor:
    ALIVE.append(sum(m() is not None for m in MADE))
    result = x + 1
    MADE.append(weakref.ref(result))
    return result


@plus_one.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@cxx
def test_a_library_result_dies_behind_the_last_kernel_that_reads_it() -> None:
    def fn(x):
        for _ in range(5):
            x = plus_one(x.sin())
        return x.cos()

    graph, x = compiled(fn, (r(50),)), r(50)
    expected = fn(x)
    for _ in range(2):  # the call that checks results, and those behind it
        MADE.clear(), ALIVE.clear()
        torch.testing.assert_close(graph.call(x)[0], expected)
        assert ALIVE == [0] * 5


@cxx
def test_threads_of_python_do_not_share_memory() -> None:
    def fn(x, w):
        return ((x @ w).relu() @ w).softmax(-1)

    w = r(64, 64)
    graph = compiled(fn, (r(64, 64), w))
    inputs = [r(64, 64) for _ in range(4)]
    faults = []

    def work(x: torch.Tensor) -> None:
        expected = fn(x, w)
        for _ in range(50):
            if not torch.allclose(graph.call(x, w)[0], expected, atol=1e-5):
                faults.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_equal_kernels_are_one() -> None:
    def fn(x, w):
        for _ in range(6):
            x = (x @ w).softmax(-1)
        return x

    source = emit_cpp(stages(aten(fn, r(8, 8), r(8, 8)))[2])
    assert source.kernels == 1 and len(source.runs) == 6


@pytest.mark.parametrize("steps", (12, 24))
def test_kernels_on_parts_of_a_buffer_are_one(steps: int) -> None:
    """So the text of a recurrent network does not grow with its steps."""
    source = emit_cpp(stages(aten(recurrence, r(steps, 3, 10), r(10, 10)))[2])
    assert len(source.runs) >= steps - 1
    assert source.kernels <= 5


def test_text_is_deterministic() -> None:
    fn, args = PROGRAMS["norm_gelu"]
    texts = {emit_cpp(stages(aten(fn, *args))[2]).units for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "value, dtype, text",
    [
        (0.1, "f32", "0.10000000149011612f"),
        (0.1, "f64", "0.1"),
        (float("nan"), "f32", "BJ_NAN"),
        (-2, "i64", "(-2LL)"),
        (float("-inf"), "f32", "(-BJ_INF)"),
        (1e300, "f32", "BJ_INF"),
        (-(1 << 63), "i64", "(-9223372036854775807LL - 1)"),
        (True, "b8", "true"),
        (-0.0, "f32", "(-0.0f)"),
    ],
)
def test_constants(value, dtype: str, text: str) -> None:
    assert constant(value, dtype) == text


@cxx
@pytest.mark.parametrize(
    "name",
    [
        *("sin_cos", "softmax", "norm_gelu", "double", "pool_last", "pad_last", "gathered_rows", "long_gathered_rows"),
        *("masks", "masks_and_not", "masks_as_floats", "masks_as_halves", "masks_in_rows", "pools"),
    ],
)
def test_marked_loops_become_vector_code(name: str, tmp_path: Path) -> None:
    """GCC's own report: no loop under `#pragma omp simd` is left scalar."""
    options = config.current
    compiler = find_compiler(disk_of(options.cache_path, options.cache_mb), options.cxx)
    if not compiler.gcc:
        pytest.skip("reads the report of GCC")
    if name in ("pool_last", "softmax") and compiler.major == 13:
        pytest.skip("GCC 13 is kept from a pass that makes wrong code, and leaves one loop of it scalar")
    fn, args = PROGRAMS[name]
    text = emit_cpp(stages(aten(fn, *args))[2]).units[0]
    (tmp_path / "unit.cpp").write_text(text)
    command = [compiler.path, *compiler.flags, "-fopt-info-vec-optimized", f"-I{PRELUDE}", "unit.cpp", "-o", "unit.so"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = [line for line in done.stderr.splitlines() if "loop vectorized" in line and line.startswith("unit.cpp")]
    vector = {int(line.split(":")[1]) for line in report}
    rows = text.splitlines()
    marked = [i + 1 for i, line in enumerate(rows) if line.lstrip().startswith("#pragma omp simd")]
    # GCC names a line of the loop's head or the first of its body; a remainder loop over fewer elements
    # than the lanes may be left to the scalar code
    scalar = [rows[i].strip() for i in marked if not vector & set(range(i, i + 4)) and "rest" not in rows[i]]
    assert marked and not scalar, scalar


@cxx
@pytest.mark.parametrize("first", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("second", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("out", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(1, 40, 4, 4), (2, 16, 7, 7)])
def test_rows_kept_between_passes_in_every_mix_of_layouts(first, second, out, shape) -> None:
    # channels_last in, contiguous out: the nests walk columns in blocks and a row is kept for each point of a block
    def fn(x, y, w, b):
        z = (F.gelu(x) + y).permute(0, 2, 3, 1)
        return F.gelu(F.layer_norm(z, (w.numel(),), w, b)).permute(0, 3, 1, 2).contiguous(memory_format=out)

    args = (r(shape).contiguous(memory_format=first), r(shape).contiguous(memory_format=second), r(shape[1]), r(shape[1]))
    torch.testing.assert_close(compiled(fn, args).call(*args)[0], fn(*args))
