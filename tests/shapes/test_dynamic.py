"""Sizes that change: right each time, and how many entries each program needs. Backend eager: capture alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit

SIZES = [(3, 8), (5, 8), (5, 12), (7, 6), (4, 30), (9, 2)]
LARGER = [(5, 8), (6, 8), (5, 12), (7, 6), (4, 30)]  # parts of them are not 1 either


def entries(f: Callable) -> int:
    """Compiled entries of a function, over all of its sites."""
    return sum(len(s.entries) for s in f.__dict__["__bytejit_handle__"].function.sites.states.values())


def check(f: Callable, calls: Iterable[tuple], dynamic: bool | None = None, grad: bool = False, **more) -> int:
    """Compare with the plain function on each call, gradients too. The number of entries."""
    compiled = bytejit.compile(f, backend="eager", dynamic=dynamic, **more)
    for args in calls:
        want, want_grads = run(f, args, grad)
        got, got_grads = run(compiled, args, grad)
        torch.testing.assert_close(got, want)
        assert type(got) is type(want)
        torch.testing.assert_close(got_grads, want_grads)
    return entries(compiled)


def run(f: Callable, args: tuple, grad: bool) -> tuple:
    """Result and gradients of its sum with respect to the float inputs."""
    torch.manual_seed(7)
    if not grad:
        return f(*args), []
    args = tuple(
        a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    )
    out = f(*args)
    leaves = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, torch.Tensor) and t.requires_grad]
    if leaves:
        sum((t * t).sum() for t in leaves).backward()
    return out, [a.grad for a in args if isinstance(a, torch.Tensor)]


def rand(*sizes: tuple) -> list[tuple]:
    """One call with a random tensor for each of the sizes."""
    torch.manual_seed(0)
    return [(torch.randn(s),) for s in sizes]


@torch.library.custom_op("bytejit_dynamic::grouped", mutates_args=(), schema="(Tensor x, Tensor w, int[] ends) -> Tensor")
def grouped(x, w, ends):
    return torch.cat([x[: ends[0]] @ w, x[ends[0] :] @ (w * 2)])


@grouped.register_fake
def _grouped_fake(x, w, ends):
    assert x.shape[1] == w.shape[0] and len(ends) == 2
    return torch.empty(x.shape[0], w.shape[1], dtype=w.dtype, device=x.device)


grouped.register_autograd(
    lambda ctx, g: (torch.cat([g[:1] @ ctx.saved_tensors[0].t(), g[1:] @ ctx.saved_tensors[0].t() * 2]), None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)


# name -> (function, sizes of its argument, entries)
PROGRAMS: dict[str, tuple[Callable, list, int]] = {
    "elementwise": (lambda x: x.relu() * 2 + x.shape[0], SIZES, 3),
    "view": (lambda x: x.view(-1).sum() + x.view(x.size(0), x.size(1) // 2, 2)[:, 0].sum(), SIZES, 3),
    "reshape": (lambda x: x.t().reshape(x.shape[1] * x.shape[0]), SIZES, 3),
    "cat": (lambda x: torch.cat([x, x[:, :2]], dim=1), LARGER, 3),
    "stack": (lambda x: torch.stack([x, x + 1], 1).flatten(0, 1), SIZES, 3),
    "chunk": (lambda x: x.chunk(2, -1)[1] * 2, [(3, 8), (5, 10), (4, 30), (9, 7)], 2),
    "arange": (lambda x: torch.arange(x.size(0)) + x.sum(1), SIZES, 3),
    "arange steps": (lambda x: torch.arange(0, x.size(1), 2, dtype=torch.float32).sum() + x, SIZES, 3),
    "zeros": (lambda x: torch.zeros(x.shape[0], x.shape[1] + 1) + x.mean(), SIZES, 3),
    "full of size": (lambda x: torch.full((x.shape[0],), x.shape[1]) + x.sum(1), SIZES, 3),
    "ones like": (lambda x: torch.ones_like(x) + x.new_zeros(x.shape), SIZES, 3),
    "softmax": (lambda x: F.softmax(x, -1), SIZES, 3),
    "transposed": (lambda x: (x.t() + 1).contiguous(), SIZES, 3),
    "expand": (lambda x: x[:, None].expand(-1, 4, -1) * x.shape[1], SIZES, 3),
    "repeat": (lambda x: x.repeat(2, 3), SIZES, 3),
    "slice": (lambda x: x[1:, :-1] * x[:-1, 1:], LARGER, 3),
    "half": (lambda x: x[: x.shape[0] // 2].sum(0) + x[x.shape[0] // 2 :].sum(0), [(4, 8), (6, 8), (9, 8), (17, 8)], 2),
    "select last": (lambda x: x[:, -1] + x[-1, 0], SIZES, 3),
    "len": (lambda x: x * len(x), SIZES, 3),
    "numel": (lambda x: x / x.numel(), SIZES, 3),
    "mean by size": (lambda x: x.sum() / (x.shape[0] * x.shape[1]), SIZES, 3),
    "scale by root": (lambda x: x * x.shape[-1] ** -0.5 + math.sqrt(x.shape[0]), SIZES, 3),
    "outer": (lambda x: x[:, :, None] * x[:, None, :], SIZES, 3),
    "matmul": (lambda x: x @ x.t() + (x.t() @ x).sum(), SIZES, 3),
    "bmm": (lambda x: torch.bmm(x[None], x.t()[None]), SIZES, 3),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), SIZES, 3),
    "cumsum": (lambda x: x.cumsum(1), SIZES, 3),
    "flip": (lambda x: x.flip(0), SIZES, 3),
    "roll": (lambda x: x.roll(1, 0), SIZES, 3),
    "sort": (lambda x: x.sort(dim=1).values, SIZES, 3),
    "topk": (lambda x: x.topk(2, dim=1).values, SIZES, 3),
    "argmax": (lambda x: x.argmax(1), SIZES, 3),
    "tril": (lambda x: torch.tril(torch.ones(x.size(1), x.size(1))).sum() + x, SIZES, 3),
    "causal mask": (lambda x: torch.full((x.size(1), x.size(1)), -1e9).triu(1) + x.sum(), SIZES, 3),
    "masked fill": (lambda x: x.masked_fill(x > 0, 0.0), SIZES, 3),
    "where": (lambda x: torch.where(x > 0, x, x.new_zeros(())), SIZES, 3),
    "pad": (lambda x: F.pad(x, (1, 2, 0, x.shape[0])), SIZES, 3),
    "one hot of range": (lambda x: F.one_hot(torch.arange(x.shape[0]), 16), [(3, 2), (5, 2), (8, 2), (12, 2)], 2),
    "normalise": (lambda x: F.normalize(x, dim=1), SIZES, 3),
    "std": (lambda x: (x - x.mean(0)) / (x.std(0) + 1), SIZES, 3),
    "flatten": (lambda x: x[None, None].flatten(1), SIZES, 3),
    "unflatten": (lambda x: x.unflatten(0, (x.shape[0], 1)), SIZES, 3),
    "view as": (lambda x: (x + 1).view_as(x), SIZES, 3),
    "squeeze": (lambda x: x[:, None].squeeze(1), SIZES, 3),
    "meshgrid": (lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(x.shape[1]), indexing="ij")[0] + x, SIZES, 3),
    "eye": (lambda x: torch.eye(x.shape[0]) @ x, SIZES, 3),
    "gather": (lambda x: x.gather(1, torch.zeros(x.shape[0], 1, dtype=torch.int64)), SIZES, 3),
    "index by range": (lambda x: x[torch.arange(x.shape[0] - 1)], SIZES, 3),
    "in place": (lambda x: (x + 0).add_(1).mul_(x), SIZES, 3),
    "set item": (lambda x: set_row(x + 0), LARGER, 3),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.int64)), SIZES, 3),
    "min and max": (lambda x: x[: min(x.shape[0], 64)] * max(x.shape[1], 2), SIZES, 3),
    "clamp of int": (lambda x: x[: int(x.shape[0] * 0.5) + 1].sum(0), SIZES, 3),
    "ceil": (lambda x: torch.zeros(math.ceil(x.shape[0] / 2)) + x.sum(), SIZES, 3),
    "divmod": (lambda x: torch.zeros(divmod(x.shape[0] * 4, 4)[0]) + x.sum(), SIZES, 3),
    "prod of shape": (lambda x: x.reshape(math.prod(x.shape)), SIZES, 3),
    "sum of shape": (lambda x: torch.zeros(sum(x.shape)) + x.sum(), SIZES, 3),
    "unpack shape": (lambda x: permuted(*x.shape, x), SIZES, 3),
    "star shape": (lambda x: x.reshape(*x.shape[:-1], 2, -1), [(3, 8), (5, 8), (5, 12), (7, 6)], 3),
    "returns sizes": (lambda x: (x + 1, x.shape[0] * 2, x.shape), SIZES, 3),
    "list of sizes": (lambda x: sum(torch.zeros(n).sum() for n in [x.shape[0], x.shape[1] + 1]) + x, SIZES, 3),
    "dict of sizes": (lambda x: torch.zeros({"n": x.shape[0]}["n"]) + x.sum(), SIZES, 3),
    "stride": (lambda x: x.as_strided((x.shape[0],), (x.stride(0),)), SIZES, 3),
    "new of list": (lambda x: torch.zeros([x.shape[1], 3]) + x.sum(), SIZES, 3),
    "interpolate": (lambda x: F.interpolate(x[None, None], scale_factor=2), SIZES, 3),
    "interpolate by fractions": (lambda x: F.interpolate(x[None, None], scale_factor=(1.7, 0.6), mode="bilinear"), LARGER, 3),
    "interpolate to": (lambda x: F.interpolate(x[None, None], size=(x.shape[0] * 2, 5), mode="bilinear"), SIZES, 3),
    "conv": (lambda x: F.conv1d(x[None, :2], torch.ones(3, 2, 2)), [(3, 8), (3, 9), (3, 17), (3, 64)], 2),
    "conv2d": (lambda x: F.conv2d(x[None, None], torch.ones(3, 1, 3, 3), stride=2, padding=1), SIZES, 3),
    "pools": (lambda x: F.max_pool2d(x[None], 2) + F.avg_pool2d(x[None], 2), LARGER, 3),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x[None, None], 1), SIZES, 3),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), SIZES, 3),
    "group norm": (lambda x: F.group_norm(x[None].expand(2, -1, -1).transpose(0, 1).contiguous(), 2), SIZES, 3),
    "batch norm": (lambda x: F.batch_norm(x.t(), None, None, training=True), [(3, 8), (4, 8), (5, 9), (7, 6)], 3),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True), SIZES, 3),
    "dropout": (lambda x: F.dropout(x, 0.5, True), SIZES, 3),
    "embedding": (lambda x: F.embedding(torch.zeros(x.shape, dtype=torch.int64), torch.ones(4, 3)) + x[..., None], SIZES, 3),
    "broadcast dims": (lambda x: x[:, :1] + x[:1], SIZES, 3),
    "split": (lambda x: torch.cat(x.split([1, x.shape[1] - 1], 1)[::-1], 1), LARGER, 3),
    "unfold": (lambda x: x.unfold(1, 2, 2).sum(-1), SIZES, 3),
    "diagonal": (lambda x: (x @ x.t()).diagonal() * 2, SIZES, 3),
    "norm": (lambda x: x.norm(dim=1) + x.norm(), SIZES, 3),
    "assert": (lambda x: checked(x), SIZES, 3),
    "logsumexp": (lambda x: x.logsumexp(0) + x.amax(0), SIZES, 3),
    "randn": (lambda x: torch.randn(x.shape[0], 2) + x.sum(), SIZES, 3),
    "index put": (lambda x: x.clone().index_fill_(0, torch.tensor([0]), 1.0), SIZES, 3),
    "linspace": (lambda x: torch.linspace(-1, 1, x.shape[1]) + x, SIZES, 3),
    "window": (lambda x: torch.hann_window(x.shape[1]) * x + torch.bartlett_window(x.shape[1], False), SIZES, 3),
    "places below the diagonal": (lambda x: x.sum() * torch.tril_indices(x.shape[0], x.shape[1], 1), SIZES, 3),
    "places above the diagonal": (lambda x: x.sum() * torch.triu_indices(x.shape[0], x.shape[1]), SIZES, 3),
    "one hot of size": (lambda x: F.one_hot(torch.arange(x.shape[1]), x.shape[1]) + x.sum(), SIZES, 3),
    "fft": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[1]) + torch.fft.fftfreq(x.shape[1]), SIZES, 3),
    "fft of many dims": (
        lambda x: (
            torch.fft.fftn(x[None] + 1, dim=(1, 2)).real
            + torch.fft.irfft(torch.fft.rfft(x.t(), dim=1), n=x.shape[0], dim=1).t()
            + torch.fft.fft(x, dim=0).abs()
        ),
        SIZES,
        3,
    ),
    "linear systems": (
        lambda x: (
            torch.linalg.solve_triangular(square(x).tril(), torch.linalg.solve(square(x), x[..., None] + x[:, None]), upper=False)
            + torch.linalg.inv(square(x)) @ torch.linalg.cholesky(square(x))
        ),
        SIZES,
        3,
    ),
    "quotients of sums": (
        lambda x: torch.cat([x, x[1:]])[: (2 * x.shape[0] - 1) // 2 + 1] + x[: (3 * x.shape[0] + 1) // 3],
        SIZES,
        3,
    ),
    "an op of the user's": (lambda x: grouped(x * 2, torch.ones(x.shape[1], 3), [1, 1]) + 1, SIZES, 3),
    "tensor of sizes": (lambda x: x.sum() * torch.tensor([x.shape[0], x.shape[1] * 2]) + torch.as_tensor(x.shape), SIZES, 3),
    "bits of sizes": (
        lambda x: x.new_ones((x.shape[0] + 7) & ~7) * (x.shape[0] & 3) + (3 | x.shape[1]) * (1 ^ x.shape[0]) - ~x.shape[1],
        SIZES,
        3,
    ),
    "index by size": (lambda x: x[x.shape[0] // 2] + x[..., x.shape[1] - 1].sum() + x[None, x.shape[0] - 2, 1:].sum(), LARGER, 3),
    "index by a list of sizes": (lambda x: x[[0, x.shape[0] - 1]], SIZES, 3),
    "set by size": (lambda x: set_at(x + 0), SIZES, 3),
    "put": (lambda x: (x + 0).put_(torch.arange(x.shape[0]), torch.ones(x.shape[0])), SIZES, 3),
    "lerp by size": (lambda x: torch.lerp(x, x.flip(0), 1 / x.shape[0]), SIZES, 3),
    "complex": (lambda x: torch.view_as_complex(x.reshape(x.shape[0], -1, 2).contiguous()).abs(), SIZES[:4], 3),
    "no use of size": (lambda x: x.sum(), SIZES, 3),
}


def set_row(x: torch.Tensor) -> torch.Tensor:
    x[0] = 1.0
    x[:, 1:] = x[:, 1:] * 2
    return x


def square(x: torch.Tensor) -> torch.Tensor:
    """A well-behaved matrix for each row."""
    y = x.sigmoid()
    return y[:, :, None] * y[:, None] + torch.eye(x.shape[1])


def set_at(x: torch.Tensor) -> torch.Tensor:
    x[x.shape[0] // 2] = 1.0
    x[1:, x.shape[1] - 1] = x.shape[0]
    return x


def permuted(a: int, b: int, x: torch.Tensor) -> torch.Tensor:
    return x.view(a, 1, b).permute(2, 1, 0).reshape(b, a)


def checked(x: torch.Tensor) -> torch.Tensor:
    assert x.shape[0] <= 512, f"too long: {x.shape[0]}"
    return x * 2


# entries more than elsewhere: torch 2.11's pooling asks one thing more of sizes
ASKS_MORE = {"pools": 1} if torch.__version__ < "2.12" else {}


@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_op_families(name: str, grad: bool) -> None:
    f, sizes, limit = PROGRAMS[name]
    assert check(f, rand(*sizes), grad=grad) <= limit + ASKS_MORE.get(name, 0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_dynamic_at_once(name: str) -> None:
    f, sizes, _ = PROGRAMS[name]
    assert check(f, rand(*sizes), dynamic=True) <= 1 + ASKS_MORE.get(name, 0)


# ---- which sizes, and how many entries ---------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads) + mask[:n, :n]
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, words: int = 50, width: int = 16, longest: int = 64):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList([Block(width, 2)])
        self.head = nn.Linear(width, words)
        self.register_buffer("mask", torch.full((longest, longest), float("-inf")).triu(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        n = tokens.shape[1]
        if n > 64:
            raise ValueError(f"too long: {n}")
        x = self.words(tokens) + self.places(torch.arange(n, device=tokens.device))
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_transformer_over_batches_and_lengths(seed: int, training: bool) -> None:
    torch.manual_seed(seed)
    model = Transformer().train(training)
    graphs: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(1)
        return gm.forward

    compiled = bytejit.compile(model, backend=backend, fullgraph=True)
    pairs = [(b, n) for b in range(1, 9) for n in range(1, 65)]
    random.Random(seed).shuffle(pairs)
    for b, n in pairs[:30]:
        tokens = torch.randint(0, 50, (b, n))
        want = model(tokens)
        got = compiled(tokens)
        torch.testing.assert_close(got, want)
        if training:
            want.square().mean().backward()
            grads = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            got.square().mean().backward()
            for p, g in zip(model.parameters(), grads):
                torch.testing.assert_close(p.grad, g)
            model.zero_grad()
    assert len(graphs) <= 4


@pytest.mark.parametrize("seed", [7, 10])
def test_a_transformer_over_all_batches_and_lengths(seed: int) -> None:
    torch.manual_seed(seed)
    model = Transformer().eval()
    compiled = bytejit.compile(model, backend="eager", fullgraph=True)
    pairs = [(b, n) for b in range(1, 9) for n in range(1, 65)]
    random.Random(seed).shuffle(pairs)
    with torch.no_grad():
        for b, n in pairs:
            tokens = torch.randint(0, 50, (b, n))
            torch.testing.assert_close(compiled(tokens), model(tokens))
    assert bytejit.counters.total("graphs") <= 4


def test_export_takes_other_sizes() -> None:
    def f(x, n):
        return torch.cat([x, x[:n]]) * x.shape[0]

    gm, guards = bytejit.export(f, torch.ones(5, 3), 3, dynamic=True)
    for rows, n in ((5, 3), (9, 4), (20, 20)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(gm(x, n), f(x, n))
    assert any("EXPR" in g and "<=" in g and "= n" in g and "= x.shape[0]" in g for g in guards)


def test_one_entry_for_all_sizes() -> None:
    compiled = bytejit.compile(lambda x: x * x.shape[0], backend="eager")
    for n in (2, 3, 50, 7, 1000):
        torch.testing.assert_close(compiled(torch.ones(n)), torch.ones(n) * n)
    assert entries(compiled) == 2
    assert compiled(torch.ones(1)) == 1
    assert entries(compiled) == 2  # nothing asked whether it is 1
    compiled(torch.ones(0)), compiled(torch.ones(1)), compiled(torch.ones(0)), compiled(torch.ones(9))
    assert entries(compiled) == 3


def test_a_size_of_one_is_apart_where_that_matters() -> None:
    def f(x):
        return x.t().contiguous() + x.t().reshape(-1).sum() + x.squeeze(0).dim()

    sizes = [(3, 5), (4, 6), (1, 6), (1, 9), (7, 1), (9, 1), (1, 1), (2, 2)]
    assert check(f, rand(*sizes)) <= 5


def test_dynamic_false_compiles_each_size() -> None:
    assert check(lambda x: x + 1, rand((2, 3), (3, 3), (4, 3)), dynamic=False) == 3


def test_an_int_that_changes() -> None:
    def f(x, n):
        return x[:n] * n + torch.zeros(n)

    calls = [(torch.ones(20), n) for n in (2, 3, 9, 4, 17)]
    assert check(f, calls) == 2
    assert check(f, calls, dynamic=True) == 1


def test_ints_of_either_sign_and_small_ones() -> None:
    calls = [(torch.ones(20), n) for n in (5, 9, -3, -7, 12, -2, 0, 1, 0, 1, 33)]
    assert check(lambda x, n: x * n + n, calls) == 5


def test_an_int_below_zero_among_the_sizes_of_expand() -> None:
    calls = [(torch.rand(2, 3), n) for n in (5, 3, -1, 4, -1)]
    assert check(lambda x, n: x[None].expand(n, -1, -1).sum(0), calls) <= 3
    compiled = bytejit.compile(lambda x, n: x[None].expand(n, -1, -1).sum(0))
    for x, n in calls:
        torch.testing.assert_close(compiled(x, n), x[None].expand(n, -1, -1).sum(0))


def test_an_int_in_a_list_a_tuple_and_a_dict() -> None:
    calls = [(torch.ones(6), [n, 2], (n + 1, 3), {"n": n}) for n in (2, 3, 5, 7, 11)]

    def f(x, a, b, c):
        return torch.zeros(a).sum() + x.sum() + torch.ones(b).sum() * c["n"]

    assert check(f, calls) == 2


def test_an_int_attribute_and_a_global() -> None:
    class Scale:
        n = 0

        def __init__(self):
            self.m = 3

    scale = Scale()
    compiled = bytejit.compile(lambda x: x * scale.m + torch.zeros(scale.m).sum(), backend="eager")
    for scale.m in (3, 4, 5, 6, 7):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2) * scale.m)
    assert entries(compiled) == 2


def test_a_loop_over_a_size_is_unrolled() -> None:
    def f(x):
        for i in range(x.shape[0]):
            x = x + i
        return x

    assert check(f, rand((2, 3), (3, 3), (4, 3), (3, 3), (4, 5), (2, 9), (3, 30), (4, 2))) <= 7


def test_a_branch_guards_its_condition_alone() -> None:
    def f(x):
        if x.shape[0] > 10:
            return x * 2
        return x - 1

    compiled = bytejit.compile(f, backend="eager")
    for n in (4, 5, 6, 10, 3, 12, 11, 100, 7, 2, 64):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), f(x))
    assert entries(compiled) == 3
    texts = [
        repr(g)
        for s in compiled.__dict__["__bytejit_handle__"].function.sites.states.values()
        for e in s.entries
        for g in e.guards
        if g.kind == "EXPR"
    ]
    assert any("s0 <= 10" in t for t in texts) and any("11 <= s0" in t for t in texts)
    assert all("test_dynamic.py" in t for t in texts)


def test_branches_on_relations_of_sizes() -> None:
    def f(x, y):
        if x.shape[0] == y.shape[0]:
            return x + y
        if x.shape[0] % 2 == 0 and x.shape[0] // 2 < y.shape[0]:
            return x.sum() * y
        return x.sum() - y.sum() * (x.shape[0] != 2 * y.shape[0])

    sizes = [(3, 3), (4, 4), (5, 5), (4, 3), (6, 4), (8, 7), (9, 2), (7, 2), (12, 3), (12, 12), (20, 11), (4, 2), (20, 10)]
    check(f, [(torch.randn(a), torch.randn(b)) for a, b in sizes])


def test_broadcasting_between_dims() -> None:
    def f(x, y):
        return x * y + x.sum(0)

    sizes = [
        ((3, 4), (3, 4)),
        ((5, 4), (5, 4)),
        ((5, 6), (5, 6)),
        ((5, 6), (1, 6)),
        ((2, 7), (1, 7)),
        ((4, 9), (9,)),
        ((3, 5), (5,)),
        ((4, 1), (4, 6)),
        ((3, 1), (1, 8)),
    ]
    check(f, [(torch.randn(a), torch.randn(b)) for a, b in sizes])


def test_sizes_that_do_not_fit_raise_as_without_compiling() -> None:
    compiled = bytejit.compile(lambda x, y: x @ y, backend="eager")
    for n in (3, 4, 5):
        compiled(torch.ones(2, n), torch.ones(n, 2))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        compiled(torch.ones(2, 6), torch.ones(7, 2))
    assert compiled(torch.ones(2, 8), torch.ones(8, 2)).shape == (2, 2)


def test_an_exception_that_names_a_size() -> None:
    def f(x):
        if x.shape[0] > 5:
            raise ValueError(f"too long: {x.shape[0]}")
        return x * 2

    compiled = bytejit.compile(f, backend="eager")
    for n in (2, 3, 4, 6, 7, 5, 8):
        if n <= 5:
            torch.testing.assert_close(compiled(torch.ones(n)), torch.ones(n) * 2)
        else:
            with pytest.raises(ValueError, match=f"too long: {n}"):
                compiled(torch.ones(n))


def test_strides_are_held_to_the_sizes() -> None:
    def f(x):
        return x.as_strided((x.shape[0],), (x.stride(0),)) + x.t().reshape(-1)[0]

    wide = torch.randn(40, 50)
    calls = [(torch.randn(a, b),) for a, b in ((3, 4), (5, 4), (6, 8))]
    calls += [(wide[:a, :b],) for a, b in ((3, 4), (5, 7), (6, 9))]
    calls += [(torch.randn(b, a).t(),) for a, b in ((3, 4), (5, 7))]
    calls += [(torch.randn(7, 9)[::2],), (torch.randn(1, 4).expand(5, 4),)]
    check(f, calls)


def test_views_of_one_storage_keep_their_aliasing() -> None:
    def f(x, y):
        y += 1
        return x * 2

    compiled = bytejit.compile(f, backend="eager")
    for n in (4, 5, 6, 9):
        a, b = torch.zeros(n + 1), torch.zeros(n + 1)
        want, got = f(a[:n], a[1:]), compiled(b[:n], b[1:])
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(b, a)


def test_marks() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(gm)
        return gm.forward

    f = bytejit.compile(lambda x: x * x.shape[0], backend=backend)
    x = torch.ones(6, 4)
    bytejit.mark_dynamic(x, 0, min=4, max=8)
    f(x)
    for n in (4, 5, 8):
        assert f(torch.ones(n, 4))[0, 0] == n
    assert len(graphs) == 1
    f(torch.ones(9, 4)), f(torch.ones(3, 4))
    assert len(graphs) == 2 and f(torch.ones(30, 4))[0, 0] == 30
    y = torch.ones(6, 4)
    bytejit.mark_static(y, 0)
    bytejit.reset()
    g = bytejit.compile(lambda x: x * x.shape[0], backend=backend, dynamic=True)
    graphs.clear()
    g(y)
    z = torch.ones(7, 4)
    bytejit.mark_static(z, 0)
    g(z)
    assert len(graphs) == 2


def test_a_backend_is_given_symbols_as_placeholders() -> None:
    seen: list[tuple] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        seen.append((inputs, [n.meta["val"] for n in placeholders]))
        assert len(inputs) == len(placeholders)
        return gm.forward

    f = bytejit.compile(lambda x: torch.cat([x, x]) + x.shape[0] // 2, backend=backend, dynamic=True)
    torch.testing.assert_close(f(torch.ones(5)), torch.ones(10) + 2)
    inputs, values = seen[0]
    assert inputs[0] == 5 and isinstance(values[0], torch.SymInt) and isinstance(values[1].shape[0], torch.SymInt)


def test_the_value_that_changed_is_named() -> None:
    compiled = bytejit.compile(lambda x, n: x[:n] + 1, backend="eager", dynamic=False)
    compiled(torch.ones(5), 3), compiled(torch.ones(5), 4)
    assert any("n was 3, is 4" in k for k in bytejit.counters["recompiles"])
    dynamic = bytejit.compile(lambda x: x * 2 if x.shape[0] < 9 else x, backend="eager", dynamic=True)
    dynamic(torch.ones(5)), dynamic(torch.ones(50))
    assert any("x.shape[0]" in k and "<=" in k for k in bytejit.counters["recompiles"])


def test_a_break_keeps_sizes_symbolic_on_both_sides() -> None:
    def f(x):
        n = x.shape[0] // 2
        y = x[:n] * 2
        bytejit.graph_break()
        return y + torch.zeros(n).sum() + x.shape[0]

    compiled = bytejit.compile(f, backend="eager")
    for n in (4, 6, 8, 12, 9):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), f(x))
    assert entries(compiled) <= 6


def test_effects_with_sizes() -> None:
    class Log:
        def __init__(self):
            self.sizes, self.last = [], 0

    def f(x, log):
        log.sizes.append(x.shape[0])
        log.last = x.shape[0] * 2 + 1
        return x * 2

    mine, plain = Log(), Log()
    compiled = bytejit.compile(f, backend="eager")
    for n in (3, 4, 5, 9):
        torch.testing.assert_close(compiled(torch.ones(n), mine), f(torch.ones(n), plain))
    assert mine.sizes == plain.sizes and mine.last == plain.last
    assert all(type(n) is int for n in mine.sizes) and type(mine.last) is int


def test_sizes_in_text_keys_and_library_calls() -> None:
    def f(x):
        names = {4: 2.0, 5: 3.0}
        return x * names.get(x.shape[0], 1.0) + len(f"{x.shape[0]:03d}") + [1, 2, 3][x.shape[0] % 3] + hash(x.shape[0])

    check(f, rand((4,), (5,), (6,), (7,), (4,)))


def test_two_inputs_of_one_size_and_then_of_two() -> None:
    def f(x, y):
        return x.sum() * y

    assert check(f, [(torch.randn(a), torch.randn(b)) for a, b in ((3, 3), (4, 4), (5, 6), (7, 2), (9, 9))]) == 2


def test_the_same_tensor_twice() -> None:
    def f(x, y):
        return x + y

    compiled = bytejit.compile(f, backend="eager")
    for n in (3, 4, 5):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x, x), x + x)
        torch.testing.assert_close(compiled(x, x + 1), x + x + 1)


def test_sizes_of_parameters_stay_static() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return x @ self.w

    graphs: list = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append([n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"])
        return gm.forward

    net = Net()
    compiled = bytejit.compile(net, backend=backend, dynamic=True)
    for n in (2, 3, 7):
        torch.testing.assert_close(compiled(torch.ones(n, 4)), net(torch.ones(n, 4)))
    assert len(graphs) == 1
    weights = [v for v in graphs[0] if isinstance(v, torch.Tensor) and v.requires_grad]
    assert all(type(n) is int for w in weights for n in w.shape)


def test_the_plain_values_of_a_static_function_import_no_sympy(tmp_path) -> None:
    import subprocess
    import sys

    text = (
        "import sys, torch, bytejit\n"
        "f = bytejit.compile(lambda x: x.view(-1) * x.shape[0], backend='eager')\n"
        "f(torch.ones(3, 4)); f(torch.ones(3, 4))\n"
        "assert 'sympy' not in sys.modules\n"
        "f(torch.ones(5, 4)); f(torch.ones(7, 4))\n"
        "assert 'sympy' in sys.modules\n"
        "assert not any(m == 'torch._dynamo' or m.startswith('torch._dynamo.') for m in sys.modules)\n"
        "assert not any(m.startswith('torch._inductor') for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, cwd=tmp_path)


def test_shapes_changed_in_place() -> None:
    """`unsqueeze_`, `transpose_` and `squeeze_` of tensors of symbolic size change that very tensor."""

    def f(x):
        y = torch.einsum("bq,bk->bqk", x, x)
        y.unsqueeze_(1)
        y.transpose_(2, 3)
        z = (x + 1).unsqueeze_(0)
        z.squeeze_(0)
        return y * 2, y.shape, z

    fn = bytejit.optimize("eager", nopython=True)(f)
    for b in (2, 3, 5):
        x = torch.randn(b, 4)
        got, want = fn(x), f(x)
        assert got[1] == want[1] and torch.allclose(got[0], want[0]) and torch.equal(got[2], want[2])


# ---- programs that write into views, and sizes of 1 among others -------------------------------------------------------


def write_contiguous(x):
    y = x.t().contiguous()
    y += 1
    return y, x


def write_reshaped(x):
    y = x.t().reshape(-1)
    y.mul_(2)
    return y, x


def write_viewed(x):
    x.view(-1)[0] = 5
    return x.sum()


def powers(x):
    k = 8
    while k < x.shape[0]:
        k *= 2
    return F.pad(x, (0, 0, 0, k - x.shape[0]))


def expanded(x):
    return x.unsqueeze(1).expand(x.shape[0], x.shape[0], x.shape[1]).reshape(-1, x.shape[1])


def ends(x):
    return x[-x.shape[0] // 2 :], x[:-2], x[::2], torch.arange(x.shape[0] - 1, -1, -1)


@pytest.mark.parametrize("f", [write_contiguous, write_reshaped, write_viewed, powers, expanded, ends])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_writes_and_aliases_at_sizes_of_one(f: Callable, backend: str) -> None:
    compiled = bytejit.compile(f, backend=backend)
    for size in ((3, 4), (5, 6), (1, 6), (6, 1), (17, 2), (1, 1), (2, 2)):
        x = torch.randn(size)
        mine, plain = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine), f(plain))
        torch.testing.assert_close(mine, plain)
    assert entries(compiled) <= 5


def test_a_cache_that_grows() -> None:
    def f(cache, k, at):
        cache[at : at + k.shape[0]] = k
        return cache[: at + k.shape[0]].sum(0)

    compiled = bytejit.compile(f, backend="eager")
    mine, plain, at = torch.zeros(40, 4), torch.zeros(40, 4), 0
    for n in (5, 1, 1, 1, 1, 3, 4, 1, 1, 2):
        k = torch.randn(n, 4)
        torch.testing.assert_close(compiled(mine, k, at), f(plain, k, at))
        torch.testing.assert_close(mine, plain)
        at += n
    assert entries(compiled) <= 4


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + torch.arange(x.shape[1])[None] * 2,
        lambda x: x * torch.ones(1, 1).expand(x.shape[0], 1) + torch.zeros(1, x.shape[1]).expand(x.shape[0], -1),
        lambda x: x.repeat(1, 4).view(-1, 4, x.shape[1]).transpose(1, 2).reshape(x.shape[0], -1, 4) + 1,
        lambda x: torch.stack([x, x], 1).transpose(1, 2).reshape(x.shape[0], -1, 2).contiguous(),
        lambda x: torch.where(torch.ones(1, x.shape[1], dtype=torch.bool), x, 0.0).cumsum(1),
        lambda x: (x + 0).add_(torch.ones(1, x.shape[1])),
    ],
    ids=["broadcast", "expand", "reshape", "same shape", "where", "in place"],
)
def test_a_batch_of_one_fits_where_nothing_depends_on_it(f: Callable, backend: str) -> None:
    """A size meets a 1: the result has the size in any case, so nothing asks whether it is 1 too."""
    compiled = bytejit.compile(f, backend=backend)
    for (x,) in rand((3, 5), (4, 6), (1, 6), (1, 9), (7, 2)):
        want, got = f(x), compiled(x)
        torch.testing.assert_close(got, want)
        assert got.is_contiguous() == want.is_contiguous()
    assert entries(compiled) == 2


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.view(-1, 5) + torch.ones(5, 5),
        lambda x: x + torch.ones(5, 1),
        lambda x: x * 2 if x.shape[0] == 5 else x,
        lambda x: x * len([0] * x.shape[0]),
        lambda x: torch.ones(7).view(x.shape[0] + 2) + x.sum(),
    ],
    ids=["view", "broadcast", "branch", "list", "sum of sizes"],
)
def test_a_marked_dim_that_must_be_constant_is_an_error(f: Callable, capsys) -> None:
    def marked():
        x = torch.ones(5, 5)
        bytejit.mark_dynamic(x, 0)
        return x

    with pytest.raises(bytejit.exc.ConstraintViolation) as error:
        bytejit.compile(f, backend="eager")(marked())
    line = f.__code__.co_firstlineno
    assert f"test_dynamic.py:{line} in <lambda>" in str(error.value)
    assert "x.shape[0] is marked dynamic, but can only be 5" in str(error.value)
    assert "take mark_dynamic off dim 0" in str(error.value)
    with bytejit.config.patch(logs=("recompiles",)):  # under dynamic=True alone it becomes one, and a line says so
        compiled = bytejit.compile(f, backend="eager", dynamic=True)
        x = torch.ones(5, 5)
        bytejit.mark_static(x, 1)
        torch.testing.assert_close(compiled(x), f(x))
    assert "x.shape[0] stays 5: the code needs x.shape[0] == 5" in capsys.readouterr().err


def test_a_marked_dim_may_have_conditions() -> None:
    def f(x):
        return (x * 2 if x.shape[0] > 3 else x)[:2].sum(0)

    x = torch.randn(5, 4)
    bytejit.mark_dynamic(x, 0)
    compiled = bytejit.compile(f, backend="eager")
    for n in (5, 9, 4, 77):
        y = x if n == 5 else torch.randn(n, 4)
        torch.testing.assert_close(compiled(y), f(y))
    assert entries(compiled) == 1


EMPTY: dict[str, Callable] = {
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=0.5, mode="linear"),
    "interpolate 2d": lambda x: F.interpolate(x[None, None], scale_factor=(2, 1.7), mode="bicubic"),
    "interpolate to the same": lambda x: F.interpolate(x[None, None], scale_factor=1.2, mode="bilinear"),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x[None, None], (x.shape[0], 1)),
    "adaptive pool to": lambda x: F.adaptive_avg_pool1d(x[None], 5),
    "max pool": lambda x: F.max_pool2d(x[None], 3, stride=2, padding=1, ceil_mode=True),
    "pad": lambda x: F.pad(x[None, None], (2, 1, 0, 3), mode="replicate"),
    "conv": lambda x: F.conv2d(x[None, None], torch.ones(1, 1, 2, 2), stride=(3, 2), padding=2, dilation=2),
    "half": lambda x: x[: x.shape[0] // 2] * 2,
    "float steps": lambda x: torch.arange(0, x.shape[0] * 0.5, 0.3) + x.sum(),
    "functions of sizes": lambda x: x * math.exp(-x.shape[0] / 10) * math.cos(x.shape[1]) + math.log2(x.shape[0] + 1),
    "split": lambda x: torch.cat([t.sum(0, keepdim=True) for t in x.split(3, 0)]),
    "odd chunks": lambda x: torch.cat([t * 2 for t in x.chunk(3, 0)]),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", EMPTY)
def test_sizes_of_zero_and_one_in_any_order(name: str, backend: str) -> None:
    """Where eager refuses what is empty, the compiled function does; what has no elements needs memory for none."""
    f = EMPTY[name]
    compiled = bytejit.compile(f, backend=backend, dynamic=True)
    for size in [(4, 6), (7, 5), (1, 6), (5, 1), (1, 1), (0, 6), (4, 0), (9, 3)]:
        torch.manual_seed(0)
        x = torch.randn(size)
        try:
            want = f(x)
        except Exception as error:
            with pytest.raises(type(error)) as ours:
                compiled(x)
            assert str(ours.value) == str(error)
            continue
        torch.testing.assert_close(compiled(x), want)
    assert not bytejit.counters["faults"]


def test_inference_leaves_the_lists_of_a_call_alone():
    """torch's reference of this op clamps the indices in the list that it is given"""

    def f(x, mask, i):
        return torch.ops.aten._unsafe_masked_index(x, mask, [i], 0.5)

    compiled = bytejit.compile(f, dynamic=True)
    for n in (5, 7, 7, 9):
        x, mask, i = torch.randn(n), torch.arange(n) % 2 == 0, torch.arange(n) % 3
        torch.testing.assert_close(compiled(x, mask, i), f(x, mask, i))
    assert not bytejit.counters["fallbacks"]


def test_a_value_that_is_only_returned_is_no_input() -> None:
    """A symbolic number among the results, and a tensor that nothing looked at: it must not become an input of the graph."""

    def f(x, y, n):
        return x + n, y, n + 1

    compiled = bytejit.compile(f, backend="inductor")
    for n in range(1, 5):
        for size in (3, 4, 5):
            x, y = torch.ones(size), torch.ones(2)
            got = compiled(x, y, n)
            assert torch.equal(got[0], x + n) and got[1] is y and got[2] == n + 1
    assert not bytejit.counters["fallbacks"] and not bytejit.counters["faults"]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", ["prod", "sum", "amax", "cumsum", "diag"])
def test_an_out_that_gets_another_shape_is_inferred_once(name: str) -> None:
    """The call, made twice for the sake of symbols, would look at what it has written itself"""
    op: Callable = {"prod": torch.prod, "sum": torch.sum, "amax": torch.amax, "cumsum": torch.cumsum}.get(name, torch.diag)

    def f(a):
        op(a, out=a) if name == "diag" else op(a, -1, out=a)
        return a.permute(*range(a.dim())[::-1]) + a.dim()

    compiled = bytejit.compile(f, backend="eager", dynamic=True)
    for n in (3, 5):
        x = torch.arange(float(n * n)).reshape(n, n)
        ours, plain = x.clone(), x.clone()
        assert torch.equal(compiled(ours), f(plain)) and torch.equal(ours, plain)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_kron_lies_in_memory_as_eagers(order: tuple) -> None:
    """Also where eager refuses the layout"""

    def made(f: Callable, a: torch.Tensor, b: torch.Tensor) -> tuple:
        try:
            return (k := f(a, b)).stride(), k
        except RuntimeError as e:
            return str(e), torch.zeros(())

    compiled = bytejit.compile(lambda a, b: torch.kron(a, b), backend="eager", dynamic=True)
    for n in (4, 6):
        a, b = torch.randn(3, n, 5).permute(order), torch.randn(2, n, 3)
        for other in (b, b.permute(order), b[:, ::2]):
            ours, plain = made(compiled, a, other), made(torch.kron, a, other)
            assert ours[0] == plain[0]
            torch.testing.assert_close(ours[1], plain[1])
