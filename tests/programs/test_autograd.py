"""Gradients: functions with a backward of their own, checkpoints, hooks"""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from . import targets
from .harness import F, backward_after, case, make_case, program, run_case


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=1.0):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * grad * ctx.scale, None


class Split(torch.autograd.Function):
    """Two results of which one has no gradient; the new style with setup_context."""

    @staticmethod
    def forward(x, y):
        return x * y, (x > y).long()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        x, y = ctx.saved_tensors
        return grad * y * 10 if ctx.needs_input_grad[0] else None, grad * x if ctx.needs_input_grad[1] else None


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.by * grad, None


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


@case(F(4, grad=True), graphs=1, drive=backward_after)
def test_autograd_function(x):
    """`torch.autograd.Function` with gradients: its own backward is used"""
    y = Square.apply(x)
    return (Square.apply(y + 1, 2.0) * 3).sum(), y.requires_grad, y.is_leaf


@case(F(4, grad=True), F(4), graphs=1, drive=backward_after)
def test_autograd_function_two_results(x, y):
    """`setup_context`, several results, `mark_non_differentiable`, `needs_input_grad`"""
    a, b = Split.apply(x, y)
    return a, b, b.requires_grad, a.requires_grad


@case(F(4, grad=True), graphs=1, drive=backward_after)
def test_autograd_function_of_views(x):
    """A function that returns its argument, or a view of it: gradient reversal"""
    return Reverse.apply(x, 0.5) + Same.apply(x * 2), Reverse.apply(x, 2.0)


@case(F(4, grad=True), graphs=1)
def test_autograd_function_without_gradients(x):
    """`torch.autograd.Function` under `no_grad`, and of what needs none"""
    with torch.no_grad():
        y = Square.apply(x)
    return y, Square.apply(x.detach(), 3.0)


@program(F(2, 4), graphs=1, drive=backward_after)
def test_autograd_function_in_module():
    """A quantising layer: rounding with a straight-through gradient"""

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, levels):
            return (x * levels).round() / levels

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    class Quantised(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear, self.levels = torch.nn.Linear(4, 4), 8

        def forward(self, x):
            w = Round.apply(self.linear.weight, self.levels)
            return torch.nn.functional.linear(x, w, self.linear.bias).relu()

    m = Quantised()
    return m, lambda: [p.grad for p in m.parameters()]


SEEN = []


class Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        SEEN.append(len(SEEN))
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        SEEN.append("back")
        return grad


class Adding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


@case(F(4, grad=True), breaks=True, drive=backward_after, watch=("SEEN",))
def test_autograd_function_with_effects(x):
    """A forward that changes a list, or its argument (`mark_dirty`)"""
    y = Noting.apply(x * 1) + 1
    return Adding.apply(y) * 2, len(SEEN)


def twice(f, x):
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first.detach(), second


@case(F(4, grad=True), graphs=1, drive=twice)
def test_autograd_function_twice_differentiated(x):
    """The graph of a function with its own backward differentiated twice"""
    return Square.apply(x) * x


@case(F(4, grad=True), graphs=1)
def test_backward_inside(x):
    """`backward()` and `torch.autograd.grad` inside"""
    y = Square.apply(x).sum()
    y.backward(retain_graph=True)
    (g,) = torch.autograd.grad(y, x)
    return x.grad + 1, g


def part(x, w, k=2.0):
    return torch.nn.functional.dropout((x @ w).sin() * k, 0.5)


@case(F(4, 4), F(4, 4, grad=True), graphs=1, drive=backward_after)
def test_checkpoint(x, w):
    """`torch.utils.checkpoint`: with random numbers, arguments by name, a closure, nested, two in a row"""
    y = checkpoint(part, x, w, k=3.0, use_reentrant=False)
    z = checkpoint(
        lambda a: checkpoint(torch.tanh, a @ w, use_reentrant=False) + part(a, w),
        y,
        use_reentrant=False,
        preserve_rng_state=False,
    )
    a, b = checkpoint(lambda a: (a + w, a * 2), z, use_reentrant=False)
    return a * b + y, b


def count_kept(f, x, w):
    """What autograd keeps for the backward pass, in elements."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        out = f(x, w)
    out.sum().backward()
    return out, sum(kept)


@case(F(4, 4), F(4, 4, grad=True), graphs=1, drive=count_kept)
def test_checkpoint_keeps_nothing(x, w):
    """What is computed under a checkpoint is not kept for the backward pass"""
    return checkpoint(lambda a: (a @ w).sin().exp().tanh().cos(), x, use_reentrant=False) * 2


@case(F(4, 4), F(4, 4, grad=True), graphs=1)
def test_checkpoint_without_gradients(x, w):
    """`torch.utils.checkpoint` where no gradients are needed"""
    with torch.no_grad():
        y = checkpoint(part, x, w, use_reentrant=False)
    return y, checkpoint(torch.sin, x, use_reentrant=False)


@case(F(4, 4), F(4, 4, grad=True), breaks=True, drive=backward_after, watch=("SEEN",))
def test_checkpoint_with_effects(x, w):
    """`torch.utils.checkpoint` of a function that is seen to run twice; the reentrant kind"""

    def noting(a):
        SEEN.append(a.shape[0])
        return (a @ w).sin()

    y = checkpoint(noting, x, use_reentrant=False)
    return checkpoint(part, y, w, use_reentrant=True), len(SEEN)


@program(F(2, 4), graphs=1, drive=backward_after)
def test_checkpoint_of_modules():
    """Blocks of a model under checkpoints, in a loop"""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()) for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
            return x

    m = Model()
    return m, lambda: [p.grad for p in m.parameters()]


def back_and_grads(f, x, w):
    """Backward, then what the hooks saw and left."""
    out = f(x, w)
    out[0].sum().backward()
    return out, [t.grad for t in out if isinstance(t, torch.Tensor) and (t.is_leaf or t.retains_grad)]


@program(F(4, grad=True), F(4, grad=True), graphs=1, drive=back_and_grads)
def test_tensor_hooks():
    """`register_hook` on results and leaves, in order, with a closure; `retain_grad`; the post-accumulate hook"""
    log, handles = [], []

    def f(x, w):
        y = x * w
        scale = y.detach().mean()
        first = y.register_hook(lambda g: g * scale)
        y.register_hook(lambda g: log.append(("y", g.clone())))
        y.retain_grad()
        w.register_hook(lambda g: log.append(("w", g.clone())))
        x.register_post_accumulate_grad_hook(lambda p: log.append(("x", p.grad.clone())))
        handles.append(first)
        return (y * 2).sin(), y

    return f, lambda: (log, [type(h) for h in handles])


@case(F(4, grad=True), F(4, grad=True), drive=back_and_grads)
def test_tensor_hooks_and_changes(x, w):
    """A hook on a tensor that is changed in place afterwards; a handle removed; a hook on what has no gradient"""
    y = x * w
    y.register_hook(lambda g: g * 10)
    y.mul_(3)
    gone = y.register_hook(lambda g: g * 100)
    gone.remove()
    try:
        x.detach().register_hook(print)
    except RuntimeError as e:
        return y * 2, str(e)


class Reversible(torch.autograd.Function):
    """Keeps the graph of a function of its own, made with gradients inside the forward."""

    @staticmethod
    def forward(ctx, fn, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = fn(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, g):
        return None, torch.autograd.grad(ctx.y, ctx.x, g)[0]


@case(F(4, grad=True), graphs=1)
def test_autograd_function_with_a_graph_inside(x):
    """A forward that enables gradients for a part, and takes a function of torch as an argument"""
    return Reversible.apply(torch.sin, x) * 2 + Reversible.apply(torch.Tensor.exp, x)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizer_step_in_one_graph(kind):
    """`optimizer.step()` in one graph; steps counted in tensors are computed with as tensors, as torch.compile does"""

    def build():
        torch.manual_seed(0)
        m = torch.nn.Linear(4, 1)
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        opt = kind(m.parameters(), 0.01, **options)

        def f(x):
            for p in m.parameters():
                p.grad = x.sum() * torch.ones_like(p)
            opt.step()
            return x + 1

        return f, lambda: (list(m.parameters()), opt.state_dict()["state"])

    run_case(make_case(build, (F(6),), None, None, 1, None, False, "eager", 3, None, (), (1e-5, 1e-5), __file__))


@case(F(4, grad=True), F(4), graphs=1)
def test_grad_fn_of_arguments(x, y):
    """`grad_fn is None` of arguments that are leaves"""
    return x.grad_fn is None, y.grad_fn is None, x * 2 if x.is_leaf and x.grad_fn is None else y


def leaf(x):
    d = x.detach().requires_grad_()
    return x * 2, d


def leaf_used(x):
    d = x.detach().requires_grad_()
    return (d * x).sum(), d


def view_of_leaf(x):
    d = x.detach().requires_grad_()
    return x * 2, d.view(-1), d.t(), x.view(-1)


def view_of_inner_leaf(x):
    d = (x * 1).detach().requires_grad_()
    return x * 2, d.view(-1), d[0]


def computed_from_leaf(x):
    z = x.detach().requires_grad_() * 3
    return x * 2, z, z.view(-1)


@pytest.mark.parametrize("fn", [leaf, leaf_used, view_of_leaf, view_of_inner_leaf, computed_from_leaf])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_leaf_made_inside(fn, backend):
    """detach().requires_grad_(): outputs keep requires_grad, and no gradient goes on to the input that they lie in"""
    seen = []
    for run in (fn, targets.compiled(fn, backend)):
        x = torch.arange(4.0).view(2, 2).requires_grad_()
        outs = run(x)
        grads = [torch.autograd.grad(t.sum(), x, allow_unused=True, retain_graph=True)[0] for t in outs if t.requires_grad]
        seen.append([(t.requires_grad, t.is_leaf, t.tolist()) for t in outs] + [g if g is None else g.tolist() for g in grads])
    assert seen[0] == seen[1]


WEIGHT = torch.ones(2, 2, requires_grad=True)
LAYER = torch.nn.Linear(2, 2)


class Fetches(torch.autograd.Function):
    """Uses a tensor that is no argument."""

    @staticmethod
    def forward(ctx, x):
        return x @ WEIGHT, torch.is_grad_enabled()

    @staticmethod
    def backward(ctx, g, _):
        return g @ WEIGHT.t()


class Layer(torch.autograd.Function):
    """Gets its tensors within other objects."""

    @staticmethod
    def forward(ctx, x, layer, more):
        return layer(x) + more["bias"]

    @staticmethod
    def backward(ctx, g):
        return g, None, None


class Itself(torch.autograd.Function):
    """Returns its argument."""

    @staticmethod
    def forward(ctx, x):
        return x, x[0]

    @staticmethod
    def backward(ctx, g, h):
        return g


@case(F(2, 2))
def test_function_without_gradients(x):
    """`apply` where no argument needs a gradient: its forward records none, and an argument that it returns is another tensor"""
    same, row = Itself.apply(x)
    found = Fetches.apply(x), Layer.apply(x, LAYER, {"bias": WEIGHT})
    return found, same, same is x, row, [y.requires_grad for y in (found[0][0], found[1], same)], x @ WEIGHT
