"""Where the constants in math_f32.h and math_f64.h come from: `python -m bytejit.kernels.prelude.fit` (needs mpmath).

Weighted least squares in high precision; each coefficient is then rounded to the target type in turn, lowest degree
first, and the rest is fitted again, so that rounding one is repaired by the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]
import numpy as np

mp.mp.dps = 50


def solve(g: Callable[[Any], Any], weight: Callable[[Any], Any], powers: Sequence[int], lo: Any, hi: Any) -> list[Any]:
    """c with sum c[k]*x**powers[k] ~ g(x) on [lo, hi]: least squares at Chebyshev nodes, near enough to minimax."""
    n = 6 * len(powers) + 9
    xs = [(lo + hi) / 2 + (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]
    rows = mp.matrix([[weight(x) * x**p for p in powers] for x in xs])
    right = mp.matrix([weight(x) * g(x) for x in xs])
    return list(mp.lu_solve(rows.T * rows, rows.T * right))


def fit(
    name: str,
    g: Callable[[Any], Any],
    weight: Callable[[Any], Any],
    powers: Sequence[int],
    lo: float,
    hi: float,
    single: bool = True,
) -> list[float]:
    """Coefficients rounded to float32 (or float64), printed with the weighted error that they reach."""
    done: list[Any] = []
    left = list(powers)
    a, b = mp.mpf(lo), mp.mpf(hi)
    while left:
        part = list(zip(done, powers))
        coef = solve(lambda x: g(x) - sum(c * x**p for c, p in part), weight, left, a, b)
        value = float(np.float32(float(coef[0]))) if single else float(coef[0])
        done.append(mp.mpf(value))
        left.pop(0)
    grid = [a + (b - a) * i / 400 for i in range(401)]
    worst = max(abs((sum(c * x**p for c, p in zip(done, powers)) - g(x)) * weight(x)) for x in grid)
    out = [float(c) for c in done]
    suffix = "f" if single else ""
    print(f"{name}: error 2^{float(mp.log(worst, 2)):.1f}")
    print("   ", ", ".join(f"{v:.9g}{suffix}" if single else f"{v:.17g}" for v in out), flush=True)
    return out


def ratio(top: Callable[[Any], Any], limit: Any) -> Callable[[Any], Any]:
    return lambda x: top(x) if x != 0 else mp.mpf(limit)


def exp_log(single: bool) -> None:
    """exp and expm1 as r + r*r*q(r); log1p(f) as f - f*f/2 + f**3 * q(f)."""
    half = float(mp.log(2) / 2) * 1.001
    tail = ratio(lambda r: (mp.expm1(r) - r) / r**2, 0.5)
    fit("exp", tail, lambda r: r * r, range(6 if single else 12), -half, half, single)
    fit("expm1", tail, lambda r: abs(r) + mp.mpf("1e-30"), range(6 if single else 12), -half, half, single)
    q = ratio(lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, mp.mpf(1) / 3)
    if single:
        low, high = float(mp.sqrt(0.5)) - 1.0001, float(mp.sqrt(2)) - 0.9999
        fit("log1p", q, lambda f: abs(f) ** 2 + mp.mpf("1e-30"), range(9), low, high)
    else:
        w = ratio(lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z, mp.mpf(2) / 3)
        fit("log via s=f/(2+f), in s*s", w, lambda z: z + mp.mpf("1e-30"), range(8), 0, 0.02945, False)


def trig(single: bool) -> None:
    """sin(r) = r + r**3 * q(r*r); cos(r) = 1 - r*r/2 + r**4 * q(r*r); tan, atan, asin likewise, in z = r*r."""
    top = 0.80**2
    s = ratio(lambda z: (mp.sin(mp.sqrt(z)) - mp.sqrt(z)) / (z * mp.sqrt(z)), mp.mpf(-1) / 6)
    c = ratio(lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, mp.mpf(1) / 24)
    fit("sin", s, lambda z: z + mp.mpf("1e-30"), range(4 if single else 7), 0, top, single)
    fit("cos", c, lambda z: z * z + mp.mpf("1e-30"), range(3 if single else 7), 0, top, single)


def rest_single() -> None:
    t = ratio(lambda z: (mp.tanh(mp.sqrt(z)) - mp.sqrt(z)) / (z * mp.sqrt(z)), mp.mpf(-1) / 3)
    fit("tanh below 0.625", t, lambda z: z + mp.mpf("1e-30"), range(6), 0, 0.626**2)

    def root(a: Any) -> Any:
        return 8 * (1 - mp.erfc(a) ** (mp.mpf(1) / 8)) / a - 1

    def felt(a: Any) -> Any:
        return a * mp.erfc(a) ** (mp.mpf(7) / 8) / mp.erf(a) if a != 0 else mp.sqrt(mp.pi) / 2

    fit("erf: 1 - (1 - (a + a*q(a))/8)^8", ratio(root, 2 / mp.sqrt(mp.pi) - 1), felt, range(8), 0, 4.0)


def rest_double() -> None:
    a = ratio(lambda z: (mp.atan(mp.sqrt(z)) - mp.sqrt(z)) / (z * mp.sqrt(z)), mp.mpf(-1) / 3)
    fit("atan below tan(pi/8)", a, lambda z: z + mp.mpf("1e-30"), range(13), 0, 0.4143**2, False)
    s = ratio(lambda z: (mp.asin(mp.sqrt(z)) - mp.sqrt(z)) / (z * mp.sqrt(z)), mp.mpf(1) / 6)
    fit("asin below 0.5", s, lambda z: z + mp.mpf("1e-30"), range(14), 0, 0.2501, False)
    t = ratio(lambda z: (mp.tanh(mp.sqrt(z)) - mp.sqrt(z)) / (z * mp.sqrt(z)), mp.mpf(-1) / 3)
    fit("tanh below 0.625", t, lambda z: z + mp.mpf("1e-30"), range(14), 0, 0.626**2, False)


if __name__ == "__main__":
    which = sys.argv[1:] or ["f32", "f64"]
    if "f32" in which:
        exp_log(True)
        trig(True)
        rest_single()
    if "f64" in which:
        exp_log(False)
        trig(False)
        rest_double()
