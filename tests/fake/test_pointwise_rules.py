"""Every row of `common/pointwise_ops.py` against eager: shape, strides, dtype, and that what eager refuses is not inferred."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from bytejit.codegen.ops.table import table
from bytejit.common.pointwise_ops import POINTWISE
from bytejit.fake.rules.core import ROWS, NeedsMeta
from bytejit.fake.tensor import FakeMode, fake_like

DTYPES = (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)
LAYOUTS = (
    lambda x: x,
    lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x: x[:, :1],
    lambda x: x[0],
    lambda x: x[0, 0, 0],
)
# what stands behind the operands, where an op needs more
NUMBERS = {
    "threshold": (0.1, 2.0),
    "threshold_backward": (0.1,),
    "leaky_relu_backward": (0.1, False),
    "hardtanh_backward": (-1.0, 1.0),
    "softplus_backward": (1.0, 20.0),
    "hardshrink_backward": (0.5,),
    "softshrink_backward": (0.5,),
}


def overload_of(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def tensor(dtype: torch.dtype, layout: int) -> torch.Tensor:
    return LAYOUTS[layout](torch.ones(2, 3, 4, 5).to(dtype))


def cases(name: str, operands: int) -> Iterator[tuple]:
    """Operands of equal and mixed dtypes and layouts; a number where the overload takes one."""
    tail = NUMBERS.get(name, ())
    numbers = sum(isinstance(a.type, torch.NumberType) for a in overload_of(name)._schema.arguments[:operands])
    for dtype in DTYPES:
        for first in range(len(LAYOUTS)):
            x = tensor(dtype, first)
            if operands == 1:
                yield (x, *tail)
            elif numbers:
                yield from ((x, n, *tail) for n in (2, 2.5, True))
            else:
                others = itertools.product((dtype, torch.float32), range(len(LAYOUTS)))
                yield from ((x, *(tensor(d, layout) for _ in range(operands - 1)), *tail) for d, layout in others)


def seen(x: torch.Tensor) -> tuple:
    return tuple(x.shape), x.stride(), x.dtype


@pytest.mark.parametrize("name", POINTWISE)
def test_a_row_infers_what_eager_gives(name: str) -> None:
    row = POINTWISE[name]
    for overload in row.overloads:
        op, rule, served = overload_of(overload), ROWS[f"aten::{overload}"], 0
        for args in cases(overload, row.operands):
            with FakeMode():
                fakes = [fake_like(a) if isinstance(a, torch.Tensor) else a for a in args]
            try:
                got = rule(*fakes)
            except (NeedsMeta, RuntimeError):
                continue
            shown = [seen(a) if isinstance(a, torch.Tensor) else a for a in args]
            try:
                want = seen(op(*args))
            except (RuntimeError, NotImplementedError) as error:
                raise AssertionError(f"{overload} of {shown}: inferred, and eager raises {error}") from None
            assert (got.shape, got.stride, got.dtype) == want, (overload, shown)
            served += 1
        assert served, overload


WRITERS = [name.removeprefix("aten::") for name in ROWS if name.removeprefix("aten::").split(".")[0].endswith("_")]
LIMITS = {"clamp_": (0, 1), "clamp_min_": (0,), "clamp_max_": (1,)}


@pytest.mark.parametrize("name", [n for n in WRITERS if ROWS[f"aten::{n}"].__module__.endswith("pointwise") and n != "copy_"])
def test_what_writes_in_place_is_refused_as_in_eager(name: str) -> None:
    op, rule = overload_of(name), ROWS[f"aten::{name}"]
    operands = sum(isinstance(a.type, torch.TensorType) for a in op._schema.arguments)
    served = 0
    for dtype, layout in itertools.product(DTYPES, range(len(LAYOUTS))):
        tails = [LIMITS.get(name, ())]
        if name.endswith(".Scalar"):
            tails = [(value,) for value in (2, 2.5, True, 1j)]
        elif operands > 1:
            tails = [(tensor(d, n),) * (operands - 1) for d in (dtype, torch.float32, torch.bool) for n in range(len(LAYOUTS))]
        for tail in tails:
            x = tensor(dtype, layout).clone()
            with FakeMode():
                fakes = [fake_like(a) if isinstance(a, torch.Tensor) else a for a in (x, *tail)]
            try:
                got = rule(*fakes)
            except (NeedsMeta, RuntimeError):
                continue
            assert seen(op(x, *tail)) == (got.shape, got.stride, got.dtype), (dtype, layout, tail)
            served += 1
    assert served


def test_every_row_has_one_in_the_op_table() -> None:
    by_aten = table().by_aten
    for row in POINTWISE.values():
        for overload in row.overloads:
            assert f"aten.{overload}" in by_aten or f"aten.{overload}.default" in by_aten, overload


def test_a_rule_that_follows_from_a_row_stands_there_alone() -> None:
    """Rows of kind pointwise say dtype and operands: their shape rules are derived."""
    derived = {f"aten.{overload}" for row in POINTWISE.values() for overload in row.overloads}
    rules = {name.replace("::", ".", 1) for name in ROWS}
    rules |= {f"{name}.default" for name in rules}
    derived |= {f"{name}.default" for name in derived}
    twice = [o for o, row in table().by_aten.items() if row.kind == "pointwise" and o in rules and o not in derived]
    assert not twice, twice
