"""Numbers that a dtype cannot hold, and classes that one_hot has no place for: eager's errors, values and strides"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.common.dtypes import holds


def attempt(fn):
    def run(x):
        try:
            return x + 1, fn(x)
        except Exception as e:
            return x + 2, type(e).__name__, str(e)

    return run


REFUSED = {
    "fill_": lambda x: x.to(torch.int8).fill_(300),
    "full": lambda x: torch.full((2,), 300, dtype=torch.int8),
    "new_full": lambda x: x.new_full((2,), 1e39),
    "masked_fill": lambda x: x.half().masked_fill(x > 0, torch.finfo(torch.float32).min),
    "masked_fill_": lambda x: x.to(torch.uint8).masked_fill_(x > 0, 300),
    "where": lambda x: torch.where(x > 1, x.to(torch.int8), 300),
    "pad": lambda x: F.pad(x.to(torch.int8), (1, 1), value=300),
    "scatter": lambda x: x.to(torch.int8).scatter(0, torch.zeros(1, 1, dtype=torch.int64), 300),
    "index_fill": lambda x: x.to(torch.int8).index_fill(0, torch.tensor([0]), 300),
    "bool as alpha": lambda x: torch.add(x, 1, alpha=True),
    "bool as alpha of lists": lambda x: torch._foreach_add([x], [x], alpha=True),
    "alpha": lambda x: torch.add(x.to(torch.int8), 1, alpha=300),
    "clamp": lambda x: x.to(torch.int8).clamp(max=300),
    "pow": lambda x: x.to(torch.int8) ** 300,
    "addcmul": lambda x: torch.addcmul(x, x, x, value=1j),
    "addcdiv": lambda x: torch.addcdiv(x, x, x, value=1e39),
    "one_hot": lambda x: F.one_hot(x.long(), 1),
    "one_hot of negatives": lambda x: F.one_hot(-x.long(), 3),
    "bincount": lambda x: torch.bincount(torch.tensor([-1])),
}
TAKEN_SINCE = ("clamp",)  # some torch between 2.13 and 2.15
TAKEN = {
    "infinity": lambda x: x.half().masked_fill(x > 0, float("-inf")),
    "negative unsigned": lambda x: torch.full_like(x.to(torch.uint8), -1),
    "complex, compared": lambda x: torch.stack([x == 2 + 1j, x.long() != 1 + 0j, x.bool() == 1j]),
    "complex": lambda x: torch.stack([x + 2j, 2j * x.long(), torch.where(x > 1, x.bool(), 1j), 1j - x, x / 2j]),
    "wider": lambda x: x.to(torch.int8).clamp(max=300.5),
    "one_hot": lambda x: F.one_hot(x.long().expand(3, 2).t(), num_classes=3),
    "numpy bool": lambda x: torch.tensor([np.bool_(True), np.bool_(False)]) & torch.tensor(np.bool_(True)),
}


@pytest.mark.parametrize("name", [*REFUSED, *(f"taken: {n}" for n in TAKEN)])
def test_scalars(name):
    """The error of eager where it raises; else its values, dtype and strides"""
    fn = attempt(REFUSED[name] if name in REFUSED else TAKEN[name.removeprefix("taken: ")])
    x = torch.tensor([1.0, 2.0]) if "one_hot" in name else torch.ones(2, 2)
    want = fn(x)
    with bytejit.config.patch(suppress_errors=False):
        found = bytejit.compile(fn)(x)
    assert (len(want) == 3) == (name in REFUSED) or name in TAKEN_SINCE
    assert repr(found) == repr(want)
    assert [t.stride() for t in found if isinstance(t, torch.Tensor)] == [t.stride() for t in want if isinstance(t, torch.Tensor)]


DTYPES = (torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.bool)
NUMBERS = (
    1j,
    300 + 0j,
    0,
    -1,
    127,
    128,
    -129,
    -255,
    255,
    -256,
    65504,
    65520.0,
    70000.0,
    1e39,
    -1e39,
    float("inf"),
    float("nan"),
    2.5,
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_holds(dtype):
    """What `holds` says is what torch does"""
    for value in NUMBERS:
        try:
            torch.empty(4, dtype=dtype).fill_(value)
            taken = True
        except RuntimeError:
            taken = False
        assert holds(dtype, value) == taken, (dtype, value)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_powers_of_bools(backend):
    """to the power of True and False they stay bools, to that of 1 they do not"""

    def f(x):
        return x**True, x.t() ** False, torch.pow(x, True) ^ x, (x**True).sum(), x**1

    x = torch.tensor([[True, False], [False, True]])
    for got, want in zip(bytejit.compile(f, backend=backend)(x), f(x)):
        assert got.dtype == want.dtype and got.stride() == want.stride() and torch.equal(got, want)


CHANGING = {
    "fill_": (lambda x, s: x.to(torch.int8).fill_(s), 5, 7, 9, 300, 11),
    "full": (lambda x, s: torch.full((2,), s, dtype=torch.float16), 0.5, 0.7, 0.9, 1e39, float("inf"), 2e39),
    "masked_fill": (lambda x, s: x.to(torch.uint8).masked_fill(x > 0, s), 5, 7, 9, 300, -3, -300),
    "where": (lambda x, s: torch.where(x > 1, x.to(torch.int8), s), 5, 7, 9, 300),
    "alpha": (lambda x, s: torch.add(x.to(torch.int8), 1, alpha=s), 5, 7, 9, 300),
    "floats to integers": (lambda x, s: x.long().fill_(s), 0.5, 0.7, 0.9, float("inf"), float("nan"), 1.5),
    "written": (lambda x, s: x.int().index_put_((torch.tensor([0]),), torch.tensor(s)), 5, 7, 9, 2**31),
}


@pytest.mark.parametrize("name", CHANGING)
def test_scalars_that_change(name):
    """A number that changes between calls is refused in the call in which the dtype cannot hold it"""
    f, *numbers = CHANGING[name]
    fn = lambda x, s: attempt(lambda y: f(y, s))(x)  # noqa: E731
    with bytejit.config.patch(suppress_errors=False):
        compiled = bytejit.compile(fn)
        for n in numbers:
            assert repr(compiled(torch.ones(2, 2), n)) == repr(fn(torch.ones(2, 2), n)), n
