"""Plans as Triton: results against eager (on the GPU, or under Triton's interpreter), and the text of kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from graphs import aten

from bytejit.codegen.cuda import rows
from bytejit.codegen.cuda.emit import emit_triton
from bytejit.codegen.cuda.expressions import constant
from bytejit.codegen.cuda.main import runnable
from bytejit.codegen.cuda.schedule import PERSISTENT, SMALL, schedule_cuda
from bytejit.codegen.loops.check import check_plan
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.codegen.loops.plan import Call, Machine, Plan

pytest.importorskip("triton", reason="the Triton kernels need triton")
from triton_run import DEVICE, run  # noqa: E402

pytestmark = pytest.mark.triton
r = torch.randn
# SMs of the device that a program is planned for, by default 4: few, so that small ranges take every way of running
SMS = {"softmax_split": 24, "softmax_long_columns": 1}
PROGRAMS = {
    "sin_cos": (lambda x, y: torch.sin(x) + torch.cos(y), (r(10000), r(10000))),
    "huge_sines": (lambda x, y: torch.sin(x * 1e7) + torch.cos(y * 1e30), (r(3001), r(3001))),
    "broadcast": (lambda x, y, z: x * y + z, (r(40, 1, 7), r(9, 1), r(7))),
    "softmax": (lambda x: x.softmax(-1), (r(64, 131),)),
    "softmax_short": (lambda x: x.softmax(-1), (r(300, 5),)),
    "softmax_looped": (lambda x: x.softmax(-1), (r(16, 40000),)),
    "softmax_split": (lambda x: x.softmax(-1), (r(16, 33000),)),
    "softmax_columns": (lambda x: x.softmax(0), (r(30, 70),)),
    "softmax_long_columns": (lambda x: x.softmax(0), (r(700, 70),)),
    "norm_gelu": (lambda x, w, b: F.gelu(F.layer_norm(x + x.sin(), (128,), w, b)), (r(64, 128), r(128), r(128))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (96,), w), (r(33, 96), r(96))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b).relu(), (r(3, 16, 6, 6), r(16), r(16))),
    "columns": (lambda x: ((x * x).sum(0), x.amax(0), x.argmin(0)), (r(300, 77),)),
    "long_columns": (lambda x: ((x * x).sum(0), x.amax(0), x.argmin(0)), (r(2000, 77),)),
    "var": (lambda x: (x.var(1), x.std(), x.mean(0)), (r(30, 50),)),
    "matmul": (lambda x, w: (x @ w.t()).relu().sum(1), (r(32, 16), r(8, 16))),
    "pad_cat": (lambda x: torch.cat([F.pad(x, (1, 1)), x.flip(1)[:, :2]], 1), (r(4, 6),)),
    "arg": (lambda x: (x.argmax(1), x.argmin(0), x.argmax()), (r(40, 70),)),
    "arg_split": (lambda x: (x.argmax(), x.argmin(), x.amax()), (r(70000),)),
    "arg_ties": (lambda x: (x.argmax(1), x.argmin(1)), (torch.randint(0, 3, (50, 40)),)),
    "scan": (lambda x: x.cumsum(1), (r(5, 33),)),
    "scan_looped": (lambda x: x.cumsum(1) * 2, (r(3, 9000).double(),)),
    "scan_columns": (lambda x: (x.cumsum(0), x.sum(0)), (r(40, 20),)),
    "cumprod": (lambda x: x.cumprod(1), (1 + r(5, 33) / 10,)),
    "ints": (lambda x, y: (x // y, x % y, (x + y).sum()), (torch.randint(-50, 50, (100,)), torch.randint(1, 9, (100,)))),
    "bools": (lambda x: ((x > 0).any(1), (x > 0).all(), torch.where(x > 0, x, -x)), (r(20, 30),)),
    "prod": (lambda x: (x.prod(1), x.amin(1)), (1 + r(20, 30) / 9,)),
    "transpose": (lambda x, y: x.t() + y, (r(100, 120), r(120, 100))),
    "transpose_batched": (lambda x, y: x.transpose(1, 2) * y, (r(3, 40, 50), r(3, 50, 40))),
    "channels_last": (lambda x, y: x.contiguous(memory_format=torch.channels_last) + y, (r(2, 40, 9, 9), r(40, 1, 1))),
    "long_sum": (lambda x: (x.double().sum(), x.amax(), x.abs().mean()), (r(300, 401),)),
    "mean_2d": (lambda x: x.mean((2, 3)), (r(4, 8, 14, 14),)),
    "embedding": (lambda i, w: F.embedding(i, w) * 2, (torch.randint(0, 30, (4, 7)), r(30, 16))),
    "gather": (lambda x, i: x.gather(1, i) + 1, (r(6, 8), torch.randint(0, 8, (6, 5)))),
    "embedding_norm": (lambda i, w: F.layer_norm(F.embedding(i, w), (16,)), (torch.randint(0, 30, (4, 7)), r(30, 16))),
    "pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (r(2, 3, 17, 17),)),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (r(2, 3, 7, 9),)),
    "conv": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), (r(1, 3, 8, 8), r(4, 3, 3, 3), r(4))),
    "double": (lambda x: x.exp().log1p().tanh(), (r(1000).double(),)),
    "scalar": (lambda x: x * 2 + 1, (torch.tensor(3.0),)),
    "strided": (lambda x: x[::2, 1:] * 2, (r(9, 9),)),
    "empty_sum": (lambda x: (x.sum(1), x.relu()), (r(4, 0),)),
    "nan_max": (lambda x: (x.amax(1), x.amin(1), x.argmax(1)), (torch.where(r(9, 20) > 1, float("nan"), r(9, 20)),)),
    "logsumexp": (lambda x: (torch.logsumexp(x, 1), x.log_softmax(1)), (r(20, 50),)),
    "flip_rows": (lambda x: (x - x.mean(1, keepdim=True)).flip(1) * 2, (r(9, 20),)),
}


def planned(fn, args, sms: int = 4, room: int = PERSISTENT) -> Plan:
    loops = fuse(lower(aten(fn, *args)), launches=room != PERSISTENT)
    return check_plan(schedule_cuda(loops, Machine("cuda", sms, 16, 50 << 20), room))


@pytest.mark.parametrize("name", PROGRAMS)
def test_against_eager(name: str) -> None:
    fn, args = PROGRAMS[name]
    args = tuple(a.to(DEVICE) for a in args)
    plan = planned(fn, args, SMS.get(name, 4))
    got, fault = run(plan, emit_triton(plan), list(args))
    expected = fn(*args)
    for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
        assert a.stride() == b.stride() or a.numel() < 2
    assert fault == 0


@pytest.mark.parametrize("name", ["sin_cos", "softmax", "softmax_short", "norm_gelu", "columns", "transpose", "scan"])
def test_alternatives_return_the_same(name: str) -> None:
    fn, args = PROGRAMS[name]
    args = tuple(a.to(DEVICE) for a in args)
    plan = planned(fn, args)
    source = emit_triton(plan)
    most = max(len(one.alternatives) for one in source.launches)
    assert most
    expected = fn(*args)
    for i in range(most):
        got, _ = run(
            plan, source, list(args), configs=lambda one: (one.config, *one.alternatives)[min(i + 1, len(one.alternatives))]
        )
        for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


def modes(name: str) -> list[str]:
    fn, args = PROGRAMS[name]
    steps = planned(fn, args, SMS.get(name, 4)).steps
    return [("looped " if s.schedule.looped else "") + s.schedule.mode for s in steps if isinstance(s, Call)]


def test_ways_of_running() -> None:
    assert modes("sin_cos") == ["points"]
    assert modes("transpose") == modes("transpose_batched") == ["tiles"]
    assert modes("softmax") == modes("norm_gelu") == modes("softmax_columns") == ["rows"]
    assert modes("softmax_looped") == modes("softmax_long_columns") == ["looped rows"]
    assert modes("softmax_split") == modes("arg_split") == ["looped split"]


def normalised(x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m = x.mean(0)
    v = (x - m).square().sum(0) / (x.shape[0] - 1)
    return (x - m) * torch.rsqrt(v + 1e-5) * w, mean * 0.9 + m * 0.1, v.sqrt()


IN_PARTS = {
    "rows": (lambda x: x - x.mean(1, True), (r(3, 50257),)),
    "all": (lambda x: x / x.norm(), (r(300, 500),)),
    "columns": (lambda x: x - x.mean(0), (r(5000, 33),)),
    "moments": (normalised, (r(5000, 33), r(33), r(33))),
    "best": (lambda x: (x - x.gather(0, x.argmax(0, True)), x.argmin(0)), (r(5000, 20),)),
    "truth": (lambda x: x * (x > 3).any(0), (r(5000, 20),)),
}


@pytest.mark.parametrize("name", IN_PARTS)
def test_parts_that_many_programs_need_are_combined_once(name: str, monkeypatch) -> None:
    fn, args = IN_PARTS[name]
    args = tuple(a.to(DEVICE) for a in args)
    plan = check_plan(schedule_cuda(fuse(lower(aten(fn, *args)), launches=True), Machine("cuda", 24, 16, 50 << 20)))
    few = len(emit_triton(plan).launches)
    monkeypatch.setattr(rows, "MOST_COMBINED", 0)
    source = emit_triton(plan)
    assert any(s.schedule.mode == "split" for s in plan.steps if isinstance(s, Call)) and len(source.launches) == few + 1
    got, _ = run(plan, source, list(args))
    expected = fn(*args)
    for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["softmax", "norm_gelu", "rms_norm", "logsumexp"])
def test_rows_are_read_once(name: str) -> None:
    fn, args = PROGRAMS[name]
    text = emit_triton(planned(fn, args)).text
    loads = [line.split("=")[1].split(",")[0] for line in text.splitlines() if "tl.load" in line]
    assert len(loads) == len(set(loads)) and "barrier" not in text


def odd_rows(n: int) -> torch.Tensor:
    """Rows whose greatest element or mean is not finite, or moves."""
    inf = float("inf")
    x = r(9, n)
    x[0], x[1, 5], x[2, 7], x[3], x[4, :-1], x[5, ::2] = -inf, inf, float("nan"), inf, -inf, -inf
    x[6], x[7, -1], x[8] = x[6] * 1e30, 100.0, x[8] + 1000
    return x


CARRIED = {
    "softmax": (lambda x: x.softmax(-1), "expsum"),
    "log_softmax": (lambda x: x.log_softmax(-1), "expsum"),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), "expsum0"),
    "moments": (lambda x: ((x - x.mean(-1, keepdim=True)).square().mean(-1), x.mean(-1)), "moments"),
    "softmax_more": (lambda x: (x.softmax(-1), x.amax(-1), x.sum(-1)), "expsum"),
    "softmax_columns": (lambda x: x.t().contiguous().softmax(0), "expsum"),
}


@pytest.mark.parametrize(
    "name, n, sms",
    [
        *(pytest.param(name, 9001, 1, id=f"{name}-looped") for name in CARRIED),
        *(pytest.param(name, 33001, 24, id=f"{name}-split") for name in ("softmax", "logsumexp", "moments")),
    ],
)
def test_long_rows_are_read_once_less(name: str, n: int, sms: int) -> None:
    fn, kind = CARRIED[name]
    x = odd_rows(n).to(DEVICE)
    plan = planned(fn, (x,), sms, SMALL)
    call = max((s for s in plan.steps if isinstance(s, Call)), key=lambda s: len(s.kernel.nests))
    assert call.schedule.looped and kind in [r.kind for p in call.kernel.nests for r in p.reduces]
    got, _ = run(plan, emit_triton(plan), [x])
    expected = fn(x)
    for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize(
    "fn, shape, mode",
    [
        (lambda x: x.softmax(-1), (1, 50257), "split"),
        (lambda x: x.softmax(-1), (3, 9001), "rows"),
        (lambda x: x / x.norm(), (300, 1000), "split"),
        (lambda x: x - x.mean(0), (3000, 33), "split"),
    ],
)
def test_few_long_rows_are_one_kernel_on_a_gpu(fn, shape: tuple, mode: str) -> None:
    plan = planned(fn, (r(*shape),), 132, PERSISTENT - 1)
    (call,) = plan.steps
    assert call.schedule.mode == mode and len(emit_triton(plan).launches) == (2 if mode == "split" else 1)


@pytest.mark.parametrize(
    "fn, shape",
    [
        (lambda x: x.softmax(-1), (64, 50000)),
        (lambda x: x.softmax(-1), (64, 2000)),
        (lambda x: F.layer_norm(x + x.sin(), (1000,)), (64, 1000)),
    ],
)
def test_a_temp_that_stays_in_registers_takes_no_memory(fn, shape: tuple) -> None:
    plan = planned(fn, (r(*shape),), 132, PERSISTENT - 1)
    assert not plan.offsets and not plan.arena


@pytest.mark.parametrize(
    "dtype, columns, turn",
    [(torch.float32, 50257, (8192, 32)), (torch.bfloat16, 50257, (8192, 16)), (torch.bfloat16, 40001, (4096, 16))],
)
def test_long_rows_take_what_stays_in_the_cache(dtype: torch.dtype, columns: int, turn: tuple[int, int]) -> None:
    """Of 40,001 elements many remain after whole iterations of 8,192."""
    plan = planned(lambda x: x.softmax(-1), (r(300, columns).to(dtype),), 132, PERSISTENT - 1)
    tile = plan.steps[0].schedule.tiles[0]
    assert (tile["R"], tile.warps) == turn


@pytest.mark.parametrize("columns, looped", [(32001, True), (32000, False), (16001, False)])
def test_long_rows_that_are_not_aligned_are_a_loop(columns: int, looped: bool) -> None:
    plan = planned(lambda x: x.log_softmax(-1), (r(300, columns),), 132, PERSISTENT)
    assert plan.steps[0].schedule.looped == looped


def test_what_leans_on_something_else_stays_where_it_is() -> None:
    def fn(x):
        top = x.amax(-1, keepdim=True)
        return (x * 2 - top).exp().sum(-1), (x - x.sum(-1, keepdim=True) / 7).square().sum(-1), (x + 1 - top).exp().sum(-1)

    args = (r(3, 9001).to(DEVICE),)
    plan = planned(fn, args, 1, SMALL)
    kinds = {r.kind for s in plan.steps if isinstance(s, Call) for p in s.kernel.nests for r in p.reduces}
    assert kinds == {"amax", "sum"}
    for a, b in zip(run(plan, emit_triton(plan), list(args))[0], fn(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_equal_kernels_are_one() -> None:
    def fn(x, w):
        for _ in range(6):
            x = (x @ w).softmax(-1)
        return x

    source = emit_triton(planned(fn, (r(8, 8), r(8, 8))))
    assert source.kernels == 1 and len(source.launches) == 6


def test_masks_only_where_sizes_do_not_divide() -> None:
    text = emit_triton(planned(lambda x: x.sin(), (r(1 << 20),))).text
    assert "xm" not in text and "xm" in emit_triton(planned(lambda x: x.sin(), (r(1000),))).text


def test_text_is_deterministic() -> None:
    fn, args = PROGRAMS["norm_gelu"]
    assert len({emit_triton(planned(fn, args)).text for _ in range(2)}) == 1


def test_a_bad_index_sets_the_fault() -> None:
    args = (torch.tensor([0, 3], device=DEVICE), r(3, 4).to(DEVICE))
    plan = planned(lambda i, w: F.embedding(i, w), (torch.tensor([0, 1]), r(3, 4)))
    source = emit_triton(plan)
    assert source.launches[0].raises
    (got,), fault = run(plan, source, list(args))
    assert fault == 2 and torch.equal(got, args[1][:1].expand(2, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_are_computed_in_f32(dtype: torch.dtype) -> None:
    def fn(x, y):
        return (x * y + x).softmax(-1)

    args = (r(20, 67).to(DEVICE, dtype), r(20, 67).to(DEVICE, dtype))
    plan = planned(fn, args)
    wide = fn(*(a.double() for a in args))
    ours = (run(plan, emit_triton(plan), list(args))[0][0].double() - wide).abs().max()
    assert ours <= 1.01 * (fn(*args).double() - wide).abs().max()


@pytest.mark.parametrize(
    "value, dtype, text",
    [
        (0.1, "f32", "tl.full((), 0.10000000149011612, tl.float32)"),
        (True, "b8", "tl.full((), True, tl.int1)"),
        (float("-inf"), "f64", 'tl.full((), float("-inf"), tl.float64)'),
        (1e300, "f32", 'tl.full((), float("inf"), tl.float32)'),
        (-0.0, "f32", "tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)"),
        (3, "bf16", "tl.full((), 3.0, tl.float32).to(tl.bfloat16)"),
    ],
)
def test_constants(value, dtype: str, text: str) -> None:
    assert constant(value, dtype) == text


def test_a_module_runs_by_itself(tmp_path) -> None:
    def fn(i, w, x):
        return F.layer_norm(F.embedding(i, w), (16,)), x.sum(), x.amax()

    plan = planned(fn, (torch.randint(0, 30, (4, 7)), r(30, 16), r(70000)))
    path = tmp_path / "kernel.py"
    path.write_text(runnable(plan, emit_triton(plan)))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("GB/s") >= 2 and "k0" in done.stdout and "input" in path.read_text()
