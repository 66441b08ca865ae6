"""A sample of random op chains in kernels at each run (`python -m tests.fuzz --chains` runs many), and what chains found,
made small."""

import os

import pytest
import torch

from ..programs import targets
from .chain_runner import Differs, build, check_chain, compare, in_float64, raises
from .chains import chain, trained
from .resized import resized

COUNT = int(os.environ.get("BYTEJIT_CHAIN_COUNT", "24"))
FOUND = {  # what was wrong once: inputs, body, results
    "a short loop around masked loads": ("a = torch.randn(33, 60, 2)", "t1 = F.pad(a, (0, 0, 3, 5))", "t1"),
    "cat of short rows": ("a = torch.randn(7, 33, 2)", "t1 = torch.hstack([a, a])", "t1"),
    "a Python number less a tensor of bytes": ("a = torch.arange(9).to(torch.uint8)", "t1 = torch.rsub(a, -0.5)", "t1"),
    "the same with alpha": ("a = torch.arange(9).to(torch.uint8)", "t1 = torch.rsub(a, 2.5, alpha=3)", "t1"),
    "small ints divided by numbers": (
        "a = torch.arange(-9, 9).to(torch.int8)",
        "t1, t2, t3, t4, t5 = a // -2, a % 3, a.fmod(3), a.clamp(1, 3), a.short() // 7",
        "t1, t2, t3, t4, t5",
    ),
    "zero keeps its sign": (
        "a = torch.tensor([-0.0, 0.0, float('nan'), -1.0, 2.0] * 4)",
        "t1, t2, t3, t4 = a.relu(), a.clamp(min=0), a.clamp(max=0), F.hardtanh(a, 0, 1)",
        "t1.signbit(), t2.signbit(), t3.signbit(), t4.signbit(), t1, t2",
    ),
    "a view of everything is an object of its own": (
        "a = torch.randn(4, 3)\n    b = torch.randn(4, 3)",
        "t1, t2 = a.view(a.shape), b + 1\n    t3 = t2.transpose(0, 0)",
        "a, t1, t2, t3, t2.detach()",
    ),
    "copies of views are copies": (
        "a = torch.randn(5, 6).t()",
        "t1, t2 = a.narrow_copy(0, 1, 2), torch.permute_copy(a, (1, 0))\n    t3 = torch.select_copy(a, 0, 1)",
        "t1, t2, t3",
    ),
    "a write into an expanded input": ("a = torch.randn(1).expand(3)", "a[..., 0] = 2.0\n    t1 = a.sum()", "t1"),
    "logsigmoid of a transposed tensor": ("a = torch.randn(4, 3).t()", "t1 = F.logsigmoid(a)", "t1"),
    "group_norm of nothing": ("a = torch.randn(4, 0)", "t1 = F.group_norm(a, 1)", "t1"),
    "ops on nothing": (
        "a = torch.randn(0, 17)\n    b = torch.randn(0)",
        "t1, t2, t3 = a.amax(1, keepdim=True), b.tile(2), a.view(-1, 17)\n    t3.chunk(2, -1)[0].zero_()",
        "t1, t2 + 1, t3, a.sum()",
    ),
    "a norm over one element": ("a = torch.tensor([[1e-30], [2.0]])", "t1, t2 = a.norm(dim=1), a[0].norm()", "t1, t2"),
    "a sum with products of another dtype": (
        "a = torch.randn(9).bfloat16()\n    b = torch.arange(9).to(torch.uint8) * 9",
        "t1, t2 = torch.addcmul(a, b, b, value=0.5), torch.addcdiv(a, b, b + 1)",
        "t1, t2",
    ),
    "a diagonal of a tensor within another": ("a = torch.randn(8, 3)[..., 1:]", "a.fill_diagonal_(5.0)\n    t1 = a + 1", "t1"),
    "a write into a view whose elements share memory": (
        "a = torch.randn(2, 10)",
        "t1 = a.as_strided((2, 2), (1, 1))\n    t1.cumsum_(0)",
        "a, t1, a + 1",
    ),
    "linear of a vector": ("a = torch.randn(9)", "t1 = F.linear(a, a)", "t1"),
    "0.0 and -0.0 are two numbers": (
        "a = torch.randn(9)",
        "t1, t2, t3 = a * 0.0, a * -0.0, (torch.tensor(-0.0) - a * 0, torch.tensor(0.0) - a * 0)",
        "t1.signbit(), t2.signbit(), t3[0].signbit(), t3[1].signbit(), torch.full_like(a, -0.0).signbit()",
    ),
    "roots of halves": (
        "a = torch.tensor([-0.0, 0.0, 4.0, float('inf'), -float('inf'), 2.0] * 3).half()",
        "t1, t2 = a ** 0.5, a ** -0.5",
        "t1, t2, t1.signbit(), t2.signbit(), a.float() ** 0.5, a.bfloat16() ** -0.5",
    ),
    "a product of small numbers and infinity": ("a = torch.full((9,), 1e-30)", "t1 = a.addcmul(a, a, value=float('inf'))", "t1"),
    "a tensor less the other way round": (
        "a = torch.arange(63).view(7, 9)\n    b = torch.randn(9).as_strided((1, 1, 9), (1, 1, 1))",
        "t1 = torch.rsub(a, b, alpha=2)",
        "t1, t1 + 1, torch.empty_strided(t1.shape, t1.stride()).zero_()",
    ),
    "rrelu of a transposed tensor": (
        "a = torch.randn(5, 17, 2).transpose(0, 2)",
        "t1, t2 = F.rrelu(a, 0.1, 0.3), torch.empty_strided(F.rrelu(a).shape, F.rrelu(a).stride()).zero_()",
        "t1, t1 + 1, t2",
    ),
    "a loss of a half and a double": (
        "a = torch.randn(9).half()\n    b = torch.randn(9).double()",
        "t1 = F.huber_loss(a, b)\n    t2 = F.huber_loss(a, b, reduction='none')",
        "t1, t1 + 1, t2, torch.zeros(2, dtype=t1.dtype), torch.zeros(2, dtype=t2.dtype)",
    ),
}


@pytest.mark.cxx
@pytest.mark.parametrize("seed", range(0, COUNT, 4))
def test_random_chains(seed):
    """Random chains of ops come out as in eager"""
    with targets.strict():
        for k in range(seed, min(seed + 4, COUNT)):
            check_chain(chain(k))


@pytest.mark.cxx
@pytest.mark.parametrize("dynamic", (None, True))
def test_random_training_chains(dynamic):
    """Gradients of random chains come out as in eager"""
    texts = (trained(chain(seed)) for seed in range(700_000, 700_000 + COUNT // 2))
    with targets.strict():
        for text in texts:
            if not raises(text):  # it has a backward pass
                check_chain(text, dynamic=dynamic)


@pytest.mark.cxx
@pytest.mark.parametrize("dynamic", (None, True))
def test_random_chains_in_other_sizes(dynamic):
    """Later calls with sizes that coincide, change places, or are 1 come out as in eager"""
    with targets.strict():
        for seed in range(900_000, 900_000 + COUNT // 2):
            text = chain(seed)
            check_chain(text, dynamic=dynamic, resized=resized(text, seed))


@pytest.mark.cxx
@pytest.mark.parametrize("name", FOUND)
def test_found(name):
    """What random chains found once"""
    made, body, results = FOUND[name]
    args = [line.split("=")[0].strip() for line in made.splitlines()]
    text = (
        f"import torch\nimport torch.nn.functional as F\n\n\ndef inputs():\n    torch.manual_seed(0)\n    {made}\n"
        f"    return {', '.join(args)},\n\n\ndef program({', '.join(args)}):\n    {body}\n    return {results},\n"
    )
    with targets.strict():
        check_chain(text)


NEARER = {  # what is nearer to float64 than eager: inputs, body
    "a value next to a step": ("torch.tensor([0.60546875]).bfloat16()", "(a ** -3).round()"),
    "a number that a half cannot hold": ("torch.zeros(5).half()", "F.normalize(a, dim=0)"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("name", NEARER)
def test_nearer_to_float64(name):
    """What float64 makes is right too, what neither makes is wrong"""
    made, body = NEARER[name]
    text = f"import torch\nimport torch.nn.functional as F\ndef inputs(): return {made},\ndef program(a): return {body},\n"
    space = build(text)
    (a,) = space["inputs"]()
    (plain,) = space["program"](a)
    exact = in_float64(space)[1].to(plain.dtype)
    assert not torch.equal(plain, exact)
    compare(space, [a, plain], [a, exact])
    check_chain(text)
    with pytest.raises(Differs):
        compare(space, [a, plain], [a, exact + 20])


def test_a_difference_is_seen():
    """The runner notices values, strides, sharing and identity, and lets a rounding error pass"""
    space = build("import torch\ndef inputs(): return torch.linspace(1, 2, 12).view(3, 4),\ndef program(x): return ()\n")
    (x,) = space["inputs"]()
    compare(space, [x], [x * (1 + 2**-23)])
    for plain, got, what in ((x, x + 0.1, "value 0"), (x, x.t().contiguous().t(), "strides"), (x, x.double(), "dtype")):
        with pytest.raises(Differs, match=what):
            compare(space, [plain], [got])
    with pytest.raises(Differs, match="sharing"):
        compare(space, [x, x.view(3, 4)], [x, x])
