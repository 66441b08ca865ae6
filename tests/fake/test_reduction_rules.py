"""Every row of `common/reduction_ops.py` against eager: shape, strides, dtype, and that what eager refuses is not inferred."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

import bytejit
from bytejit.common.reduction_ops import REDUCTIONS

from .test_pointwise_rules import DTYPES, infers, overload_of

SHAPES: tuple[Callable, ...] = (
    lambda x: x,
    lambda x: x.transpose(0, 2),
    lambda x: x[:, :0],
    lambda x: x[0, 0, 0],
)
MANY = ([], [0], [-1, 0], [1, 1], [0, -3], [5])
# the dimensions to give, by the type that the schema names
DIMS: dict[str, tuple] = {
    "int": (0, -1, 5),
    "Optional[int]": (0, -1, 5, None),
    "List[int]": MANY,
    "Optional[List[int]]": (*MANY, None),
}


def calls(overload: str) -> Iterator[tuple]:
    """Arguments after the tensor, and named ones, as the overload's schema has them."""
    given = {a.name: a for a in overload_of(overload)._schema.arguments}
    dims = [(d,) for d in DIMS[str(given["dim"].type)]] if "dim" in given else [()]
    half = (False,) if "half_to_float" in given else ()
    named: list[dict] = [{}]
    if "keepdim" in given:
        named.append({"keepdim": True})
    if "dtype" in given and given["dtype"].kwarg_only:
        named += [{"dtype": torch.float64}, {"dtype": torch.int32}]
    yield from (((*dim, *half), more) for dim, more in itertools.product(dims, named))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("overload", [o for row in REDUCTIONS.values() for o in row.overloads])
def test_a_row_infers_what_eager_gives(overload: str) -> None:
    tensors = [shape(torch.ones(2, 3, 4, 5).to(dtype)) for dtype in (*DTYPES, torch.complex64) for shape in SHAPES]
    assert any([infers(overload, (x, *args), named) for x in tensors for args, named in calls(overload)])


REFUSED = {
    "a dimension given twice": lambda x: torch.var(x, dim=(0, 0)),
    "a dimension given twice, of bools": lambda x: torch.any(x > 0, dim=(0, -3)),
    "a place among bools": lambda x: torch.argmax((x > 0).long() > 0),
}
NO_DIMS = {
    "any": lambda x: torch.any(x > 0, dim=()),
    "all": lambda x: torch.all((x > 0) & (x < 0.5), dim=()),
    "sum": lambda x: torch.sum(x, dim=()),
    "amax": lambda x: torch.amax(x, dim=()),
    "var": lambda x: torch.var(x, dim=()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    f, x = REFUSED[name], torch.rand(2, 3, 4)
    with pytest.raises(RuntimeError) as eager:
        f(x)
    with pytest.raises(RuntimeError) as compiled:
        bytejit.compile(f)(x)
    assert str(compiled.value).partition("\n")[0] == str(eager.value).partition("\n")[0]


@pytest.mark.parametrize("name", NO_DIMS)
def test_an_empty_list_of_dimensions(name: str) -> None:
    f, x = NO_DIMS[name], torch.rand(2, 3, 4)
    torch.testing.assert_close(bytejit.compile(f)(x), f(x))
