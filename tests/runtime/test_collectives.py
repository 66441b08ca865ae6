"""Calls that meet other processes (here: one alone) break a graph once, at the program's line; ranks and sizes do not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bytejit

dist = pytest.importorskip("torch.distributed")
pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch is not built with torch.distributed"),
    pytest.mark.filterwarnings("ignore"),
]
X = torch.arange(4.0)


@pytest.fixture(autouse=True, scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("GLOO_SOCKET_IFNAME", "lo")
    meeting: Path = tmp_path_factory.mktemp("meeting") / "file"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    patch.undo()


def all_reduce(y):
    dist.all_reduce(y)
    return y


def all_gather(y):
    made = [torch.empty_like(y)]
    dist.all_gather(made, y)
    return made[0]


def later(y):
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y


def broadcast(y):
    dist.broadcast(y, 0)
    dist.barrier()
    return y


@pytest.mark.parametrize("meet, waits", [(all_reduce, False), (all_gather, False), (later, True), (broadcast, False)])
def test_they_run_whole(meet, waits):
    def f(x):
        y = x * 2
        if dist.is_initialized() and dist.get_world_size() == 1 and dist.get_rank() == 0:
            y = meet(y)
        return y + 1

    c = bytejit.compile(f, backend="aot_eager")
    for _ in range(2):
        assert torch.equal(c(X), f(X))
    whole = [reason for reason in bytejit.counters["breaks"] if "distributed_c10d." in reason and "runs as it is" in reason]
    others = [reason for reason in bytejit.counters["breaks"] if reason not in whole]
    assert whole and bool(others) == waits, bytejit.counters
    assert 2 <= bytejit.counters.total("graphs") <= 3


def test_sharded_tensors_are_made_and_gathered_as_they_are():
    tensors = pytest.importorskip("torch.distributed.tensor")
    mesh = tensors.init_device_mesh("cpu", (1,))
    sharded = [tensors.Shard(0)]

    def f(x):
        y = tensors.DTensor.from_local(x * 2, mesh, sharded)
        return y.to_local() + 1, tensors.distribute_tensor(x, mesh, sharded)

    c = bytejit.compile(f, backend="aot_eager")
    for _ in range(2):
        got, want = c(X), f(X)
        assert torch.equal(got[0], want[0]) and isinstance(got[1], tensors.DTensor) and torch.equal(got[1].full_tensor(), X)


def test_a_tensor_over_processes_is_made_in_one_step():
    tensors = pytest.importorskip("torch.distributed.tensor")
    mesh, sharded = tensors.init_device_mesh("cpu", (1,)), [tensors.Shard(0)]
    c = bytejit.compile(lambda x: tensors.distribute_tensor(x * 2, mesh, sharded), backend="aot_eager")
    assert torch.equal(c(X).full_tensor(), X * 2)
    assert [reason.partition(" at ")[0] for reason in bytejit.counters["breaks"]] == [
        "torch.distributed.tensor.distribute_tensor runs as it is"
    ]


@pytest.mark.parametrize("given_sharded", [False, True])
def test_layers_of_sharded_weights_are_one_graph(given_sharded):
    tensors = pytest.importorskip("torch.distributed.tensor")
    parallel = pytest.importorskip("torch.distributed.tensor.parallel")
    mesh = tensors.init_device_mesh("cpu", (1,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    plain, x = copy.deepcopy(model), torch.randn(3, 4)
    if given_sharded:
        model, given = tensors.distribute_module(model, mesh), tensors.distribute_tensor(x, mesh, [tensors.Replicate()])
    else:
        given = x
        parallel.parallelize_module(model, mesh, {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()})
    c = bytejit.compile(model, backend="aot_eager")
    for _ in range(3):
        got, want = c(given), plain(x)
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(got.full_tensor() if given_sharded else got, want)
    for p, wanted in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(p.grad.full_tensor(), wanted.grad)
    assert not bytejit.counters["breaks"] and bytejit.counters.total("graphs") == 1


def test_the_place_among_other_processes_is_known_in_the_graph():
    def f(x):
        if dist.get_rank() == 0:
            x = x + dist.get_world_size()
        return x * dist.get_rank(dist.group.WORLD)

    c = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(c(X), f(X))
    assert bytejit.counters.total("graphs") == 1
