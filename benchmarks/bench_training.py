"""Training steps: forward, loss, backward, Adam; the model compiled, the loop as it is. Eager and compiled in turn.

Each way has a process of its own. The ways take blocks of steps in turn, so that a machine whose speed drifts is the same for
all of them. Printed: seconds a step, how many times as fast as eager (the median over rounds), seconds of the first step.

    python benchmarks/bench_training.py [mlp resnet bert gpt2] [--peer] [--device cuda] [--seconds 20]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from timing import block_seconds, seconds_text, speedup
from torch import nn

import bytejit

BLOCK = 0.3  # seconds of a block of steps


class Block(nn.Module):
    """The basic block of a residual network."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        plain = before == after and stride == 1
        self.down = None if plain else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + (x if self.down is None else self.down(x)))


def resnet18() -> nn.Module:
    """ResNet-18 for images of 224 x 224 pixels."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(before, after, stride), Block(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mlp(device: str) -> tuple[nn.Module, tuple, Callable]:
    """Six layers of 512, a batch of 64."""
    layers = [part for _ in range(6) for part in (nn.Linear(512, 512), nn.ReLU())]
    target = torch.randn(64, 512, device=device)
    return nn.Sequential(*layers), (torch.randn(64, 512, device=device),), lambda y: nn.functional.mse_loss(y, target)


def resnet(device: str) -> tuple[nn.Module, tuple, Callable]:
    """ResNet-18, a batch of 16."""
    target = torch.randint(0, 1000, (16,), device=device)
    return resnet18(), (torch.randn(16, 3, 224, 224, device=device),), lambda y: nn.functional.cross_entropy(y, target)


def bert(device: str) -> tuple[nn.Module, tuple, Callable]:
    """BERT with 4 layers, 4 sequences of 64."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=4))
    return model, (torch.randint(0, 30000, (4, 64), device=device),), lambda y: y.last_hidden_state.square().mean()


def gpt2(device: str) -> tuple[nn.Module, tuple, Callable]:
    """GPT-2 with 3 layers, 2 sequences of 64."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.randint(0, 50000, (2, 64), device=device)
    model = GPT2LMHeadModel(GPT2Config(n_layer=3, use_cache=False))
    return model, (ids,), lambda y: nn.functional.cross_entropy(y.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


CASES = {"mlp": mlp, "resnet": resnet, "bert": bert, "gpt2": gpt2}
WAYS = {"eager": lambda m: m, "bytejit": bytejit.compile, "peer": lambda m: torch.compile(m)}


def worker(case: str, way: str, device: str) -> None:
    """Run steps as the lines of stdin say: a number of steps -> seconds a step, `loss` -> the loss of the last."""
    torch.manual_seed(0)
    model, args, loss_of = CASES[case](device)
    model = model.to(device).train()
    call, opt, last = WAYS[way](model), torch.optim.Adam(model.parameters(), 1e-5), [0.0]

    def step() -> None:
        opt.zero_grad()
        loss = loss_of(call(*args))
        loss.backward()
        opt.step()
        last[0] = loss

    for line in sys.stdin:
        if line.strip() == "loss":
            print(float(last[0]), flush=True)
        else:
            print(block_seconds(step, int(line), device), flush=True)


def ask(process: subprocess.Popen, line: str) -> float:
    """A worker's answer."""
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measure(case: str, ways: list[str], device: str, seconds: float) -> None:
    """One row of the table."""
    command = [sys.executable, __file__, case, "--device", device, "--worker"]
    workers = {w: subprocess.Popen([*command, w], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for w in ways}
    try:
        first, calls, found = {}, {}, {w: [] for w in ways}
        for w, p in workers.items():
            first[w] = ask(p, "1")
            once = min(ask(p, "1") for _ in range(4))
            calls[w] = str(max(1, round(BLOCK / once)))
        end, rounds = time.perf_counter() + seconds, 0
        while rounds < 5 or time.perf_counter() < end:
            for w in ways if rounds % 2 == 0 else ways[::-1]:
                found[w].append(ask(workers[w], calls[w]))
            rounds += 1
        for w in ways:
            ratio, loss = speedup(found["eager"], found[w]), ask(workers[w], "loss")
            print(f"{case:8} {w:8} {seconds_text(min(found[w])):>9} {ratio:5.2f} x   first {first[w]:6.2f} s   loss {loss:.4f}")
    finally:
        for p in workers.values():
            p.kill()


def main() -> None:
    """Measure the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--peer", action="store_true", help="torch.compile too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.cases[0], options.worker, options.device)
    for case in options.cases:
        measure(case, ["eager", "bytejit", *(["peer"] if options.peer else [])], options.device, options.seconds)


if __name__ == "__main__":
    main()
