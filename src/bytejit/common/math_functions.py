"""Functions of one float: a row each. Shape rules, the texts of kernels and the tests derive from the rows."""

from __future__ import annotations

from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class MathFunction:
    """name: ATen's; `bj::NAME` in the C++ prelude (`math_f32.h`, `math_f64.h`, `special.h`). cost: of an element, in additions.
    domain: where tests draw from. triton: its text; "": the function of that name in CUDA's device library. rough: as
    `Op.rough`. far: (dtypes, TEST): `Op.far`, with the test `bj::TEST` and `bj::NAME_any`, which is right for all operands."""

    name: str
    cost: int
    domain: tuple[float, float]
    triton: str = ""
    rough: str | None = None
    far: tuple[str, str] | None = None


MATH_FUNCTIONS = (
    MathFunction("exp", 8, (-20, 20), rough="tl.exp({0})"),
    MathFunction("exp2", 8, (-20, 20)),
    MathFunction("expm1", 12, (-10, 10)),
    MathFunction("log", 8, (0, 50)),
    MathFunction("log2", 8, (0, 50)),
    MathFunction("log10", 8, (0, 50)),
    MathFunction("log1p", 12, (-0.9, 50)),
    MathFunction("sqrt", 4, (0, 50), triton="bj_sqrt({0})"),
    MathFunction("sin", 12, (-30, 30), far=("float", "trig_far")),
    MathFunction("cos", 12, (-30, 30), far=("float", "trig_far")),
    MathFunction("tan", 20, (-1.4, 1.4), far=("float", "trig_far")),
    MathFunction("asin", 16, (-1, 1)),
    MathFunction("acos", 16, (-1, 1)),
    MathFunction("atan", 16, (-20, 20)),
    MathFunction("sinh", 16, (-10, 10)),
    MathFunction("cosh", 16, (-10, 10)),
    MathFunction("tanh", 12, (-6, 6)),
    MathFunction("asinh", 20, (-20, 20)),
    MathFunction("acosh", 20, (1, 20)),
    MathFunction("atanh", 20, (-0.9, 0.9)),
    MathFunction("erf", 12, (-4, 4)),
    MathFunction("erfc", 16, (-4, 4)),
    MathFunction("erfinv", 30, (-0.99, 0.99), far=("f64", "erfinv_far")),
    MathFunction("lgamma", 40, (0.1, 20)),
    MathFunction("digamma", 40, (0.1, 20), triton="bj_digamma({0})"),
    MathFunction("sigmoid", 10, (-20, 20), triton="bj_sigmoid({0})", rough="bj_rough_sigmoid({0})"),
)
