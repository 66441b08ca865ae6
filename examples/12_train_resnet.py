"""The tutorial's loop, ResNet-18 with Adam on random images: the whole step compiled, or model and `optimizer.step`; also with
mixed precision. `python examples/12_train_resnet.py 20 16 224`: 20 steps, 16 images of 224 pixels."""

import sys
import time

import torch
from torch import nn

import bytejit

STEPS, BATCH, SIZE = (int(n) for n in sys.argv[1:4]) if len(sys.argv) == 4 else (2, 4, 32)  # and a quarter of its blocks


class Block(nn.Module):
    def __init__(self, given, made, stride):
        super().__init__()
        self.same = stride == 1 and given == made
        conv = lambda n, m, s: nn.Sequential(nn.Conv2d(n, m, 3, s, 1, bias=False), nn.BatchNorm2d(m))  # noqa: E731
        self.first, self.second = conv(given, made, stride), conv(made, made, 1)
        self.short = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x):
        return (self.second(self.first(x).relu()) + (x if self.same else self.short(x))).relu()


def resnet18():
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    sizes = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))[: None if len(sys.argv) == 4 else 2]
    blocks = [b for n, m, s in sizes for b in (Block(n, m, s), Block(m, m, 1))[: None if len(sys.argv) == 4 else 1]]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1][1], 1000))


def train(way: str, amp: bool) -> list[float]:
    torch.manual_seed(0)
    model = resnet18()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    forward, update = (bytejit.compile(f) if way == "model" else f for f in (model, optimizer.step))
    x, y, losses = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(1000, (BATCH,)), []

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        update()
        return loss.detach()

    run = bytejit.compile(step, fullgraph=True) if way == "step" else step
    for _ in range(STEPS):
        began = time.perf_counter()
        losses.append(run(x, y).item())
    print(f"{way:6} amp={amp}: losses {losses[0]:.3f} to {losses[-1]:.3f}, last step {time.perf_counter() - began:.3f} s")
    return losses


for amp in (False, True):
    eager = train("eager", amp)
    for way in ("model", "step") if len(sys.argv) == 4 else ("model",) if amp else ("step",):
        torch.testing.assert_close(train(way, amp), eager, rtol=0.02, atol=0.5 if amp else 0.02)
