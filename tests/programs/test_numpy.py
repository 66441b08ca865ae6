"""numpy, scipy and C libraries"""

import numpy as np
import pytest
import torch

from .harness import F, I, Sign, Spec, Turn, case, program

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


@case(F(4), 5, graphs=1)
def test_arrays_of_known_values(x, n):
    """Arrays of known values: made, computed, written and read while tracing"""
    a = np.arange(n) * 2
    b = np.zeros((n, 2), dtype=np.int32)
    b[1:, 0] = a[1:]
    b[0] += 3
    view = b.T
    view[1] = 7
    a.sort()
    total = sum(int(v) for v in a) + len(b) + int((a > 2).sum()) + (4 in a)
    return x * total + float(np.log(float(n) + 1)), b[0].tolist(), b.shape, str(b.dtype), -a.max(), np.lcm(4, 6), a.mean()


@case(F(4), graphs=1)
def test_array_leaves(x):
    """An array made inside leaves: a new one for each call"""
    table = np.linspace(0.0, 1.0, 4)
    mask = np.stack([table > 0.5, table < 2])
    return x + 1, table, {"mask": mask}


@case(F(4), graphs=1)
def test_array_becomes_tensor(x):
    """`torch.tensor`, `torch.from_numpy`, `torch.as_tensor` of an array made inside"""
    a = np.array([[1.5, 2.0], [3.0, 4.0]])
    ones = torch.from_numpy(np.ones(4, dtype=np.float32))
    return torch.tensor(a), ones + x, torch.as_tensor(a.astype(np.int64), dtype=torch.int32)


@case(F(4))
def test_array_shared_with_tensor(x):
    """An array made inside and a tensor on its memory, both written"""
    a = np.zeros(4, dtype=np.float32)
    t = torch.from_numpy(a)
    t += x
    a[0] = 9
    return t, a


@case(F(4))
def test_arrays_that_share_memory_leave(x):
    """An array made inside leaves with a view of it"""
    a = np.zeros(4)
    return x + 1, a, a[1:]


@case(F(4), 0)
def test_numpy_raises_and_warns(x, n):
    """numpy's exceptions and warnings on known values"""
    try:
        a = np.zeros(3) + np.zeros(2 + n)
    except ValueError as e:
        a = str(e)
    with np.errstate(divide="ignore"):
        low = np.log(np.float64(n))
    return x * 2, a, low


@case(F(2, 3))
def test_arrays_of_tensors_by_functions(x):
    """`np.asarray(x)` and its like of a tensor: an array that shares its memory, or holds a copy"""
    y = x + 1
    shared = np.asarray(y)
    shared[0, 0] = 7
    made = np.asanyarray(y), np.ascontiguousarray(y), np.array(y), np.asarray(y, dtype=np.float64), np.asarray(y.T)
    return y, shared, shared.max(), made, np.asarray(x).max(), np.asarray(shared) is shared, [type(m) for m in made]


@program(F(4), 2)
def test_numpy_integers_as_indices():
    """NumPy's integers that do not change, as indices, bounds, counts and sizes"""
    one = np.int64(1)

    def used(x, i):
        return [1, 2, 3, 4][i], (1, 2, 3, 4)[i:], range(i), "ab" * i, x[i], [0] * i, list(enumerate("a", i)), torch.zeros(i)

    def f(x, n):
        try:
            found = [used(x, i) for i in (one, np.int32(n), np.uint8(3))]
        except TypeError as e:
            found = str(e)
        return found, x * 2

    return f


@program(F(3), Turn("no", "item", "add", "out", "diagonal", "view"))
def test_arrays_that_are_read_only():
    """What `numpy.broadcast_to` and `diagonal` return is read only, as are its views: inside, where it leaves, after a break"""

    def f(x, write):
        a = x.numpy()
        wide = np.broadcast_to(a[:, None], (3, 4))
        part, square = wide[1:, :2].T, np.outer(a, a)
        diagonal = np.diagonal(square)
        if write == "item":
            wide[0] = 1
        elif write == "add":
            part += 1
        elif write == "out":
            np.add(wide, 1, out=wide)
        elif write == "diagonal":
            diagonal[0] = 1
        elif write == "view":
            wide.copy()[0] = 1
            diagonal.T[0] = 1
        return wide, wide.flags.writeable, part, diagonal, diagonal.flags.writeable, wide + 1

    return f


@case(F(3))
def test_elements_in_the_same_memory(x):
    """Arrays of `numpy.broadcast_to` in functions of NumPy's, with known values and with others"""
    wide = np.broadcast_to(x.numpy()[:, None], (3, 4))
    mask = np.zeros((2, 9), dtype=bool)
    np.put_along_axis(mask, np.broadcast_to(np.arange(3)[None], (2, 3)), True, 1)
    return np.concatenate([wide, wide]), wide.sum(0), wide.reshape(2, 6), np.broadcast_to(np.eye(3), (2, 3, 3)) @ x.numpy(), mask


@case(A(4, dtype=np.float32), F(4))
def test_dtypes_of_arrays(a, x):
    """Functions that say which dtype a result would have"""
    wide = np.zeros(2, dtype=np.result_type(a, np.float64(1)))
    return x + wide.itemsize, np.result_type(a, 1.5), np.common_type(a), np.can_cast(a.dtype, np.float64), wide
