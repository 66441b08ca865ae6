"""Rows of the pointwise primitives: arithmetic, comparison, logic, bits, the functions of one to three floats, casts.

What is a formula over these (gelu, silu, lerp, ...) is in codegen/ops/rows/composite.py. Texts are explained in
codegen/ops/table.py.
"""

from __future__ import annotations

from typing import Any

import torch

from bytejit.codegen.ops.table import aten, op
from bytejit.common.dtypes import FLOATS, INTS
from bytejit.common.math_functions import MATH_FUNCTIONS
from bytejit.common.pointwise_ops import POINTWISE

ANY = FLOATS | INTS | {"b8"}
WHOLE = INTS | {"b8"}


def known(name: str) -> dict[str, Any]:
    """Returns what `common/pointwise_ops.py` says of a row: overloads, operands, dtype rule."""
    row = POINTWISE[name]
    return {"aten": aten(*row.overloads), "arity": row.operands, "dtype": row.result}


def call(name: str, device: str = "bj_") -> dict[str, str]:
    """Texts of a function of two operands. device: "bj_" where the Triton prelude has it, "libdevice." where CUDA's device
    library does."""
    return {"cpp": f"bj::{name}({{0}}, {{1}})", "triton": f"{device}{name}({{0}}, {{1}})"}


def divides(name: str) -> dict[str, tuple[str, str]]:
    """`Op.far` of a function that divides: large quotients of floats, large i64, which are divided as f64."""
    return {
        "float": ("bj::mod_far({0}, {1})", f"bj::{name}_any({{0}}, {{1}})"),
        "i64": ("bj::div_far({0}, {1})", f"bj::{name}_any({{0}}, {{1}}, {{err}})"),
    }


# ---- arithmetic (alpha of add and sub: composite.py) -----------------------------------------------------------------
op(
    "add",
    dtypes=ANY,
    arity=2,
    cpp={"float": "{0} + {1}", "int": "{0} + {1}", "bool": "{0} | {1}"},
    ref=torch.add,
    triton={"float": "{0} + {1}", "int": "{0} + {1}", "bool": "{0} | {1}"},
)
op("sub", arity=2, cpp="{0} - {1}", triton="{0} - {1}", ref=torch.sub)
op(
    "mul",
    **known("mul"),
    dtypes=ANY,
    ref=torch.mul,
    cpp={"float": "{0} * {1}", "int": "{0} * {1}", "bool": "{0} & {1}"},
    triton={"float": "{0} * {1}", "int": "{0} * {1}", "bool": "{0} & {1}"},
)
op(
    "div",
    **known("div"),
    cpp="{0} / {1}",
    triton="bj_div({0}, {1})",
    rough="{0} / {1}",
    ref=torch.div,
    dtypes=ANY,
)
op("neg", **known("neg"), cpp="-{0}", triton="bj_neg({0})", ref=torch.neg)
op(
    "abs",
    **known("abs"),
    ref=torch.abs,
    cpp={"float": "bj::abs({0})", "int": "bj::abs({0})", "u8": "{0}"},
    triton={"float": "tl.abs({0})", "int": "tl.abs({0})", "u8": "{0}"},
)
op(
    "floordiv",
    **known("floordiv"),
    ref=torch.floor_divide,
    cost=8,
    raises=(1, 1),
    rounds=(0,),
    cpp={"float": "bj::floordiv({0}, {1})", "int": "bj::floordiv({0}, {1}, {err})"},
    far=divides("floordiv"),
    triton="bj_floordiv({0}, {1})",
)
op(
    "truncdiv",
    arity=2,
    cost=8,
    raises=(1, 1),
    ref=lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    cpp={"float": "bj::trunc({0} / {1})", "int": "bj::truncdiv({0}, {1}, {err})"},
    far={"i64": divides("truncdiv")["i64"]},
    triton="bj_truncdiv({0}, {1})",
)
op(
    "remainder",
    **known("remainder"),
    ref=torch.remainder,
    cost=10,
    raises=(1, 1),
    rounds=(0, 1),
    cpp={"float": "bj::remainder({0}, {1})", "int": "bj::remainder({0}, {1}, {err})"},
    far=divides("remainder"),
    triton="bj_remainder({0}, {1})",
)
op(
    "fmod",
    **known("fmod"),
    ref=torch.fmod,
    cost=10,
    raises=(1, 1),
    rounds=(0, 1),
    cpp={"float": "bj::fmod({0}, {1})", "int": "bj::fmod({0}, {1}, {err})"},
    far=divides("fmod"),
    triton="bj_fmod({0}, {1})",
)
op("maximum", **known("maximum"), dtypes=ANY, ref=torch.maximum, **call("maximum"))  # nan wins
op("minimum", **known("minimum"), dtypes=ANY, ref=torch.minimum, **call("minimum"))
op("fmax", **known("fmax"), ref=torch.fmax, **call("fmax"))  # nan loses
op("fmin", **known("fmin"), ref=torch.fmin, **call("fmin"))
op("pow", arity=2, dtype="same", cost=30, dtypes=FLOATS, domain=(0, 5), ref=torch.pow, **call("pow", "libdevice."))
op("ipow", arity=2, cost=16, dtypes=INTS, ref=torch.pow, **call("ipow"))

# ---- comparison: returns b8; operands in their common dtype ---------------------------------------------------------
for _name, _sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!=")):
    op(
        _name,
        **known(_name),
        cpp=f"{{0}} {_sign} {{1}}",
        triton=f"{{0}} {_sign} {{1}}",
        by=0,
        ref=getattr(torch, _name),
        dtypes=ANY,
        rounds=(0, 1),
    )
op(
    "isnan",
    **known("isnan"),
    by=0,
    ref=torch.isnan,
    cpp={"float": "{0} != {0}", "int": "false"},
    triton={"float": "{0} != {0}", "int": "{0} != {0}"},
    dtypes=ANY,
)
op(
    "isinf",
    **known("isinf"),
    by=0,
    ref=torch.isinf,
    cpp={"float": "bj::isinf({0})", "int": "false"},
    triton={"float": "tl.abs({0}) == float('inf')", "int": "{0} != {0}"},
    dtypes=ANY,
)
op(
    "signbit",
    **known("signbit"),
    by=0,
    ref=torch.signbit,
    cpp={"float": "bj::signbit({0})", "int": "{0} < 0"},
    triton={"float": "bj_signbit({0})", "int": "{0} < 0"},
    dtypes=ANY,
)

# ---- logic and bits -----------------------------------------------------------------------------------------------
op(
    "logical_and",
    **known("logical_and"),
    by=0,
    ref=torch.logical_and,
    dtypes=ANY,
    cpp="({0} != 0) & ({1} != 0)",
    triton="({0} != 0) & ({1} != 0)",
)
op(
    "logical_or",
    **known("logical_or"),
    by=0,
    ref=torch.logical_or,
    dtypes=ANY,
    cpp="({0} != 0) | ({1} != 0)",
    triton="({0} != 0) | ({1} != 0)",
)
op(
    "logical_xor",
    **known("logical_xor"),
    by=0,
    ref=torch.logical_xor,
    dtypes=ANY,
    cpp="({0} != 0) != ({1} != 0)",
    triton="({0} != 0) != ({1} != 0)",
)
op(
    "logical_not",
    **known("logical_not"),
    by=0,
    ref=torch.logical_not,
    cpp="{0} == 0",
    triton="{0} == 0",
    dtypes=ANY,
)
op("and", **known("and"), dtypes=WHOLE, ref=torch.bitwise_and, cpp="{0} & {1}", triton="{0} & {1}")
op("or", **known("or"), dtypes=WHOLE, ref=torch.bitwise_or, cpp="{0} | {1}", triton="{0} | {1}")
op("xor", **known("xor"), dtypes=WHOLE, ref=torch.bitwise_xor, cpp="{0} ^ {1}", triton="{0} ^ {1}")
op(
    "not",
    **known("not"),
    dtypes=WHOLE,
    ref=torch.bitwise_not,
    cpp={"int": "~{0}", "bool": "!{0}"},
    triton={"int": "~{0}", "u8": "{0} ^ 255", "bool": "{0} == 0"},
)
op(
    "shl",
    aten("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor"),
    arity=2,
    dtypes=INTS,
    ref=torch.bitwise_left_shift,
    domain=(0, 6),
    **call("shl"),
)
op(
    "shr",
    aten("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar", "__rshift__.Tensor"),
    arity=2,
    dtypes=INTS,
    ref=torch.bitwise_right_shift,
    domain=(0, 6),
    **call("shr"),
)

# ---- functions of one float (ints are promoted) -------------------------------------------------------------------
for _f in MATH_FUNCTIONS:
    op(
        _f.name,
        **known(_f.name),
        ref=getattr(torch, _f.name, None) or getattr(torch.ops.aten, _f.name),
        cost=_f.cost,
        domain=_f.domain,
        dtypes=ANY,
        cpp=f"bj::{_f.name}({{0}})",
        triton=_f.triton or f"libdevice.{_f.name}({{0}})",
        rough=_f.rough,
        far=_f.far and {_f.far[0]: (f"bj::{_f.far[1]}({{0}})", f"bj::{_f.name}_any({{0}})")},
    )
#: what gelu multiplies by, on a GPU: rows of their own for the sake of their rough texts. Far below 0 they cancel, as torch's do
op(
    "tanh_cdf",
    ref=lambda x: 0.5 * (1 + x.tanh()),
    cost=14,
    domain=(-1, 6),
    dtypes=FLOATS,
    cpp="(({T})0.5 * (1 + bj::tanh({0})))",
    triton="(0.5 * (1.0 + libdevice.tanh({0})))",
    rough="bj_rough_sigmoid(2.0 * {0})",
)
op(
    "normal_cdf",
    ref=torch.special.ndtr,
    cost=14,
    domain=(-1, 6),
    dtypes=FLOATS,
    cpp="(({T})0.5 * (1 + bj::erf({0} * ({T})0.70710678118654752)))",
    triton="(0.5 * (1.0 + libdevice.erf({0} * 0.7071067811865476)))",
    rough="bj_rough_normal_cdf({0})",
)
op(
    "rsqrt",
    **known("rsqrt"),
    ref=torch.rsqrt,
    cost=6,
    domain=(0, 50),
    dtypes=ANY,
    cpp="1 / bj::sqrt({0})",
    triton="bj_rsqrt({0})",
    rough="1.0 / bj_sqrt({0})",
)
op(
    "reciprocal",
    **known("reciprocal"),
    ref=torch.reciprocal,
    cost=4,
    dtypes=ANY,
    cpp="1 / {0}",
    triton="bj_reciprocal({0})",
    rough="1.0 / {0}",
)
op("atan2", **known("atan2"), ref=torch.atan2, cost=20, dtypes=ANY, **call("atan2", "libdevice."))
op("hypot", **known("hypot"), ref=torch.hypot, cost=10, dtypes=FLOATS, **call("hypot", "libdevice."))
op(
    "copysign",
    **known("copysign"),
    ref=torch.copysign,
    dtypes=ANY,
    **call("copysign", "libdevice."),
)
op(
    "nextafter",
    **known("nextafter"),
    ref=torch.nextafter,
    cost=8,
    dtypes=frozenset({"f32", "f64"}),
    **call("nextafter", "libdevice."),
)
op("fma", arity=3, cpp="{0} * {1} + {2}", triton="tl.fma({0}, {1}, {2})", dtypes=FLOATS, cost=2, ref=lambda a, b, c: a * b + c)

# ---- rounding: floats; ints as they are; halves to even --------------------------------------------------------------
for _name, _device in (
    ("floor", "tl.floor"),
    ("ceil", "libdevice.ceil"),
    ("trunc", "libdevice.trunc"),
    ("round", "libdevice.nearbyint"),
):
    op(
        _name,
        **known(_name),
        ref=getattr(torch, _name),
        cpp={"float": f"bj::{_name}({{0}})", "int": "{0}"},
        cost=2,
        triton={"float": f"{_device}({{0}})", "int": "{0}"},
    )

# ---- choice and casts -----------------------------------------------------------------------------------------------
op(
    "select",
    arity=3,
    ref=torch.where,
    cpp="{0} ? {1} : {2}",
    triton="tl.where({0}, {1}, {2})",
    dtypes=frozenset({"b8"}),
)
op(
    "to",
    cpp={"float": "bj::to<{T}>({0})", "int": "bj::to<{T}>({0})", "bool": "{0} != 0"},
    dtypes=ANY,
    # float to int: truncates, as static_cast
    # to 16 bits by way of f32, as torch; to u8 by way of i64, to i8 and i16 by way of i32: what is out of range wraps
    triton={
        "float": "{0}.to({T})",
        "bf16": "{0}.to(tl.float32).to({T})",
        "f16": "{0}.to(tl.float32).to({T})",
        "int": "{0}.to({T})",
        "i16": "{0}.to(tl.int32).to({T})",
        "i8": "{0}.to(tl.int32).to({T})",
        "u8": "{0}.to(tl.int64).to({T})",
        "bool": "{0} != 0",
    },
)
#: a whole number as the f64 that has its bits: how a float that Python computes at the call reaches a kernel
op(
    "real_of_bits",
    cpp="bj::bits<f64>({0})",
    triton="{0}.to(tl.float64, bitcast=True)",
    dtypes=frozenset({"i64"}),
    ref=lambda x: x.view(torch.float64),
)
op("narrow", cpp="bj::to<{T}>({0})", triton="{0}.to({T})", dtypes=FLOATS)
#: (i, size), attr: the error's label: i wrapped into range(size) if negative; out of range sets the error flag and
#: returns 0
op(
    "bound",
    arity=2,
    raises=(0, 0),
    cpp="bj::bound({0}, {1}, {err})",
    triton="bj_bound({0}, {1}, {err})",
    dtypes=frozenset({"i64"}),
)
#: the same without wrapping: a negative number is out of range
op(
    "inside",
    arity=2,
    raises=(0, 0),
    cpp="bj::inside({0}, {1}, {err})",
    triton="bj_inside({0}, {1}, {err})",
    dtypes=frozenset({"i64"}),
)
