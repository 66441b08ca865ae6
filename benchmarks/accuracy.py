"""How far eager and bytejit each are from float64: the largest distance over an output's elements, and the ratio of the two."""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys

import torch
from models import CASES, Built, tensors

import bytejit

LIMIT = 2.0  # times eager's own distance that an output may have
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
MODELS = ("resnet18_b1", "resnet50", "resnext101", "bert", "gpt2", "vit_s", "convnext_tiny", "unet_block")


class UNetBlock(torch.nn.Module):
    """What diffusion models are made of: convolution, group norm, silu, down by an average, up by bilinear resizing."""

    def __init__(self, channels: int = 32):
        super().__init__()
        self.first = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.second = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.norm1, self.norm2 = torch.nn.GroupNorm(8, channels), torch.nn.GroupNorm(8, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.silu(self.norm1(self.first(x)))
        z = torch.nn.functional.silu(self.norm2(self.second(torch.nn.functional.avg_pool2d(y, 2))))
        return y + torch.nn.functional.interpolate(z, scale_factor=2, mode="bilinear", align_corners=False)


def unet_block() -> Built:
    """A block on 2x32x64x64."""
    return Built(UNetBlock().eval(), (torch.randn(2, 32, 64, 64),))


def distances(built: Built, **options: object) -> list[tuple[float, float]]:
    """(eager's, bytejit's) largest distance from float64 for each output of floats."""

    def wide(value: object) -> object:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    bytejit.reset()
    exact = copy.deepcopy(built.target).double()
    args = [wide(a) for a in built.args]
    with torch.no_grad():
        want = tensors(exact(*args, **built.kwargs))
        plain = tensors(built.target(*built.args, **built.kwargs))
        compiled = bytejit.compile(built.target, options=options)
        compiled(*built.args, **built.kwargs)  # a second call runs in the layouts that the first one met
        got = tensors(compiled(*built.args, **built.kwargs))
    return [((p - w).abs().max().item(), (g - w).abs().max().item()) for w, p, g in zip(want, plain, got, strict=True)]


def measure(names: list[str], seeds: int, options: dict) -> float:
    """Prints a line an output, its worst ratio over all seeds; returns the largest."""
    print(
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads, "
        f"random weights, {seeds} seeds"
    )
    print(f"{'model':<16}{'output':>7}{'eager':>10}{'bytejit':>10}{'ratio':>7}")
    worst = 0.0
    for name in names:
        rows: list[list[tuple[float, float]]] = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            rows.append(distances(unet_block() if name == "unet_block" else CASES[name].build("cpu"), **options))
        for i, runs in enumerate(zip(*rows, strict=True)):
            eager, own = max(runs, key=lambda r: r[1] / max(r[0], 1e-30))
            ratio = own / max(eager, 1e-30)
            worst = max(worst, ratio)
            print(f"{name:<16}{i:>7}{eager:>10.1e}{own:>10.1e}{ratio:>7.2f}", flush=True)
    return worst


def main() -> None:
    """Exit status 1 where an output is further away than LIMIT times eager's distance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--avx2", action="store_true", help="on AVX2, also where the machine has AVX-512")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--freeze", action="store_true", help="with folded and packed weights")
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="model", help=", ".join(MODELS))
    args = parser.parse_args()
    if args.avx2 and any(os.environ.get(name) != value for name, value in AVX2.items()):
        sys.exit(subprocess.call([sys.executable, *sys.argv], env={**os.environ, **AVX2}))  # libraries read it when loaded
    sys.exit(measure(args.names, args.seeds, {"freeze": True} if args.freeze else {}) > LIMIT)


if __name__ == "__main__":
    main()
