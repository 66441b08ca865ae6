"""Small random programs over sizes, ints and floats: compiled with dynamic=None and True on both backends, against eager.

Deterministic: Hypothesis draws the same programs in each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bytejit

# numbers of two sizes, an int and a float: as text
NUMBERS = [
    "a",
    "b",
    "a + b",
    "a // 2 + 1",
    "a * 2",
    "b % 3 + 1",
    "max(a, 2)",
    "min(b, 4)",
    "n",
    "n + a",
    "int(s * 4) + 1",
    "a * b",
    "math.ceil(a / 2)",
    "len(x)",
    "x.numel() // (a + 1) + 1",
    "abs(n - a) + 1",
]
FACTORS = [
    "s",
    "s / 2",
    "s * a",
    "a / (b + 1)",
    "math.sqrt(a + 1)",
    "math.exp(-s)",
    "-s",
    "1 - s",
    "s ** 2",
    "n * s",
    "s if s > 1 else b",
    "math.floor(s * n)",
    "s // 0.3",
    "a ** -0.5 if a else 1.0",
    "max(s, 0.5)",
    "float(n)",
]
STEPS = [
    "x = x * ({f})",
    "x = x + ({f})",
    "x = x.t() * 1",
    "x = torch.cat([x, x], {d})",
    "x = x[: {n}]",
    "x = x[:, -({n}):]",
    "x = x.repeat(1, 2)",
    "x = x + torch.arange(x.shape[{d}])[:, None].sum()",
    "x = x - x.mean({d}, keepdim=True)",
    "x = x.reshape(-1, x.shape[0])",
    "x = x.expand(*x.shape) + torch.zeros(1, x.shape[1])",
    "x = x.softmax({d})",
    "x = torch.where(x > {f}, x, {f})",
    "x = x @ x.t()",
    "x = x.flip({d})",
    "x = x if x.shape[0] > {n} else x + 1",
    "x = torch.nn.functional.pad(x, (1, {n}))",
    "x = x.cumsum({d}) / ({n})",
    "x = x.roll({n}, {d})",
    "x = x.unsqueeze(0).expand(2, -1, -1).sum(0)",
    "x = x.clamp(max=abs({f}) + 1)",
    "a, b = x.shape",
    "x = x[::2] if a > 3 else x",
    "x = x.chunk(2, {d})[0]",
    "x = torch.full((a, b), {f}).narrow(0, 0, a) + 1",
    "b = b + ({n})",
    "s = s + {f}",
]


@st.composite
def programs(draw: Callable) -> str:
    """The lines of a function of a matrix x, an int n and a float s."""
    lines = ["a, b = x.shape"]
    for _ in range(draw(st.integers(1, 5))):
        line = draw(st.sampled_from(STEPS))
        lines.append(line.format(f=draw(st.sampled_from(FACTORS)), n=draw(st.sampled_from(NUMBERS)), d=draw(st.integers(0, 1))))
    return "def f(x, n, s):\n    " + "\n    ".join([*lines, f"return x, ({draw(st.sampled_from(NUMBERS))}), s"])


CALLS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 7), st.integers(0, 6), st.sampled_from([0.5, 1.0, 2.25, 0.0, -1.5])),
    min_size=3,
    max_size=5,
)


def outcome(f: Callable, call: tuple) -> tuple:
    """What a call returns, or which exception it raises."""
    rows, columns, n, s = call
    x = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns) / 7 - 1
    try:
        return f(x, n, s)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(("backend", "examples"), [("eager", 40), ("inductor", 4)])
def test_random_programs(backend: str, examples: int, dynamic: bool | None) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(), CALLS)
    def check(text: str, calls: list) -> None:
        space = {"torch": torch, "math": math}
        exec(text, space)
        compiled = bytejit.compile(space["f"], backend=backend, dynamic=dynamic)
        for call in calls:
            want, got = outcome(space["f"], call), outcome(compiled, call)
            if isinstance(want[0], type):
                assert got == want, text
                continue
            assert not isinstance(got[0], type), (text, call, got)
            torch.testing.assert_close(got[0], want[0], equal_nan=True, rtol=1e-4, atol=1e-5)
            assert got[0].stride() == want[0].stride() or 1 in want[0].shape or not want[0].numel(), text
            assert repr(got[1:]) == repr(want[1:]), text
        assert not bytejit.counters["faults"], (text, dict(bytejit.counters["faults"]))

    check()
