"""Where the constants in math_f32.h, math_f64.h and special.h come from: `python -m bytejit.kernels.prelude.fit` (needs mpmath).

Weighted least squares in high precision; each coefficient is then rounded to the target type in turn, lowest degree
first, and the rest is fitted again, so that rounding one is repaired by the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
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
        for name, base, first in (("log2", 2, 1.0), ("log10", 10, 0.4375)):
            limit = 1 / mp.log(base)
            g = ratio(lambda f: mp.log1p(f) / mp.log(base) / f - first, limit - first)
            fit(f"{name}: f*({first} + q(f))", g, lambda f: 1 / limit, range(10), low, high)
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


def odd(name: str, fn: Callable[[Any], Any], third: Any, terms: int, top: float, single: bool = True) -> None:
    """fn(x) = x + x**3 * q(x*x), |x|**2 <= top; third: q(0)."""
    q = ratio(lambda z: (fn(mp.sqrt(z)) - mp.sqrt(z)) / (z * mp.sqrt(z)), mp.mpf(third))
    fit(name, q, lambda z: z + mp.mpf("1e-30"), range(terms), 0, top, single)


def odd_single() -> None:
    """tan, asin, atan, sinh, asinh, atanh as `odd`; cosh(r) = 1 + r*r*(1/2 + r*r*q(r*r)); acosh(1 + t) = s + s*t*q(t), s =
    sqrt(2*t)."""
    half = (float(mp.log(2) / 2) * 1.001) ** 2
    odd("tan below pi/4", mp.tan, mp.mpf(1) / 3, 6, 0.79**2)
    odd("asin below 0.5403", mp.asin, mp.mpf(1) / 6, 6, 0.293)
    odd("atan below 1", mp.atan, -mp.mpf(1) / 3, 8, 1.0)
    odd("sinh below log(2)/2", mp.sinh, mp.mpf(1) / 6, 3, half)
    odd("asinh below 1.1752", mp.asinh, -mp.mpf(1) / 6, 9, 1.39)
    odd("atanh below 0.5", mp.atanh, mp.mpf(1) / 3, 6, 0.2501)
    c = ratio(lambda z: (mp.cosh(mp.sqrt(z)) - 1 - z / 2) / z**2, mp.mpf(1) / 24)
    fit("cosh below log(2)/2", c, lambda z: z * z + mp.mpf("1e-30"), range(2), 0, half)
    a = ratio(lambda t: (mp.acosh(1 + t) / mp.sqrt(2 * t) - 1) / t, -mp.mpf(1) / 12)
    fit("acosh below 2", a, lambda t: t + mp.mpf("1e-30"), range(6), 0, 1.0)


@cache
def erfcx(a: Any) -> Any:
    return mp.exp(a * a) * mp.erfc(a)


@cache
def erfinv_over_x(w: Any) -> Any:
    """erfinv(x)/x of w = -log(1 - x*x)."""
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x if x else mp.sqrt(mp.pi) / 2


def erfc_in_u(name: str, k: float, terms: int, low: float, high: float, single: bool, of_erf: bool = False) -> None:
    """erfc(a) = exp(-a*a) * q(u) / (a + k), u = (a - k)/(a + k). of_erf: the error counts in 1 - erfc(a)."""

    def q(u: Any) -> Any:
        a = k * (1 + u) / (1 - u)
        return erfcx(a) * (a + k)

    def weight(u: Any) -> Any:
        return (mp.erfc(k * (1 + u) / (1 - u)) if of_erf else 1) / q(u)

    fit(name, q, weight, range(terms), (low - k) / (low + k), (high - k) / (high + k), single)


def erfinv(name: str, terms: int, middle: float, half: tuple[float, float], root: bool, single: bool) -> None:
    """erfinv(x)/x in w - middle or, with root, in sqrt(w) - middle."""

    def p(v: Any) -> Any:
        return erfinv_over_x((v + middle) ** 2 if root else v + middle)

    fit(name, p, lambda v: 1 / p(v), range(terms), *half, single)


def error_functions(single: bool) -> None:
    if single:
        erfc_in_u("erfc", 3.0, 10, 0.0, 10.2, True)
        erfinv("erfinv, w below 5", 10, 2.5, (-2.5, 2.5), False, True)
        erfinv("erfinv, sqrt(w) above", 10, 3.0, (2.235 - 3, 4.1 - 3), True, True)
        return
    erfc_in_u("erfc", 4.0, 22, 0.0, 27.3, False)
    erfc_in_u("erf above 1", 2.0, 12, 1.0, 6.0, False, of_erf=True)
    e = ratio(lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, 2 / mp.sqrt(mp.pi) - 1)
    fit("erf(x) = x + x*q(x*x) below 1", e, lambda z: mp.mpf(0.9), range(12), 0, 1.0, False)
    erfinv("erfinv, w below 6.25", 23, 3.125, (-3.125, 3.125), False, False)
    erfinv("erfinv, sqrt(w) above", 18, 3.25, (-0.751, 0.751), True, False)


def rest_single() -> None:
    odd("tanh below 0.625", mp.tanh, -mp.mpf(1) / 3, 6, 0.626**2)

    def root(a: Any) -> Any:
        return 8 * (1 - mp.erfc(a) ** (mp.mpf(1) / 8)) / a - 1

    def felt(a: Any) -> Any:
        return a * mp.erfc(a) ** (mp.mpf(7) / 8) / mp.erf(a) if a != 0 else mp.sqrt(mp.pi) / 2

    fit("erf: 1 - (1 - (a + a*q(a))/8)^8", ratio(root, 2 / mp.sqrt(mp.pi) - 1), felt, range(8), 0, 4.0)


def rest_double() -> None:
    odd("atan below tan(pi/8)", mp.atan, -mp.mpf(1) / 3, 13, 0.4143**2, False)
    odd("asin below 0.5", mp.asin, mp.mpf(1) / 6, 14, 0.2501, False)
    odd("tanh below 0.625", mp.tanh, -mp.mpf(1) / 3, 14, 0.626**2, False)


if __name__ == "__main__":
    which = sys.argv[1:] or ["f32", "f64"]
    if "f32" in which:
        exp_log(True)
        trig(True)
        rest_single()
        odd_single()
        error_functions(True)
    if "f64" in which:
        exp_log(False)
        trig(False)
        rest_double()
        error_functions(False)
