"""Every pointwise row as C++ against its torch reference: dtypes, nan, infinities, signed zeros."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.backends.cpu import compile_plan
from bytejit.codegen.loops.expr import Cons
from bytejit.codegen.loops.index import var
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest, Result, Store, View
from bytejit.codegen.loops.plan import Call, NestSchedule, Plan, Schedule
from bytejit.codegen.ops.table import Op, table
from bytejit.common.dtypes import DTYPES, FLOATS, INTS, NARROW
from bytejit.common.options import config

pytestmark = pytest.mark.cxx
N = 203  # no multiple of any number of lanes
IR_ONLY = {"narrow", "bound", "inside", "to", "select"}
# eager's own float kernels are this far from the float64 result: the rows are held to float64, not to eager
ULP = {"lgamma": 8, "digamma": 64, "tan": 4, "erfinv": 4}
ULP_F64 = {"digamma": 20}  # of ours and of eager's both: 1 to 9 each, as terms cancel below 3


def rows() -> list[Op]:
    every = table().by_name.values()
    return [r for r in every if r.kind == "pointwise" and r.ref is not None and r.name not in IR_ONLY]


def operands(row: Op, dtype: str) -> list[torch.Tensor]:
    """Random values inside the row's domain, then every pair of special values."""
    g = torch.Generator().manual_seed(7)
    t = DTYPES[dtype].torch
    out = []
    for k in range(row.arity):
        if dtype == "b8":
            out.append(torch.randint(0, 2, (N,), generator=g).bool())
        elif dtype in INTS:
            low, high = (0 if dtype == "u8" or row.domain[0] >= 0 else -9), 9
            x = torch.randint(low, max(int(min(row.domain[1], high)), low + 1) + 1, (N,), generator=g).to(t)
            out.append(torch.where(x == 0, torch.ones_like(x), x) if row.raises and k == 1 else x)
        else:
            x = torch.rand(N, generator=g, dtype=torch.float64) * (row.domain[1] - row.domain[0]) + row.domain[0]
            values = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan")]
            special = torch.tensor(values, dtype=torch.float64)
            x[:49] = special.repeat(7) if k == 0 else special.repeat_interleave(7)
            out.append(x.to(t))
    return out


def ends(row: Op, dtype: str) -> list[torch.Tensor]:
    """Pairs of integers at the ends of the dtype, and around the widths of dtypes."""
    info = torch.iinfo(DTYPES[dtype].torch)
    low = [info.min, info.min + 1, -9, -8, -1, 0, 1] if info.min < 0 else [0, 1, 2, 9, 15, 16, 254]
    values = torch.tensor([*low, 7, 8, 31, 32, 63, 64, info.max], dtype=torch.int64).to(DTYPES[dtype].torch)
    pairs = (values.repeat(15)[:N], values.repeat_interleave(15)[:N], values.repeat(15).flip(0)[:N])[: row.arity]
    if row.raises:  # what a processor cannot divide: by 0, and the least number by -1
        return [pairs[0], torch.where((pairs[1] == 0) | (pairs[1] == -1), 3, pairs[1])]
    return list(pairs)


def plan_of(made: list[tuple[Op, str, list[torch.Tensor]]]) -> Plan:
    """One kernel a row, each on inputs of its own: one unit for all."""
    cons, buffers, inputs, steps, results = Cons(), {}, [], [], []
    for i, (row, dtype, _) in enumerate(made):
        names = [f"x{i}_{k}" for k in range(row.arity)]
        at = (var("i0"),)
        loaded = []
        for name in names:
            buffers[name] = Buffer(name, (N,), (1,), dtype, "input")
            inputs.append(name)
            e = cons.load(name, at, dtype)
            loaded.append(cons.op("to", (e,), "f32") if dtype in NARROW else e)
        work = "f32" if dtype in NARROW else dtype
        result = "b8" if row.dtype == "bool" else "f32" if row.dtype == "float" and work not in FLOATS else work
        if row.dtype == "float" and work not in FLOATS:
            loaded = [cons.op("to", (e,), "f32") for e in loaded]
        value = cons.op(row.name, tuple(loaded), result)
        stored = dtype if dtype in NARROW and result == "f32" else result
        if stored != result:
            value = cons.op("narrow", (value,), stored)
        out = f"y{i}"
        buffers[out] = Buffer(out, (N,), (1,), stored, "output")
        kernel = Kernel(f"k{i}", (), (LoopNest((Axis("i0", N),), (Store(out, at, value),)),), (row.name,))
        steps.append(Call(kernel, Schedule((), 1, (NestSchedule(("i0",), "i0", 8),)), tuple(names), (out,)))
        results.append(Result(View(out, (N,), (1,))))
    return Plan(tuple(inputs), buffers, tuple(steps), tuple(results), (), {}, 0, "cpu")


def check(row: Op, dtype: str, args: list[torch.Tensor], got: torch.Tensor) -> None:
    """Equal to torch for ints, bools and what torch rounds once; else near to the float64 result."""
    expected = row.ref(*args)
    if not got.dtype.is_floating_point:
        assert torch.equal(got, expected.to(got.dtype)), f"{row.name} {dtype}"
        return
    wide = row.ref(*(a.double() if a.is_floating_point() else a for a in args)).double()
    eps = torch.finfo(got.dtype).eps * (ULP.get(row.name, 2) if got.dtype == torch.float32 else ULP_F64.get(row.name, 4))
    if got.dtype == torch.float64:
        wide = expected
    same = (got == expected) | (got.isnan() & expected.isnan())
    near = (got.double() - wide).abs() <= eps * wide.abs() + torch.finfo(got.dtype).tiny
    bad = ~(same | near)
    if bad.any():
        i = int(bad.nonzero()[0])
        given = [a[i].item() for a in args]
        raise AssertionError(f"{row.name} {dtype} of {given}: {got[i].item()!r}, torch {expected[i].item()!r}")
    if row.name in ("fmax", "fmin"):
        return  # of two zeros either is right: eager's own vector and scalar paths differ
    zeros = (got == 0) & (expected == 0)
    assert torch.equal(got.signbit()[zeros], expected.signbit()[zeros]), f"{row.name} {dtype}: sign of zero"


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8", "b8"])
def test_rows(dtype: str) -> None:
    made = [(row, dtype, operands(row, dtype)) for row in rows() if dtype in row.dtypes]
    if dtype == "u8":
        made = [m for m in made if m[0].name not in ("neg",)]
    assert made
    graph = compile_plan(plan_of(made), config.current)
    results = graph.call(*(a for _, _, args in made for a in args))
    faults = []
    for (row, _, args), got in zip(made, results):
        try:
            check(row, dtype, args, got)
        except (AssertionError, RuntimeError) as e:
            faults.append(f"{row.name}: {e}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_integers_at_their_ends(dtype: str) -> None:
    made = [(row, dtype, ends(row, dtype)) for row in rows() if dtype in row.dtypes and row.dtype != "float"]
    results = compile_plan(plan_of(made), config.current).call(*(a for _, _, args in made for a in args))
    wrong = [row.name for (row, _, args), got in zip(made, results) if not torch.equal(got, row.ref(*args).to(got.dtype))]
    assert len(made) > 20 and not wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digamma_beside_its_poles(dtype: torch.dtype) -> None:
    x = torch.tensor([-1e-40, -1e-30, -1e-10, 1e-30, -2.00001, -3.0, -0.0, float("inf"), -float("inf")], dtype=dtype)
    made = bytejit.compile(lambda x: x.digamma(), fullgraph=True)(x)
    torch.testing.assert_close(made, x.digamma(), equal_nan=True, rtol=1e-6 if dtype is torch.float32 else 1e-12, atol=0)


def test_a_zero_through_elu_keeps_its_sign_whatever_alpha_is() -> None:
    x = torch.tensor([0.0, -0.0, 2.0, -2.0, float("nan")] * 8)
    for op in (lambda x: F.elu(x, -0.5), lambda x: F.celu(x, 1.3), F.selu):
        made, want = bytejit.compile(lambda x: op(x), fullgraph=True)(x), op(x)
        torch.testing.assert_close(made, want, equal_nan=True)
        assert torch.equal(made.signbit(), want.signbit())


ACTIVATIONS = {
    "elu": lambda x: F.elu(x, 0.5),
    "celu": lambda x: F.celu(x, 2.0),
    "logit": torch.logit,
    "logit, eps": lambda x: torch.logit(x, 1e-6),
    "leaky_relu": F.leaky_relu,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "glu": lambda x: F.glu(x.view(-1, 2), -1),
}
for _activation in (
    *(F.selu, F.hardswish, F.softshrink, F.hardshrink, F.hardtanh, F.relu6, F.hardsigmoid, F.silu, F.mish, F.softplus),
    *(F.logsigmoid, F.tanhshrink, F.softsign, F.relu, F.tanh, F.sigmoid),
):
    ACTIVATIONS[_activation.__name__] = _activation


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_at_their_corners(name: str) -> None:
    """Signs of zero, nan, infinities and limits, with gradients of all kinds: as eager's vectorised loops, which a single
    element need not take."""
    op, inf, nan = ACTIVATIONS[name], float("inf"), float("nan")
    corners = [0.0, -0.0, nan, inf, -inf, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 2.999, 6.0, 20.0, 1e30, -1e30]
    compiled = bytejit.compile(lambda x: op(x), fullgraph=True)
    for tangent in (1.0, 0.0, nan, inf):
        found = []
        for f in (op, compiled):
            x = torch.tensor(corners).repeat(4).requires_grad_()
            y = f(x)
            y.backward(torch.full_like(y, tangent))
            found.append((y.detach(), x.grad))
        for made, want in zip(found[1], found[0]):
            torch.testing.assert_close(made, want, equal_nan=True)
            assert torch.equal(made.signbit() & ~made.isnan(), want.signbit() & ~want.isnan())


def past_the_end(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = torch.full((4,), 2**62)
    return x + 1 > x, x * 2 // 2, -x < 0, x.abs() < 0, (x + 1).clamp(min=0), whole.sum(), whole.cumsum(0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_wrap(dtype: torch.dtype) -> None:
    """Also where a C++ compiler, which may take it that they never do, could conclude something from it."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([most, least, 0, 5, most // 2 + 1], dtype=dtype)
    torch.testing.assert_close(bytejit.compile(past_the_end)(x), past_the_end(x), rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1.0, 1e30])
def test_variances_of_small_and_large_numbers(scale: float) -> None:
    """Eager squares and adds in float64."""
    x = torch.linspace(-1, 2, 60).view(4, 15) * scale

    def spread(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.std(), x.std(0), x.var(1), *torch.std_mean(x, -1), *torch.var_mean(x)

    torch.testing.assert_close(bytejit.compile(spread)(x), spread(x), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_near_0(dtype: torch.dtype) -> None:
    """Subnormal results, and from where on the result is 0."""
    ends = ((-106, -86), (-152, -124)) if dtype is torch.float32 else ((-748, -706), (-1078, -1020))
    x = torch.cat([torch.linspace(*e, 5001, dtype=torch.float64) for e in ends])
    x = torch.cat([x, torch.tensor([-float("inf"), -1e30, -104, -103.97208, -103.97209, -150, -746, -1075])]).to(dtype)
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for got, exact in zip(bytejit.compile(lambda x: (x.exp(), x.exp2()))(x), (x.double().exp(), x.double().exp2()), strict=True):
        want = exact.to(dtype)
        assert torch.equal(got == 0, want == 0)
        assert ((got - want).abs() <= (want * torch.finfo(dtype).eps).clamp(min=tiny)).all()
