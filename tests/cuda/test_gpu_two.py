"""Programs on two GPUs, and on another than the current one, against eager. Skipped with fewer than two."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import bytejit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]
OTHER = torch.device("cuda", 1)
MODES = ["default", "reduce-overhead", "max-autotune-no-cudagraphs"]


@pytest.fixture(autouse=True)
def first_is_current():
    torch.cuda.set_device(0)
    yield
    torch.cuda.set_device(0)


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert got.device == want.device and got.stride() == want.stride()


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two products and three kernels."""
    return F.softmax(F.gelu(F.layer_norm(x.sin(), (64,)) @ w) @ w.t() * 2, -1)


def operands(device: torch.device | int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(96, 64, device=device), torch.randn(64, 80, device=device) / 8


@pytest.mark.parametrize("mode", MODES)
def test_another_device_than_the_current_one(mode: str) -> None:
    compiled = bytejit.compile(chain, fullgraph=True, mode=mode)
    args = operands(OTHER)
    with torch.no_grad():
        for _ in range(6):
            near(compiled(*args).clone(), chain(*args))
            assert torch.cuda.current_device() == 0
    assert not bytejit.counters["fallbacks"]


@pytest.mark.parametrize("mode", MODES)
def test_each_device_has_an_entry_and_both_stay(mode: str) -> None:
    compiled = bytejit.compile(chain, fullgraph=True, mode=mode)
    both = operands(0), operands(1)
    with torch.no_grad():
        for turn in range(8):
            args = both[turn % 2]
            near(compiled(*args).clone(), chain(*args))
            with torch.cuda.device(1 - turn % 2):
                near(compiled(*args).clone(), chain(*args))
    assert not bytejit.counters["fallbacks"]


def test_the_current_device_decides_what_cuda_means() -> None:
    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.cuda().sin() + torch.ones(4, device="cuda")

    compiled, x = bytejit.compile(moved), torch.randn(4)
    for current in (0, 1, 0, 1):
        with torch.cuda.device(current):
            near(compiled(x), moved(x))
            assert compiled(x).device.index == current


def test_the_program_changes_the_current_device() -> None:
    def inside(x: torch.Tensor) -> tuple:
        with torch.cuda.device(1):
            y = x.to("cuda").cos()
        return y * 2, torch.ones(2, device="cuda")

    compiled, x = bytejit.compile(inside), torch.randn(4)
    for _ in range(3):
        for got, want in zip(compiled(x), inside(x)):
            near(got, want)
    assert torch.cuda.current_device() == 0


def test_tensors_of_both_in_one_graph() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple:
        there = (x * 2).to(y.device) + y.cos()
        return there.sin(), x + there.to(x.device).relu()

    compiled = bytejit.compile(both)
    x, y = torch.randn(64, 32, device=0), torch.randn(64, 32, device=1)
    for _ in range(4):
        for got, want in zip(compiled(x, y), both(x, y)):
            near(got, want)


def test_tensors_of_both_in_one_operation_raise_as_in_eager() -> None:
    x, y = torch.randn(4, device=0), torch.randn(4, device=1)
    with pytest.raises(RuntimeError, match="same device"):
        bytejit.compile(lambda x, y: x.sin() + y)(x, y)


def test_a_model_over_two_devices() -> None:
    class Halves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(32, 64).to(0), torch.nn.Linear(64, 8).to(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(F.gelu(self.first(x)).to(OTHER)).to(x.device)

    model = Halves().eval()
    compiled, x = bytejit.compile(model), torch.randn(16, 32, device=0)
    with torch.no_grad():
        for _ in range(4):
            near(compiled(x), model(x))


@pytest.mark.parametrize("mode", MODES)
def test_streams_of_the_other_device(mode: str) -> None:
    compiled = bytejit.compile(chain, fullgraph=True, mode=mode)
    args = operands(OTHER)
    side = torch.cuda.Stream(device=OTHER)
    with torch.no_grad():
        want = chain(*args)
        for _ in range(4):
            side.wait_stream(torch.cuda.current_stream(OTHER))
            with torch.cuda.stream(side):
                got = compiled(*args).clone()
            torch.cuda.current_stream(OTHER).wait_stream(side)
            got.record_stream(torch.cuda.current_stream(OTHER))
            near(got, want)
            near(compiled(*args).clone(), want)


def test_what_a_side_stream_made_is_not_given_out_again_too_soon() -> None:
    """Memory of results lives as torch's allocator says, by the stream that the call ran on."""
    x = torch.randn(1 << 20, device=OTHER)
    compiled = bytejit.compile(lambda x: x.sin() * 2 + 1)
    side = torch.cuda.Stream(device=OTHER)
    kept = []
    with torch.no_grad(), torch.cuda.device(OTHER):
        side.wait_stream(torch.cuda.current_stream())
        for turn in range(8):
            with torch.cuda.stream(side):
                kept.append(compiled(x + turn))
                del kept[:-2]
        torch.cuda.current_stream().wait_stream(side)
        near(kept[-1], (x + 7).sin() * 2 + 1)
        near(kept[-2], (x + 6).sin() * 2 + 1)


def test_random_numbers_are_each_devices_own() -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, training=True) + torch.rand_like(x)

    compiled = bytejit.compile(drawn)
    for device in (1, 0, 1):
        x = torch.ones(4096, device=device)
        torch.cuda.manual_seed_all(3)
        got = compiled(x)
        torch.cuda.manual_seed_all(3)
        near(got, drawn(x))


def test_an_index_out_of_range_is_told_for_its_device() -> None:
    table, at = torch.randn(8, 4, device=OTHER), torch.tensor([1, 9], device=OTHER)
    compiled = bytejit.compile(lambda table, at: table[at] * 2)
    compiled(table, at - 2)
    compiled(table, at)
    torch.cuda.synchronize(OTHER)
    with pytest.raises(IndexError):
        compiled(table, at - 2)
    near(compiled(table, at - 2), table[at - 2] * 2)


def test_the_other_device_without_memory() -> None:
    compiled = bytejit.compile(lambda x, n: x.expand(n, -1) * 2 + 1, dynamic=True)
    x = torch.randn(1 << 20, device=OTHER)
    compiled(x, 4)
    with pytest.raises(torch.OutOfMemoryError):
        compiled(x, 1 << 18)  # 1 TiB
    near(compiled(x, 4), x.expand(4, -1) * 2 + 1)
    assert torch.cuda.current_device() == 0


def test_what_the_cpu_makes_of_results() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor) -> tuple:
        y = (x @ w).relu()
        down = y.sum(0).cpu() * 3
        return y, down, down.to(x.device) + y[0]

    compiled = bytejit.compile(mixed)
    args = operands(OTHER)
    with torch.no_grad():
        for _ in range(4):
            for got, want in zip(compiled(*args), mixed(*args)):
                near(got, want)
