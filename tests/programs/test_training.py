"""Training steps: forward, backward, step and zero_grad in one region"""

import functools

import pytest
import torch

from .harness import F, I, make_case, program, run_case

LOSS = torch.nn.functional.cross_entropy
CLOSE = (1e-5, 1e-6)


def net(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def seen(model, opt):
    """What a step leaves behind: parameters, gradients, the optimizer's state."""

    def observe():
        return [*model.parameters()], [p.grad for p in model.parameters()], opt.state_dict()

    return observe


def run(build, *specs, calls=5, graphs=1, tol=(0.0, 0.0), **options):
    """Compare a program's calls with eager. build: () -> (fn, observe)."""
    o = dict(args=None, kwargs=None, total=None, breaks=False, backend="eager", drive=None, watch=(), file=__file__)
    run_case(make_case(build, specs, **(o | dict(calls=calls, graphs=graphs, tol=tol) | options)))


def whole_step(name: str, options: dict, set_to_none: bool, zero_first: bool):
    model = net()
    opt = getattr(torch.optim, name)(model.parameters(), **options)

    def step(x, y):
        if zero_first:
            opt.zero_grad(set_to_none=set_to_none)
        loss = LOSS(model(x), y)
        loss.backward()
        opt.step()
        if not zero_first:
            opt.zero_grad(set_to_none=set_to_none)
        return loss

    return step, seen(model, opt)


OPTIMIZERS = {"plain": ("SGD", {"lr": 0.1}), "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}), "Adam": ("Adam", {})}


@pytest.mark.parametrize(
    "optimizer, set_to_none, zero_first, backend",
    [  # all pairs of two values
        ("plain", True, True, "eager"),
        ("plain", False, False, "aot_eager"),
        ("plain", True, False, "inductor"),
        ("momentum", False, True, "eager"),
        ("momentum", True, True, "aot_eager"),
        ("momentum", False, False, "inductor"),
        ("Adam", True, False, "eager"),
        ("Adam", True, True, "aot_eager"),
        ("Adam", False, True, "inductor"),
    ],
)
def test_whole_step(optimizer, set_to_none, zero_first, backend):
    """The step is one graph; the state that the first step makes costs one more, and then none."""
    name, options = OPTIMIZERS[optimizer]
    tol = (0.0, 0.0) if backend == "eager" and name == "SGD" else CLOSE
    build = functools.partial(whole_step, name, options, set_to_none, zero_first)
    run(build, F(16, 8), I(16, hi=4), backend=backend, tol=tol)


@program(F(16, 8), I(16, hi=4), graphs=1, calls=5)
def test_step_as_method():
    """A trainer object whose method is the step"""
    model = net()

    class Trainer:
        def __init__(self):
            self.model, self.opt, self.losses = model, torch.optim.SGD(model.parameters(), lr=0.1), []

        def step(self, x, y):
            self.opt.zero_grad()
            loss = LOSS(self.model(x), y)
            loss.backward()
            self.opt.step()
            self.losses.append(loss.detach())
            return self.losses[-1]

    trainer = Trainer()
    return lambda x, y: trainer.step(x, y), lambda: (trainer.losses, [*model.parameters()])


@program(F(4, 4, grad=True), F(4, 4), graphs=1)
def test_first_gradient_and_accumulated():
    """.grad is None, then set, then added to in place"""

    def f(x, y):
        x.grad = None
        (x * y).sum().backward()
        first = x.grad
        (x * x * y).sum().backward()
        return first is x.grad, first, x.grad.stride()

    return f


@program(F(2, 3, grad=True), F(3, grad=True), graphs=1)
def test_layout_of_gradients():
    """A gradient that comes expanded or transposed is laid out as its parameter; two leaves do not share one"""

    def f(x, y):
        (x + y).sum().backward()
        a, b = torch.ones(3, 2).requires_grad_(), torch.ones(3, 2).requires_grad_()
        (a + b).t().backward(torch.arange(6.0).view(2, 3))
        return x.grad, y.grad, a.grad, b.grad, a.grad.stride()

    return f


@program(F(3, grad=True), graphs=1)
def test_gradient_given():
    """backward(gradient) of a leaf: the gradient is not the tensor given"""

    def f(x):
        g = torch.ones(3)
        x.backward(g)
        g.add_(1)
        return x.grad, g

    return f


@program(F(3, grad=True), F(3, grad=True), graphs=1)
def test_inputs_named():
    """backward(inputs=...): only these get a gradient"""

    def f(x, y):
        (x * y).exp().sum().backward(inputs=[y])
        return x.grad, y.grad

    return f


@program(F(3, grad=True), F(3, grad=True), graphs=1)
def test_autograd_grad():
    """torch.autograd.grad: a tuple, unused inputs, given gradients"""

    def f(x, y):
        h = x * y
        (g,) = torch.autograd.grad(h.exp().sum(), h, retain_graph=True)
        a, b = torch.autograd.grad(h.sin(), [x, y], g, allow_unused=True)
        (none,) = torch.autograd.grad((x * x).sum(), [y], allow_unused=True)
        (zero,) = torch.autograd.grad((x * x).sum(), [y], materialize_grads=True)
        return g, a, b, none, zero, x.grad

    return f


def takes_dicts() -> bool:
    """Whether torch.autograd.grad takes a dict of inputs: newer torch does."""
    x = torch.ones(2, requires_grad=True)
    try:
        return set(torch.autograd.grad(x.sum(), {"x": x})) == {"x"}
    except RuntimeError:
        return False


if takes_dicts():

    @program(F(3, grad=True), F(3, grad=True), graphs=1, backend="eager")
    def test_autograd_grad_of_a_dict():
        """torch.autograd.grad of inputs by name"""
        return lambda x, y: torch.autograd.grad((x * y * y).sum(), {"x": x, "y": y})


@program(F(3, grad=True), graphs=1, backend="eager")
def test_gradient_of_gradient():
    """A gradient penalty: create_graph within the region"""

    def f(x):
        (g,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        penalty = (g * g).sum()
        penalty.backward()
        return penalty.detach(), x.grad

    return f


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradient_accumulation(backend):
    """Several micro-batches, then a step"""

    def build():
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def f(x, y):
            total = 0.0
            for part, wanted in zip(x.chunk(4), y.chunk(4)):
                loss = LOSS(model(part), wanted) / 4
                loss.backward()
                total = total + loss.detach()
            opt.step()
            opt.zero_grad()
            return total

        return f, seen(model, opt)

    run(build, F(16, 8), I(16, hi=4), backend=backend, tol=CLOSE if backend == "inductor" else (0.0, 0.0))


def again(f, x):
    out = f(x)
    try:
        out.backward()
    except RuntimeError as e:
        return str(e)[:60], out.requires_grad
    return "went", out.requires_grad


def test_history_is_spent():
    """A loss that comes out after its backward: it requires gradients, and going backward again raises"""

    def build():
        weight = torch.ones(3, requires_grad=True)

        def f(x):
            loss = (weight * x).exp().sum()
            loss.backward()
            return loss

        return f, lambda: weight.grad

    run(build, F(3), drive=again)


def test_history_that_saves_nothing():
    """Where no tensor was saved, backward may be called again"""

    def build():
        weight = torch.ones(3, requires_grad=True)

        def f(x):
            loss = (weight + x).sum()
            loss.backward()
            return loss

        return f, lambda: weight.grad

    run(build, F(3), drive=again)


@pytest.mark.parametrize("retain", [True, False])
def test_history_retained(retain):
    """retain_graph=True: the graph can be used again, outside too"""

    def build():
        weight = torch.ones(3, requires_grad=True)

        def f(x):
            loss = (weight * x).exp().sum()
            loss.backward(retain_graph=retain)
            return loss

        return f, lambda: weight.grad

    run(build, F(3), drive=again)


def of_a_result(f, x):
    return f(x * 2)


@program(F(3, grad=True), breaks=True, drive=of_a_result)
def test_into_earlier_history():
    """A tensor whose history began before the region: left to torch"""

    def f(x):
        (x * 3).exp().sum().backward()
        return x.detach() * 2

    return f


@program(F(3, grad=True), graphs=1, drive=of_a_result)
def test_up_to_earlier_history():
    """torch.autograd.grad up to such a tensor"""

    def f(x):
        return torch.autograd.grad((x * 3).exp().sum(), x)

    return f


@program(F(3, grad=True), breaks=True, calls=2)
def test_create_graph():
    """backward(create_graph=True)"""

    def f(x):
        (x**3).sum().backward(create_graph=True)
        return x.grad.detach()

    return f


@program(F(3), graphs=None)
def test_no_gradient():
    """Going backward from what needs none raises as eager does"""

    def f(x):
        (x * 2).sum().backward()
        return x

    return f


@program(F(3, grad=True), graphs=None)
def test_no_scalar():
    """Gradients are made for scalars only"""

    def f(x):
        (x * 2).backward()
        return x

    return f


@program(F(3, grad=True), graphs=None)
def test_twice():
    """Twice through one graph"""

    def f(x):
        y = x.exp().sum()
        y.backward()
        y.backward()
        return x

    return f


@program(F(3, grad=True), graphs=None)
def test_saved_tensor_written():
    """A tensor that backward needs, written in place"""

    def f(x):
        y = x.exp()
        y.mul_(2).add_(1)
        z = y * y
        y.add_(1)
        z.sum().backward()
        return x.grad

    return f


@program(F(3, grad=True), graphs=1)
def test_no_grad_and_detach():
    """Parts without gradients"""

    def f(x):
        with torch.no_grad():
            scale = x * 2
        y = (x * scale + x.detach() * 3).sum()
        y.backward()
        return x.grad, y.detach()

    return f


@program(F(3), graphs=1)
def test_leaves_made_inside():
    """A leaf made in the region"""

    def f(x):
        a = x.detach().clone().requires_grad_()
        (a * a).exp().sum().backward()
        return a.grad, a

    return f


def hooked(build, **options):
    run(build, F(3), **options)


def test_hook_outside():
    """A hook on a parameter, put on and taken off between calls, is not missed"""

    def build():
        weight, log, handle = torch.ones(3, requires_grad=True), [], []

        def f(x):
            (weight * x).exp().sum().backward()
            return weight.grad.clone()

        def drive(f, x):
            out = [f(x)]
            handle.append(weight.register_hook(lambda g: log.append(g.sum()) or g * 2))
            out.append(f(x))
            handle.pop().remove()
            out.append(f(x))
            other = weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum()))
            out.append(f(x))
            other.remove()
            return out, len(log)

        f.drive = drive
        return f, lambda: (weight.grad, log)

    def drive(f, x):
        return f.drive(f, x)

    hooked(build, drive=drive, graphs=None)
