"""Calls that nothing reads but that act: they raise, draw random numbers, or do what a user's op does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import bytejit

seen: list[float] = []


@torch.library.custom_op("bytejit_acts::note", mutates_args=())
def note(x: torch.Tensor) -> None:
    seen.append(float(x.sum()))


note.register_fake(lambda x: None)

CHECKED = {
    "inv": lambda a: torch.linalg.inv(a * 1.0) + 1,
    "cholesky": lambda a: torch.linalg.cholesky(a * 1.0) + 1,
    "solve": lambda a: torch.linalg.solve(a * 1.0, a) + 1,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
@pytest.mark.parametrize("name", CHECKED)
def test_what_cannot_be_solved_raises(name, backend, dynamic) -> None:
    f = CHECKED[name]
    compiled = bytejit.compile(f, backend=backend, dynamic=dynamic)
    good = torch.eye(4).expand(3, 4, 4).clone()
    torch.testing.assert_close(compiled(good), f(good))
    bad = -good
    bad[1, 0, 0] = 0
    with pytest.raises(torch.linalg.LinAlgError) as ours:
        compiled(bad)
    with pytest.raises(torch.linalg.LinAlgError) as eagers:
        f(bad)
    assert str(ours.value) == str(eagers.value)


@pytest.mark.cxx
def test_a_users_op_without_results_runs() -> None:
    def f(x):
        y = x * 2
        note(y)
        return F.conv2d(y, torch.ones(2, 2, 1, 1))

    compiled = bytejit.compile(f, fullgraph=True)
    seen.clear()
    for n in (1, 2, 3):
        x = torch.full((1, 2, n, 2), 0.5)
        torch.testing.assert_close(compiled(x), torch.full((1, 2, n, 2), 2.0))
    assert seen == [4.0, 8.0, 12.0]


@pytest.mark.cxx
def test_draws_that_nothing_reads_advance_the_generator() -> None:
    def f(x):
        torch.rand(3)
        return F.conv2d(x, torch.ones(2, 2, 1, 1)) + torch.rand(2)

    compiled = bytejit.compile(f)
    x = torch.ones(1, 2, 2, 2)
    torch.manual_seed(3)
    want, state = f(x), torch.get_rng_state()
    torch.manual_seed(3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), want)
    assert torch.equal(torch.get_rng_state(), state)


REFUSED = {  # operators with a row, and dtypes that only torch's kernels refuse
    "hardshrink": (F.hardshrink, torch.bool),
    "logsigmoid": (F.logsigmoid, torch.int64),
    "gelu": (F.gelu, torch.int32),
    "silu": (F.silu, torch.uint8),
    "softplus": (F.softplus, torch.int64),
    "addmm": (lambda x: torch.addmm(x, x, x), torch.bool),
    "baddbmm": (lambda x: torch.baddbmm(x[None], x[None], x[None]), torch.bool),
    "nextafter": (lambda x: torch.nextafter(x, x), torch.int64),
}


@pytest.mark.cxx
@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_a_dtype_is_refused_where_nothing_reads_the_result(name, size) -> None:
    op, dtype = REFUSED[name]

    def f(x):
        y = torch.zeros_like(x)
        op(y)
        return x.clone()

    x = torch.zeros(size, size, dtype=dtype)
    try:
        f(x)
    except (RuntimeError, NotImplementedError) as e:
        with pytest.raises(type(e)) as ours:
            bytejit.compile(f)(x)
        assert str(ours.value) == str(e)
    else:
        assert size == 0, "torch takes it now"
        assert bytejit.compile(f)(x).shape == x.shape
