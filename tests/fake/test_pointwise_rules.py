"""Every row of `common/pointwise_ops.py` against eager: shape, strides, dtype, and that what eager refuses is not inferred."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from bytejit.common.pointwise_ops import POINTWISE, PointwiseOp
from bytejit.fake.rules.core import ROWS, NeedsMeta
from bytejit.fake.rules.errors import NoFake
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
    "masked_fill.Scalar": (0.5,),
    "elu_backward": (1.0, 1.0, 1.0, False),  # between its operands
    "native_dropout_backward": (2.0,),
    "mse_loss_backward": (1,),
    "smooth_l1_loss_backward": (1, 0.5),
    "huber_loss_backward": (1, 0.5),
    "binary_cross_entropy_backward": (None, 1),
}
BOUNDS = {"clamp": ((0, 1), (None, 2.5), (-1, None)), "clamp_min": ((0,), (0.5,), (300,)), "clamp_max": ((1,), (2.5,), (-1,))}
BOOLS = {"chosen": 0, "masked": 1}  # `of` -> the operand of bools


def overload_of(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def tensor(dtype: torch.dtype, layout: int) -> torch.Tensor:
    return LAYOUTS[layout](torch.ones(2, 3, 4, 5).to(dtype))


def cases(name: str, row: PointwiseOp) -> Iterator[tuple]:
    """Arguments: operands of equal and mixed dtypes and layouts; a number where the overload takes one."""
    tail, schema = NUMBERS.get(name, ()), overload_of(name)._schema
    places = row.places or range(row.operands)
    number = next((i for i in places if isinstance(schema.arguments[i].type, torch.NumberType)), None)
    for dtype, first in itertools.product(DTYPES, range(len(LAYOUTS))):
        x = tensor(dtype, first)
        if row.operands == 1:
            yield from ((x, *tail, *bounds) for bounds in BOUNDS.get(name, ((),)))
        elif number is not None:
            yield from ((n, x) if number == 0 else (x, n, *tail) for n in (2, 2.5, True))
        else:
            for other, layout in itertools.product((dtype, torch.float32), range(len(LAYOUTS))):
                operands = [x, *(tensor(other, layout) for _ in range(row.operands - 1))]
                if row.of in BOOLS:
                    operands[BOOLS[row.of]] = operands[BOOLS[row.of]] > 0
                yield (x, *tail, operands[1]) if row.places else (*operands, *tail)


def options(row: PointwiseOp) -> tuple[dict, ...]:
    """Named arguments to give: each text that the row knows, and one that eager refuses."""
    if not row.choices:
        return ({},)
    name = "rounding_mode" if row.result == "rounded" else "approximate"
    return tuple({name: value} for value in (*row.choices, "other"))


def seen(x: torch.Tensor) -> tuple:
    return tuple(x.shape), x.stride(), x.dtype


def infers(overload: str, args: tuple, named: dict) -> bool:
    """Whether the rule of an overload serves a call; what it infers is compared with eager."""
    op, rule = overload_of(overload), ROWS[f"aten::{overload}"]
    with FakeMode():
        fakes = [fake_like(a) if isinstance(a, torch.Tensor) else a for a in args]
    try:
        got = rule(*fakes, **named)
    except (NeedsMeta, NoFake, RuntimeError, IndexError):
        return False
    shown = [seen(a) if isinstance(a, torch.Tensor) else a for a in args], named
    try:
        want = op(*args, **named)
    except (RuntimeError, NotImplementedError, IndexError) as error:
        raise AssertionError(f"{overload} of {shown}: inferred, and eager raises {error}") from None
    got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    assert [(g.shape, g.stride, g.dtype) for g in got] == [seen(w) for w in want], (overload, shown)
    return True


@pytest.mark.parametrize("name", POINTWISE)
def test_a_row_infers_what_eager_gives(name: str) -> None:
    row = POINTWISE[name]
    for overload in row.overloads:
        served = [infers(overload, *call) for call in itertools.product(cases(overload, row), options(row))]
        assert any(served), overload


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
