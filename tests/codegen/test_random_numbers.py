"""Random numbers made within kernels (option `fused_rng`): Philox's known values, distributions, seeds, what stays torch's."""

from __future__ import annotations

import math
import os

import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.codegen.ops.rows.random import LOW, philox
from bytejit.kernels.build_triton import triton_version

WAYS = [
    pytest.param({}, marks=pytest.mark.cxx, id="cpu"),
    pytest.param(
        {"interpret": True},
        id="triton",
        marks=[
            pytest.mark.triton,
            pytest.mark.skipif(
                not triton_version() or os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton and TRITON_INTERPRET=1"
            ),
        ],
    ),
]
X = torch.linspace(0, 1, 20000).view(100, 200)
N = X.numel()


def compiled(fn, way: dict, **options: object):
    return bytejit.compile(fn, fullgraph=True, options={"fused_rng": True, **way, **options})


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@pytest.mark.parametrize(
    "key, counter, first, second",
    [
        (0, (0, 0), 0x6627E8D5, 0xE169C58D),
        (2**64 - 1, (2**64 - 1, 2**64 - 1), 0x408F276D, 0x41C83B0E),
        (0x299F31D0A4093822, (0x85A308D3243F6A88, 0x0370734413198A2E), 0xD16CFE09, 0x94FDCCEB),
    ],
)
def test_known_results_of_philox(key: int, counter: tuple[int, int], first: int, second: int) -> None:
    made = int(philox(*(torch.tensor(signed(word)) for word in (key, *counter))))
    assert (made >> 32) & LOW == first and made & LOW == second


@pytest.mark.cxx
def test_distributions() -> None:
    def draw(x):
        return (
            torch.rand_like(x),
            torch.randn_like(x),
            torch.bernoulli(x),
            torch.empty_like(x).uniform_(-1, 3),
            torch.empty_like(x).normal_(2, 0.5),
            torch.empty_like(x).bernoulli_(0.2),
            torch.rand(N),
            torch.randn(N),
        )

    uniform, normal, coin, wide, moved, rare, flat, bell = compiled(draw, {})(X)
    error = 5 / math.sqrt(N)  # five deviations of a mean of N numbers of deviation 1
    for u in (uniform, flat, (wide + 1) / 4):
        assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.29 * error and abs(u.var() - 1 / 12) < 0.1 * error
        assert (torch.histc(u, 20, 0, 1) / N * 20 - 1).abs().max() < 20 * error / math.sqrt(20)
    for n in (normal, bell, (moved - 2) * 2):
        assert abs(n.mean()) < error and abs(n.var() - 1) < 1.5 * error and abs((n**3).mean()) < 4 * error
        assert abs((n**4).mean() - 3) < 10 * error and abs((n.abs() < 1).float().mean() - 0.6827) < error
    assert set(coin.unique().tolist()) == {0.0, 1.0} and abs((coin - X).mean()) < 0.5 * error
    assert not coin[0, 0] and coin[-1, -1] and abs(rare.mean() - 0.2) < 0.4 * error
    made = torch.stack([uniform.flatten(), flat, normal.flatten(), bell])
    assert (torch.corrcoef(made) - torch.eye(4)).abs().max() < error
    assert abs(torch.corrcoef(torch.stack([flat[1:], flat[:-1]]))[0, 1]) < error
    assert bytejit.counters["externs"] == {"aten.randint.low has no row: run by torch": 1}


@pytest.mark.cxx
def test_the_seed_decides() -> None:
    fn = compiled(lambda x: (F.dropout(x + 1, 0.25), torch.randn_like(x)), {})
    with torch.no_grad():
        torch.manual_seed(7)
        first, second = fn(X), fn(X)
        torch.manual_seed(7)
        again = fn(X)
    for a, b, c in zip(first, second, again):
        assert torch.equal(a, c) and not torch.equal(a, b)
    kept = first[0] != 0
    assert abs(kept.float().mean() - 0.75) < 0.02 and torch.allclose(first[0][kept], (X[kept] + 1) / 0.75)


@pytest.mark.parametrize("way", WAYS)
def test_kernels_and_torch_make_the_same_numbers(way: dict) -> None:
    def draw(x):
        return torch.rand_like(x), torch.rand(7, 3, dtype=torch.bfloat16), torch.rand(9, dtype=torch.half), torch.randn(50)

    torch.manual_seed(3)
    got = compiled(draw, way)(X[:3, :50])
    torch.manual_seed(3)
    seed, own = torch.randint(0, 2**63 - 1, []), torch.ops.bytejit
    for i, g in enumerate(got[:3]):
        assert torch.equal(g, own.uniform(seed, i, list(g.shape), g.dtype))
    torch.testing.assert_close(got[3], own.normal(seed, 3, [50], torch.float32))


@pytest.mark.cxx
def test_positions_not_strides_decide() -> None:
    def draw(x):
        return torch.rand_like(x)

    turned = X.t().contiguous().t()
    torch.manual_seed(3)
    plain = compiled(draw, {})(X)
    torch.manual_seed(3)
    got = compiled(draw, {})(turned)
    assert got.stride() == turned.stride() and torch.equal(got, plain)


@pytest.mark.cxx
def test_sizes_that_change() -> None:
    fn = compiled(lambda x: torch.rand_like(x) + 0 * x, {}, dynamic=True)
    torch.manual_seed(3)
    seed = torch.randint(0, 2**63 - 1, [])
    for n in (5, 9, 1):
        torch.manual_seed(3)
        assert torch.equal(fn(torch.ones(n, 4)), torch.ops.bytejit.uniform(seed, 0, [n, 4], torch.float32))
    assert fn(torch.ones(0, 4)).shape == (0, 4) and bytejit.counters["graphs"]["inductor"] <= 3


@pytest.mark.cxx
@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(5, dtype=torch.float64),
        lambda x: torch.randperm(7),
        lambda x: torch.randint(0, 9, (5,)) + x[0, 0].long(),
    ],
)
def test_other_draws_are_torchs(draw) -> None:
    torch.manual_seed(3)
    got = compiled(draw, {})(X)
    torch.manual_seed(3)
    assert torch.equal(got, draw(X))


@pytest.mark.cxx
def test_without_the_option_the_stream_is_eagers() -> None:
    def draw(x):
        return torch.rand_like(x) + F.dropout(x, 0.5)

    torch.manual_seed(3)
    with torch.no_grad():
        got = bytejit.compile(draw, fullgraph=True)(X)
        torch.manual_seed(3)
        torch.testing.assert_close(got, draw(X))


@pytest.mark.cxx
def test_a_module_with_dropout_in_one_kernel() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(200, 50), torch.nn.GELU(), torch.nn.Dropout(0.1)).train()
    fn = compiled(model, {})
    with torch.no_grad():
        got, want = fn(X), model[1](model[0](X))
    kept = got != 0
    torch.testing.assert_close(got[kept], want[kept] / 0.9)
    assert abs(kept.float().mean() - 0.9) < 0.02


@pytest.mark.cxx
def test_dropout_with_its_mask() -> None:
    fn = compiled(lambda x: torch.native_dropout(x + 1, 0.3, True), {})
    with torch.no_grad():
        got, mask = fn(X)
    assert mask.dtype == torch.bool and abs(mask.float().mean() - 0.7) < 0.02
    torch.testing.assert_close(got, torch.where(mask, (X + 1) / 0.7, 0.0))
