"""NumPy in the graph: arrays made of tensors, arrays from outside, and back. Results are NumPy's own, and so is their memory."""

from __future__ import annotations

import pytest
import torch

import bytejit

np = pytest.importorskip("numpy")

R = np.random.RandomState(0)
A, B = R.randn(3, 4), R.randn(3, 4)
F, I = A.astype(np.float32), R.randint(-5, 6, (3, 4))
X = torch.from_numpy(F.copy())

ONE_GRAPH = """
a + b * 2 | a / b | a // 2 | a % b | -a | abs(i) | (a > 0) & (b < 1) | a @ b.T | i + 1 | i / 2 | f + 1.5 | f * a | f + i | ~i | f + np.float64(2)
np.sin(a) | np.exp(f) | np.maximum(a, b) | np.where(a > 0, a, b) | np.clip(f, -1, 1) | np.sign(a) | np.round(a, 1) | np.arctan2(a, b)
a.sum() | a.mean(axis=1, keepdims=True) | f.std() | a.var(axis=0, ddof=1) | a.argmax() | i.sum() | i.mean() | np.cumsum(a, axis=1) | np.ptp(a)
a.reshape(-1) | a.T | a.flatten() | a[1:, ::2] | a[[0, 2]] | a[np.arange(3), [0, 1, 2]] | np.expand_dims(a, 0) | np.roll(a, 1, axis=0) | np.tril(f)
np.stack([a, b]) | np.concatenate([f, a]) | np.split(a, 2, axis=1) | np.zeros_like(a) | np.eye(3) @ a | np.arange(4) * f | np.full_like(f, 2)
a.astype(np.float32) | a.astype("int64") | a.copy() | np.array(a) | np.asarray(a, dtype=np.float32) | a.sum() * 2 + b.mean() | i.sum() // 2
np.einsum('ij,kj->ik', a, b) | np.linalg.norm(f, axis=1) | np.linalg.inv(a @ a.T) | np.fft.rfft(f) | np.sort(a, axis=1) | np.argsort(a)
a.shape | a.dtype | a.size | len(a) | np.shape(f) | a.ndim
""".replace("\n", " | ")  # noqa: E501


def function(text):
    space = {"np": np}
    exec(f"def f(a, b, i, f): return {text}", space)
    return space["f"]


def same(a, b):
    """Whether two results are NumPy's of one kind, and equal within rounding."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.size == 1 or 1 in a.shape or a.strides == b.strides
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    else:
        assert a == b


def test_functions_and_methods_are_numpys():
    for text in filter(None, map(str.strip, ONE_GRAPH.split(" | "))):
        f = function(text)
        same(bytejit.compile(f, backend="aot_eager", fullgraph=True)(A, B, I, F), f(A, B, I, F))


@pytest.mark.parametrize("text", ["a[::-1]", "np.median(a)", "np.unique(i)", "a[a > 0]", "np.interp(a, [0., 1.], [0., 2.])"])
def test_what_a_graph_would_compute_otherwise_breaks(text):
    f = function(text)
    with pytest.raises(bytejit.exc.Unsupported):
        bytejit.compile(f, backend="eager", fullgraph=True)(A, B, I, F[:, ::-1])
    same(bytejit.compile(f, backend="eager")(A, B, I, F), f(A, B, I, F))


def there_and_back(x):
    a = np.maximum((x * 2).numpy(), 0) + np.float32(1)
    return torch.from_numpy(a) * x, torch.as_tensor(a.sum(axis=0)), torch.tensor(a), a


def written(x):
    y = x.clone()
    a = y.numpy()
    a[0] = 7.0
    a *= 2
    y[1] = 8.0
    return y, a


@torch.compiler.wrap_numpy
def wrapped(a, b):
    return np.dot(a, b.T)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", [there_and_back, written])
def test_arrays_of_tensors(f, backend):
    made = bytejit.compile(f, backend=backend, fullgraph=True)(X)
    same(made, f(X))
    if f is written:
        made[0][2] = 5.0
        assert made[1][2].tolist() == [5.0] * 4  # one memory


def test_an_array_shares_the_memory_of_a_tensor_from_outside():
    def f(x):
        a = x.numpy()
        a += 1
        return a, x * 2

    x, y = X.clone(), X.clone()
    made, want = bytejit.compile(f, fullgraph=True)(x), f(y)
    same((*made, x), (*want, y))
    x.zero_()
    assert not made[0].any()


def test_arrays_from_outside_are_guarded_and_are_themselves():
    def f(a):
        return np.cos(a) * 2, a

    c = bytejit.compile(f, backend="eager", fullgraph=True)
    for a in (A, A[:2], F, A.T, I, A):
        made = c(a)
        same(made[0], f(a)[0])
        assert made[1] is a
    c = bytejit.compile(f, backend="eager")
    for odd in (A, A[::-1], A.astype(">f8"), A):  # no tensor has such memory
        same(c(odd)[0], f(odd)[0])


def test_a_write_to_an_array_from_outside():
    def f(x, a):
        a[0] = 5
        a += 1
        return x + float(a[0, 0]), a.sum()

    a, b = A.copy(), A.copy()
    same(bytejit.compile(f, backend="eager")(X, a), f(X, b))
    same(a, b)


def memory(case: int) -> tuple:
    """Two arrays and a tensor: apart, one memory, parts of one memory, other strides."""
    a = np.arange(12, dtype=np.float32)
    return (
        (a, np.ones(12, np.float32), torch.ones(3)),
        (a, a, torch.ones(3)),
        (a, a[::-1].copy(), torch.from_numpy(a)),
        (a[:6], a[3:9], torch.from_numpy(a[4:10])),
        (a.reshape(3, 4).T, np.ones((4, 3), np.float32), torch.ones(2)),
    )[case]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_writes_to_arrays_from_outside_that_may_share_memory(backend):
    def f(a, b, t):
        a[0] = 7
        a += b
        t.mul_(2)
        a.sort(axis=0)
        np.add(a, b, out=b)
        return b * 1, t + 1, torch.from_numpy(a) * t.sum(), a

    c = bytejit.compile(f, backend=backend, fullgraph=True)
    for case in (0, 1, 2, 3, 0, 4, 1, 2, 3):
        x, y = memory(case), memory(case)
        made, want = c(*x), f(*y)
        assert made[3] is x[0]
        same((*made, *x), (*want, *y))
    a = np.arange(12, dtype=np.float32)
    a.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        bytejit.compile(f, backend=backend)(a, a, X)


def test_a_tensor_made_of_an_array_warns_of_nothing(recwarn):
    f = lambda a: (torch.tensor(a), torch.tensor(a.T, dtype=torch.float64), torch.tensor(a, requires_grad=True) * 2)  # noqa: E731
    made = bytejit.compile(f, fullgraph=True)(A)
    same([x.detach() for x in made], [x.detach() for x in f(A)])
    assert [x.stride() for x in made] == [x.stride() for x in f(A)] and made[2].requires_grad
    assert not recwarn.list


def test_wrap_numpy():
    f = lambda x: wrapped(x, x + 1).sin()  # noqa: E731
    same(bytejit.compile(f, backend="aot_eager", fullgraph=True)(X), f(X))


def test_a_size_that_changes():
    f = lambda a: (np.sin(a) + a.mean(axis=0)).sum(axis=1)  # noqa: E731
    c = bytejit.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (5, 7, 9):
        a = R.randn(n, 3)
        same(c(a), f(a))
