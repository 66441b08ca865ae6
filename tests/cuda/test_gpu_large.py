"""Memory of a GPU: where it ends, who gives it back, tensors past 2**31 elements and bytes. Skipped without one."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

import pytest
import torch

import bytejit
from bytejit.backends import cuda
from tests.cuda.test_gpu import near, rand

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@contextlib.contextmanager
def room(size: int) -> Iterator[None]:
    """The process may take so many bytes more of the device; none are left over from before."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + size) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def wide(x: torch.Tensor) -> torch.Tensor:
    """A product with temporaries of 16 times its operands' size."""
    y = torch.softmax(x.repeat(4, 1) @ x.t().repeat(1, 4), -1)
    return (y @ y.sin()).sum(-1)[:10] * 2


def small(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x, -1) + torch.rand_like(x)


def usable(mode: str = "reduce-overhead") -> None:
    """All works as before: kernels, recordings, random numbers."""
    compiled, x = bytejit.compile(small, mode=mode), rand(20, 20)
    with torch.no_grad():
        for _ in range(5):
            torch.manual_seed(5)
            got = compiled(x).clone()
            torch.manual_seed(5)
            near(got, small(x))


# ---- where it ends ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("warm", [0, 1, 4])
def test_out_of_memory(mode: str, warm: int) -> None:
    compiled, x = bytejit.compile(wide, mode=mode), rand(2048, 256)
    with torch.no_grad():
        for _ in range(warm):
            near(compiled(x).clone(), wide(x))
        with room(64 * MIB):
            big = rand(2048, 2048)
            for _ in range(2):
                with pytest.raises(torch.OutOfMemoryError):
                    compiled(big)
            del big
        near(compiled(x).clone(), wide(x))
    usable()


def test_what_is_written_before_memory_ends() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.expand(1 << 16, -1) * 2

    compiled, x = bytejit.compile(f), torch.zeros(1 << 16, device="cuda")
    with torch.no_grad(), room(256 * MIB):
        for turn in range(3):
            with pytest.raises(torch.OutOfMemoryError):
                compiled(x)
            assert torch.equal(x, torch.full_like(x, turn + 1.0))


def test_memory_ends_while_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "how_of", lambda options: "forced")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)  # as where a tensor lies in each piece of free memory
    compiled, x = bytejit.compile(wide), rand(1024, 64)
    with torch.no_grad():
        want = wide(x)
        compiled(x)  # what it needs is in the allocator's hands, not in those of recordings
        taken = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        assert taken > 32 * MIB
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 4 * MIB) / total)
        try:
            for _ in range(4):
                near(compiled(x), want)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("recording failed" in reason for reason in bytejit.counters["cudagraphs"]), bytejit.counters["cudagraphs"]
    usable()


def test_no_memory_to_time_configurations() -> None:
    x = rand(4096, 4096)
    compiled = bytejit.compile(lambda x: torch.softmax(x.sin() * 2, -1), mode="max-autotune-no-cudagraphs")
    with torch.no_grad(), room(72 * MIB):
        got = compiled(x)
    near(got, torch.softmax(x.sin() * 2, -1))


# ---- who gives it back --------------------------------------------------------------------------------------------
def taken() -> tuple[int, int]:
    """Bytes of tensors, bytes held of the device."""
    gc.collect()
    gc.collect()  # what a module's death lets go of: entries and their graphs
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


class Deep(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + x.softmax(-1)


@pytest.mark.parametrize("how", ["", "forced"])
@pytest.mark.parametrize("ends", ["reset", "deleted"])
def test_memory_is_given_back(how: str, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "how_of", lambda options: how)
    before, recorded = taken(), 0
    for _ in range(2):
        model = Deep().cuda().eval()
        compiled, x = bytejit.compile(model), rand(4096, 512)
        with torch.no_grad():
            for turn in range(8):
                kept = compiled(x + turn)
        near(kept, model(x + turn))
        assert taken()[0] - before[0] > 16 * MIB
        recorded += bytejit.counters["cudagraphs"]["recorded"]
        if ends == "reset":
            bytejit.reset()
        del model, compiled, x, kept
        after = taken()
        assert after[0] <= before[0] and after[1] <= before[1] + 2 * MIB
    assert bool(recorded) is bool(how)


def test_recordings_that_are_given_up_give_their_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "how_of", lambda options: "forced")
    model = Deep().cuda().eval()
    compiled = bytejit.compile(model)
    x, most = rand(4096, 512), []
    with torch.no_grad():
        for _ in range(6):
            for p in model.parameters():
                p.data = p.data.clone()
            for _ in range(3):
                near(compiled(x).clone(), model(x))
            most.append(taken()[1])
    assert most[-1] <= most[1] + 4 * MIB, most


# ---- past 2**31 -----------------------------------------------------------------------------------------------
LONG = (1 << 31) + 17


@pytest.fixture
def much() -> Iterator[None]:
    gc.collect()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < 24 << 30:
        pytest.skip(f"needs 24 GiB of the GPU, {free >> 30} are free")
    yield
    gc.collect()
    torch.cuda.empty_cache()


def bytes_long(n: int = LONG) -> torch.Tensor:
    """Small numbers, no two stretches of 509 alike in the same place of a power of two."""
    x = torch.empty(n, dtype=torch.int8, device="cuda")
    for at in range(0, n, 1 << 28):
        part = x[at : at + (1 << 28)]
        part.copy_(torch.arange(at, at + part.numel(), device="cuda", dtype=torch.int64).remainder_(97))
    return x


def halves_long(n: int = LONG) -> torch.Tensor:
    x = torch.empty(n, dtype=torch.bfloat16, device="cuda")
    x.copy_(bytes_long(n))
    return x.div_(16)


def with_a_peak(x: torch.Tensor) -> torch.Tensor:
    x[-3] = 101
    return x


def rows_at_the_ends() -> torch.Tensor:
    return torch.tensor([0, 1, (1 << 22) - 1, 1 << 22, (1 << 22) + 3, 5], device="cuda")


LARGE: dict[str, tuple[Callable, Callable[[], tuple]]] = {
    "pointwise, bytes": (lambda x: x * 2 - 1, lambda: (bytes_long(),)),
    "pointwise, halves": (lambda x: x.sin() + 1, lambda: (halves_long(),)),
    "offsets in bytes alone": (lambda x: (x * 2 + 1, x.sum()), lambda: (halves_long((1 << 30) + 21),)),
    "sum": (lambda x: x.sum(), lambda: (bytes_long(),)),
    "sum of rows": (lambda x: x.sum(-1), lambda: (bytes_long(3 * ((1 << 30) + 7)).view(3, -1),)),
    "sum of columns": (lambda x: x.sum(0), lambda: (bytes_long(5 * ((1 << 29) + 3)).view(-1, 5),)),
    "most": (lambda x: (x.amax(), x.argmax()), lambda: (with_a_peak(bytes_long()),)),
    "softmax of short rows": (lambda x: torch.softmax(x, -1), lambda: (halves_long(((1 << 28) + 3) * 8).view(-1, 8),)),
    "softmax of long rows": (lambda x: torch.softmax(x, -1), lambda: (halves_long((1 << 31) + (1 << 16)).view(-1, 1 << 16),)),
    "cat": (lambda x, y: torch.cat([x, y, x[:5]]) + 1, lambda: (bytes_long((1 << 30) + 9), bytes_long((1 << 30) + 11))),
    "rows by index": (lambda x, i: x[i] * 2, lambda: (bytes_long(((1 << 22) + 4) * 512).view(-1, 512), rows_at_the_ends())),
    "elements by index": (lambda x, i: x[i] + 1, lambda: (bytes_long(), torch.tensor([0, 1 << 31, LONG - 1, -1], device="cuda"))),
    "a part of it": (lambda x: x[(1 << 31) - 3 :] * 3, lambda: (bytes_long(),)),
    "turned": (lambda x: (x.t() + 1).contiguous(), lambda: (bytes_long(3 * ((1 << 30) - 5)).view(3, -1),)),
    "far strides": (lambda x: x[:, :7] + x[:, -7:], lambda: (bytes_long(3 * ((1 << 30) - 5)).view(3, -1),)),
    "broadcast": (lambda x, y: x[:, None] + y, lambda: (bytes_long((1 << 16) + 3), bytes_long(1 << 15))),
    "written": (lambda x: x.add_(1).mul_(2), lambda: (bytes_long(),)),
}


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize("name", LARGE)
def test_large(name: str) -> None:
    fn, make = LARGE[name]
    with torch.no_grad():
        args = make()
        compiled = bytejit.compile(fn, fullgraph=True)
        got = compiled(*args)
        if name == "written":
            got, args = got.clone(), make()
        got, want = (v if isinstance(v, tuple) else (v,) for v in (got, fn(*args)))
        for a, b in zip(got, want):
            assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
            if a.dtype.is_floating_point:
                for part, wanted in zip(a.reshape(-1).split(1 << 28), b.reshape(-1).split(1 << 28)):
                    assert torch.allclose(part, wanted, rtol=2e-2, atol=1e-2)
            else:
                assert torch.equal(a, b)
    assert not bytejit.counters["fallbacks"], bytejit.counters["fallbacks"]
