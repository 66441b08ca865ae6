"""Whether compiled training learns as eager does: 200 steps of ten small models, several seeds, three ways.

    python benchmarks/learning.py [--steps 200] [--seeds 3] [--families GRU ...] [--plot learning.png]

Ways: eager; the model compiled alone, with the optimizer as it is; the whole step compiled. The table says for each model the
mean of the last ten losses over the seeds, eager's spread over the seeds, and the largest distance of a compiled curve from
eager's of the same seed, each smoothed over ten steps. "within" says whether that distance is below the spread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

import bytejit

CLASSES, VOCABULARY = 4, 32
WAYS = ("eager", "model alone", "whole step")


class Gpt(nn.Module):
    """A decoder of two layers on tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(16, width)
        layer = {"nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, **layer) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            h = layer(h, src_mask=mask)
        return self.head(h).flatten(0, 1)


class Lstm(nn.Module):
    """A recurrent classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(8, 24, batch_first=True), nn.Linear(24, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Vit(nn.Module):
    """Patches of an image through an encoder."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(1, width, 4, 4), nn.Parameter(torch.zeros(1, 16, width))
        layer = {"nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True, "activation": "gelu"}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, **layer) for _ in range(2))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, CLASSES))


def cnn() -> nn.Module:
    block = lambda i, o: (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*block(1, 8), *block(8, 16), nn.Flatten(), nn.Linear(256, CLASSES))


class Gru(nn.Module):
    """A recurrent classifier of two layers, both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(8, 16, 2, batch_first=True, bidirectional=True), nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0].mean(1))


class Residual(nn.Module):
    """A block with a sum around two convolutions and batch norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


class Depthwise(nn.Module):
    """A block as of ConvNeXt: each channel by itself, layer norm, two products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 5, 1, 2, groups=width), nn.LayerNorm(width)
        self.wide, self.back, self.scale = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            nn.Parameter(torch.ones(width)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.back(F.gelu(self.wide(h)))).permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Down to half the size and up again beside what went down, group norm."""

    def __init__(self) -> None:
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, 1, 1), nn.GroupNorm(4, o), nn.SiLU())
        self.down, self.middle, self.up = block(1, 8), block(8, 16), block(24, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down(x)
        two = F.interpolate(self.middle(F.avg_pool2d(one, 2)), scale_factor=2, mode="bilinear")
        return self.head(self.up(torch.cat([one, two], 1)).amax((2, 3)))


class Mixer(nn.Module):
    """Products along places and along features in turn, RMS norm."""

    def __init__(self, places: int = 6, width: int = 24) -> None:
        super().__init__()
        self.inner, self.norms = nn.Linear(8, width), nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.across, self.along = (nn.ModuleList(nn.Linear(n, n) for _ in range(2)) for n in (places, width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x)
        for i, (across, along) in enumerate(zip(self.across, self.along)):
            h = h + F.gelu(across(self.norms[2 * i](h).mT)).mT
            h = h + F.gelu(along(self.norms[2 * i + 1](h)))
        return self.head(h.mean(1))


def resnet() -> nn.Module:
    layers = (
        nn.Conv2d(1, 16, 3, 2, 1),
        Residual(16),
        Residual(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )
    return nn.Sequential(*layers)


def convnext() -> nn.Module:
    layers = (nn.Conv2d(1, 16, 2, 2), Depthwise(16), Depthwise(16), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(16, CLASSES))


def batches(shape: tuple[int, ...], steps: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Samples and their classes: a fixed random pattern a class, in noise."""
    patterns = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(99))
    made = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        y = torch.randint(0, CLASSES, (32,), generator=made)
        yield patterns[y] + 2 * torch.randn(32, *shape, generator=made), y


def texts(shape: tuple[int, ...], steps: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Sequences in which each token follows from the one before, but for some."""
    made = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randint(0, VOCABULARY, (16, 1), generator=made)
        for _ in range(shape[0]):
            following = (x[:, -1:] * 5 + 3) % VOCABULARY
            noise = torch.randint(0, VOCABULARY, following.shape, generator=made)
            x = torch.cat([x, torch.where(torch.rand(following.shape, generator=made) < 0.2, noise, following)], 1)
        yield x[:, :-1].contiguous(), x[:, 1:].flatten()


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable, tuple[int, ...]]] = {
    "MLP": (mlp, batches, (16,)),
    "CNN, batch norm": (cnn, batches, (1, 16, 16)),
    "GPT": (Gpt, texts, (16,)),
    "LSTM": (Lstm, batches, (6, 8)),
    "ViT": (Vit, batches, (1, 16, 16)),
    "GRU": (Gru, batches, (6, 8)),
    "ResNet": (resnet, batches, (1, 16, 16)),
    "ConvNeXt": (convnext, batches, (1, 16, 16)),
    "U-Net": (UNet, batches, (1, 16, 16)),
    "Mixer": (Mixer, batches, (6, 8)),
}


def curve(family: str, way: str, seed: int, steps: int) -> list[float]:
    """The losses of a training from a seed."""
    make, data, shape = FAMILIES[family]
    bytejit.reset()
    torch.manual_seed(seed)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    run = bytejit.compile(model) if way == "model alone" else model

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if way == "whole step":
        step = bytejit.compile(step)
    return [float(step(x, y)) for x, y in data(shape, steps, seed)]


def smooth(losses: list[float]) -> torch.Tensor:
    """Means over ten steps."""
    return torch.tensor(losses).unfold(0, 10, 1).mean(1)


def plot(curves: dict[str, dict[str, list[torch.Tensor]]], path: str) -> None:
    """A picture a family: each way a colour, each seed a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(4 * len(curves), 3), squeeze=False)
    axes = axes[0]
    for axis, (family, ways) in zip(axes, curves.items()):
        for colour, (way, lines) in zip(("black", "tab:blue", "tab:orange"), ways.items()):
            for i, line in enumerate(lines):
                axis.plot(line, color=colour, linewidth=1, alpha=0.7, label=way if i == 0 else None)
        axis.set(title=family, xlabel="step")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    p.add_argument("--plot", default="", help="where a picture of the curves is written")
    a = p.parse_args()
    torch.set_num_threads(1)
    curves: dict[str, dict[str, list[torch.Tensor]]] = {}
    print(f"{'model':16} {'way':12} {'last losses':>11} {'spread':>8} {'distance':>9}  within    s")
    for family in a.families:
        curves[family] = {}
        for way in WAYS:
            start = time.perf_counter()
            lines = curves[family][way] = [smooth(curve(family, way, seed, a.steps)) for seed in range(a.seeds)]
            eager = torch.stack(curves[family]["eager"])
            spread = float((eager.max(0).values - eager.min(0).values).max())
            distance = float((torch.stack(lines) - eager).abs().max())
            last = float(torch.stack(lines)[:, -1].mean())
            said = "" if way == "eager" else f"{distance:9.1e}  {'yes' if distance < spread else 'NO':6}"
            print(f"{family:16} {way:12} {last:11.4f} {spread:8.3f} {said:17} {time.perf_counter() - start:4.0f}", flush=True)
    if a.plot:
        plot(curves, a.plot)


if __name__ == "__main__":
    main()
