"""The op table: complete texts, no overload twice, every primitive against torch through the interpreter."""

from __future__ import annotations

import pytest
import torch
from graphs import same

from bytejit.codegen.ops.table import Op, OpTable, table
from bytejit.kernels import attention, conv, conv_grad, gemm

ROWS = table()
PRIMITIVES = [r for r in ROWS.by_name.values() if r.kind == "pointwise"]
TORCH = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "b8": torch.bool,
}


@pytest.mark.parametrize("row", PRIMITIVES, ids=lambda r: r.name)
def test_every_primitive_has_both_texts_for_its_dtypes(row: Op) -> None:
    for dtype in sorted(row.dtypes - {"f16", "bf16"}):
        for language in ("cpp", "triton"):
            text = row.text(language, dtype)
            holes = [f"{{{i}}}" for i in range(row.arity)]
            constant = text in ("false", "{0}")
            assert constant or all(h in text for h in holes), (language, dtype, text)
            assert "{err}" not in text or row.raises is not None


def test_overloads_exist_in_torch() -> None:
    for module in (gemm, conv, conv_grad, attention):
        module.OWN.define()
    known = [*ROWS.by_aten]
    for name in known:
        namespace, op, overload = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), op, None)
        assert packet is not None and overload in packet.overloads(), name


def test_a_name_or_overload_is_declared_once() -> None:
    rows = OpTable()
    rows.add(Op("f", ("aten.f.default",), "pointwise"))
    with pytest.raises(ValueError, match="the name is taken"):
        rows.add(Op("f", (), "pointwise"))
    with pytest.raises(ValueError, match="aten.f.default is taken by op f"):
        rows.add(Op("g", ("aten.f.default",), "pointwise"))
    with pytest.raises(ValueError, match="dtype rule 'odd'"):
        rows.add(Op("h", (), "pointwise", dtype="odd"))


def operands(row: Op, dtype: str, shape: tuple) -> list[torch.Tensor]:
    low, high = row.domain
    out = []
    for i in range(row.arity):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64) * (high - low) + low
        if dtype == "u8":
            x = x.abs()
        if dtype[0] in "iu":
            x = x.round() + (x.round() == 0)  # no division by zero
        if dtype[0] in "fb" and dtype != "b8" and x.numel() > 4:
            x.view(-1)[:5] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0], dtype=torch.float64)
        out.append((x > 0) if dtype == "b8" else x.to(TORCH[dtype]))
    return out


CASES = [
    (r, a, d)
    for r in PRIMITIVES
    for a in r.aten
    for d in sorted(r.dtypes & set(TORCH))
    if not a.endswith((".Scalar", ".Tensor_Scalar")) and a != "aten.true_divide.Tensor"
]

FIRST = {(row.name, overload): dtype for row, overload, dtype in reversed(CASES)}
# f32 where a row has it
FIRST |= {(row.name, overload): "f32" for row, overload, dtype in CASES if dtype == "f32"}


@pytest.mark.parametrize("row, overload, dtype", CASES, ids=lambda c: getattr(c, "name", c))
def test_rows_lower_as_torch_computes(row: Op, overload: str, dtype: str) -> None:
    """Each dtype once, with strides and, of two operands, sizes of 1; a row's first dtype in each shape."""
    namespace, op, which = overload.split(".")
    fn = getattr(getattr(getattr(torch.ops, namespace), op), which)
    args = [t.t()[:, ::2] for t in operands(row, dtype, (6, 4))]
    try:
        fn(*args)
    except RuntimeError:
        pytest.skip("eager has no such dtype")
    same(fn, *(args if row.arity != 2 else (args[0], args[1][:, :1])))
    if dtype == FIRST[row.name, overload]:
        for shape in ((3, 7), (0, 2), ()):
            same(fn, *operands(row, dtype, shape))
