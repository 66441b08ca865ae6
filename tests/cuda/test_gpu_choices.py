"""Whatever library, layout and fused call is chosen, a network returns as eager: choices at random. Skipped without a GPU."""

from __future__ import annotations

import contextlib
import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit
from bytejit.kernels.tune import Choice
from bytejit.kernels.tune_gpu import GpuTuner

pytestmark = pytest.mark.gpu


def step(a: int, b: int, size: int, act: bool = True) -> nn.Module:
    return nn.Sequential(nn.Conv2d(a, b, size, padding=size // 2, bias=False), nn.BatchNorm2d(b), *([nn.SiLU()] if act else []))


class Network(nn.Module):
    """Patches, a residual stage that begins with two convolutions, parts that are joined, group norms, borders, a step up."""

    def __init__(self, act: type[nn.Module]) -> None:
        super().__init__()
        self.patches, self.norm, self.act = nn.Conv2d(3, 32, 4, 4), nn.GroupNorm(4, 32), act()
        self.stage = nn.ModuleList(nn.ModuleList((step(a, 64, 3, act=False), step(a, 64, 1, act=False))) for a in (32, 64))
        self.part, self.join = step(32, 32, 3), step(96, 32, 1)
        self.up, self.excite = nn.ConvTranspose2d(32, 8, 2, 2), nn.Conv2d(32, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.patches(x)))
        for one, other in self.stage:
            x = self.act(one(x) + other(x))
        _, b = x.chunk(2, 1)
        x = self.join(torch.cat([F.pad(x, (1, 1, 1, 1))[:, :, 1:-1, 1:-1], self.part(b)], 1))
        return self.up(x * torch.sigmoid(self.excite(x.mean((2, 3), keepdim=True))))


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("seed", range(4))
def test_any_choice(seed: int, train: bool, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(seed)

    def choose(self: GpuTuner, op: str, specs: list, candidates: list, *args: object, **how: object) -> Choice:
        operands = [torch.empty_strided(s.shape, s.stride, dtype=s.dtype, device="cuda").zero_() for s in specs]
        for c in candidates:  # each runs, chosen or not; a library may refuse
            with contextlib.suppress(RuntimeError):
                c.call(*(c.prepare(*operands) if c.prepare else operands))
        return Choice("", (), {c.name: numbers.random() for c in candidates}, {})

    monkeypatch.setattr(GpuTuner, "choose", choose)
    torch.manual_seed(seed)
    nets = [Network(nn.SiLU if train else nn.ReLU).cuda().train(train)]
    nets.append(copy.deepcopy(nets[0]))
    x = torch.randn(images, 3, 64, 64, device="cuda")
    got, want = [], []
    for run, net, into in ((bytejit.compile(nets[0]), nets[0], got), (nets[1], nets[1], want)):
        with torch.set_grad_enabled(train):
            into.append(run(x))
        if train:
            (into[0] * torch.linspace(-1, 1, into[0].numel(), device="cuda").view_as(into[0])).sum().backward()
            into += [p.grad for p in net.parameters()]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4 * b.abs().max().item())
    assert not bytejit.counters["fallbacks"], bytejit.counters["fallbacks"]
