"""Train a character GPT on the project's README, as is and with mixed precision: eager, the model compiled alone, and the
whole step (forward, backward, clipping, AdamW) compiled as one graph. `python examples/11_train_gpt.py 300`: 300 steps,
two blocks."""

import sys
from pathlib import Path

import torch
from torch import nn

import bytejit

STEPS, BLOCKS = (int(sys.argv[1]), 2) if len(sys.argv) > 1 else (6, 1)
WIDTH, HEADS, LENGTH = 64, 4, 32
TEXT = (Path(__file__).resolve().parent.parent / "README.md").read_text()
CHARACTERS = sorted(set(TEXT))
DATA = torch.tensor([CHARACTERS.index(c) for c in TEXT])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def train(way: str, amp: bool) -> list[float]:
    torch.manual_seed(0)
    blocks = (Block() for _ in range(BLOCKS))
    model = nn.Sequential(nn.Embedding(len(CHARACTERS), WIDTH), *blocks, nn.Linear(WIDTH, len(CHARACTERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    forward = bytejit.compile(model) if way == "model" else model

    def step(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            loss = nn.functional.cross_entropy(forward(x).flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = bytejit.compile(step, fullgraph=True) if way == "step" else step
    starts = torch.randint(len(DATA) - LENGTH - 1, (STEPS, 8), generator=torch.Generator().manual_seed(0))
    batches = [torch.stack([DATA[i : i + LENGTH + 1] for i in at]) for at in starts]
    return [run(b[:, :-1], b[:, 1:]).item() for b in batches]


for amp in (False, True):
    eager = torch.tensor(train("eager", amp))
    for way in ("model", "step") if len(sys.argv) > 1 else ("model",) if amp else ("step",):
        losses = torch.tensor(train(way, amp))
        print(f"{way} compiled, amp={amp}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, eager {eager[-1]:.4f}")
        assert (losses - eager).abs().mean() < 0.05 and losses[-1] < losses[0]
