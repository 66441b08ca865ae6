"""Training with what torch.nn.utils puts on modules, with hooks of modules, and with optimizers that call a closure"""

import warnings

import pytest
import torch
from torch.nn.utils import prune

import bytejit

from .harness import F, I, program
from .test_training import CLOSE, LOSS, net, run, seen
from .test_training_optimizers import step_with


def normed(model):
    """The old forms: the module holds a tensor whose history leads to its parameters"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.nn.utils.weight_norm(model[0])
    torch.nn.utils.spectral_norm(model[2])


def pruned(model):
    prune.l1_unstructured(model[0], "weight", 0.3)
    prune.random_structured(model[2], "weight", 0.2, dim=1)


def trained(change, model=None):
    """A training step of a changed network."""

    def build():
        m = net() if model is None else model()
        change(m)
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        step, state = step_with(m, opt), seen(m, opt)
        return step, lambda: (state(), [*m.buffers()])

    return build


@pytest.mark.parametrize("change", [normed, pruned])
def test_weights_computed_in_hooks(change):
    """One graph a step: what holds the history of a weight puts no hooks on it"""
    run(trained(change), F(16, 8), I(16, hi=4), tol=CLOSE)


def test_backward_hooks_of_modules():
    """Hooks see and change gradients; the graphs between them are compiled, and none is made again"""

    def made():
        m, seen = net(), []
        for layer in m:
            layer.register_full_backward_hook(lambda _, given, found: seen.append((given, found)))
        m[1].register_full_backward_hook(lambda _, given, found: (given[0] * 0.5,))
        m[2].register_full_backward_pre_hook(lambda _, found: (found[0].clamp(-0.1, 0.1),))

        def step(x, y):
            m.zero_grad()
            LOSS(m(x), y).backward()
            return seen, [p.grad for p in m.parameters()]

        return step

    plain, step, counts = made(), made(), []
    compiled = bytejit.compile(step, backend="inductor")
    data = torch.Generator().manual_seed(1)
    for _ in range(4):
        batch = torch.randn(16, 8, generator=data, requires_grad=True), torch.randint(0, 4, (16,), generator=data)
        torch.testing.assert_close(compiled(*batch), plain(*batch))
        counts.append(bytejit.counters.total("graphs"))
    assert counts[1] == counts[3] < 10 and not bytejit.counters["fallbacks"]


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_closures(line_search):
    """LBFGS: what its closure computes is compiled; numbers of the search decide branches, which break the graph"""

    def made():
        m = net().double()
        opt = torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=3, history_size=2, line_search_fn=line_search)

        def step(x, y):
            def closure():
                opt.zero_grad()
                loss = LOSS(m(x), y)
                loss.backward()
                return loss

            return opt.step(closure)

        return m, step

    (a, step), (b, plain) = made(), made()
    compiled = bytejit.compile(step, backend="eager")
    data = torch.Generator().manual_seed(1)
    for _ in range(3):
        batch = torch.randn(16, 8, generator=data).double(), torch.randint(0, 4, (16,), generator=data)
        torch.testing.assert_close(compiled(*batch), plain(*batch))
        torch.testing.assert_close([*a.parameters()], [*b.parameters()])
    assert bytejit.counters.total("graphs") > 5


def test_a_length_that_grows():
    """A list that each call makes longer, with loops over it: one site after the other does not compile up to the limit"""

    def grow(x, before):
        before.append(x)
        n = len(before)
        y = x
        for b in before:
            y = y + b
        parts = [y * 2] * n
        for i in range(n - 1, -1, -1):
            parts[i] = parts[i] + before[i]
        for i in range(n):
            y = y + parts[i]
        return y

    compiled = bytejit.compile(grow, backend="eager")
    a, b = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(60):
            x = torch.full((3,), float(i))
            assert torch.equal(compiled(x, a), grow(x, b))
    assert bytejit.counters.total("graphs") < 40


def test_parameters_made_in_a_graph():
    """They have their class and are leaves where they leave; within the graph they get gradients. Noise of rrelu as in eager"""

    def fn(x):
        inside = torch.nn.Parameter(x[0] * 2)
        ((x - inside) ** 2).mean().backward()
        kept = torch.nn.Parameter(x.detach().mean(0))
        kept.tag = inside.grad
        frozen = torch.nn.Parameter(torch.ones(8), requires_grad=False)
        noisy = torch.nn.functional.rrelu_(torch.nn.functional.rrelu(x * kept, training=True) - 0.5, training=True)
        return noisy.sum() + (x * frozen).sum(), kept, frozen, inside

    def drive(f, x):
        total, *made = f(x)
        total.backward()
        return total.detach(), [(type(p), p.is_leaf, p.requires_grad, p.data, p.grad) for p in made], made[0].tag

    run(lambda: (fn, None), F(4, 8), backend="inductor", drive=drive, tol=CLOSE)
    assert not bytejit.counters["fallbacks"]


@program(F(6, 8), graphs=1)
def test_functions_given_to_torchs():
    """Python functions of torch's that call what they are given, or raise for some values, are part of the graph"""
    apart = torch.nn.functional.triplet_margin_with_distance_loss

    def fn(x):
        scale = x.mean()
        loss = apart(x, x + 1, x * 2, distance_function=lambda a, b: (a - b).norm(dim=-1) * scale, swap=True)
        return loss + torch.nn.functional.gaussian_nll_loss(x, x * 2, x.abs())

    return fn


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss(zero_infinity):
    """One graph for all lengths; lengths that torch refuses raise its error"""

    def made():
        m, loss_of = torch.nn.Linear(4, 6).double(), torch.nn.CTCLoss(zero_infinity=zero_infinity)

        def step(x, labels, steps, lengths):
            m.zero_grad()
            loss = loss_of(m(x).log_softmax(-1), labels, steps, lengths)
            loss.backward()
            return loss.detach(), [p.grad for p in m.parameters()]

        return step

    torch.manual_seed(0)
    plain = made()
    torch.manual_seed(0)
    compiled = bytejit.compile(made(), backend="aot_eager")
    for n, lengths in ((9, [4, 3, 2]), (11, [1, 0, 4]), (8, [2, 2, 3]), (8, [9, 1, 1])):
        batch = torch.randn(n, 3, 4).double(), torch.randint(1, 6, (3, 4)), torch.tensor([n, n - 1, 1]), torch.tensor(lengths)
        found = []
        for f in (plain, compiled):
            try:
                found.append(f(*batch))
            except RuntimeError as e:
                found.append([torch.zeros(1), str(e) and []])
        torch.testing.assert_close(found[1], found[0], equal_nan=True)
    assert bytejit.counters.total("graphs") <= 3 and not bytejit.counters["breaks"]
