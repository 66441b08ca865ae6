"""Training steps that go wrong: the errors and values of eager, nothing half updated"""

import signal
import threading

import pytest
import torch

import bytejit

from .harness import F, I, Turn, program
from .test_autograd import Square
from .test_training import CLOSE, LOSS, net, run, seen

BACKENDS = pytest.mark.parametrize("backend", ["eager", "inductor"])


def step_of(loss_of):
    """A factory of a step: loss_of(model, x, y)."""

    def build():
        model = net()
        opt = torch.optim.Adam(model.parameters())

        def step(x, y):
            opt.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            opt.step()
            return loss.detach()

        return step, seen(model, opt)

    return build


@BACKENDS
def test_not_a_number(backend):
    """A loss that is not a number in one of the calls"""
    build = step_of(lambda m, x, y: LOSS(m(x) * x.sum().sign(), y) / (x.sum() > 0))
    run(build, F(16, 8), I(16, hi=4), backend=backend, tol=CLOSE)


@BACKENDS
def test_sizes_that_change(backend):
    """Another batch size in each call: one graph more, not one a size"""
    build = step_of(lambda m, x, y: LOSS(m(x), y))

    def args(r):
        return r.f(4 + 3 * r.call, 8), r.i(0, 4, 4 + 3 * r.call)

    run(build, args=args, calls=6, graphs=1, backend=backend, tol=CLOSE)


@pytest.mark.parametrize("at", [0, 2])
def test_target_out_of_range(at):
    """A call that raises while it runs: parameters are as before, the error and its line are eager's"""
    build = step_of(lambda m, x, y: torch.nn.functional.nll_loss(m(x).log_softmax(1), y))

    def args(r):
        y = r.i(0, 4, 16)
        y[3] = 7 if r.call == at else 0
        return r.f(16, 8), y

    run(build, args=args, graphs=None, tol=CLOSE)


def test_target_out_of_range_in_kernels():
    """The same through inductor: the program's own code raises, parameters are as before"""
    step, state = step_of(lambda m, x, y: LOSS(m(x), y))()
    compiled = bytejit.compile(step)
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    for _ in range(3):
        compiled(x, y)
    before = [p.detach().clone() for p in state()[0]]
    y[3] = 7
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        compiled(x, y)
    assert all(map(torch.equal, state()[0], before))
    y[3] = 0
    assert compiled(x, y).isfinite()


class Raises(torch.autograd.Function):
    """A backward that raises when the flag is set."""

    flag = False

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        if Raises.flag:
            raise ValueError("in backward")
        return grad * 2


def failing_in_the_third(error):
    """A driver in whose third call the flag is set: the text of the error is what that call returns."""

    def drive(f, x, y):
        f.calls = getattr(f, "calls", 0) + 1
        Raises.flag = f.calls == 3
        try:
            return f(x, y)
        except error as e:
            return str(e)
        finally:
            Raises.flag = False

    return drive


def test_backward_that_raises():
    """An exception out of a Function's backward: nothing is half updated, and the next call goes on"""
    run(
        step_of(lambda m, x, y: LOSS(Raises.apply(m(x)), y)),
        F(16, 8),
        I(16, hi=4),
        drive=failing_in_the_third(ValueError),
        tol=CLOSE,
    )


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backward_that_changes_something_and_raises(backend, caught):
    """It runs once in each call"""

    @program(F(3, grad=True), Turn(False, True, True, False), calls=4, backend=backend, tol=(1e-6, 1e-6))
    def test():
        passes, bad = [], [False]

        class Counted(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                passes.append(len(passes))
                if bad[0]:
                    raise ValueError("in backward")
                return grad * 3

        def step(x, raises):
            bad[0] = raises
            loss = Counted.apply(x * x).sum()
            if not caught:
                loss.backward()
                return loss
            try:
                loss.backward()
            except ValueError as e:
                return str(e)
            return loss

        return step, lambda: passes

    test()


def test_hook_that_raises():
    """An exception in a hook"""

    def build():
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def hook(grad):
            if Raises.flag:
                raise ValueError("in a hook")

        model[0].weight.register_hook(hook)

        def step(x, y):
            opt.zero_grad()
            LOSS(model(x), y).backward()
            opt.step()

        return step, seen(model, opt)

    run(build, F(16, 8), I(16, hi=4), graphs=None, drive=failing_in_the_third(ValueError))


class Memory(torch.autograd.Function):
    """A backward that finds no memory when the flag is set."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        if Raises.flag:
            raise torch.OutOfMemoryError("no memory")
        return grad * 2


def test_no_memory_in_backward():
    """Out of memory in backward"""
    run(
        step_of(lambda m, x, y: LOSS(Memory.apply(m(x)), y)),
        F(16, 8),
        I(16, hi=4),
        drive=failing_in_the_third(torch.OutOfMemoryError),
        tol=CLOSE,
    )


def test_interrupt_in_backward():
    """Ctrl-C while a compiled step goes backward: KeyboardInterrupt, and parameters as before"""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            if Raises.flag:
                signal.raise_signal(signal.SIGINT)
            return grad * 2

    assert threading.current_thread() is threading.main_thread()
    model = net()
    opt = torch.optim.Adam(model.parameters())

    def step(x, y):
        opt.zero_grad()
        LOSS(Slow.apply(model(x)), y).backward()
        opt.step()

    compiled = bytejit.compile(step, backend="eager")
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    compiled(x, y)
    compiled(x, y)
    before = [p.detach().clone() for p in model.parameters()]
    own = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    Raises.flag = True
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(x, y)
    finally:
        Raises.flag = False
        signal.signal(signal.SIGINT, own)
    for p, old in zip(model.parameters(), before):
        assert torch.equal(p, old)
    compiled(x, y)
    assert not torch.equal(model[0].weight, before[0])


@program(F(3), Turn(1, 2, 3), graphs=None)
def test_no_gradient_to_be_had():
    """backward of an output that has none"""

    def f(x, n):
        (x * n).sum().backward()
        return x

    return f


@program(F(16, 8), I(16, hi=4), graphs=None, calls=4)
def test_frozen_between_calls():
    """Parameters frozen and thawed between calls"""
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        LOSS(Square.apply(model(x)), y).backward()
        opt.step()
        model[0].weight.requires_grad_(not model[0].weight.requires_grad)

    return step, seen(model, opt)
