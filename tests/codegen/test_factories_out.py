"""Factories that write into out=: values, dtypes and random numbers as in eager, in compiled graphs."""

from __future__ import annotations

import pytest
import torch

import bytejit

FACTORIES = {
    "eye": (lambda out: torch.eye(3, out=out), (3, 3)),
    "eye of two sizes": (lambda out: torch.eye(3, 2, out=out), (3, 2)),
    "arange": (lambda out: torch.arange(4, out=out), (4,)),
    "arange with a step": (lambda out: torch.arange(1, 9, 2, out=out), (4,)),
    "linspace": (lambda out: torch.linspace(0, 3, 5, out=out), (5,)),
    "logspace": (lambda out: torch.logspace(0, 1, 3, out=out), (3,)),
    "full": (lambda out: torch.full((2, 3), 2.5, out=out), (2, 3)),
    "zeros": (lambda out: torch.zeros(2, 3, out=out), (2, 3)),
    "ones": (lambda out: torch.ones(2, 3, out=out), (2, 3)),
    "rand": (lambda out: torch.rand(7, out=out), (7,)),
    "randn": (lambda out: torch.randn(7, out=out), (7,)),
    "randint": (lambda out: torch.randint(0, 9, (7,), out=out), (7,)),
    "randperm": (lambda out: torch.randperm(7, out=out), (7,)),
}
INTEGERS = {"arange", "arange with a step", "randint", "randperm", "eye", "ones"}
KINDS = [(name, d) for name in FACTORIES for d in (torch.float32, torch.float64)] + [(n, torch.int64) for n in INTEGERS]


@pytest.mark.pairs
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name, dtype", sorted(KINDS, key=str))
def test_as_in_eager(name, dtype, backend):
    make, shape = FACTORIES[name]

    def program(x, given):
        part = torch.zeros(2, *shape, dtype=dtype)
        make(part[1])
        return x.sum() + make(torch.empty(shape, dtype=dtype)) * 2, part, make(given)

    results = []
    for f in (program, bytejit.compile(program, backend=backend, fullgraph=True)):
        torch.manual_seed(3)
        given = torch.zeros(shape, dtype=dtype)
        made = f(torch.ones(4), given)
        results.append([*made, given, torch.rand(1)])
        assert made[2] is given
    torch.testing.assert_close(results[1], results[0])
    assert not bytejit.counters["fallbacks"], bytejit.counters["fallbacks"]
