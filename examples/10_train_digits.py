"""Train a small network on handwritten digits: eager, the model compiled alone, and the whole step compiled as one graph;
each also with mixed precision. `python examples/10_train_digits.py 300 5`: 300 steps, 5 seeds, and a plot, digits.png.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import bytejit

STEPS, SEEDS = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (40, 2)
IMAGES, LABELS = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
IMAGES = IMAGES.float() / 16


def train(seed: int, way: str, amp: bool) -> list[float]:
    """The losses of a run. way: "eager", "model" or "step", which is compiled."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    forward = bytejit.compile(model) if way == "model" else model

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = bytejit.compile(step, fullgraph=True) if way == "step" else step
    order = torch.Generator().manual_seed(seed)
    batches = [torch.randint(len(LABELS), (64,), generator=order) for _ in range(STEPS)]
    return [run(IMAGES[b], LABELS[b]).item() for b in batches]


def main():
    for amp in (False, True):
        ends = {}
        for way in ("eager", "model", "step"):
            losses = torch.tensor([train(seed, way, amp) for seed in range(SEEDS)])
            plt.plot(losses.mean(0), label=f"{way}, {'bfloat16' if amp else 'float32'}", alpha=0.7)
            ends[way] = losses[:, -10:].mean(1)
            print(f"{way:6} amp={amp}: loss {ends[way].mean():.4f} (from {losses[:, 0].mean():.4f})")
        spread = (ends["eager"].max() - ends["eager"].min()).item()
        for way in ("model", "step"):
            assert (ends[way] - ends["eager"]).abs().max().item() <= spread + 0.02, (way, amp, ends)
    plt.xlabel("step"), plt.ylabel("loss"), plt.yscale("log"), plt.legend()
    plt.savefig("digits.png")


if __name__ == "__main__":
    main()
