"""numpy, scipy and C libraries"""
import numpy as np
import pytest
import torch

from .harness import F, I, Sign, Spec, case, program

scipy_fft = pytest.importorskip("scipy.fft")


def A(*shape, dtype=np.float64):
    return Spec(lambda r: r.f(*shape).numpy().astype(dtype))


@case(F(4))
def test_numpy_roundtrip(x):
    """`x.numpy()`, `torch.from_numpy`"""
    a = (x * 2).numpy()
    return torch.from_numpy(a + 1) * 2


@case(F(4))
def test_scipy_dct(x):
    """scipy.fft.dct between tensor code"""
    x = x * 2
    y = torch.from_numpy(scipy_fft.dct(x.numpy()))
    return y * 2


@case(F(4), A(4))
def test_array_in(x, a):
    """An ndarray as argument"""
    return x + torch.from_numpy(a).float(), a.shape, a.dtype


@case(A(3, 4))
def test_array_function(a):
    """ndarray code only"""
    return np.sin(a) + a.sum(axis=0), a.T @ a, a.reshape(-1)[::2], np.concatenate([a, a])


@case(F(4), A(4))
def test_array_changed(x, a):
    """An ndarray argument written in place"""
    a[0] = 5
    a += 1
    return x + float(a[0])


@case(F(4))
def test_numpy_shares_memory(x):
    """`x.numpy()` shares memory: writes are seen both ways"""
    y = x.clone()
    a = y.numpy()
    a[0] = 7.0
    y[1] = 8.0
    return y, a


@case(F(4), np.float32(1.5), np.int64(2))
def test_numpy_scalars(x, s, i):
    """numpy scalars in and out"""
    return x * float(s), s * 2, i + 1, x[int(i)], np.float64(3.0) / 2, type(s).__name__


@case(F(4))
def test_numpy_functions_on_tensor(x):
    """numpy functions called on tensors"""
    return torch.as_tensor(np.asarray(x + 1)), np.sum(x.numpy()), x.numpy().tolist()


@case(F(2, 3))
def test_tensor_to_numpy_attributes(x):
    """ndarray results: dtype, shape, strides"""
    return x.t().numpy(), x.numpy()[:, 1], np.array([1, 2, 3], dtype=np.int32), x.__array__()


@case(F(4))
def test_np_constants_and_dtype(x):
    """numpy constants, dtypes, prod of shapes"""
    n = int(np.prod(x.shape))
    return x * np.pi, n, np.dtype("float32") == np.float32, np.log2(8), torch.tensor(np.arange(3))


@case(F(4))
def test_np_random(x):
    """numpy.random: the same stream"""
    return x + torch.from_numpy(np.random.rand(4)).float(), np.random.randint(10)


@program(F(4))
def test_array_outside():
    """An ndarray from outside, read and written"""
    table = np.zeros(4, dtype=np.float32)

    def f(x):
        table[0] += 1
        return x + torch.from_numpy(table)
    return f, lambda: table


@case(Sign(4))
def test_numpy_branch(x):
    """A branch on numpy values"""
    a = x.numpy()
    if a.sum() > 0:
        return x + 1
    return x - 1


@case(I(4), F(10))
def test_numpy_index(i, x):
    """Indexing with numpy arrays and numpy ints"""
    return x[i.numpy()], x[np.int64(2)], [1, 2, 3][np.int64(1)]
