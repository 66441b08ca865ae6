"""Ways of running that small sizes do not take by themselves: the limits of `schedule_cuda` made small, so that short rows are
looped, split and walked in columns; and the width of offsets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from dynamic import traced
from graphs import aten
from marks import interpreted

import bytejit
from bytejit.backends import cuda
from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.cuda import row_points, tiles
from bytejit.codegen.cuda import schedule as way
from bytejit.codegen.cuda.emit import emit_triton
from bytejit.codegen.loops.check import check_plan
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.codegen.loops.plan import Call, Machine, Plan
from bytejit.codegen.loops.simplify import loads
from bytejit.common.options import config
from bytejit.common.spec import contiguous_stride
from bytejit.fake.rules.core import FakeStorage, Meta
from bytejit.fake.tensor import make
from bytejit.kernels.build_triton import Binaries, KernelJob, parameters, split_module

pytest.importorskip("triton", reason="the Triton kernels need triton")
from triton_run import DEVICE, run  # noqa: E402

pytestmark = pytest.mark.triton
numbers = torch.Generator().manual_seed(0)


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=numbers)


def ints(low: int, high: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=numbers)


def norm_of_sum(x, y, w):
    """Rows of which one operand, and the sum, lie along the rows in memory."""
    h = x.transpose(1, 2) + y
    return h, F.layer_norm(h, (w.shape[0],), w)


#: sms, room, and the limits of schedule_cuda that are set
WAYS = {
    "persistent": (4, 4096, {"ROW": 4, "TILE": 16, "LOOP": 4096}),
    "looped": (1, 8, {"ROW": 4, "TILE": 16, "LOOP": 16, "WIDE_LOOP": (8, 32), "TWO_LOOPS": (32, 16), "LONG": 1 << 20}),
    "split": (5, 8, {"LOOP": 8, "LONG": 16, "COLUMNS": 16}),
    "columns": (2, 64, {"LOOP": 64, "LONG": 1 << 20, "COLUMNS": 16, "TILE": 128}),
}
PROGRAMS = {
    "norm_chain": (lambda x, w: F.layer_norm(F.gelu(x).softmax(-1) + w, (37,), w), (r(5, 37), r(37))),
    "moments_far_off": (lambda x: (x.var(1), x.std(0), x - x.mean()), (r(9, 33) + 200,)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w).relu().sum((0, 2)), (r(3, 4, 5, 3), r(4))),
    "columns": (lambda x: (x.softmax(0), x.argmax(0), x.cumsum(0), x.flip(0) - x.amax(0)), (r(17, 9),)),
    "all_of_a_row": (lambda x: (x.sum(1), x.prod(1), x.cumsum(1), x.cumprod(1)), (ints(-(2**62), 2**62, (3, 30)),)),
    "ties": (lambda x: (x.argmax(1), x.argmin(1), x.max(0)[1], x.argmax()), (ints(0, 2, (7, 33)).half(),)),
    "no_number": (
        lambda x: (x.softmax(1), x.logsumexp(1), x.argmax(1), x.amin(1)),
        (torch.tensor([[1.0, float("inf"), -0.0], [float("nan"), 2, -1], [-float("inf")] * 3]).repeat(1, 5),),
    ),
    "no_rows": (lambda x: (F.layer_norm(x, (40,)), x.cumsum(1), x.sum(1)), (r(3, 0, 40),)),
    "rows_of_one": (lambda x: (x.softmax(1), x.argmax(1), x.cumsum(1), x.var(1, unbiased=False)), (r(33, 1),)),
    "bytes": (lambda x: (x.sum(1), x.amax(0), x.prod(1), x.cumsum(1), (x > 9).any(1)), (ints(0, 255, (6, 35)).byte(),)),
    "bytes_wrap": (
        lambda x: (x.sum(1, dtype=torch.uint8) * 3.5, x.cumsum(1, dtype=torch.int8) / 9, x.sum(dtype=torch.int16) // 7),
        (ints(0, 999, (5, 35)),),
    ),
    "turned": (lambda x: (x.t() - x.mean(1)).flip(0).softmax(1), (r(31, 18),)),
    "across": (lambda x, y, w: norm_of_sum(x, y, w), (r(3, 24, 67), r(3, 67, 24), r(24))),
    "gathered": (lambda x, i: F.rms_norm(x[i] * 2, (19,)).sum(1), (r(6, 19), ints(-6, 6, (4, 3)))),
}


def planned(fn, args, sms: int = 4, room: int = way.PERSISTENT) -> Plan:
    return check_plan(way.schedule_cuda(fuse(lower(aten(fn, *args)), launches=True), Machine("cuda", sms, 16, 50 << 20), room))


def set_limits(monkeypatch: pytest.MonkeyPatch, limits: dict) -> None:
    """Let `schedule_cuda` have these limits."""
    for limit, value in limits.items():
        for module in (way, tiles):
            monkeypatch.setattr(module, limit, value, raising=False)


@pytest.mark.parametrize("name", WAYS)
def test_every_way_returns_as_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sms, room, limits = WAYS[name]
    set_limits(monkeypatch, limits)
    taken = set()
    for what, (fn, args) in PROGRAMS.items():
        args = [a.to(DEVICE) for a in args]
        plan = planned(fn, args, sms, room)
        taken |= {("looped " if s.schedule.looped else "") + s.schedule.mode for s in plan.steps if isinstance(s, Call)}
        got, fault = run(plan, emit_triton(plan), args)
        expected = fn(*args)
        for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=5e-5, msg=lambda m, what=what: f"{what}: {m}")
        assert fault == 0
    assert {"persistent": "rows", "looped": "looped rows", "split": "looped split", "columns": "looped rows"}[name] in taken


POINTWISE = {
    "of a row": (lambda x, s: (x - s[:, None].log()).exp(), (r(7, 21), r(7).abs())),
    "of a column": (lambda x, m, v, w: (x - m) * (v + 1e-5).rsqrt() * w, (r(33, 5), r(5), r(5).abs(), r(5))),
    "of both, masked": (
        lambda x, s, w: F.pad((x - s[:, None].log()) * w.exp(), (1, 2, 0, 3)).relu(),
        (r(9, 21), r(9).abs(), r(21)),
    ),
    "two dims": (lambda x, s: x[:, 1:].sigmoid() * s.exp()[:, :, None], (r(3, 9, 12), r(3, 8))),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_work_of_a_row_or_a_column_is_done_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("LEAST", "SHORT", "ROWS", "MUCH"):
        monkeypatch.setattr(row_points, limit, 2)
    fn, args = POINTWISE[name]
    args = [a.to(DEVICE) for a in args]
    plan = planned(fn, args)
    (step,) = (s for s in plan.steps if isinstance(s, Call))
    assert step.schedule.mode == "rows" and step.kernel.axes and not any(p.reduces for p in step.kernel.nests)
    (got,), fault = run(plan, emit_triton(plan), args)
    torch.testing.assert_close(got, fn(*args))
    assert fault == 0


def test_elements_that_share_nothing_stay_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("LEAST", "SHORT", "ROWS"):
        monkeypatch.setattr(row_points, limit, 2)
    (step,) = planned(lambda x, b: F.gelu(x + b), (r(9, 21), r(21))).steps
    assert step.schedule.mode == "points"


@pytest.mark.parametrize(("channels", "mode"), [(128, "rows"), (240, "rows"), (96, "points"), (144, "points")])
def test_rows_that_leave_lanes_empty_stay_flat(channels: int, mode: str) -> None:
    """A batch norm in evaluation and an activation behind a convolution that has its channels innermost."""
    fn, _ = POINTWISE["of a column"]
    x, *numbers = torch.empty(16384, channels), *(torch.empty(channels) for _ in range(3))
    (step,) = planned(fn, (x, *numbers)).steps
    assert step.schedule.mode == mode


def test_places_that_follow_each_other_are_one_variable() -> None:
    """So the compiler sees that neighbouring lanes read neighbouring elements, in rows of any length."""
    fn, _ = POINTWISE["of a column"]
    numbers = [torch.empty(96) for _ in range(3)]
    text = emit_triton(planned(fn, (torch.empty(16384, 96), *numbers))).text
    assert "tl.load(p0 + x)" in text and "tl.store(p4 + x, " in text and text.count("x % 96") == 1
    text = emit_triton(planned(lambda x, s: x[:, 1:] * s[:, None, None], (torch.empty(40, 9, 50, 30), torch.empty(8)))).text
    assert "x % 12000" in text, text


def test_nests_agree_on_the_axis_that_suits_all_their_accesses() -> None:
    """A group norm of row-major images, which another nest writes with the channels innermost: the pixels stay innermost."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.silu(F.group_norm(x * 2, 2)).contiguous(memory_format=torch.channels_last)

    for step in planned(norm, (torch.empty(8, 48, 32, 32),)).steps:
        for at, sizes in ((e.attr[0], p.axes) for p in step.kernel.nests if p.axes for e in loads(p.roots()) if e.name == "p0"):
            assert at.coefficient(sizes[-1].name) == 1, step.kernel


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 8), (torch.float16, 16)])
def test_rows_that_lie_across_share_a_program(dtype: torch.dtype, rows: int) -> None:
    """So many that they fill the sectors of memory, where there are programs enough."""
    args = [t.to(dtype) for t in (r(8, 96, 500), r(8, 500, 96), r(96))]
    (step,) = (s for s in planned(norm_of_sum, args).steps if isinstance(s, Call))
    assert step.schedule.tiles[0]["X"] == rows
    long = [t.to(dtype) for t in (r(2, 768, 500), r(2, 500, 768), r(768))]
    assert planned(norm_of_sum, long).steps[-1].schedule.tiles[0]["X"] == rows
    assert planned(norm_of_sum, [long[1].transpose(1, 2), *long[1:]]).steps[-1].schedule.tiles[0]["X"] == 1


# ---- the width of offsets and of what is computed of positions ------------------------------------------------------
def plan_of(fn, *fakes) -> Plan:
    gm = torch.fx.symbolic_trace(fn)
    gm.recompile()
    return way.schedule_cuda(fuse(lower(normalise(gm, list(fakes))), launches=True), Machine("cuda", 132, 16, 50 << 20))


def fake(*shape: int, stride: tuple[int, ...] | None = None, dtype: torch.dtype = torch.uint8):
    return make(Meta(shape, stride or contiguous_stride(shape), 0, dtype, torch.device("cpu"), FakeStorage(1 << 40)))


MANY = 1 << 31
OFFSETS = {
    "a range of points": (lambda x: x + 1, [fake(MANY)], True),
    "one that ends below it": (lambda x: x + 1, [fake(MANY - 2 * way.MARGIN)], False),
    "a stride": (lambda x: x + 1, [fake(3, 4, stride=(MANY, 1))], True),
    "rows": (lambda x: x.float().softmax(-1), [fake(1 << 17, 1 << 15)], True),
    "fewer rows": (lambda x: x.float().softmax(-1), [fake(1 << 15, 1 << 15)], False),
    "a row": (lambda x: x.argmax(), [fake(4 * MANY)], True),
    "a square": (lambda x: x.t().contiguous(), [fake(1 << 16, 1 << 16)], True),
    "rows of a table": (lambda w, i: F.embedding(i, w), [fake(1 << 22, 1024, dtype=torch.half), fake(7, dtype=torch.long)], True),
    "the head of a large buffer": (lambda x: x[:100] + 1, [fake(MANY)], False),
    "its tail": (lambda x: x[-100:] + 1, [fake(MANY + 200)], True),
    "what a small offset is computed of": (lambda x: x.expand(1 << 16, 1 << 16).reshape(-1)[::65537] + 1, [fake(1 << 16)], True),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_offsets_are_i64_where_they_may_pass_i32(name: str) -> None:
    fn, fakes, wide = OFFSETS[name]
    plan = plan_of(fn, *fakes)
    calls = [s.schedule.wide for s in plan.steps if isinstance(s, Call)]
    assert any(calls) is wide
    assert ("tl.program_id(0).to(tl.int64)" in emit_triton(plan).text) is wide


POSITIONS = {
    "a long step": lambda x: torch.arange(0, 5_000_000_000, 500_000_000, device=x.device) + x,
    "down": lambda x: torch.arange(5_000_000_000, 0, -500_000_000, device=x.device) + x,
    "of two axes": lambda x: torch.arange(100, device=x.device)[:, None] * 123456789 + torch.arange(10, device=x.device) * 7 + x,
    "divided": lambda x: (torch.arange(10, device=x.device) * 1_500_000_000) // 7 % 1000 + x,
}


@pytest.mark.parametrize("name", POSITIONS)
def test_values_of_positions_are_i64(name: str) -> None:
    fn, args = POSITIONS[name], [torch.arange(10, device=DEVICE)]
    plan = planned(fn, args)
    got, _ = run(plan, emit_triton(plan), args)
    assert torch.equal(got[0], fn(*args))


def test_values_of_sizes_are_i64() -> None:
    """A product of a size that is known at the call only, past 31 bits"""

    def fn(x):
        return x * (x.shape[0] * 1_000_000_000) + x.shape[0] ** 2 * 300_000_000

    args = [torch.arange(10, device=DEVICE)]
    gm, fakes, _ = traced(fn, args, (("s0",),))
    plan = way.schedule_cuda(fuse(lower(normalise(gm, fakes))), Machine("cuda", 4, 16, 50 << 20))
    for n in (10, 3, 50):
        x = torch.arange(n, device=DEVICE)
        got, _ = run(plan, emit_triton(plan), [n, x], {"s0": n})
        assert torch.equal(got[0], fn(x))


def test_a_shift_around_a_size_that_is_known_at_the_call_only_compiles(tmp_path) -> None:
    """The text of an offset that may be negative: its division asks for a dtype, which a bare number has none of; the
    interpreter does not mind"""
    gm, fakes, _ = traced(lambda x: x.roll(1, 0) * 2, [torch.randn(6)], (("s0",),))
    plan = way.schedule_cuda(fuse(lower(normalise(gm, fakes))), Machine("cuda", 4, 16, 50 << 20))
    source = emit_triton(plan)
    one, texts = source.launches[0], split_module(source.text)
    names = parameters(texts[one.kernel], one.kernel)
    job = KernelJob(
        texts[one.kernel],
        one.kernel,
        tuple((n, a.type) for n, a in zip(names, one.args)),
        one.constants,
        (),
        one.warps,
        one.stages,
        80,
    )
    with config.patch(cache_dir=str(tmp_path)):
        (built,) = Binaries(config.current).of([job])
    assert not isinstance(built, str), built
    x = torch.randn(11, device=DEVICE)
    got, _ = run(plan, emit_triton(plan), [11, x], {"s0": 11})
    assert torch.equal(got[0], x.roll(1, 0) * 2)


def center_and_update(x, w, v):
    """A column's sum is subtracted from its elements, and moves two parameters of the column, one of which the sum needs."""
    total = (x * w).sum(0)
    v.mul_(0.5).add_(total)
    w.sub_(total * 0.25)
    return x - total


@interpreted
@pytest.mark.parametrize("name", WAYS)
def test_updates_wait_for_the_last_reader(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel overwrites in an input is stored when no program reads it any more: split, after all other launches."""
    sms, room, limits = WAYS[name]
    set_limits(monkeypatch, limits)
    made: list[Plan] = []
    schedule = way.schedule_cuda
    monkeypatch.setattr(cuda, "INTERPRETED", Machine("cuda", 2 * sms, 16, 50 << 20))
    monkeypatch.setattr(cuda, "schedule_cuda", lambda loops, machine, _: made.append(schedule(loops, machine, room)) or made[-1])
    monkeypatch.setattr(cuda.InterpretedTarget, "plan_key", lambda self: None)  # no plan of other limits, from disk
    compiled = bytejit.compile(center_and_update, options={"interpret": True})
    wanted = [r(300, 5), r(5), r(5)]
    given = [t.clone() for t in wanted]
    for _ in range(2):
        torch.testing.assert_close(compiled(*given), center_and_update(*wanted), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)
    modes = [s.schedule.mode for s in made[0].steps if isinstance(s, Call)]
    assert ("split" in modes) == (name == "split"), modes
    assert all(m.done for m in made[0].mutations)
