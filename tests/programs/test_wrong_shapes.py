"""Operands of every shape, of which most do not fit: refused as in eager, never read past their end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit

SHAPES = ((), (1,), (2,), (5,), (2, 5), (4, 5), (4, 1), (1, 5), (4, 6), (0,), (0, 5), (2, 2, 5))
X, I, ROW = torch.arange(20.0).view(4, 5) / 7, torch.tensor([1, 0]), torch.tensor([[0, 1, 2, 3, 1]])


def written(key: object) -> Callable:
    def write(s: torch.Tensor) -> torch.Tensor:
        y = X.clone()
        y[key] = s
        return y

    return write


# of a tensor of one of these shapes
BY_VALUES: dict[str, Callable] = {
    "index_put": lambda s: X.index_put((I,), s),
    "index_put of a column": lambda s: X.index_put((None, I), s),
    "index_put of nothing": lambda s: X.index_put((I[:0],), s),
    "index_put added": lambda s: X.index_put((I, I), s, accumulate=True),
    "rows": written(I),
    "elements": written((I, I)),
    "a row": written(1),
    "a slice": written(slice(0, 2)),
    "a mask": written(X > 1),
    "a mask of rows": written(X[:, 0] > 1),
    "select_scatter": lambda s: X.select_scatter(s, 0, 1),
    "slice_scatter": lambda s: X.slice_scatter(s, 0, 1, end=3),
    "diagonal_scatter": lambda s: X.diagonal_scatter(s),
    "scatter": lambda s: X.scatter(0, ROW, s),
    "scatter_add": lambda s: X.scatter_add(0, ROW, s),
    "index_add": lambda s: X.index_add(0, I, s),
    "index_copy": lambda s: X.index_copy(0, I, s),
    "put": lambda s: X.put(I, s),
    "masked_scatter": lambda s: X.masked_scatter(X > 2.5, s),
    "embedding": lambda s: F.embedding(I, s),
    "batch_norm": lambda s: F.batch_norm(X, s, s),
    "layer_norm": lambda s: F.layer_norm(X, (5,), s),
}
# of indices of one of these shapes
BY_INDICES: dict[str, Callable] = {
    "gather": lambda i: X.gather(1, i),
    "scatter": lambda i: X.scatter(0, i, X),
    "scatter of a number": lambda i: X.scatter(1, i, 2.0),
    "scatter_add": lambda i: X.scatter_add(1, i, X),
    "index_select": lambda i: X.index_select(0, i),
    "index_fill": lambda i: X.index_fill(0, i, 1.0),
    "index": lambda i: X[i, i],
    "take": lambda i: X.take(i),
    "from nothing": lambda i: F.embedding(i, X[:0]),
    "gather from nothing": lambda i: X[:0].gather(0, i),
}
# of indices of another dtype
BY_DTYPES: dict[str, Callable] = {
    "index_fill": lambda i: X.index_fill(0, i, 1.0),
    "index_copy": lambda i: X.index_copy(0, i, X[:2]),
    "index_select": lambda i: X.index_select(0, i),
    "gather": lambda i: X.gather(0, i[None]),
    "take": lambda i: X.take(i),
    "scatter": lambda i: X.scatter(0, i[None], X),
    "index_add": lambda i: X.index_add(0, i, X[:2]),
    "searchsorted": lambda i: torch.searchsorted(X[0, :2], X, sorter=i),
    "searchsorted of nothing": lambda i: torch.searchsorted(X[0, :2], X[:0], sorter=i),
}

# modules, of inputs whose channels or dimensions do not fit; the errors are eager's to the word
MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "conv1d": lambda: torch.nn.Conv1d(4, 6, 3),
    "conv2d": lambda: torch.nn.Conv2d(4, 6, 3),
    "conv3d": lambda: torch.nn.Conv3d(4, 6, 3),
    "grouped": lambda: torch.nn.Conv2d(4, 6, 3, groups=2),
    "transposed1d": lambda: torch.nn.ConvTranspose1d(4, 6, 3),
    "transposed2d": lambda: torch.nn.ConvTranspose2d(4, 6, 3),
    "transposed3d": lambda: torch.nn.ConvTranspose3d(4, 6, 3),
    "linear": lambda: torch.nn.Linear(4, 6),
    "batch norm": lambda: torch.nn.BatchNorm2d(4),
    "group norm": lambda: torch.nn.GroupNorm(2, 4),
    "instance norm": lambda: torch.nn.InstanceNorm2d(4, affine=True),
    "layer norm": lambda: torch.nn.LayerNorm(4),
    "max pool": lambda: torch.nn.MaxPool2d(4),
    "average pool": lambda: torch.nn.AvgPool2d(4),
    "pixel shuffle": lambda: torch.nn.PixelShuffle(2),
    "lstm": lambda: torch.nn.LSTM(4, 6),
    "gru": lambda: torch.nn.GRU(4, 6),
    "prelu": lambda: torch.nn.PReLU(4),
    "attention": lambda: torch.nn.TransformerEncoderLayer(4, 2, 8),
}
IMAGES = (
    (5,),
    (4,),
    (2, 5),
    (2, 5, 3),
    (5, 3, 3),
    (2, 5, 3, 3),
    (2, 4, 2, 2),
    (2, 5, 3, 3, 3),
    (2, 4, 1, 1, 1),
    (1, 2, 4, 3, 3, 3),
)


def outcome(f: Callable, given: torch.Tensor) -> object:
    try:
        return f(given)
    except Exception as e:
        return type(e)


def check(f: Callable, inputs: list[torch.Tensor]) -> None:
    for given in inputs:
        bytejit.reset()
        want, got = outcome(f, given), outcome(bytejit.compile(f), given)
        if isinstance(want, torch.Tensor):
            assert isinstance(got, torch.Tensor), (given.shape, given.dtype, got)
            torch.testing.assert_close(got, want, equal_nan=True)
        else:
            assert got is want, (given.shape, given.dtype, want, got)


@pytest.mark.parametrize("name", BY_VALUES)
def test_values_of_any_shape(name: str) -> None:
    """Writes of values, and tables, of shapes that do not fit"""
    check(BY_VALUES[name], [torch.arange(torch.Size(s).numel()).view(s) + 1.0 for s in SHAPES])


@pytest.mark.parametrize("name", MODULES)
def test_modules_with_inputs_of_any_shape(name: str) -> None:
    """Channels, features and dimensions that a module does not take"""

    def tried(f: Callable, x: torch.Tensor) -> object:
        try:
            y = f(x)
        except Exception as e:
            return type(e), str(e)
        return y[0] if isinstance(y, tuple) else y

    torch.manual_seed(0)
    module, fits = MODULES[name]().eval(), 0
    for shape in IMAGES:
        bytejit.reset()
        x = torch.randn(shape)
        with torch.no_grad():
            want = tried(module, x)
            fits += isinstance(want, torch.Tensor)
            # kernels for the first that fits, and for all that do not
            kernels = fits < 2 or not isinstance(want, torch.Tensor)
            got = tried(bytejit.compile(module, backend="inductor" if kernels else "eager"), x)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want)
        else:
            assert got == want, shape


@pytest.mark.parametrize("name", BY_INDICES)
def test_indices_of_any_shape(name: str) -> None:
    """Index tensors of shapes that do not fit, and places in nothing"""
    check(BY_INDICES[name], [torch.zeros(s, dtype=torch.long) for s in SHAPES])


@pytest.mark.parametrize("name", BY_DTYPES)
def test_indices_of_any_dtype(name: str) -> None:
    """Index tensors of dtypes that only some operators take"""
    check(BY_DTYPES[name], [I.to(d) for d in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32)])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.int64])
def test_numbers_that_a_dtype_cannot_hold(dtype: torch.dtype) -> None:
    """A number of a wider dtype, in a tensor or by itself"""
    x = X.to(dtype)
    for number in (300, 1e5, -3, -2.5, 7):
        check(lambda v, number=number: x.index_fill(0, I, number) + v.to(dtype), [torch.ones(())])
        values = [torch.tensor(number), torch.tensor(number).to(torch.float64)]
        check(lambda v: x.masked_fill(X > 1, v), values)
        check(lambda v: x.index_fill(0, I, v), values)


def test_moments_beside_an_infinite_number() -> None:
    """The mean of `var_mean` where the last number is infinite, another one, or several; that of batch norm"""
    inf = float("inf")
    for values in ([1, 2, inf], [1, inf, 2], [inf, 1, 2], [-inf, 1, -inf], [1, 2, -inf], [float("nan"), 1, 2], [inf]):
        x = torch.tensor(values)
        check(lambda x: torch.stack(torch.var_mean(x, correction=0)), [x, x.double()])
        check(lambda x: torch.stack(torch.std_mean(x, 0, correction=0)), [x[:, None].expand(-1, 3).contiguous()])
    x = torch.tensor([[1.0, 2], [3, inf], [5, 6]])

    def running(x: torch.Tensor) -> torch.Tensor:
        mean, var = torch.zeros(2), torch.ones(2)
        F.batch_norm(x, mean, var, training=True)
        return torch.stack((mean, var))

    check(running, [x, x.flip(0)])
