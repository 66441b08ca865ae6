"""A branch on a tensor whose one side only raises is a check within the graph. Distributions validate by such."""

from __future__ import annotations

import pytest
import torch
import torch.distributions as D
from torch.distributions import transforms

import bytejit

X, Y = torch.tensor([0.3, -1.2, 0.7]), torch.tensor([0.4, 1.5, 0.9])
ROWS = torch.tensor([[0.2, 0.5, 1.3], [1.1, 0.4, 0.6]])


def guarded(x):
    if not (x > 0).all():
        raise ValueError(f"not positive: {x.tolist()}")
    return x.log()


def asserted(x):
    y = x * 2
    assert y.min() > 0, "too small"
    return y.sqrt()


def either(x):
    if x.isnan().any() or (x < 0).any():
        if x.isnan().any():
            raise ValueError("nan")
        raise TypeError("negative")
    return x + 1


def caught(x):
    try:
        return guarded(x)
    except ValueError as e:
        return str(e)


def all_checked(x):
    y = x * 2
    torch._check_tensor_all(y > 0, lambda: f"not positive: {x.tolist()}")
    return y.log()


def of_their_own_kind(x):
    torch._check_tensor_all_with(IndexError, (x > 0) & (x < 2))
    return x + 1


def checked_without_booleans(x):
    torch._check_tensor_all(x)
    return x + 1


def outcome(f, *args):
    try:
        return f(*args)
    except Exception as e:
        return type(e).__name__, str(e).partition("\n")[0]  # pytest adds lines to asserts


def same(a, b):
    """Whether two outcomes are equal: tensors nearly, the rest exactly."""
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, equal_nan=True)
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", [guarded, asserted, either, caught, all_checked, of_their_own_kind])
def test_what_fails_raises_as_eager(f, backend):
    c = bytejit.compile(f, backend=backend, fullgraph=True)
    for x in (Y, X, X * float("nan"), Y):
        same(outcome(c, x), outcome(f, x))


def test_a_check_of_what_is_not_boolean_raises_as_torch_does():
    same(outcome(bytejit.compile(checked_without_booleans, backend="eager"), Y), outcome(checked_without_booleans, Y))


def test_nothing_is_left_of_a_graph_whose_check_fails():
    def f(x, seen):
        x.mul_(2)
        noise = torch.rand(3)
        seen.append(1)
        if x.max() > 5:
            raise ValueError("large")
        return x + noise

    c = bytejit.compile(f, fullgraph=True)
    for value in (1.0, 4.0, 2.0):
        made = []
        for run in (f, c):
            x, seen = torch.full((3,), value), []
            torch.manual_seed(3)
            made.append((outcome(run, x, seen), x, seen, torch.rand(2)))
        same(*made)


def test_a_branch_with_two_ways_on_breaks():
    def f(x):
        if x.sum() > 0:
            x = x + 1
        return x * 2

    with pytest.raises(bytejit.exc.Unsupported, match="a tensor decides a branch"):
        bytejit.compile(f, backend="eager", fullgraph=True)(X)


DISTRIBUTIONS = [
    (lambda a, b: D.Normal(a, b), (X, Y)),
    (lambda a: D.Bernoulli(logits=a), (X,)),
    (lambda a: D.Bernoulli(a.sigmoid()), (X,)),
    (lambda a: D.Categorical(logits=a), (ROWS,)),
    (lambda a: D.OneHotCategorical(a.softmax(-1)), (ROWS,)),
    (lambda a, b: D.Beta(a, b), (Y, Y + 1)),
    (lambda a: D.Gamma(a, a + 1), (Y,)),
    (lambda a: D.Dirichlet(a), (ROWS,)),
    (lambda a: D.Exponential(a), (Y,)),
    (lambda a, b: D.Laplace(a, b), (X, Y)),
    (lambda a: D.StudentT(a), (Y,)),
    (lambda a: D.Poisson(a), (Y,)),
    (lambda a, b: D.Independent(D.Normal(a, b), 1), (X, Y)),
    (lambda a, b: D.MultivariateNormal(a, torch.diag(b)), (X, Y)),
    (lambda a, b: D.TransformedDistribution(D.Normal(a, b), [transforms.TanhTransform()]), (X, Y)),
    (lambda a, b: D.MixtureSameFamily(D.Categorical(logits=a), D.Normal(a, b)), (X, Y)),
    (lambda a: D.RelaxedOneHotCategorical(torch.tensor(0.5), logits=a), (X,)),
]  # fmt: skip


@pytest.mark.parametrize("make, args", DISTRIBUTIONS)
def test_distributions_are_one_graph(make, args):
    def f(*args):
        d = make(*args)
        drawn = d.rsample() if d.has_rsample else d.sample()
        return drawn, d.log_prob(drawn)

    found = []
    for run in (f, bytejit.compile(f, backend="aot_eager", fullgraph=True)):
        given = [a.clone().requires_grad_() for a in args]
        torch.manual_seed(0)
        made = run(*given)
        sum(x.sum() for x in made if x.requires_grad).backward()
        found.append((made, [a.grad for a in given]))
    torch.testing.assert_close(found[1], found[0])


def test_divergences_are_one_graph():
    def f(a, b):
        first, second = D.Normal(a, b), D.Normal(b, b)
        parts = [(D.Categorical(logits=a), D.Categorical(logits=b)), (D.Beta(b, b), D.Beta(b + 1, b))]
        far = [(D.MultivariateNormal(a, torch.eye(3)), D.MultivariateNormal(b, 2 * torch.eye(3)))]
        return [D.kl_divergence(p, q) for p, q in [(first, second), *parts, *far]]

    torch.testing.assert_close(bytejit.compile(f, backend="aot_eager", fullgraph=True)(X, Y), f(X, Y))


def test_a_distribution_that_is_none_raises_in_its_own_words():
    def f(a, b):
        return D.Normal(a, b, validate_args=True).log_prob(a)

    c = bytejit.compile(f, backend="eager", fullgraph=True)
    torch.testing.assert_close(c(X, Y), f(X, Y))
    assert outcome(c, X, -Y) == outcome(f, X, -Y) != f(X, Y)


def all_positive(x) -> bool:
    return bool((x > 0).all())


def valid(x) -> bool:
    return all_positive(x)


def test_the_branch_of_a_caller():
    """A function may ask, and its caller raise: torch's distributions do so since 2.15"""

    def f(x):
        if not valid(x):
            raise ValueError(f"not positive: {x.min()}")
        return x.log()

    def g(x):
        return x * 2 if valid(x) else x * 3

    def h(x):
        if any(map(all_positive, (-x, x))):
            raise ValueError("one is")
        return x + 1

    c = bytejit.compile(f, backend="eager", fullgraph=True)
    for x in (Y.abs() + 1, -Y.abs() - 1):
        same(outcome(c, x), outcome(f, x))
    for fn in (g, h):
        c = bytejit.compile(fn, backend="eager")
        for x in (Y.abs() + 1, -Y.abs() - 1, Y - Y.mean()):
            same(outcome(c, x), outcome(fn, x))


def test_new_takes_a_size_for_a_size():
    def f(x):
        return x.new(x.shape).fill_(2), x.new(2, 3).shape, x.new().shape, x.new([1.5, 2.0]), x.new((3.0,))

    torch.testing.assert_close(bytejit.compile(f, backend="eager", fullgraph=True)(X), f(X))
