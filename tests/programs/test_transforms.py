"""torch.func's transforms inside of a compiled function: vmap, grad, vjp, jvp, Jacobians and Hessians of functions traced."""

import functools

import torch
import torch.nn.functional as NF
import torch.utils.checkpoint
from torch import func, nn

import bytejit

from . import targets
from .harness import F, I, Spec, Turn, case, program

NET = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))
GRAD, MAPPED = func.grad(lambda a: (a**2).sum()), torch.vmap(lambda a: a * 2)


def loss_of(weights, x, y):
    return NF.cross_entropy(func.functional_call(NET, weights, (x.unsqueeze(0),)), y.unsqueeze(0))


def weights_of(net):
    return {k: v.detach() for k, v in net.named_parameters()}


@case(F(2, 3), graphs=1)
def test_grad(x):
    """torch.func.grad: of the first argument, of others, of several, with an aux, with the value, of itself"""
    return (
        func.grad(lambda a: (a.sin() * a).sum())(x),
        func.grad(lambda a, b: (a * b.sin()).sum(), argnums=-1)(x, x + 1),
        func.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x + 1),
        func.grad(lambda a: (a.exp().sum(), {"aux": a * 2}), has_aux=True)(x),
        func.grad_and_value(lambda d: (d["a"] * d["b"]).sum())({"a": x, "b": x + 2}),
        func.grad(lambda a: func.grad(lambda b: (b**3).sum())(a).sum())(x),
        GRAD(x),
    )


@case(F(2, 3), graphs=1)
def test_vmap(x):
    """torch.vmap: axes in and out, trees, keywords, closures, in chunks, nested, of torch's own functions"""
    w = x.mean(0)
    return (
        torch.vmap(lambda a: a.sum() * a)(x),
        torch.vmap(lambda a: a.cumsum(0), in_dims=1, out_dims=1)(x),
        torch.vmap(lambda a, b: (a @ b, {"s": a + b}), in_dims=(0, None))(x, w),
        torch.vmap(lambda d: d["a"] * d["b"], in_dims=({"a": 0, "b": None},))({"a": x, "b": w}),
        torch.vmap(lambda a, scale=1.0: a * scale)(x, scale=3.0),
        torch.vmap(lambda a: (a * w).sum(), chunk_size=1)(x),
        torch.vmap(torch.vmap(lambda a: a * 2))(x),
        torch.vmap(functools.partial(torch.add, alpha=2))(x, x),
        MAPPED(x),
        torch.vmap(lambda v: NF.linear(x, v), in_dims=0)(torch.ones(2, 4, 3)),
        torch.vmap(lambda a: NF.layer_norm(a, (3,)))(x),
    )


@case(F(2, 3), graphs=1)
def test_vjp_and_jvp(x):
    """torch.func.vjp and jvp: several arguments and results, with an aux"""
    answer, pull = func.vjp(lambda a, b: (a @ b.T, a.sum()), x, x * 2)
    sines, back, aux = func.vjp(lambda a: (a.sin(), {"cos": a.cos()}), x, has_aux=True)
    return (
        answer,
        pull((torch.ones_like(answer[0]), torch.tensor(2.0))),
        back(sines),
        aux,
        func.jvp(torch.sin, (x,), (x,)),
        func.jvp(lambda a: (a.sin(), a.cos()), (x,), (x + 1,), has_aux=True),
    )


@case(F(2, 3), graphs=1)
def test_jacobians(x):
    """jacrev, jacfwd, hessian, also of several arguments, trees, with an aux, mapped"""
    row = x[0]
    return (
        func.jacrev(torch.sin)(row),
        func.jacfwd(torch.sin)(row),
        func.hessian(lambda a: (a.sin() * a).sum())(row),
        func.jacrev(lambda a, b: {"u": a * b, "v": a.sum()}, argnums=(0, 1))(row, x[1]),
        func.jacrev(lambda a: (a.sin(), a.cos()), has_aux=True)(row),
        func.jacfwd(lambda a: (a.sin(), a.cos()), has_aux=True)(row),
        torch.vmap(func.jacrev(torch.sin))(x),
        torch.vmap(func.hessian(lambda a: (a**3).sum()))(x),
    )


@case(F(2, 3), graphs=1)
def test_nested_transforms_of_a_module(x):
    """functional_call restores the module's tensors in the inner transform, and so in the outer one"""
    weights = weights_of(NET)
    each = torch.vmap(lambda w, a: func.functional_call(NET, w, (a,)).sin(), (None, 0))
    out, pull = func.vjp(lambda a: each(weights, a), x)
    return pull(torch.ones_like(out)), func.jacrev(lambda w: torch.vmap(func.jacfwd(each, 1), (None, 0))(w, x[None]).sum())(
        weights
    )


@case(F(4, 3), I(4, hi=2), graphs=1, tol=(1e-5, 1e-6))
def test_gradients_of_each_sample(x, y):
    """Gradients of each sample: vmap of grad of functional_call of a module"""
    weights = weights_of(NET)
    grads, losses = torch.vmap(func.grad_and_value(loss_of), in_dims=(None, 0, 0))(weights, x, y)
    return grads, losses, sum(g.flatten(1).norm(dim=1) for g in grads.values())


@case(F(4, 3), I(4, hi=2), graphs=1, tol=(1e-5, 1e-6), backend="inductor", calls=2)
def test_gradients_of_each_sample_in_kernels(x, y):
    """The same compiled to kernels, with a Hessian"""
    return (
        torch.vmap(func.grad(loss_of), in_dims=(None, 0, 0))(weights_of(NET), x, y),
        func.hessian(lambda a: (a.sin() * a).sum())(x[0]),
        func.jacrev(torch.tanh)(x[1]),
    )


def backward(fn, *args):
    """Call, and differentiate what it returns."""
    loss = fn(*args)
    loss.backward()
    return loss


@program(F(4, 3, grad=True), graphs=1, tol=(1e-5, 1e-6), drive=backward)
def test_gradients_through_a_transform():
    """A step of gradient descent inside, differentiated from outside"""
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(0.1)

    def f(x):
        weights = dict(net.named_parameters())
        grads = func.grad(lambda w: (func.functional_call(net, w, (x,)) ** 2).mean())(weights)
        stepped = {k: w - 0.1 * grads[k] for k, w in weights.items()}
        return (func.functional_call(net, stepped, (x,)) ** 2).mean()

    return f, lambda: [p.grad for p in net.parameters()]


@case(F(3, 3), graphs=1, tol=(1e-5, 1e-6))
def test_jacobians_of_modules(x):
    """jacrev and jvp of functional_call of a module; a physics-informed loss: Hessians by the input"""
    weights = weights_of(NET)

    def answer(weights, x):
        return func.functional_call(NET, weights, (x,))

    def curvature(weights, x):
        return torch.stack([torch.trace(h) for h in func.hessian(answer, argnums=1)(weights, x)])

    jacobians = torch.vmap(func.jacrev(answer), (None, 0))(weights, x)
    flat = [j.flatten(2) for j in jacobians.values()]
    return (
        sum(torch.einsum("Naf,Mbf->NMab", j, j) for j in flat),
        torch.vmap(curvature, (None, 0))(weights, x),
        func.vjp(lambda w: answer(w, x), weights)[1](torch.ones(3, 2)),
    )


@case(F(3, 3))
def test_results_that_are_arguments(x):
    """Functions that return their argument, or a view of it, under transforms; a custom function; a checkpoint, refused"""
    try:
        func.grad(lambda a: torch.utils.checkpoint.checkpoint(torch.sin, a, use_reentrant=False).sum())(x)
    except RuntimeError as e:
        said = str(e)[:20]
    return (
        torch.vmap(lambda a: a)(x) is x,
        torch.vmap(lambda a: a.view(-1))(x),
        func.grad_and_value(lambda a: a.sum())(x),
        func.grad(lambda a: Square.apply(a).sum())(x),
        torch.vmap(Square.apply)(x),
        said,
    )


class Square(torch.autograd.Function):
    """A function with its own backward that transforms take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a):
        return a * a

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


@case(Spec(lambda r: r.f(3 + r.call, 3)), graphs=1, total=2, calls=3)
def test_transforms_of_changing_sizes(x):
    """Sizes that change from call to call under transforms"""
    pushed = func.jacfwd(torch.sin)(x), func.hessian(lambda a: a.sin().sum())(x[:, 0])
    return torch.vmap(lambda a: a.softmax(0))(x), func.grad(lambda a: (a**2).sum())(x), func.jacrev(torch.sin)(x[:, 0]), pushed


@case(F(3), Turn(2, 3, 5, 7), graphs=1, total=2, calls=4)
def test_transforms_of_changing_numbers(x, n):
    """Numbers that change from call to call in mapped functions"""
    return torch.vmap(lambda a: a * n + (a.long() - n))(x), torch.vmap(lambda a: torch.where(a > n / 2, a, n / 3))(x)


@case(F(3, 2), graphs=1)
def test_grad_mode_under_transforms(x):
    """`no_grad` around a transform and within it"""

    def half(a):
        with torch.no_grad():
            c = a**2
        return (a * 3 - c).sum(), torch.tensor(float(torch.is_grad_enabled()))

    with torch.no_grad():
        return func.grad(lambda a: (a**2).sum())(x), func.grad(half, has_aux=True)(x)


@case(F(3, 2))
def test_writes_under_transforms(x):
    """Writes into what is made inside of a transform; into its argument"""

    def fill(a):
        b = a.clone()
        b.add_(1)
        b[0] = 2
        return (b * b).sum()

    z = x.clone()
    return func.grad(fill)(x), torch.vmap(lambda a: a.mul_(2))(z), z


@case(F(3, 2))
def test_random_numbers_under_transforms(x):
    """Dropout under vmap, the same and different for each row, and where vmap refuses it"""
    try:
        torch.vmap(lambda a: NF.dropout(a, 0.5))(x)
    except RuntimeError as e:
        said = str(e)[:30]
    answer, pull = func.vjp(lambda a: NF.dropout(a, 0.5), x)
    return (
        torch.vmap(lambda a: NF.dropout(a, 0.5), randomness="different")(x),
        torch.vmap(lambda a: NF.dropout(a, 0.5), randomness="same")(x),
        said,
        answer,
        pull(torch.ones_like(answer)),
    )


@program(F(2, 3))
def test_effects_under_transforms():
    """A transformed function that appends to lists, one of them from outside, keeps what it made, and counts"""
    log, count = [], 0

    def f(x):
        nonlocal count
        seen = []

        def g(a):
            nonlocal count
            count += 1
            seen.append(a.shape)
            log.append(len(seen))
            return (a * 2).sum()

        return func.grad(g)(x), torch.vmap(lambda a: g(a) * a)(x), seen, count

    return f, lambda: (log, count)


@case(F(2, 3))
def test_tensors_kept_from_transforms(x):
    """What is made inside of a transform kept and looked at afterwards: its shape only"""
    kept = []

    def g(a):
        kept.append(a * 2)
        return a.sum()

    grad = func.grad(g)(x)
    return grad, kept[0].shape, len(kept)


@case(F(2, 3))
def test_errors_under_transforms(x):
    """A function of the wrong kind for grad, for vmap, sizes that differ, an exception of its own"""
    said = []

    def wrong(a):
        raise KeyError("no")

    for call in (
        lambda: func.grad(lambda a: a * 2)(x),
        lambda: torch.vmap(lambda a: 3)(x),
        lambda: func.grad(wrong)(x),
        lambda: torch.vmap(torch.add)(x, x[:1].repeat(5, 1)),
        lambda: torch.vmap(torch.add, in_dims=3)(x, x),
    ):
        try:
            call()
        except (RuntimeError, ValueError, KeyError) as e:
            said.append((type(e).__name__, str(e)[:40]))
    return x + 1, said


@case(F(2, 3), breaks=True)
def test_break_under_a_transform(x):
    """A break inside of a transformed function: the transform runs as it is"""

    def g(a):
        bytejit.graph_break()
        return (a * a).sum()

    return func.grad(g)(x * 2) + 1


@case(F(2, 3), breaks=True)
def test_vjp_kept_over_a_break(x):
    """The function that vjp returns called after a break"""
    answer, pull = func.vjp(torch.sin, x * 2)
    bytejit.graph_break()
    return pull(answer) + (1,)


def test_transforms_around_a_compiled_function():
    """grad, vmap, jacrev and jvp of a compiled function, whose own transforms run within"""

    def f(x):
        return (func.grad(lambda a: (a**3).sum())(x) * x).sum()

    compiled = targets.compiled(f, "eager")
    x = torch.linspace(0, 1, 6).reshape(2, 3)
    for around in (
        func.grad,
        torch.vmap,
        func.jacrev,
        lambda g: torch.vmap(func.grad(g)),
        lambda g: lambda x: func.jvp(g, (x,), (x,)),
    ):
        for _ in range(2):
            torch.testing.assert_close(around(compiled)(x), around(f)(x))
            torch.testing.assert_close(compiled(x), f(x))


class Noting(torch.overrides.TorchFunctionMode):
    """Notes what it is asked, and puts a difference in the place of a sum."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_function__(self, fn, types, args=(), kwargs=None):
        self.asked.append(getattr(fn, "__name__", ""))
        return args[0] - args[1] if fn is torch.Tensor.add else fn(*args, **(kwargs or {}))


@case(F(2, 3), graphs=1)
def test_vmap_under_a_mode(x):
    """The mode is asked within the mapped function, and by torch's own Python around it"""
    with Noting() as noting:
        found = (
            torch.vmap(lambda a: a.add(a * 2))(x),
            torch.vmap(torch.vmap(lambda a, b: a.add(b), in_dims=(0, None)), in_dims=(None, 0), out_dims=1)(x[0], x[:, 0]),
            torch.vmap(lambda a: a.add(1), in_dims=-1, chunk_size=2)(x),
        )
    return found, noting.asked


def test_vmap_under_a_mode_around_the_call():
    """As in eager"""

    def f(x):
        return torch.vmap(lambda a: a.add(a * 2))(x)

    x = torch.linspace(0, 1, 6).reshape(2, 3)
    with Noting() as plain:
        want = f(x)
    compiled = targets.compiled(f, "eager")
    for _ in range(2):
        with Noting() as noting:
            made = compiled(x)
        torch.testing.assert_close(made, want)
        assert noting.asked == plain.asked


def test_masks_of_several_maps_under_the_mode_of_flexible_attention():
    """How libraries make attention masks: indices are tensors, the mode turns `mask[b, k]` into an operation"""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def f(mask):
        made = lambda b, q, k: (q >= k) & mask[b, k]
        for dims in ((None, None, 0), (None, 0, None), (0, None, None)):
            made = torch.vmap(made, in_dims=dims)
        with TransformGetItemToIndex():
            return made(*map(torch.arange, (mask.shape[0], mask.shape[1], mask.shape[1])))

    mask = torch.arange(10).view(2, 5) % 3 > 0
    compiled = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(mask), f(mask))


@case(F(2, 3), breaks=True)
def test_autograd_functional(x):
    """torch.autograd.functional and linearize: called as they are, one break each"""
    y = x * 2
    functional = torch.autograd.functional
    return (
        functional.jacobian(torch.sin, y[0]) + 1,
        functional.hvp(lambda a: (a**3).sum(), x, torch.ones_like(x)),
        func.linearize(torch.sin, x)[1](torch.ones_like(x)),
    )
