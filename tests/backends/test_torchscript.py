"""The backends `ts`, `aot_ts` and `ofi`: results, writes, random numbers and errors are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit
from tests.models.zoo import hf, tv

ALL = ("ts", "aot_ts", "ofi")
backends = pytest.mark.parametrize("backend", ALL)


def fallbacks() -> str:
    return " | ".join(bytejit.counters["fallbacks"])


def tensors(made: object) -> list[torch.Tensor]:
    made = made.to_tuple() if hasattr(made, "to_tuple") else made
    return [t for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]


def same_as_eager(fn: Callable, *args: torch.Tensor, calls: int = 3, **settings: object) -> None:
    """Results, strides, random state and inputs are eager's, also when the program writes into what it was given."""
    compiled = bytejit.compile(fn, fullgraph=True, **settings)
    for seed in range(calls):
        ours, theirs = [t.clone() for t in args], [t.clone() for t in args]
        states = []
        for call, given in ((fn, theirs), (compiled, ours)):
            torch.manual_seed(seed)
            states.append((call(*given), torch.get_rng_state()))
        (want, state), (got, state_of_ours) = states
        torch.testing.assert_close(got, want, rtol=1e-6 if settings["backend"] == "ofi" else 0, atol=1e-6, equal_nan=True)
        assert torch.equal(state, state_of_ours)
        for t, like in zip(tensors(got), tensors(want)):
            assert t.stride() == like.stride()
            t.add_(1)  # what is shared with an input, with another output or with the next call's shows
            like.add_(1)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5, equal_nan=True)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, equal_nan=True)


@backends
def test_resnet18(backend: str) -> None:
    module, args, _ = tv("resnet18", 32).build()
    with torch.no_grad():
        want = module.eval()(*args)
        compiled = bytejit.compile(module, backend=backend, fullgraph=True)
        for _ in range(2):  # TorchScript profiles the first call, and optimizes
            torch.testing.assert_close(compiled(*args), want, rtol=1e-4, atol=1e-5)
    assert not fallbacks()


@backends
def test_bert(backend: str) -> None:
    options = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=100)
    module, _, kwargs = hf("Bert", **options).build()
    with torch.no_grad():
        want = tensors(module.eval()(**kwargs))
        compiled = bytejit.compile(module, backend=backend)
        for _ in range(2):
            for t, like in zip(tensors(compiled(**kwargs)), want, strict=True):
                torch.testing.assert_close(t, like, rtol=1e-4, atol=1e-5)
    assert not fallbacks()


@pytest.mark.parametrize("backend", ["ts", "aot_ts"])
def test_training_equals_eager(backend: str) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
        return torch.nn.Sequential(*layers, torch.nn.Dropout(0.3))

    losses = []
    for compiled in (False, True):
        module = model()
        step = bytejit.compile(module, backend=backend, fullgraph=True) if compiled else module
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        x = torch.linspace(-1, 1, 384).view(2, 3, 8, 8)
        for i in range(3):
            torch.manual_seed(i)
            loss = F.cross_entropy(step(x), torch.tensor([1, 3]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-5) and losses[2] < losses[0]
    assert not fallbacks()


def test_ofi_is_for_inference() -> None:
    layer = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)
    compiled = bytejit.compile(layer, backend="ofi")
    compiled(x).sum().backward()
    assert layer.weight.grad is not None and "ofi is for inference" in fallbacks()


def test_ofi_notices_written_weights() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    compiled, x = bytejit.compile(net, backend="ofi"), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        for factor in (1, 2, 3, 4, 5, 6):
            net[0].weight.mul_(factor)
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-4)
    assert bytejit.counters["recompiles"]["a frozen weight was written"] == 4  # after which nothing is frozen


def test_ofi_keeps_strides() -> None:
    net = torch.nn.Conv2d(3, 4, 3).eval().to(memory_format=torch.channels_last)
    x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert bytejit.compile(net, backend="ofi")(x).stride() == net(x).stride()


def made_inside(x):
    return x + 1, torch.ones(3), torch.arange(4), torch.full((2,), True).int()


def returned_twice(x):
    z = x + 1
    return z, z, x + 1, x, x[1]


def views(x):
    z = x + 1
    return z, z[1], x.t()


def draws(x):
    torch.rand(3)
    return F.dropout(x, 0.5, True) + torch.rand(5)


def unread_draw(x):
    torch.rand(3)
    return x + 1


def indexed(x):
    return x[torch.tensor([0, 2])], x[:, [1, 2]], torch.where(x > 0, x, 0.0)


def numbers(x):
    return x.clamp(0, 1), x / 3, x.pow(2), x.masked_fill(x > 0, float("inf")), (x > 0).masked_fill(x < 0, True).int(), x.shape[0]


def dtypes(x):
    return x.double(), x.half() + 1, x.to(torch.int32), x * (1 + 2j)


def strided(x):
    return x.t() + 1, x.t().contiguous().as_strided((2, 2), (1, 2)) + 0.0, (x + 1).as_strided((2, 2), (1, 2), 3)


def many(x):
    return (*x.max(1), *torch.sort(x), *x.split(2), x.sum([]), x.mean((0, 1)), torch.cat([x, x]))


def written_inside(x):
    z = x.clone()
    z[0].mul_(3)
    return z


def writes(x):
    x.add_(1)
    x[0] = 3
    return x * 2


def inverse(x):
    return torch.linalg.cholesky(x @ x.t() + 5 * torch.eye(4))


PROGRAMS = (
    made_inside,
    returned_twice,
    views,
    draws,
    unread_draw,
    indexed,
    numbers,
    dtypes,
    strided,
    many,
    written_inside,
    writes,
    inverse,
)


@backends
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program: Callable, backend: str) -> None:
    same_as_eager(program, torch.randn(4, 5), backend=backend)


@backends
def test_sizes_that_change(backend: str) -> None:
    def fn(x):
        return x.view(-1).softmax(0).view(x.shape[0], -1) * (x.shape[0] // 2) / 3.5 + torch.zeros(2 * x.shape[0])[: x.shape[1]]

    compiled = bytejit.compile(fn, backend=backend)
    for rows in (4, 6, 8, 10):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), fn(x))
    assert bytejit.counters.total("graphs") == 2 and "through torch" not in fallbacks()


@backends
def test_modes(backend: str) -> None:
    def fn(x, w):
        return x @ w, (x + 1) @ w

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    for manager in (torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)):
        with manager():
            want, got = fn(x, w), bytejit.compile(fn, backend=backend)(x, w)
            torch.testing.assert_close(got, want, rtol=0, atol=0 if want[0].dtype is torch.bfloat16 else 1e-6)
            assert got[0].is_inference() == want[0].is_inference()


@backends
def test_errors_are_the_programs(backend: str) -> None:
    def fn(table, at):
        return table[at] * 2

    table = torch.randn(4, 3)
    compiled = bytejit.compile(fn, backend=backend)
    compiled(table, torch.tensor([1]))
    with pytest.raises(IndexError) as want:
        fn(table, torch.tensor([9]))
    with pytest.raises(IndexError) as got:
        compiled(table, torch.tensor([9]))
    assert str(got.value) == str(want.value)


@torch.library.custom_op("bytejit_tests::twice", mutates_args=())
def twice(x: torch.Tensor, of: list[int]) -> torch.Tensor:
    return x * len(of)


@twice.register_fake
def _(x, of):
    return torch.empty_like(x)


@backends
def test_an_operator_of_the_programs(backend: str) -> None:
    same_as_eager(lambda x: twice(x + 1, [5, 6]), torch.randn(3), backend=backend)


@backends
def test_what_torchscript_refuses_is_counted(backend: str) -> None:
    def fn(x):
        torch._assert_async(x.sum() == 3)  # for its effect: TorchScript would leave it out
        return x + 1

    compiled, x = bytejit.compile(fn, backend=backend), torch.ones(3)
    torch.testing.assert_close(compiled(x), fn(x))
    assert "through torch" in fallbacks()
    with pytest.raises(RuntimeError, match="Expected Tensor"):
        compiled(x * 2)


@backends
def test_numbers_of_a_generator_are_drawn_before_the_script(backend: str) -> None:
    generator = torch.Generator()

    def fn(x):
        return x + torch.rand(3, generator=generator)

    compiled, x = bytejit.compile(fn, backend=backend), torch.zeros(3)
    for seed in (1, 2):
        generator.manual_seed(seed)
        got = compiled(x)
        generator.manual_seed(seed)
        torch.testing.assert_close(got, fn(x))
    assert not bytejit.counters.total("breaks")


def test_the_script_is_in_the_report() -> None:
    from bytejit.backends.torchscript import aot_ts
    from bytejit.common.graph_info import report_of

    seen = []

    def backend(gm, example_inputs):
        call = aot_ts(gm, example_inputs)
        seen.extend(report_of(gm).stages)
        return call

    bytejit.compile(lambda x: x.sin() * 2, backend=backend)(torch.ones(2))
    assert [name for name, _, _ in seen] == ["aten", "torchscript"]
    assert "torch.ops.aten.sin(p0)" in seen[1][1]
