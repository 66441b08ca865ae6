"""Training steps with clipping, mixed precision, scaled and averaged weights, checkpoints and hooks"""

import copy

import pytest
import torch
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint

import bytejit

from .harness import F, I, program
from .test_autograd import Square
from .test_training import CLOSE, LOSS, net, run, seen

BACKENDS = pytest.mark.parametrize("backend", ["eager", "inductor"])
BATCH = F(16, 8), I(16, hi=4)


def sgd(change=None, model=None, more=None, forward=None):
    """A factory of a step; change(model): between backward and step. forward(model, x)."""

    def build():
        m = net() if model is None else model()
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        extra = more(m) if more else None
        state = seen(m, opt)

        def step(x, y):
            opt.zero_grad()
            loss = LOSS(forward(m, x) if forward else m(x), y)
            loss.backward()
            found = change(m) if change else None
            opt.step()
            if extra is not None:
                extra.update_parameters(m)
            return loss.detach(), found

        return step, lambda: (state(), [*extra.parameters(), *extra.buffers()] if extra is not None else None)

    return build


@pytest.mark.parametrize("foreach, backend", [(None, "inductor"), (True, "eager"), (False, "eager")])
def test_clip_grad_norm(foreach, backend):
    """clip_grad_norm_, in both forms, and what it returns"""
    change = lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5, foreach=foreach)  # noqa: E731
    run(sgd(change), *BATCH, backend=backend, tol=CLOSE if backend == "inductor" else (0.0, 0.0))


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clip_grad_value(foreach):
    """clip_grad_value_"""
    run(sgd(lambda m: torch.nn.utils.clip_grad_value_(m.parameters(), 0.01, foreach=foreach)), *BATCH)


@pytest.mark.parametrize("average", ["ema", "swa"])
def test_averaged_models(average):
    """torch.optim.swa_utils.AveragedModel, both averages"""
    make = {
        "ema": lambda m: swa_utils.AveragedModel(m, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
        "swa": swa_utils.AveragedModel,
    }[average]
    run(sgd(more=make), *BATCH)


def test_average_by_hand():
    """An average of the weights, by hand"""

    def build():
        model = net()
        opt, mean = torch.optim.SGD(model.parameters(), lr=0.1), copy.deepcopy(model)

        def step(x, y):
            opt.zero_grad()
            LOSS(model(x), y).backward()
            opt.step()
            with torch.no_grad():
                for a, b in zip(mean.parameters(), model.parameters()):
                    a.lerp_(b, 0.1)

        return step, lambda: [*mean.parameters()]

    run(build, *BATCH)


@BACKENDS
def test_autocast(backend):
    """Mixed precision inside"""

    def build():
        model = net()
        opt = torch.optim.AdamW(model.parameters())

        def step(x, y):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = LOSS(model(x), y)
            loss.backward()
            opt.step()
            return loss

        return step, seen(model, opt)

    run(build, *BATCH, backend=backend, tol=(0.0, 1e-3) if backend == "eager" else (0.02, 0.02))


def under_autocast(f, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return f(x, y)


def test_autocast_around():
    """Mixed precision around the step"""
    run(sgd(), *BATCH, drive=under_autocast)


def scaled(name: str, options: dict, scale: float, unscale: bool):
    """A factory of a step with a GradScaler; a large scale makes gradients that are not finite."""

    def build():
        model = net()
        opt = getattr(torch.optim, name)(model.parameters(), **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)

        def step(x, y):
            opt.zero_grad()
            loss = LOSS(model(x), y)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            return loss.detach()

        parameters = seen(model, opt)

        def written():
            return [p._version for p in model.parameters()] if scale < 2.0**20 else None

        return step, lambda: (parameters(), written(), scaler.get_scale(), scaler.state_dict())

    return build


@pytest.mark.parametrize(
    "name, options, scale, unscale, backend",
    [  # all pairs of two values
        ("SGD", {"lr": 0.1}, 1024.0, False, "eager"),
        ("SGD", {"lr": 0.1}, 2.0**126, True, "inductor"),
        ("Adam", {}, 1024.0, True, "inductor"),
        ("Adam", {}, 2.0**126, False, "eager"),
        ("AdamW", {"fused": True}, 2.0**126, True, "eager"),
        ("AdamW", {"fused": True}, 1024.0, False, "inductor"),
    ],
)
def test_grad_scaler(name, options, scale, unscale, backend):
    """GradScaler, with gradients that are finite and that are not; nothing asks a tensor for its value"""
    made = None if name == "Adam" or (options.get("fused") and unscale) else 1
    run(scaled(name, options, scale, unscale), *BATCH, graphs=made, backend=backend, tol=CLOSE)


def test_checkpointed_step():
    """torch.utils.checkpoint within a step"""
    run(sgd(forward=lambda m, x: checkpoint(m, x, use_reentrant=False)), *BATCH)


def test_custom_function_in_step():
    """An autograd.Function within a step"""
    run(sgd(forward=lambda m, x: Square.apply(m(x))), *BATCH)


@BACKENDS
def test_statistics_and_dropout(backend):
    """Batch norm's statistics and dropout: the same random numbers"""

    def model():
        torch.manual_seed(0)
        parts = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 4)
        return torch.nn.Sequential(*parts)

    run(sgd(model=model), *BATCH, backend=backend, tol=CLOSE if backend == "inductor" else (0.0, 0.0))


@program(*BATCH, graphs=1)
def test_closure():
    """optimizer.step(closure)"""
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        def closure():
            opt.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            return loss

        return opt.step(closure).detach()

    return step, seen(model, opt)


def hooked(kind: str):
    """A factory of a step with a hook of some kind."""

    def build():
        model = net()
        opt, log = torch.optim.SGD(model.parameters(), lr=0.1), []
        if kind == "parameter":
            model[0].weight.register_hook(lambda g: g * 2)
        if kind == "accumulated":
            model[0].weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum()))
        if kind == "module":
            model[2].register_full_backward_hook(lambda m, to, of: log.append(of[0].sum()))
        if kind == "forward":
            model[0].register_forward_hook(lambda m, given, out: out * 2)

        def step(x, y):
            opt.zero_grad()
            h = model[:2](x)
            if kind == "tensor":
                h.register_hook(lambda g: g * 3)
            if kind == "retained":
                h.retain_grad()
            loss = LOSS(model[2](h), y)
            loss.backward()
            opt.step()
            return loss.detach(), h.grad if kind == "retained" else None

        parameters = seen(model, opt)
        return step, lambda: (parameters(), log)

    return build


@pytest.mark.parametrize("kind", ["parameter", "accumulated", "module", "forward", "tensor", "retained"])
def test_hooks(kind):
    """Hooks: the graph ends before the backward pass that they see"""
    run(hooked(kind), *BATCH, graphs=1 if kind == "forward" else None)


def test_penalty():
    """A gradient penalty"""

    def build():
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            opt.zero_grad()
            x = x.requires_grad_()
            out = model(x)
            (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = LOSS(out, y) + g.pow(2).mean()
            loss.backward()
            opt.step()
            return loss.detach()

        return step, seen(model, opt)

    run(build, *BATCH)


def test_lists_that_foreach_operators_write():
    """they return the list that they were given"""

    def f(x, factor):
        a, pair = [x.clone(), x.exp()], (x.clone(),)
        b, c = torch._foreach_add_(a, 1.0), torch._foreach_add_(a, [x, x], alpha=factor)
        b.append(x)
        return b, c is a and b is a, type(c), torch._foreach_mul_(pair, 2) is pair

    want, got = (g(torch.ones(3), torch.tensor(2.0)) for g in (f, bytejit.compile(f, fullgraph=True)))
    assert got[1:] == want[1:] and all(map(torch.equal, got[0], want[0]))


@pytest.mark.parametrize("bias", [True, False])
def test_both_results_of_a_cell(bias):
    """a cell's state is returned, and computed from: compiled, not run by torch; what would broadcast is refused"""
    bytejit.reset()
    torch.manual_seed(0)
    cell, head = torch.nn.LSTMCell(3, 4, bias=bias), torch.nn.Linear(4, 2)
    results = []
    for f in (two_steps, bytejit.compile(two_steps)):
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        y, h, c = f(cell, head, x)
        passes = torch.autograd.grad(h.sum(), c, retain_graph=True)
        results.append((y, h, c, *passes, *torch.autograd.grad((y.sum() + h * c).sum(), [x, *cell.parameters()])))
    torch.testing.assert_close(results[1], results[0])
    refused = bytejit.compile(lambda x, h: torch.lstm_cell(x, (h, h), cell.weight_ih, cell.weight_hh))
    with pytest.raises(RuntimeError, match="batch size"):
        refused(torch.ones(2, 3), torch.ones(1, 4))
    assert not bytejit.counters["fallbacks"]


def two_steps(cell, head, x):
    h, c = cell(x)
    h, c = cell(x * 2, (h, c))
    return head(h), h, c
