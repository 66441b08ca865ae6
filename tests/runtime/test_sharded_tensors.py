"""Tensors that hold others (DTensor, and torch's own TwoTensor): one graph, with eager's results, gradients and writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import bytejit

from .test_distributed import run_two_processes

dist = pytest.importorskip("torch.distributed")
pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch is not built with torch.distributed"),
    pytest.mark.filterwarnings("ignore"),
]
tensors = pytest.importorskip("torch.distributed.tensor")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")
Shard, Replicate, Partial = tensors.Shard, tensors.Replicate, tensors.Partial
LAYOUTS = ([Shard(0)], [Replicate()], [Shard(1)])
MESH: list[Any] = []


@pytest.fixture(autouse=True, scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("GLOO_SOCKET_IFNAME", "lo")
    meeting: Path = tmp_path_factory.mktemp("meeting") / "file"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    MESH[:] = [tensors.init_device_mesh("cpu", (1,))]
    yield
    MESH.clear()
    dist.destroy_process_group()
    patch.undo()


def plain(x: Any) -> Any:
    """What is compared of a value: of a tensor that holds another, its layout and that."""
    if isinstance(x, (tuple, list)):
        return [plain(item) for item in x]
    if isinstance(x, tensors.DTensor):
        return plain(x.placements), x.requires_grad, x.to_local().detach()
    return getattr(x, "dim", -1) if isinstance(x, Shard | Replicate) else x


def moved(x):
    d = tensors.DTensor.from_local(x * 2, MESH[0], [Shard(0)])
    return (d.sin() + 1).redistribute(MESH[0], [Replicate()]).to_local() * 3, d


def reduced(x):
    d = tensors.DTensor.from_local(x.exp(), MESH[0], [Partial()], run_check=False)
    return d.redistribute(placements=[Replicate()], async_op=True).to_local() + x


def written_behind(x):
    d = tensors.DTensor.from_local(x, MESH[0], [Shard(0)], run_check=False)
    x.mul_(2)
    y = d.to_local() + x
    d.add_(1)
    return y, x + 1, d


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("f", [moved, reduced, written_behind])
def test_made_moved_and_taken_out_in_one_graph(f: Callable, backend: str) -> None:
    bytejit.reset()
    compiled = bytejit.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 4)
        own = x.clone()
        torch.testing.assert_close(plain(compiled(own)), plain(f(x)))
        torch.testing.assert_close(own, x)
    assert bytejit.counters.total("graphs") == 1 and not bytejit.counters["breaks"]


def test_their_layout_is_guarded_and_known():
    def f(d):
        if isinstance(d, tensors.DTensor) and d.placements == (Shard(0),):
            return d * 2, d.placements, d.device_mesh.size(), [p.is_shard() for p in d.placements]
        return torch.cat([d, d]).full_tensor(), d.ndim, d._local_tensor + 1

    bytejit.reset()
    compiled = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    for i in range(6):
        d = tensors.distribute_tensor(torch.randn(4, 4), MESH[0], LAYOUTS[i % 3])
        torch.testing.assert_close(plain(compiled(d)), plain(f(d)))
    assert bytejit.counters.total("graphs") == 3


def test_random_numbers_are_drawn_as_they_are():
    d = tensors.distribute_tensor(torch.ones(8, 8), MESH[0], [Replicate()])
    f = lambda d: nn.functional.dropout(d * 2, 0.5) + 1
    compiled = bytejit.compile(f, backend="aot_eager")
    for seed in range(3):
        torch.manual_seed(seed)
        want, state = f(d).to_local(), torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(compiled(d).to_local(), want) and torch.equal(torch.get_rng_state(), state)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.down(nn.functional.gelu(self.up(x))) + x) * 2


def split(model: nn.Module) -> nn.Module:
    return parallel.parallelize_module(model, MESH[0], {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()})


@pytest.mark.parametrize("grad", [False, True])
def test_a_block_of_sharded_layers_is_one_graph(grad: bool) -> None:
    bytejit.reset()
    torch.manual_seed(0)
    model = Block()
    compiled = bytejit.compile(split(copy.deepcopy(model)), fullgraph=True)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 4, requires_grad=grad)
        own = x.detach().clone().requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            want, got = model(x), compiled(own)
        torch.testing.assert_close(got, want)
        if grad:
            want.tanh().sum().backward()
            got.tanh().sum().backward()
            torch.testing.assert_close(own.grad, x.grad)
    for p, own in zip(model.parameters(), compiled.parameters()) if grad else ():
        whole = own.grad.full_tensor() if isinstance(own.grad, tensors.DTensor) else own.grad
        torch.testing.assert_close(whole, p.grad, atol=1e-4, rtol=1e-4)
    assert bytejit.counters.total("graphs") == 2


def test_a_training_step_of_sharded_layers():
    def steps(compile: Callable) -> list:
        torch.manual_seed(0)
        model = split(Block())
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).tanh().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = compile(step)
        return [step(torch.randn(3, 4)) for _ in range(3)] + [plain(p) for p in model.parameters()]

    torch.testing.assert_close(steps(lambda f: bytejit.compile(f, backend="aot_eager")), steps(lambda f: f), atol=1e-4, rtol=1e-4)


def test_two_tensors_in_one():
    f = lambda x: (x.sin() + 1) * x
    compiled, x = bytejit.compile(f, fullgraph=True), TwoTensor(torch.randn(3), torch.randn(3))
    got, want = compiled(x), f(x)
    assert type(got) is TwoTensor and torch.equal(got.a, want.a) and torch.equal(got.b, want.b)


TWO = """
import copy
import sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import bytejit

rank, file = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4), torch.nn.Tanh())
split = parallelize_module(copy.deepcopy(plain), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
# one process compiles, the other does not: a compile meets nobody
called = bytejit.compile(split, fullgraph=True) if rank == 0 else split
for _ in range(3):
    x = torch.randn(3, 4)
    got, want = called(x), plain(x)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    want.sum().backward()
for p, own in zip(plain.parameters(), split.parameters()):
    torch.testing.assert_close(own.grad.full_tensor(), p.grad)


def f(d):
    return (d @ d.T).redistribute(placements=[Replicate()]).to_local().relu() + 1


compiled = bytejit.compile(f, fullgraph=True) if rank == 0 else f
for layout in (Shard(0), Shard(1), Replicate(), Shard(0)):
    d = distribute_tensor(torch.randn(4, 4), mesh, [layout])
    torch.testing.assert_close(compiled(d), f(d))
assert rank or bytejit.counters.total("graphs") == 4
"""


def test_of_two_processes_one_compiles(tmp_path: Path) -> None:
    run_two_processes(TWO, tmp_path)
