"""Models of two processes: wrapped by torch and compiled, they train as in eager."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is not built with torch.distributed")

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
import bytejit

rank, file = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)


def sharded(model):
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


cpu = torch.device("cpu")
WRAPPED = {
    "ddp": torch.nn.parallel.DistributedDataParallel,
    "fsdp": lambda m: FullyShardedDataParallel(m, device_id=cpu, use_orig_params=True),
    "fsdp, flat": lambda m: FullyShardedDataParallel(m, device_id=cpu),
    "fully_shard": sharded,
}


def losses(wrap, compiled):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = wrap(model)
    called = bytejit.compile(model, backend="aot_eager") if compiled == "outside" else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    drawn = torch.Generator().manual_seed(rank)

    def step(x):
        loss = called(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if compiled == "step":
        step = bytejit.compile(step, backend="aot_eager")
    return torch.stack([step(torch.randn(4, 8, generator=drawn)) for _ in range(5)])


for name, wrap in WRAPPED.items():
    want = losses(wrap, "")
    assert want[-1] != want[0]
    for compiled in ("outside", "step") if name in ("ddp", "fsdp") else ("outside",):
        try:
            torch.testing.assert_close(losses(wrap, compiled), want)
        except Exception as error:
            raise AssertionError(f"{name}, compiled {compiled}") from error
assert bytejit.counters["graphs"]["aot_eager"]
"""

# gloo's threads outlive `destroy_process_group` (in eager as well). One that lets go of a tensor while Python ends takes the
# process with it ("terminate called without an active exception"), so Python's own end is left out: all is asserted by then.
LEAVE = """
import os, sys
import torch.distributed as dist
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


def test_wrapped_models_train_as_in_eager(tmp_path: Path) -> None:
    run_two_processes(PROGRAM, tmp_path)


def run_two_processes(text: str, tmp_path: Path) -> None:
    """Runs a program that joins the process group, with the arguments 0 and 1 and a file at which the two can meet."""
    program = tmp_path / "program.py"
    program.write_text(text + LEAVE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(program), str(rank), str(tmp_path / "meeting")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = []
    try:
        said = [p.communicate(timeout=400)[0] for p in run]
    finally:
        for p in run:
            p.kill()
    assert [p.returncode for p in run] == [0, 0], "\n".join(said)
