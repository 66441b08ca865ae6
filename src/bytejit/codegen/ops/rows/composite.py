"""Rows that are formulas over the primitives: clamp, lerp, pow of a number, where, addcmul, masked_fill,
...

Each is written once, over `F`: an expression with Python's operators. Both printers get it through the primitives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.codegen.ops.table import lowers, op
from bytejit.common.dtypes import FLOATS, INT_DTYPES, INTS, acc_dtype, holds_all, torch_dtype
from bytejit.common.pointwise_ops import POINTWISE

from .pointwise import aten, known


class F:
    """An expression with operators; numbers take the other operand's dtype."""

    __slots__ = ("ctx", "e")

    def __init__(self, ctx: Lowering, e: Expr):
        self.ctx, self.e = ctx, e

    def _other(self, x: Any) -> Expr:
        return x.e if isinstance(x, F) else self.ctx.const(x, self.e.dtype)

    def do(self, name: str, *args: Any) -> F:
        """A row applied to this and more operands."""
        return F(self.ctx, self.ctx.op(name, self.e, *map(self._other, args)))

    def pick(self, yes: Any, no: Any) -> F:
        """yes where this b8 holds, else no; one of them an F."""
        known = yes if isinstance(yes, F) else no
        yes, no = known._other(yes), known._other(no)
        return F(self.ctx, self.ctx.op("select", self.e, yes, no, dtype=yes.dtype))

    def __add__(self, x: Any) -> F:
        return self.do("add", x)

    def __mul__(self, x: Any) -> F:
        return self.do("mul", x)

    def __sub__(self, x: Any) -> F:
        return self.do("sub", x)

    def __truediv__(self, x: Any) -> F:
        return self.do("div", x)

    def __rsub__(self, x: Any) -> F:
        return F(self.ctx, self.ctx.op("sub", self._other(x), self.e))

    def __rtruediv__(self, x: Any) -> F:
        return F(self.ctx, self.ctx.op("div", self._other(x), self.e))

    def __neg__(self) -> F:
        return self.do("neg")

    __radd__, __rmul__ = __add__, __mul__


def formula(
    name: str,
    overloads: tuple[str, ...] | str = (),
    n: int = 1,
    ref: Any = None,
    cost: int = 10,
    dtypes: frozenset = FLOATS,
    **fields: Any,
) -> Callable:
    """Declares a row: the decorated function takes the first n arguments as F (in the result's compute dtype), the
    rest as they are. Without overloads, both are those of `common/pointwise_ops.py`."""
    if not overloads:
        overloads, n = POINTWISE[name].overloads, POINTWISE[name].operands

    def declare(fn: Callable) -> Callable:
        def lower(ctx: Lowering, *args: Any, **kwargs: Any) -> Value:
            dtype = acc_dtype(ir_dtype(ctx.spec()))
            if dtype not in dtypes:
                raise NoRule(f"{name} of {dtype}")
            return ctx.map(lambda c: fn(*(F(ctx, ctx.read(a, c, dtype)) for a in args[:n]), *args[n:], **kwargs).e)

        op(
            name,
            aten(overloads) if isinstance(overloads, str) else aten(*overloads),
            "composite",
            arity=n,
            ref=ref,
            cost=cost,
            dtypes=dtypes,
            elementwise=True,
            lower=lower,
            **fields,
        )
        return fn

    return declare


NUMBERS = FLOATS | INTS
SQRT_HALF = math.sqrt(0.5)


# ---- arithmetic with factors --------------------------------------------------------------------------------------
def _scaled(name: str, ref: Any) -> None:
    """Rows of a + alpha*b, a - alpha*b and (rsub) b - alpha*a."""

    def lower(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> Value:
        out = ir_dtype(ctx.spec())
        if out == "b8" and (name != "add" or alpha != 1):
            raise NoRule(f"{name} of bools")
        dtype, (a, b) = acc_dtype(out), (b, a) if name == "rsub" else (a, b)

        def at(c: tuple) -> Expr:
            x, y = ctx.read(a, c, dtype), ctx.read(b, c, dtype)
            y = y if alpha == 1 else ctx.op("mul", y, ctx.const(alpha, dtype))
            return ctx.op("add" if name == "add" else "sub", x, y)

        return ctx.map(at)

    op(
        f"{name}_scaled",
        aten(f"{name}.Tensor", f"{name}.Scalar") if name == "rsub" else aten(*POINTWISE[name].overloads),
        "composite",
        arity=2,
        ref=ref,
        dtypes=NUMBERS,
        lower=lower,
    )


_scaled("add", torch.add)
_scaled("sub", torch.sub)
_scaled("rsub", torch.rsub)


def _div_mode(ctx: Lowering, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    dtype = acc_dtype(ir_dtype(ctx.spec()))
    name = {"floor": "floordiv", "trunc": "truncdiv", None: "div"}[rounding_mode]
    return ctx.map(lambda c: ctx.op(name, ctx.read(a, c, dtype), ctx.read(b, c, dtype)))


op("div_mode", aten(*POINTWISE["div_mode"].overloads), "composite", arity=2, lower=_div_mode, refuses=True)


def power(x: F, n: float) -> F:
    """x ** n for a number n, as torch computes the cheap ones."""
    if n == 0:
        return x * 0 + 1 if x.e.dtype in INTS else F(x.ctx, x.ctx.const(1, x.e.dtype))
    if n in (1, 2, 3):
        return x if n == 1 else x * x if n == 2 else x * x * x
    if x.e.dtype in INTS:
        return x.do("ipow", n)
    if n in (0.5, -0.5) and not (x.ctx.device() == "cpu" and x.ctx.spec().dtype is torch.float16):  # a root of -0.0 is -0.0
        return x.do("sqrt" if n > 0 else "rsqrt")
    if n in (-1, -2):
        return x.do("reciprocal") if n == -1 else (x * x).do("reciprocal")
    return x.do("pow", n)


def _pow(ctx: Lowering, a: Any, b: Any) -> Value:
    dtype = acc_dtype(ir_dtype(ctx.spec()))
    if dtype == "b8" or (dtype in INTS and (isinstance(b, Value) or b < 0 or b != int(b))):
        raise NoRule("pow of ints by a tensor or a negative number")

    def at(c: tuple) -> Expr:
        x = F(ctx, ctx.read(a, c, dtype))
        return x.do("pow", F(ctx, ctx.read(b, c, dtype))).e if isinstance(b, Value) else power(x, b).e

    return ctx.map(at)


op(
    "pow_any",
    aten(*POINTWISE["pow_any"].overloads, *POINTWISE["pow_of_number"].overloads),
    "composite",
    arity=2,
    domain=(0, 5),
    cost=30,
    lower=_pow,
)
formula("square", "square", ref=torch.square, cost=1, dtypes=NUMBERS)(lambda x: x * x)
formula("sign", ref=torch.sign, cost=4, dtypes=NUMBERS)(
    lambda x: (
        x.do("gt", 0).pick(1 + 0 * x, x.do("lt", 0).pick(x * 0 - 1, x * 0))
        if x.e.dtype in INTS
        else x.do("gt", 0.0).pick(1.0, x.do("lt", 0.0).pick(F(x.ctx, x.ctx.const(-1.0, x.e.dtype)), 0.0))
    )
)
formula("addcmul", ref=torch.addcmul, cost=3, dtypes=NUMBERS)(
    lambda x, a, b, value=1: x + (a * b if value == 1 else a * value * b)
)
formula("addcdiv", ref=torch.addcdiv, cost=5)(lambda x, a, b, value=1: x + (a if value == 1 else a * value) / b)
formula("xlogy", ref=torch.xlogy, cost=12, domain=(0, 10))(
    lambda x, y: y.do("isnan").pick(y, x.do("eq", 0).pick(0, x * y.do("log")))
)
formula("logaddexp", ref=torch.logaddexp, cost=30)(lambda a, b: _logaddexp(a, b))
formula("deg2rad", ref=torch.deg2rad, cost=1)(lambda x: x * (math.pi / 180))
formula("rad2deg", ref=torch.rad2deg, cost=1)(lambda x: x * (180 / math.pi))
formula("frac", ref=torch.frac, cost=3)(lambda x: x - x.do("trunc"))
formula("sinc", ref=torch.sinc, cost=20)(lambda x: x.do("eq", 0).pick(1, (x * math.pi).do("sin") / (x * math.pi)))
formula("nan_to_num", cost=4)(lambda x, nan=None, posinf=None, neginf=None: _nan_to_num(x, nan, posinf, neginf))


def _logaddexp(a: F, b: F) -> F:
    most = a.do("maximum", b)
    return (a.do("eq", b)).do("and", a.do("isinf")).pick(a, most + (-(a - b).do("abs")).do("exp").do("log1p"))


def _nan_to_num(x: F, nan: float | None, posinf: float | None, neginf: float | None) -> F:
    info = torch.finfo(torch_dtype(ir_dtype(x.ctx.spec())))
    x = x.do("isnan").pick(0.0 if nan is None else nan, x)
    x = x.do("eq", math.inf).pick(info.max if posinf is None else posinf, x)
    return x.do("eq", -math.inf).pick(info.min if neginf is None else neginf, x)


# ---- least and greatest: nan stays, as in torch ---------------------------------------------------------------------
def limits(x: F, low: Any = None, high: Any = None) -> F:
    """x.clamp(low, high) of numbers or F; nan stays, and of two zeros x's own."""
    if low is not None:
        x = F(x.ctx, x._other(low)).do("maximum", x)
    return x if high is None else F(x.ctx, x._other(high)).do("minimum", x)


@functools.cache
def ignores_far_bounds() -> bool:
    """Whether clamp takes a bound outside an integer dtype's range for none (torch 2.15), or wraps it around."""
    return torch.ones((), dtype=torch.uint8).clamp(min=-1).item() == 1


def _clamp(ctx: Lowering, x: Value, low: Any = None, high: Any = None, **kw: Any) -> Value:
    low, high = kw.get("min", low), kw.get("max", high)
    if ignores_far_bounds() and ctx.spec().dtype in INT_DTYPES:
        info = torch.iinfo(ctx.spec().dtype)
        low = None if isinstance(low, int) and low < info.min else low
        high = None if isinstance(high, int) and high > info.max else high
    dtype = acc_dtype(ir_dtype(ctx.spec()))

    def bound(a: Any, c: tuple) -> F | None:
        return None if a is None else F(ctx, ctx.read(a, c, dtype))

    return ctx.map(lambda c: limits(F(ctx, ctx.read(x, c, dtype)), bound(low, c), bound(high, c)).e)


_BOUNDS = (*POINTWISE["clamp"].overloads, *POINTWISE["clamp_tensor"].overloads, "clip")
op("clamp", aten(*_BOUNDS), "composite", ref=torch.clamp, cost=2, lower=_clamp)
op("clamp_min", aten(*POINTWISE["clamp_min"].overloads, "clamp_min.Tensor"), "composite", arity=2, cost=1, lower=_clamp)
op(
    "clamp_max",
    aten(*POINTWISE["clamp_max"].overloads, "clamp_max.Tensor"),
    "composite",
    arity=2,
    cost=1,
    lower=lambda ctx, x, high: _clamp(ctx, x, None, high),
)


# ---- choice ----------------------------------------------------------------------------------------------------------
def _where(ctx: Lowering, test: Value, a: Any, b: Any) -> Value:
    dtype = acc_dtype(ir_dtype(ctx.spec()))
    return ctx.map(lambda c: ctx.op("select", ctx.read(test, c, "b8"), ctx.read(a, c, dtype), ctx.read(b, c, dtype), dtype=dtype))


op(
    "where",
    aten(*POINTWISE["where"].overloads, "where.ScalarSelf", "where.ScalarOther", "where.Scalar"),
    "composite",
    arity=3,
    lower=_where,
)
op(
    "masked_fill",
    aten(*POINTWISE["masked_fill"].overloads),
    "composite",
    arity=3,
    lower=lambda ctx, x, mask, value: _where(ctx, mask, value, x),
)


@lowers("composite", "masked_fill_tensor", ("masked_fill.Tensor",), refuses=True)
def masked_fill_tensor(ctx: Lowering, x: Value, mask: Value, value: Value) -> Value:
    check_holds(x, value)
    return _where(ctx, mask, value, x)


def check_holds(x: Value, value: Any) -> None:
    """Raises: NoRule for a number in a tensor that a tensor's dtype may not hold: torch looks at it."""
    if isinstance(value, Value) and not holds_all(torch_dtype(x.dtype), torch_dtype(value.dtype)):
        raise NoRule("a number of a wider dtype")


def _lerp(ctx: Lowering, a: Any, b: Any, w: Any) -> Value:
    """Torch's form: exact at both ends, the nearer end's formula on each half."""
    dtype = acc_dtype(ir_dtype(ctx.spec()))

    def at(c: tuple) -> Expr:
        x, y, t = (F(ctx, ctx.read(v, c, dtype)) for v in (a, b, w))
        low, high = x + t * (y - x), y - (y - x) * (1 - t)
        if type(w) in (int, float):
            return (low if abs(w) < 0.5 else high).e
        return t.do("abs").do("lt", 0.5).pick(low, high).e

    return ctx.map(at)


op("lerp", aten(*POINTWISE["lerp"].overloads, "lerp.Scalar"), "composite", arity=3, cost=6, lower=_lerp)


def _heaviside(ctx: Lowering, x: Value, at_zero: Value) -> Value:
    dtype = acc_dtype(ir_dtype(ctx.spec()))

    def at(c: tuple) -> Expr:
        v, z = F(ctx, ctx.read(x, c, dtype)), F(ctx, ctx.read(at_zero, c, dtype))
        return v.do("eq", 0).pick(z, v.do("gt", 0).pick(F(ctx, ctx.const(1, dtype)), 0)).e

    return ctx.map(at)


op("heaviside", aten(*POINTWISE["heaviside"].overloads), "composite", arity=2, lower=_heaviside)


def _isclass(name: str, build: Callable[[F], F]) -> None:
    def lower(ctx: Lowering, x: Value) -> Value:
        return ctx.map(lambda c: build(F(ctx, ctx.read(x, c))).e)

    op(name, kind="composite", **known(name), ref=getattr(torch, name), lower=lower)


_isclass("isfinite", lambda x: x.do("isnan").do("or", x.do("isinf")).do("logical_not"))
_isclass("isposinf", lambda x: x.do("eq", math.inf) if x.e.dtype in FLOATS else x.do("lt", x))
_isclass("isneginf", lambda x: x.do("eq", -math.inf) if x.e.dtype in FLOATS else x.do("lt", x))
