"""The prelude's functions against float64 over wide ranges, on special values against torch; conversions bit by bit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from bytejit.common.options import config
from bytejit.kernels.build import PRELUDE, find_compiler
from bytejit.kernels.build_cpp import build
from bytejit.kernels.disk import Disk

pytestmark = pytest.mark.cxx
F32 = {  # units in the last place
    "exp": 1.0,
    "exp2": 1.1,
    "expm1": 1.5,
    "log": 1.0,
    "log1p": 1.5,
    "log2": 1.1,
    "log10": 1.0,
    "sin": 1.5,
    "cos": 1.5,
    "tan": 2.0,
    "tanh": 1.5,
    "erf": 1.9,
    "erfc": 2.3,
    "erfinv": 2.0,
    "sinh": 1.6,
    "cosh": 1.5,
    "asinh": 1.5,
    "acosh": 1.7,
    "atanh": 1.5,
    "asin": 1.3,
    "acos": 1.3,
    "atan": 1.5,
    "lgamma": 1.5,
    "digamma": 1.0,
    "sin_any": 1.0,
    "cos_any": 1.0,
    "tan_any": 1.0,
}
F64 = {  # units in the last place away from torch, which is right to one of them
    "exp": 1,
    "exp2": 1,
    "expm1": 2,
    "log": 2,
    "log1p": 2,
    "log2": 2,
    "log10": 3,
    "erf": 2,
    "erfc": 4,
    "erfinv": 5,
    "erfinv_any": 5,
    "sinh": 3,
    "cosh": 3,
    "tanh": 2,
    "asinh": 3,
    "acosh": 3,
    "atanh": 3,
    "asin": 2,
    "acos": 2,
    "atan": 2,
}
PAIRS = {"atan2": torch.atan2, "hypot": torch.hypot}
EXACT = {  # to torch's bits
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floordiv": torch.floor_divide,
    "nextafter": torch.nextafter,
    "fmod_any": torch.fmod,
    "remainder_any": torch.remainder,
    "floordiv_any": torch.floor_divide,
}
TYPES = {"f32": torch.float32, "f64": torch.float64}
NEED_POSITIVE = {"log", "log2", "log10", "acosh"}
SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    1.0,
    -1.0,
    1e-45,
    -1e-45,
    3e38,
    -3e38,
    1e-39,
    88.9,
    -104.0,
    89.0,
    -88.0,
    0.5,
]


@pytest.fixture(scope="module")
def calls():
    unit = ['#include "glue.h"']
    each = [(n, "f32", 1) for n in F32] + [(n, "f64", 1) for n in F64] + [(n, t, 2) for n in (*PAIRS, *EXACT) for t in TYPES]
    for name, t, arity in each:
        given, of = ("", "x[i]") if arity == 1 else (f"const {t}* z = pointer<{t}>(a[3]);", "x[i], z[i]")
        unit.append(f"""static PyObject* {name}_{t}(PyObject*, PyObject* const* a, bj_size) {{
    const {t}* x = pointer<{t}>(a[0]); {t}* y = pointer<{t}>(a[1]); i64 n = integer(a[2]); {given}
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = bj::{name}({of});
    return PyLong_FromLong(0);
}}""")
    for kind in ("bf16", "f16"):
        unit.append(f"""static PyObject* {kind}_f(PyObject*, PyObject* const* a, bj_size) {{
    const f32* x = pointer<f32>(a[0]); {kind}* y = pointer<{kind}>(a[1]); f32* z = pointer<f32>(a[2]);
    i64 n = integer(a[3]);
    for (i64 i = 0; i < n; ++i) y[i] = bj::to<{kind}>(x[i]), z[i] = bj::to<f32>(y[i]);
    return PyLong_FromLong(0);
}}""")
    names = [*(f"{name}_{t}" for name, t, _ in each), "bf16_f", "f16_f"]
    rows = ", ".join(f'{{"{n}", {n}, 0x80, nullptr}}' for n in names)
    unit.append(f"static bj::Method table[] = {{{rows}}};\nBJ_EXPORT(table, {len(names)})\n")
    return build(["\n".join(unit)], config.current).calls[0]


def apply(calls, name: str, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    t = "f32" if x.dtype == torch.float32 else "f64"
    calls[f"{name}_{t}"](x.data_ptr(), y.data_ptr(), x.numel(), *(z.data_ptr() for z in more))
    return y


def distance(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """In last places of `got`'s dtype. exact: float64."""
    rounded = exact.to(got.dtype)
    step = torch.nextafter(rounded.abs(), torch.full_like(rounded, torch.inf)) - rounded.abs()
    error = (got.double() - exact).abs() / step.double().clamp(min=1.5e-45 if got.dtype == torch.float32 else 5e-324)
    error[(got == rounded) | (got.isnan() & rounded.isnan())] = 0
    return error.nan_to_num(1e9)


def arguments(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)

    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.rand(20000, generator=g, dtype=torch.float64) * (high - low) + low

    sign = uniform(-1, 1).sign()
    near = [uniform(-1, 1), uniform(-4, 4), uniform(-12, 12), uniform(-95, 95), uniform(-80, 12).exp() * sign]
    x = torch.cat([*near, 1 + uniform(-1e-3, 1e-3), uniform(0.4, 0.6), uniform(11, 88).exp() * sign])
    x = x.to(dtype)
    if name in ("sin", "cos", "tan"):
        x = x[x.abs() <= 1e5]
    if name in ("lgamma", "digamma"):  # beside the poles float64 itself is off
        x = x[(x > 1e-30) & (x < 1e30)]
    if name == "erfinv" and dtype == torch.float64:
        x = x[~((x.abs() > 0.99999994) & (x.abs() < 1))]
    return x.abs() if name in NEED_POSITIVE else x


@pytest.mark.parametrize("name", F32)
def test_accuracy(calls, name: str) -> None:
    """Units: last places of the float32 result."""
    x = arguments(name)
    exact = getattr(torch, name.removesuffix("_any"))(x.double())
    got = apply(calls, name, x)
    error = distance(got, exact)
    worst = int(error.argmax())
    assert float(error[worst]) <= F32[name], f"{float(error[worst]):.2f} at {x[worst].item()!r}: {got[worst].item()!r}"


@pytest.mark.parametrize("name", F64)
def test_accuracy_of_float64(calls, name: str) -> None:
    x = arguments(name, torch.float64)
    expected = getattr(torch, name.removesuffix("_any"))(x)
    got = apply(calls, name, x)
    error = distance(got, expected)
    error[expected.isinf() & (x.abs() > 709)] = 0  # torch's sinh and cosh overflow early
    worst = int(error.argmax())
    assert float(error[worst]) <= F64[name], f"{float(error[worst]):.2f} at {x[worst].item()!r}: {got[worst].item()!r}"


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Floats of all exponents, pairs that lie close, whole numbers, all pairs of special values."""
    g = torch.Generator().manual_seed(5)
    near, n = torch.randn(20000, generator=g, dtype=torch.float64), torch.randint(-50, 50, (2, 20000), generator=g)
    words = torch.randint(-(2**31), 2**31 - 1, (2, 20000), generator=g).to(torch.int32).view(torch.float32)
    scale = torch.randint(-20, 20, (20000,), generator=g).double().exp2()
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    x = torch.cat([words[0].double(), near * scale, near, n[0].double(), special.repeat(len(special))])
    z = torch.cat([words[1].double(), near.flip(0), near * 1.0001, n[1].double(), special.repeat_interleave(len(special))])
    return x.to(dtype), z.to(dtype)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("t", TYPES)
def test_pairs(calls, name: str, t: str) -> None:
    x, z = pairs(TYPES[t])
    got, exact = apply(calls, name, x, z), PAIRS[name](x.double(), z.double())
    error = distance(got, exact)
    worst = int(error.argmax())
    assert float(error[worst]) <= 2, (
        f"{float(error[worst]):.2f} of {x[worst].item()!r}, {z[worst].item()!r}: {got[worst].item()!r}"
    )
    real = ~exact.isnan()
    assert torch.equal(got.signbit()[real], exact.to(got.dtype).signbit()[real])


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("t", TYPES)
def test_exact_functions_to_the_bit(calls, name: str, t: str) -> None:
    x, z = pairs(TYPES[t])
    if name in ("fmod", "remainder", "floordiv"):  # the others are for the cold form: `mod_far`
        near = ~((x.abs() > z.abs() * (1e13 if t == "f32" else 1e30)) & (z != 0) & x.isfinite())
        x, z = x[near], z[near]
    expected, got = EXACT[name](x, z), apply(calls, name, x, z)
    bits = torch.int32 if t == "f32" else torch.int64
    bad = (got.view(bits) != expected.view(bits)) & ~(got.isnan() & expected.isnan())
    bad &= ~(expected.isnan() & x.isfinite() & (z != 0))  # torch's own float32 code, where the quotient overflows
    given = [(a.item(), b.item(), c.item(), d.item()) for a, b, c, d in zip(x[bad], z[bad], got[bad], expected[bad])]
    assert not given, f"{len(given)} of {len(x)}: {given[:5]}"


@pytest.mark.parametrize("name", ("log2", "asin", "erfc", "fmod"))
def test_elements_behind_the_last_whole_vector(calls, name: str) -> None:
    x, z = torch.linspace(0.1, 0.9, 40), torch.linspace(0.3, 0.2, 40)
    more = (z,) if name in EXACT else ()
    whole = apply(calls, name, x, *more)
    for n in range(1, 40):
        assert torch.equal(apply(calls, name, x[:n].clone(), *more), whole[:n])


@pytest.mark.parametrize("name", F32)
def test_special_values(calls, name: str) -> None:
    x = torch.tensor(SPECIAL)
    if name in ("sin", "cos", "tan"):
        x = x[~(x.abs() > 1e5)]
    expected = getattr(torch, name.removesuffix("_any"))(x.double()).float()
    got = apply(calls, name, x)
    torch.testing.assert_close(got, expected, rtol=3e-7, atol=3e-45, equal_nan=True)
    real = ~expected.isnan()
    assert torch.equal(got.signbit()[real], expected.signbit()[real])


@pytest.mark.parametrize("kind, dtype", [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_narrow_conversions_bit_by_bit(calls, kind: str, dtype: torch.dtype) -> None:
    every = torch.arange(65536).to(torch.int32).to(torch.int16).view(dtype).float()
    g = torch.Generator().manual_seed(1)
    rand = torch.randint(-(2**31), 2**31 - 1, (200000,), generator=g).to(torch.int32).view(torch.float32)
    edges = torch.tensor([65519.0, 65520.0, 2.9802322e-08, 2.9802326e-08])
    x = torch.cat([every, (every[:-1] + every[1:]) / 2, rand, edges])
    y, back = torch.empty(len(x), dtype=dtype), torch.empty(len(x))
    calls[f"{kind}_f"](x.data_ptr(), y.data_ptr(), back.data_ptr(), len(x))
    expected = x.to(dtype)
    number = ~expected.isnan()
    assert torch.equal(y.view(torch.int16)[number], expected.view(torch.int16)[number])
    assert torch.equal(y.isnan(), ~number) and torch.equal(back[number], expected.float()[number])


def test_loops_over_functions_of_functions_are_vector_loops(tmp_path: Path) -> None:
    """GCC makes a branch of a comparison with what another one chose, and leaves the loop scalar: 14 times as slow as eager."""
    compiler = find_compiler(Disk(tmp_path), "")
    if not compiler.gcc:
        pytest.skip("GCC alone lists its vector loops")
    inner = ("exp(x)", "sigmoid(x)", "log2(x)", "maximum(0.0f, x)")
    pairs = [f"{f}(bj::{g})" for f in ("exp", "log", "log1p", "tanh", "expm1", "sigmoid") for g in inner]
    of_two = ("pow", "atan2", "hypot", "logsum", "nextafter", "remainder", "floordiv")
    pairs += [f"{f}(x, q[i])" for f in of_two]
    loop = '_Pragma("omp simd") for (i64 i = 0; i < n; ++i) { const f32 x = p[i];'
    loops = [f"void k{i}(const f32* p, f32* q, i64 n) {{ {loop} q[i] = bj::{pair}; }} }}" for i, pair in enumerate(pairs)]
    pairs.append("argmin(maximum(0.0f, x))")
    better = "b8 w = bj::arg_min<f32>(y, i, q[i], m[i]); q[i] = w ? y : q[i]; m[i] = w ? i : m[i];"
    loops.append(
        f"void am(const f32* p, f32* q, i64* m) {{ {loop} f32 y = bj::maximum(0.0f, x); {better} }} }}".replace("i < n", "i < 16")
    )
    (tmp_path / "pairs.cpp").write_text("\n".join(['#include "glue.h"', *loops]))
    command = [compiler.path, *compiler.extra, *compiler.flags, f"-I{PRELUDE}", "-S", "-fopt-info-vec-optimized", "pairs.cpp"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    lines = {int(n) for n in re.findall(r"pairs\.cpp:(\d+):\d+: optimized: loop vectorized", said)}
    assert [pairs[i] for i in range(len(pairs)) if i + 2 not in lines] == []
