"""Methods, operators and properties that a program puts into the class of tensors, or takes out again, after a compile"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bytejit
from tests.forked import run_forked

X = torch.arange(1.0, 5.0)
MISSING = object()
HERE = Path(__file__).parent
PATHS = (str(HERE), str(HERE.parent.parent), os.environ.get("PYTHONPATH", ""))

# name -> (program, what the class gets)
PATCHES: dict[str, tuple[Callable, Any]] = {
    "add": (lambda x: x.add(1), lambda s, o: s * 7),
    "exp": (lambda x: (x + 1).exp(), lambda s: s * 7),
    "norm": (lambda x: x.norm(), lambda s, *a: s),
    "split": (lambda x: x.split(1)[0], lambda s, *a: (s,)),
    "size": (lambda x: x + x.size(0), lambda s, *a: 7),
    "view": (lambda x: x.view(2, 2), lambda s, *a: s),
    "item": (lambda x: x + x.sum().item(), lambda s: 4.0),
    "T": (lambda x: x.view(1, 4).T, property(lambda s: s)),
    "ndim": (lambda x: x + x.ndim, property(lambda s: 7)),
    "__add__": (lambda x: x + 1, lambda s, o: s * 7),
    "__radd__": (lambda x: 1 + x, lambda s, o: s * 7),
    "__iadd__": (lambda x: _in_place(x.clone()), lambda s, o: s * 7),
    "__matmul__": (lambda x: x @ x, lambda s, o: s),
    "__abs__": (lambda x: abs(x), lambda s: s * 7),
    "__neg__": (lambda x: -x, lambda s: s * 7),
    "__gt__": (lambda x: (x > 2) * 1, lambda s, o: s),
    "__getitem__": (lambda x: x[0:1], lambda s, i: s * 7),
    "__len__": (lambda x: x + len(x), lambda s: 9),
    "not_torch's": (lambda x: getattr(x, "not_torch's", 3) * x, 5),
}


def _in_place(x: torch.Tensor) -> torch.Tensor:
    x += 1
    return x


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", PATCHES)
def test_what_the_class_of_tensors_has_now(name: str, backend: str) -> None:
    if name != "__getitem__":
        check(name, backend)
        return
    # Python keeps a slot of sequences in the class when it is deleted: torch.tensor([a 0-dim tensor]) raises from then on
    code = f"import test_tensor_class; test_tensor_class.check({name!r}, {backend!r})"
    done = run_forked("-c", code, PYTHONPATH=os.pathsep.join(PATHS))
    assert done.returncode == 0, done.stderr


def check(name: str, backend: str) -> None:
    f, patch = PATCHES[name]
    old = vars(torch.Tensor).get(name, MISSING)
    before, within = bytejit.compile(f, backend=backend), bytejit.compile(lambda x: f(x), backend=backend)
    for _ in range(2):
        assert torch.allclose(before(X), f(X))
        setattr(torch.Tensor, name, patch)
        try:
            want, got = f(X), [g(X) for g in (before, within)]
        finally:
            if old is MISSING:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, old)
        assert all(torch.allclose(one, want) for one in got)
        assert torch.allclose(within(X), f(X))
