"""Views of tensors that are in another one's memory, and no views for autograd: `reshape` makes such where it copies, and so do
products of three dimensions and `unsafe_chunk`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit

W = torch.linspace(-1, 1, 16).view(4, 4)
MAKERS: dict[str, Callable] = {
    "reshape": lambda x: x.transpose(1, 2).reshape(6, 4),
    "flatten": lambda x: x.transpose(0, 1).flatten().view(6, 4),
    "linear": lambda x: F.linear(x, W).view(6, 4),
    "linear of three": lambda x: F.linear(x, W),
    "matmul": lambda x: torch.matmul(x, W),
    "expanded": lambda x: x[:1].expand(3, 3, 4).reshape(9, 4),
    "einsum": lambda x: torch.einsum("abc,cd->bad", x, W),
    "unsafe chunk": lambda x: torch.unsafe_chunk(x * 2, 2)[1],
}
VIEWS: tuple[Callable, ...] = (
    lambda y: y,
    lambda y: y[0],
    lambda y: y[1:],
    lambda y: y.flatten(),
    lambda y: y.transpose(0, -1),
    lambda y: y.detach(),
    lambda y: y * 2,
)


def known(f: Callable, shown: tuple[int, ...], backend: str | None) -> list:
    """What autograd says of a function's results, and their gradients, one after the other."""
    x = torch.linspace(-1, 1, 24).view(2, 3, 4).requires_grad_()
    outs = (f if backend is None else bytejit.compile(f, backend=backend))(x * 1)
    told = [(t.requires_grad, t.is_leaf, t._version) for t in outs]
    grads = [torch.autograd.grad(t.square().sum(), x, retain_graph=True)[0] for t in outs if t.requires_grad]
    with torch.no_grad():
        outs[-1].mul_(3)  # what shares its memory sees it
    return [told, grads, [(t.detach().clone(), t._version) for t in outs]]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", MAKERS)
def test_views_of_what_is_its_own_for_autograd(name: str, backend: str) -> None:
    pairs = [*itertools.combinations(range(len(VIEWS)), 2), (0, 1, 2), (1, 2, 3), (2, 3, 6)]
    for shown in pairs if backend == "aot_eager" else pairs[:: len(pairs) // 5]:

        def f(x: torch.Tensor, shown: tuple[int, ...] = shown) -> tuple:
            y = MAKERS[name](x)
            return tuple([VIEWS[k](y) for k in shown])

        torch.testing.assert_close(known(f, shown, backend), known(f, shown, None), msg=lambda m, s=shown: f"{s}: {m}")
