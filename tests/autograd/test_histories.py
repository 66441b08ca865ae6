"""What a compiled region's node of autograd leads to: the inputs that its results depend on, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

CELL = torch.nn.GRUCell(4, 8)


def recurrent(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state = CELL(x, state.detach())
    return state, state.square().mean()


def beside(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = CELL(x, x.new_zeros(2, 8))
    return made + state.detach() * 2, made.sum()


def alone(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state = CELL(x, state.detach())
    return state, state


def nodes(node: torch.autograd.graph.Node | None, seen: set) -> int:
    """How many nodes a history has."""
    if node is not None and node not in seen:
        seen.add(node)
        for following, _ in node.next_functions:
            nodes(following, seen)
    return len(seen)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("step", [recurrent, beside, alone])
def test_the_history_of_a_detached_state_ends(step: Callable, backend: str) -> None:
    """Truncated backpropagation through time: the steps before are not kept, nor gone through again"""
    compiled, state, lengths = bytejit.compile(step, backend=backend), torch.zeros(2, 8), []
    for _ in range(4):
        state, loss = compiled(torch.randn(2, 4), state)
        loss.sum().backward()
        lengths.append(nodes(state.grad_fn, set()))
    assert lengths[1] == lengths[-1]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_has_no_derivative_is_not_asked_for_one(backend: str) -> None:
    def f(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counted = torch.histogram(a * 3, 4)  # in the original code
        return a * 2, counted.hist.detach(), counted.bin_edges

    a = torch.randn(5, requires_grad=True)
    bytejit.compile(f, backend=backend)(a)[0].sum().backward()
    assert a.grad is not None and a.grad.tolist() == [2.0] * 5


PIECES: dict[str, Callable] = {
    "one": lambda a: a.exp().unbind(0)[0],
    "all": lambda a: a.exp().split(1),
    "base": lambda a: [c := a.exp(), *c.chunk(2, 1)],
    "input": lambda a: a.split([1, 1])[1],
    "view": lambda a: a.exp().unbind(0)[1][1:],
    "apart": lambda a: a.exp().tensor_split(2)[0],  # autograd lets it be written
    "read": lambda a: a.exp().unbind(0)[0] * 2,
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", PIECES)
def test_pieces_that_were_made_together_are_not_written(name: str, backend: str) -> None:
    """They are what eager's are: the views, their nodes, the refusal"""

    def run(f: Callable) -> list:
        a = (torch.arange(6.0) / 4).reshape(2, 3).requires_grad_()
        made = f(a.clone())
        last = made[-1] if isinstance(made, (list, tuple)) else made
        name = type(last.grad_fn).__name__ if last._is_view() else ""
        last.sin().sum().backward()
        try:
            last.mul_(2)
        except RuntimeError as e:
            return [last._is_view(), name, a.grad, str(e)]
        return [last._is_view(), a.grad]

    plain, ours = run(PIECES[name]), run(bytejit.compile(PIECES[name], backend=backend))
    torch.testing.assert_close(ours[-2], plain[-2]) if len(plain) == 4 else torch.testing.assert_close(ours[-1], plain[-1])
    if len(plain) == 4:
        assert (ours[0], ours[1], ours[3]) == (plain[0], plain[1], plain[3])
    else:
        assert len(ours) == 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_write_into_a_piece_raises_after_a_break(backend: str) -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        c = a.exp()
        c.split(1)[0].zero_()
        return a + 1

    a = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"Output 0 of Split(Backward0)? is a view"):
        bytejit.compile(f, backend=backend)(a)


def written_after(a: torch.Tensor) -> torch.Tensor:
    base = a.sin()
    row = base[0]
    base.transpose_(0, 1)
    row.mul_(2)
    return base * 1


def read_after(a: torch.Tensor) -> torch.Tensor:
    base = a.sin()
    row = base[0]
    base.transpose_(0, 1)
    base.mul_(2)
    return row * 3


def ranks(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = a.sin()
    turned = base.permute(1, 0)
    base.unsqueeze_(0)
    turned.mul_(2)
    return base, turned


def a_view_itself(a: torch.Tensor) -> torch.Tensor:
    base = a.sin()
    turned = base.t()
    turned.unsqueeze_(0)
    turned[0, 1].mul_(3)
    return base * 2


def no_views(a: torch.Tensor) -> torch.Tensor:
    return a.sin().unsqueeze_(0).transpose_(1, 2) * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("f", [written_after, read_after, ranks, a_view_itself, no_views])
def test_views_of_what_changes_its_shape_have_eagers_gradients(f: Callable, backend: str) -> None:
    def run(f: Callable) -> list:
        a = torch.arange(4.0).reshape(2, 2).requires_grad_()
        made = f(a)
        made = made if isinstance(made, tuple) else (made,)
        sum((t * torch.arange(1.0, 5).reshape(t.shape) if t.numel() == 4 else t).sum() for t in made).backward()
        return [*made, a.grad]

    bytejit.counters.clear()
    torch.testing.assert_close(run(bytejit.compile(f, backend=backend)), run(f))
    assert bool(bytejit.counters["fallbacks"]) == (f is not no_views)


def beside_gradients(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What is reshaped has views and no gradients"""
    base = a.detach().exp()
    row, turned = base[0], base.t()
    base.transpose_(0, 1)
    return a * row, a * turned, a * base.contiguous()


def written_beside_gradients(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """It gets gradients later, by a write"""
    base = a.detach().exp()
    row = base[0]
    base.unsqueeze_(0)
    base.mul_(a)
    return base, row * 2


def of_a_jacobian(a: torch.Tensor) -> torch.Tensor:
    """torch's rules for vmap squeeze what no view of autograd's shows"""
    bias = a.sum(1).repeat(2)[:3].sin()

    def net(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.linear(x, bias[:, None] * a[0], bias).tanh()
        return torch.nn.functional.linear(hidden, bias * a[1][:, None], a[0])

    return torch.func.vmap(torch.func.jacrev(net))(a.detach())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("f, through", [(beside_gradients, 0), (written_beside_gradients, 1), (of_a_jacobian, 0)])
def test_what_has_no_gradients_may_be_reshaped(f: Callable, through: int, backend: str) -> None:
    def run(f: Callable) -> list:
        a = torch.arange(4.0).reshape(2, 2).requires_grad_()
        made = f(a)
        sum(t.square().sum() for t in (made if isinstance(made, tuple) else (made,))).backward()
        return [*made, a.grad]

    bytejit.counters.clear()
    torch.testing.assert_close(run(bytejit.compile(f, backend=backend)), run(f))
    assert len(bytejit.counters["fallbacks"]) == through


VIEWS_AND_MORE = {
    "a view of a result": lambda x: (lambda y: (y, y[0], (y[0] * 1).sum()))(x * 2),
    "a view of an input": lambda x: (lambda v: (v, (v * v).sum()))(x[0]),
    "used": lambda x: (lambda y: (lambda v: (y, v, (v * v).sum()))(y[0]))(x * 2),
    "a view of a view": lambda x: (lambda y: (lambda v: (lambda u: (y, v, u, (u * u).sum()))(v[1:]))(y[0]))(x * 2),
    "only views": lambda x: (lambda v: (v, v[2:]))((x * 1).view(-1)),
    "pieces": lambda x: (lambda v, u: (v, u, (v * u).sum()))(*(x * 2).unbind(0)),
    "chunks, one used before it is returned": lambda x: (lambda q, k: (k, (q.sum() * k).sum(), q))(*(x * 2).chunk(2, 1)),
    "transposed": lambda x: (lambda v: (v[1], v, v.sum() + v[1].exp().sum()))(x.t()),
    "written through its base": lambda x: (lambda y: (lambda v: (y.mul_(3), v, (v * v).sum()))(y.view(-1)))(x * 2),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", VIEWS_AND_MORE)
def test_gradients_of_returned_views(name: str, backend: str) -> None:
    """What else is returned is computed from a view: the view has a gradient, its hooks see it, also behind retain_grad"""
    f, found = VIEWS_AND_MORE[name], []
    for compiled in (False, True):
        x = (torch.arange(6.0).view(2, 3) / 4).requires_grad_()
        outs = (bytejit.compile(f, backend=backend) if compiled else f)(x)
        grads, seen = [], []
        for a in outs:
            for b in outs:
                grads += torch.autograd.grad(a.sum(), b, retain_graph=True, allow_unused=True)
        for i, t in enumerate(outs):
            t.register_hook(lambda g, i=i: seen.append((i, g.clone())))
            t.retain_grad()
        sum(t.sum() for t in outs).backward()
        found.append((grads, [g for _, g in sorted(seen, key=lambda s: s[0])], [t.grad for t in outs], x.grad))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_pass_that_ends_at_a_result_of_an_earlier_region(backend: str, keep: bool) -> None:
    """A graph break, or a write that torch makes, is between: each of the two results leads to another input"""

    def broken(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.exp(), w.sin()
        print(end="")
        return a, b, b.exp() + a.sum()

    def written(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.clone(), w.sin()
        c = b @ b.transpose(0, 1)
        with torch.no_grad():
            a.sub_(c.sum())
        x.copy_(x * 2)
        return a, b, c

    for f in (broken, written):
        for ends in ((1,), (0,), (0, 1)):
            found = []
            for g in (f, bytejit.compile(f, backend=backend)):
                x, w = torch.arange(8.0).view(2, 4).div(8).requires_grad_(), torch.ones(2, 4, requires_grad=True)
                outs = g(x * 1, w)
                asked = [outs[i] for i in ends]
                passes = [True, True, False] if keep else [False]
                found.append([torch.autograd.grad(outs[2].sum(), asked, retain_graph=k, allow_unused=True) for k in passes])
            torch.testing.assert_close(found[1], found[0])
