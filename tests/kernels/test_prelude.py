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
F32 = {
    "exp": 1.0,
    "exp2": 1.1,
    "expm1": 1.5,
    "log": 1.0,
    "log1p": 1.5,
    "log2": 1.0,
    "log10": 1.0,
    "sin": 1.5,
    "cos": 1.5,
    "tan": 1.0,
    "tanh": 1.5,
    "erf": 1.9,
    "sinh": 1.0,
    "cosh": 1.0,
    "asinh": 1.0,
    "acosh": 1.0,
    "atanh": 1.0,
    "asin": 1.0,
    "acos": 1.0,
    "atan": 1.0,
    "sin_any": 1.0,
    "cos_any": 1.0,
    "tan_any": 1.0,
}
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
    for name in F32:
        unit.append(f"""static PyObject* {name}_f(PyObject*, PyObject* const* a, bj_size) {{
    const f32* x = pointer<f32>(a[0]); f32* y = pointer<f32>(a[1]); i64 n = integer(a[2]);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = bj::{name}(x[i]);
    return PyLong_FromLong(0);
}}""")
    for kind in ("bf16", "f16"):
        unit.append(f"""static PyObject* {kind}_f(PyObject*, PyObject* const* a, bj_size) {{
    const f32* x = pointer<f32>(a[0]); {kind}* y = pointer<{kind}>(a[1]); f32* z = pointer<f32>(a[2]);
    i64 n = integer(a[3]);
    for (i64 i = 0; i < n; ++i) y[i] = bj::to<{kind}>(x[i]), z[i] = bj::to<f32>(y[i]);
    return PyLong_FromLong(0);
}}""")
    names = [*F32, "bf16", "f16"]
    rows = ", ".join(f'{{"{n}", {n}_f, 0x80, nullptr}}' for n in names)
    unit.append(f"static bj::Method table[] = {{{rows}}};\nBJ_EXPORT(table, {len(names)})\n")
    return build(["\n".join(unit)], config.current).calls[0]


def apply(calls, name: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    calls[name](x.data_ptr(), y.data_ptr(), x.numel())
    return y


def arguments(name: str) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)

    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.rand(20000, generator=g, dtype=torch.float64) * (high - low) + low

    sign = uniform(-1, 1).sign()
    x = torch.cat([uniform(-1, 1), uniform(-4, 4), uniform(-95, 95), uniform(-80, 12).exp() * sign, 1 + uniform(-1e-3, 1e-3)])
    if name.endswith("_any"):
        x = torch.cat([x, uniform(11, 88).exp() * sign])
    x = x.float()
    if name in ("sin", "cos", "tan"):
        x = x[x.abs() <= 1e5]
    return x.abs() if name in NEED_POSITIVE else x


@pytest.mark.parametrize("name", F32)
def test_accuracy(calls, name: str) -> None:
    """Units: last places of the float32 result."""
    x = arguments(name)
    exact = getattr(torch, name.removesuffix("_any"))(x.double())
    got = apply(calls, name, x)
    rounded = exact.float()
    step = (torch.nextafter(rounded.abs(), torch.tensor(torch.inf)) - rounded.abs()).double().clamp(min=1.5e-45)
    error = (got.double() - exact).abs() / step
    error[(got == rounded) | (got.isnan() & rounded.isnan())] = 0
    worst = int(error.nan_to_num(1e9).argmax())
    assert float(error[worst]) <= F32[name], f"{float(error[worst]):.2f} at {x[worst].item()!r}: {got[worst].item()!r}"


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
    calls[kind](x.data_ptr(), y.data_ptr(), back.data_ptr(), len(x))
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
