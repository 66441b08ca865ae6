"""Training steps: forward, loss, backward, Adam. Eager and compiled in turn.

Forms: `model`: the model compiled, the loop as it is; `optimizer`: the optimizer's step compiled too; `step`: one function with
all of it compiled. Each way has a process of its own. The ways take blocks of steps in turn, so that a machine whose speed
drifts is the same for all of them. Printed: seconds a step, how many times as fast as eager (by the fastest block, and the
median over rounds), seconds of the first step.

    python benchmarks/bench_training.py [mlp resnet bert ...] [--forms model step] [--peer] [--device cuda] [--seconds 20]
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


def gru(device: str) -> tuple[nn.Module, tuple, Callable]:
    """A language model of two GRU layers of 256, 16 sequences of 32."""
    ids = torch.randint(0, 2000, (16, 33), device=device)
    return Recurrent(nn.GRU), (ids[:, :-1],), lambda y: nn.functional.cross_entropy(y.flatten(0, 1), ids[:, 1:].flatten())


def lstm(device: str) -> tuple[nn.Module, tuple, Callable]:
    """The same of two LSTM layers."""
    ids = torch.randint(0, 2000, (16, 33), device=device)
    return Recurrent(nn.LSTM), (ids[:, :-1],), lambda y: nn.functional.cross_entropy(y.flatten(0, 1), ids[:, 1:].flatten())


class Recurrent(nn.Module):
    """Embedding, two recurrent layers, a linear layer to the words."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(2000, 256), kind(256, 256, 2, batch_first=True), nn.Linear(256, 2000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def vit(device: str) -> tuple[nn.Module, tuple, Callable]:
    """A vision transformer: 6 layers of 192, 8 images of 96 x 96 pixels in patches of 8."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=96, patch_size=8, num_labels=100))
    target = torch.randint(0, 100, (8,), device=device)
    return model, (torch.randn(8, 3, 96, 96, device=device),), lambda y: nn.functional.cross_entropy(y.logits, target)


class Twice(nn.Sequential):
    """Two convolutions with group norm."""

    def __init__(self, before: int, after: int) -> None:
        convs = [part for n in (before, after) for part in (nn.Conv2d(n, after, 3, 1, 1), nn.GroupNorm(8, after), nn.SiLU())]
        super().__init__(*convs)


class UNet(nn.Module):
    """Convolutions down to a quarter of the size and up again, with what went down beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = Twice(3, 32), Twice(32, 64), Twice(64, 128)
        self.up2, self.up1, self.out = Twice(192, 64), Twice(96, 32), nn.Conv2d(32, 3, 1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(nn.functional.max_pool2d(one, 2))
        three = self.middle(nn.functional.avg_pool2d(two, 2))
        two = self.up2(torch.cat([self.up(three), two], 1))
        return self.out(self.up1(torch.cat([self.up(two), one], 1)))


def unet(device: str) -> tuple[nn.Module, tuple, Callable]:
    """A U-Net of three levels, 4 images of 64 x 64 pixels."""
    target = torch.randn(4, 3, 64, 64, device=device)
    return UNet(), (torch.randn(4, 3, 64, 64, device=device),), lambda y: nn.functional.mse_loss(y, target)


CASES = {"mlp": mlp, "resnet": resnet, "bert": bert, "gpt2": gpt2, "gru": gru, "lstm": lstm, "vit": vit, "unet": unet}
FORMS = ("model", "optimizer", "step")
COMPILERS = {"eager": lambda f: f, "bytejit": bytejit.compile, "peer": lambda f: torch.compile(f)}


def step_of(case: str, way: str, device: str) -> Callable[[], torch.Tensor]:
    """A training step that returns the loss. way: `eager`, or a compiler and a form: `bytejit.model`."""
    who, _, form = way.partition(".")
    compiled = COMPILERS[who]
    torch.manual_seed(0)
    model, args, loss_of = CASES[case](device)
    model = model.to(device).train()
    call = model if form == "step" else compiled(model)
    opt = torch.optim.Adam(model.parameters(), 1e-5)
    update = compiled(opt.step) if form == "optimizer" else opt.step

    def step() -> torch.Tensor:
        opt.zero_grad()
        loss = loss_of(call(*args))
        loss.backward()
        update()
        return loss

    return compiled(step) if form == "step" else step


def worker(case: str, way: str, device: str) -> None:
    """Run steps as the lines of stdin say: a number of steps -> seconds a step, `loss` -> the loss of one more."""
    step = step_of(case, way, device)
    for line in sys.stdin:
        if line.strip() == "loss":
            print(float(step()), flush=True)
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
            best, ratio, loss = min(found["eager"]) / min(found[w]), speedup(found["eager"], found[w]), ask(workers[w], "loss")
            times = f"{seconds_text(min(found[w])):>9} {best:5.2f} x  median {ratio:5.2f} x   first {first[w]:6.2f} s"
            print(f"{case:8} {w:18} {times}   loss {loss:.4f}", flush=True)
    finally:
        for p in workers.values():
            p.kill()


def main() -> None:
    """Measure the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=FORMS)
    parser.add_argument("--peer", action="store_true", help="torch.compile too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.cases[0], options.worker, options.device)
    compilers = ["bytejit", "peer"] if options.peer else ["bytejit"]
    for case in options.cases:
        measure(case, ["eager", *(f"{c}.{form}" for form in options.forms for c in compilers)], options.device, options.seconds)


if __name__ == "__main__":
    main()
