"""Between the two passes the program writes what eager saved, or it goes backward twice: errors and gradients of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit


class Queue(nn.Module):
    """Reads a buffer after it has written it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("kept", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.add_(x)
        return (self.weight * self.kept).sum()


class Scaled(Queue):
    """Reads a buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * self.kept * x).sum()


def written_result(op: Callable, write: Callable) -> Callable:
    def program(compiled: Callable) -> object:
        w = torch.linspace(0.5, 1.5, 4).requires_grad_()
        y = compiled(op)(w)
        write(y)
        y.sum().backward()
        return w.grad

    return program


def forward_twice(compiled: Callable) -> object:
    net = compiled(Queue())
    first, second = net(torch.ones(3)), net(torch.ones(3))
    (first + second).backward()
    return net.weight.grad


def forward_once(compiled: Callable) -> object:
    net = compiled(Queue())
    for _ in range(2):
        net(torch.ones(3)).backward()
    return net.weight.grad


def buffer_between(compiled: Callable) -> object:
    net = compiled(Scaled())
    loss = net(torch.ones(3))
    net.kept.mul_(2)
    loss.backward()
    return net.weight.grad


def statistics_between(compiled: Callable) -> object:
    """Batch norm changes its statistics behind autograd's back."""
    net = compiled(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    x = torch.linspace(-1, 1, 12).view(4, 3)
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(3))
        net[0].bias.zero_()
    first, second = net(x).pow(2).mean(), net(x * x).pow(3).mean()
    (first + second).backward()
    return net[0].weight.grad, net[1].running_mean


def other_output(compiled: Callable) -> object:
    """The output that is written has no part in what is differentiated."""
    w = torch.linspace(0.5, 1.5, 4).requires_grad_()
    a, b = compiled(lambda w: (w.relu(), w * 3))(w)
    a.detach().zero_()
    b.sum().backward()
    return w.grad


def not_saved(op: Callable, write: Callable, *others: torch.Tensor) -> Callable:
    """What is written between the passes is read by the forward pass, and eager does not save it."""

    def program(compiled: Callable) -> object:
        w, x = torch.linspace(0.5, 1.5, 4).requires_grad_(), torch.linspace(-1, 2, 4)
        read = [t.clone() for t in others]
        loss = compiled(op)(w, x, *read).sum()
        with torch.no_grad():
            write(w, *read)
        loss.backward()
        return w.grad, w._version, [t._version for t in read]

    return program


def pieces(write: Callable) -> Callable:
    """A chain of two compiled functions, what is between them is written."""

    def program(compiled: Callable) -> object:
        w = torch.linspace(0.5, 1.5, 4).requires_grad_()
        first, second = compiled(lambda w: (w.exp(), w * 3)), compiled(lambda x: x * 2 + 1)
        a, b = first(w)
        y = second(b)
        write(a, b)
        y.sum().backward()
        return w.grad, a._version, b._version

    return program


def codebook(compiled: Callable) -> object:
    """A running mean through `.data`, after its value was read, by a second function."""
    w, book = torch.linspace(0.5, 1.5, 4).requires_grad_(), torch.linspace(-1, 1, 12).view(3, 4)

    def quantise(w: torch.Tensor) -> torch.Tensor:
        return (w - book[(w - book).pow(2).sum(1).argmin()]).tanh().pow(2).sum()

    def update(w: torch.Tensor) -> None:
        book.data.mul_(0.5).add_(w.detach())

    quantise, update, found = compiled(quantise), compiled(update), []
    for _ in range(2):
        w.grad, loss = None, quantise(w)
        update(w)
        loss.backward()
        found += [loss.detach(), w.grad, book.clone(), torch.tensor(book._version)]
    return found


def one_of_two(used: int, write: bool) -> Callable:
    """Both results are saved, one of them goes backward, the other is written."""

    def program(compiled: Callable) -> object:
        w = torch.linspace(0.5, 1.5, 4).requires_grad_()
        results = compiled(lambda w: ((w * 2).exp(), w.tanh()))(w)
        if write:
            with torch.no_grad():
                results[1 - used].mul_(2)
        results[used].sum().backward()
        return w.grad

    return program


def written_and_used(compiled: Callable) -> object:
    w = torch.linspace(0.5, 1.5, 4).requires_grad_()
    a, _ = compiled(lambda w: (w.exp(), w.tanh()))(w)
    with torch.no_grad():
        a.mul_(2)
    a.sum().backward()
    return w.grad


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
def test_versions_after_an_optimizers_step(kind: type, how: dict) -> None:
    """Weights and the optimizer's state: how much they grow from step to step (a tensor that a graph makes begins at 0)"""
    found: list[list[list[int]]] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = nn.Linear(3, 3)
        optimizer = kind(net.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}), **how)
        step = bytejit.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        seen = []
        for _ in range(3):
            net(torch.ones(2, 3)).pow(2).sum().backward()
            step()
            optimizer.zero_grad()
            state = [t for s in optimizer.state.values() for t in s.values()]
            seen.append([t._version for t in (*net.parameters(), *state)])
        found.append([[b - a for a, b in zip(*pair)] for pair in zip(seen, seen[1:])])
    assert found[1] == found[0]


def clipped(compiled: Callable) -> object:
    """A compiled function that writes the weights through `.data`, between the passes."""
    w = torch.linspace(0.5, 1.5, 4).requires_grad_()
    loss, clip = compiled(lambda x: (x * w.clamp(-1, 1)).sum())(torch.ones(4)), compiled(lambda: w.data.clamp_(-0.5, 0.5))
    clip()
    loss.backward()
    return w.grad, w.detach(), torch.tensor(w._version)


def twice(op: Callable, retain: bool = False) -> Callable:
    def program(compiled: Callable) -> object:
        w = torch.linspace(0.5, 1.5, 4).requires_grad_()
        loss = compiled(op)(w).sum()
        loss.backward(retain_graph=retain)
        loss.backward()
        return w.grad

    return program


PROGRAMS: dict[str, Callable] = {
    "exp written": written_result(lambda w: w.exp(), lambda y: y.add_(1)),
    "relu written": written_result(lambda w: (w * 2).relu(), lambda y: y.mul_(3)),
    "relu written through its detached twin": written_result(lambda w: w.relu(), lambda y: y.detach().zero_()),
    "softmax written in part": written_result(lambda w: w.softmax(0), lambda y: y[:1].zero_()),
    "product written": written_result(lambda w: w * 2 + 1, lambda y: y.add_(1)),
    "leaky relu written": written_result(lambda w: F.leaky_relu(w * 2), lambda y: y.mul_(3)),
    "forward twice": forward_twice,
    "forward once a step": forward_once,
    "buffer between": buffer_between,
    "statistics between": statistics_between,
    "another output": other_output,
    "what is not saved": not_saved(lambda w, x: (w * x).sin(), lambda w: w.add_(1)),
    "what is not saved, through data": not_saved(lambda w, x: (w * x).sin(), lambda w: w.data.add_(1)),
    "a shift": not_saved(lambda w, x, b: (w * x + b).sin(), lambda w, b: b.add_(1), torch.ones(4)),
    "a shift, through data": not_saved(lambda w, x, b: (w * x + b).sin(), lambda w, b: b.data.add_(1), torch.ones(4)),
    "a mask": not_saved(lambda w, x, m: w.masked_fill(m > 0, 0).exp(), lambda w, m: m.zero_(), torch.tensor([0, 1, 0, 1])),
    "between two parts, one unused": pieces(lambda a, b: a.detach().zero_()),
    "between two parts, through data": pieces(lambda a, b: (a.data.zero_(), b.data.zero_())),
    "one of two": one_of_two(0, False),
    "one of two, the other written": one_of_two(0, True),
    "the second of two, the other written": one_of_two(1, True),
    "one of two, written": written_and_used,
    "a codebook": codebook,
    "clipped weights": clipped,
    "backward twice": twice(lambda w: w.sin() * w),
    "backward twice of a multiple": twice(lambda w: w * 2),
    "backward twice of a sum": twice(lambda w: w + 1),
    "backward twice with the graph kept": twice(lambda w: w * 2, True),
}


def outcome(program: Callable, compiled: Callable) -> object:
    """What it returns; or the kind of its error, with the words up to what only eager's own nodes are called."""
    try:
        return program(compiled)
    except RuntimeError as e:
        return str(e).partition(": [")[0][:200]


def writes(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Writes of all kinds into inputs."""
    x.data.mul_(2)
    a.data.add_(1)
    a.detach().add_(1)
    a[1:].mul_(3)
    a.t_().add_(x)
    torch._foreach_add_([a, x], 1)
    torch._foreach_mul_([x, a], [2, 3])
    b.add_(1)
    b.data = x * 3
    b.mul_(2)
    b[:1] = 0
    return x + a + b


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_versions_count_the_writes(backend: str, grad: bool) -> None:
    """Of inputs: as many as eager counts, none of those through `.data`."""
    found = []
    for f in (writes, bytejit.compile(writes, backend=backend)):
        args = [torch.linspace(0, 1, 4) for _ in range(3)]
        w = torch.ones(4, requires_grad=grad)
        for _ in range(2):
            y = f(*args) * w
            if grad:
                y.sum().backward()
        found.append([y.detach(), *args, *(torch.tensor(t._version) for t in args)])
    torch.testing.assert_close(found[1], found[0])


def handed_out(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors in the memory of others, some through `.data`."""
    y = w * x
    return w.data, w.data[1:], w.detach()[1:], x.data[1:], x.detach(), y, y.data.t(), y.detach()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_data_that_is_returned_counts_its_own_writes(backend: str, grad: bool) -> None:
    """So a gradient of what was saved before them is computed, as eager does."""
    found = []
    for f in (handed_out, bytejit.compile(handed_out, backend=backend)):
        w, x = torch.ones(3, requires_grad=grad), torch.ones(3)
        shown = [w, x, *f(w, x)]
        loss = (w * w).sum()
        for i in (2, 5, 8):
            shown[i].add_(1)
        versions = [t._version for t in shown]
        if grad:
            loss.backward()
        for i in (4, 6, 9):
            shown[i].add_(1)
        found.append((versions, [t._version for t in shown], str(w.grad)))
    assert found[1] == found[0]


def written_inside(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results that were written before they are returned, and tensors in their memory."""
    y, z, u = w * x, x.sin(), torch.zeros(3)
    y.add_(1)
    y[0] = 2
    u[0], u[1:] = 1, 2
    data, other = z.data, z.data
    data.mul_(2)
    data[0] = 3
    z.add_(1)
    return y, y[1:], z, data, data[1:], other, z.detach(), z[:2].detach(), u.view(3, 1), x[1:].detach(), x.data, (x * 2).data


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_versions_of_results_count_the_writes(backend: str, grad: bool) -> None:
    """As many as eager counts, also later where results share memory; what is detached is no view."""
    found = []
    for f in (written_inside, bytejit.compile(written_inside, backend=backend)):
        made = f(torch.ones(3, requires_grad=grad), torch.ones(3))
        for i in (3, 5, 7):
            made[i].add_(i)
        views = [made[i]._is_view() for i in (3, 5, 6, 7, 9, 10, 11)]
        found.append([views, *((t._version, t.requires_grad, t.tolist()) for t in made)])
    assert str(found[1]) == str(found[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str) -> None:
    want = outcome(PROGRAMS[name], lambda f: f)
    got = outcome(PROGRAMS[name], lambda f: bytejit.compile(f, backend=backend))
    if isinstance(want, str) or isinstance(got, str):
        assert got == want
    else:
        torch.testing.assert_close(got, want)


TEXTS: dict[str, tuple[Callable, int]] = {
    "linear": (lambda x, w: F.linear(x, w).tanh(), 1),
    "transposed": (lambda x, w: (x @ w.t()).exp(), 1),
    "parts": (lambda x, w: (x[:, :2] * w[:, 1:3]).sum(), 0),
    "view": (lambda x, w: (x.view(-1) * w.reshape(-1)).sum(), 1),
    "itself": (lambda x, w: (x * w).sum(), 1),
    "no gradient": (lambda x, w: (x.detach().view(-1) * w.reshape(-1)).sum(), 0),
    "result": (lambda x, w: (x * w).exp(), 2),
}


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str, computed: bool) -> None:
    """The error names what eager saved: a view, a result and its node, also of inputs that were computed before."""
    f, written = TEXTS[name]
    said = []
    for g in (f, bytejit.compile(f, fullgraph=True)):
        x, w = torch.ones(3, 4).requires_grad_(), torch.ones(3, 4).requires_grad_()
        if computed:
            x, w = x.sin(), torch.stack([w, w]).max(0).values
        y = g(x, w)
        with torch.no_grad():
            (x, w, y.detach())[written].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            y.sum().backward()
        said.append(str(error.value))
    assert said[0] == said[1]


def written_between_regions(compiled: Callable) -> torch.Tensor:
    y, z = compiled(lambda w: (w.exp().tanh(), w.sin().exp()))(torch.ones(3, requires_grad=True))
    later = compiled(lambda y, z: (y.sin() * z).cos())(y, z)
    with torch.no_grad():
        z.add_(1)
    return later


def written_part(compiled: Callable) -> torch.Tensor:
    y = compiled(lambda w: (w * 2).sin().exp())(torch.ones(3, requires_grad=True))
    y[0] = 3
    return y


def used_by_eager(compiled: Callable) -> torch.Tensor:
    y = compiled(lambda w: w.view(1, -1).sin().tanh().softmax(-1))(torch.ones(3, requires_grad=True))
    later = y * y
    with torch.no_grad():
        y.add_(1)
    return later


@pytest.mark.parametrize("program", [written_between_regions, written_part, used_by_eager])
def test_the_node_has_the_name_of_eagers(program: Callable) -> None:
    """In errors about what a region made, which the next region or eager's own node saved; where a tensor is printed."""
    said = []
    for compiled in (lambda f: f, lambda f: bytejit.compile(f, backend="aot_eager")):
        result = program(compiled)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            result.sum().backward()
        shown = compiled(lambda x: F.cross_entropy(x, torch.tensor([0, 1])))(torch.ones(2, 3, requires_grad=True))
        said.append((str(error.value), str(shown)))
    assert said[0] == said[1] and "NllLossBackward0" in said[0][1]


def pieces_by(take: Callable) -> Callable:
    def f(x: torch.Tensor) -> torch.Tensor:
        base = x * 2
        first, second = take(base)[:2]
        base.add_(1)
        return first + second

    return f


def made_before_gradients(x: torch.Tensor) -> torch.Tensor:
    base = x.detach().clone()
    first, second = base.split(3)
    base.mul_(x.sum())
    return first + second


def made_without_gradients(x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    with torch.no_grad():
        part = base[1:]
    base.add_(1)
    return part + 1


REFUSED = {
    "unbind": pieces_by(lambda b: b.unbind(0)),
    "chunk": pieces_by(lambda b: b.chunk(2)),
    "split": pieces_by(lambda b: b.split(3)),
    "before gradients": made_before_gradients,
    "without gradients": made_without_gradients,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_view_that_must_not_be_used(name: str, capfd: pytest.CaptureFixture) -> None:
    """What it views was written: autograd refuses its use, in the code after the region as well."""
    said = []
    for g in (REFUSED[name], bytejit.compile(REFUSED[name])):
        with pytest.raises(RuntimeError, match="has been modified inplace") as error:
            g(torch.arange(6.0, requires_grad=True))
        said.append(str(error.value))
    assert said[0] == said[1] and "fault" not in capfd.readouterr().err


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("of", ["data", "a part of data", "detach"])
def test_writes_into_what_counts_apart(of: str, backend: str) -> None:
    """`.data` of a saved result is written behind the graph: eager does not notice, as it does of `.detach()`"""

    def f(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (w * 1).softmax(-1)
        return {"data": lambda: y.data, "a part of data": lambda: y.data[0], "detach": lambda: y.detach()}[of](), y

    found = []
    for g in (f, bytejit.compile(f, backend=backend)):
        w = torch.ones(2, 3, requires_grad=True)
        v, y = g(w)
        v.add_(1)
        try:
            found.append((v._version, y._version, torch.autograd.grad(y.sum(), w)[0].tolist()))
        except RuntimeError as e:
            found.append((v._version, y._version, str(e)[:60]))
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_pieces_of_what_is_written(backend: str) -> None:
    """A piece that autograd refuses since is returned, beside what is computed of another"""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        piece = x.chunk(2)[0]
        x.sub_(w.sum())
        return piece, x.chunk(2)[0], x, piece.detach()

    found = []
    for g in (f, bytejit.compile(f, backend=backend)):
        w = torch.ones(2, requires_grad=True)
        piece, *rest = g(torch.ones(4, 2, requires_grad=True) * 1, w)
        with pytest.raises(RuntimeError, match="is a view"):
            piece.is_leaf  # noqa: B018
        found.append(([x.detach() for x in rest], torch.autograd.grad(rest[1].sum(), w)))
    torch.testing.assert_close(found[1], found[0])
