"""Every optimizer of torch.optim in a compiled step, schedulers, and optimizers compiled alone"""

import functools

import pytest
import torch

import bytejit

from .harness import F, I
from .test_training import CLOSE, LOSS, net, run, seen

LOOSE = (1e-4, 1e-5)
FORMS = {
    "plain": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "weight_decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "foreach": True},
    "amsgrad": {"amsgrad": True},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "centered": {"centered": True, "momentum": 0.9},
    "decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "tensor_lr": {"lr": torch.tensor(0.01)},
    "tensor_lr_foreach": {"lr": torch.tensor(0.01), "foreach": True},
}
# forms that are two others at once, or part of another ("maximize" has foreach too): where an optimizer's code differs
BOTH = {"foreach": ("SGD", "Adam", "RAdam", "Adafactor"), "tensor_lr_foreach": ("SGD", "Adam", "RAdam", "Adadelta")}
NAMES = "SGD Adam AdamW Adamax NAdam RAdam RMSprop Rprop Adagrad Adadelta ASGD Adafactor Muon".split()


def made(name: str, form: str, model: torch.nn.Module):
    options = {"lr": 0.1} if name == "SGD" else {}
    params = [p for p in model.parameters() if name != "Muon" or p.dim() == 2]
    return getattr(torch.optim, name)(params, **options | {k: _copy(v) for k, v in FORMS[form].items()})


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def taken(name: str, form: str) -> bool:
    """Whether torch has this form, on the CPU."""
    model = net()
    try:
        opt = made(name, form, model)
        LOSS(model(torch.ones(2, 8)), torch.tensor([0, 1])).backward()
        opt.step()
    except (TypeError, ValueError, RuntimeError, AssertionError):
        return False
    return True


def cases() -> list:
    """Not decided when tests are collected: that would run optimizers."""
    return [pytest.param(name, form, id=f"{name}-{form}") for name in NAMES for form in FORMS if name in BOTH.get(form, NAMES)]


def step_with(model, opt):
    """A step that trains a model, and returns the loss."""

    def step(x, y):
        opt.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def step_of(name: str, form: str):
    model = net()
    opt = made(name, form, model)
    return step_with(model, opt), seen(model, opt)


@pytest.mark.parametrize("name, form", cases())
def test_optimizer(name, form):
    """Equal to eager over five steps, in one graph"""
    if not taken(name, form):
        pytest.skip("torch has no such form")
    run(functools.partial(step_of, name, form), F(16, 8), I(16, hi=4), tol=CLOSE)


@pytest.mark.parametrize("name, form", [("Adam", "fused"), ("AdamW", "amsgrad"), ("SGD", "nesterov"), ("Adagrad", "fused")])
def test_optimizer_in_kernels(name, form):
    """The same through inductor"""
    run(functools.partial(step_of, name, form), F(16, 8), I(16, hi=4), tol=LOOSE, backend="inductor")


@pytest.mark.parametrize(
    "name, form, scheduler",
    [
        ("SGD", "plain", "exponential"),
        ("SGD", "plain", "plateau"),
        ("Adam", "plain", "one cycle"),
        ("AdamW", "foreach", "exponential"),
        ("AdamW", "foreach", "plateau"),
        ("AdamW", "fused", "one cycle"),
    ],
)
def test_schedulers(name, form, scheduler):
    """A rate that changes every step costs no compile a value: two graphs in twenty steps"""

    def build():
        model = net()
        opt = made(name, form, model)
        make = {
            "exponential": lambda: torch.optim.lr_scheduler.ExponentialLR(opt, 0.9),
            "one cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=30),
            "plateau": lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.9, patience=0),
        }
        schedule, step = make[scheduler](), step_with(model, opt)
        step.after = lambda: schedule.step(1.0) if scheduler == "plateau" else schedule.step()
        return step, seen(model, opt)

    def drive(f, x, y):
        out = f(x, y)
        f.after()
        return out

    run(build, F(16, 8), I(16, hi=4), calls=20, total=3 if scheduler == "plateau" else 2, drive=drive, tol=LOOSE)


@pytest.mark.parametrize("name, backend", [("SGD", "eager"), ("Adam", "inductor"), ("RAdam", "eager")])
def test_step_compiled_alone(name, backend):
    """bytejit.compile(opt.step) with the loop as it is"""

    def trained(compiled: bool):
        model = net()
        opt = made(name, "plain", model)
        step = bytejit.compile(opt.step, backend=backend, fullgraph=True) if compiled else opt.step
        g = torch.Generator().manual_seed(0)
        for _ in range(5):
            x, y = torch.randn(16, 8, generator=g), torch.randint(0, 4, (16,), generator=g)
            opt.zero_grad()
            LOSS(model(x), y).backward()
            step()
        return [p.detach() for p in model.parameters()], opt.state_dict()["state"]

    want, got = trained(False), trained(True)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_step_that_changes_versions():
    """A parameter that a compiled step wrote may not be used by a backward pass from before"""
    weight = torch.ones(3, requires_grad=True)
    opt = torch.optim.SGD([weight], lr=0.1)
    step = bytejit.compile(opt.step)
    loss = (weight * weight).sum()
    weight.grad = torch.ones(3)
    before = weight._version
    step()
    assert weight._version > before and weight.is_leaf and weight.requires_grad
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_layer_that_is_frozen_for_a_while(set_to_none):
    """Its gradient is removed, or becomes zeros, while it needs none; all in one graph"""

    def build():
        model = net()
        opt, states = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), iter([True, True, False, False, True, True])

        def step(x, y):
            opt.zero_grad(set_to_none=set_to_none)
            loss = LOSS(model(x), y)
            loss.backward()
            opt.step()
            return loss.detach()

        step.before = lambda: model[0].requires_grad_(next(states))
        return step, seen(model, opt)

    def drive(f, x, y):
        f.before()
        return f(x, y)

    run(build, F(16, 8), I(16, hi=4), calls=6, graphs=None, drive=drive, tol=CLOSE)


def test_gradients_of_what_needs_none():
    """A program may set them; they are not of the tensor's history"""

    def build():
        def step(x, made):
            x.grad = made * 2
            x.grad += 1
            y = torch.ones(3)
            y.grad = x.grad.sin()
            return x.clone(), y, y.detach().grad is None

        return step, lambda: None

    def drive(f, x, made):
        copied, y, nothing = f(x, made)
        return copied, x.grad, y, y.grad, nothing, copied.grad is None

    run(build, F(3), F(3), drive=drive)
