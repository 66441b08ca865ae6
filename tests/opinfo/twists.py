"""Other inputs for an operator than its samples: a twist gives a sample's tensors another layout, dtype or content.

A twist that eager refuses is still compared: the compiled call has to refuse it too.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 1e-40)  # nothing large: sums would differ by their order


def mapped(x: object, change: Callable[[torch.Tensor], object]) -> object:
    """`x` with each strided tensor in it changed."""
    if isinstance(x, torch.Tensor):
        return change(x) if x.layout == torch.strided and not x.is_meta else x
    if isinstance(x, (list, tuple)):
        parts = [mapped(v, change) for v in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return {k: mapped(v, change) for k, v in x.items()} if isinstance(x, dict) else x


def _leaf(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return t.detach().requires_grad_(like.requires_grad and (t.is_floating_point() or t.is_complex()))


def _strided(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Every second element of a larger tensor, from its second element on."""
    if not t.dim():
        return _leaf(torch.stack((t.detach(),) * 3)[1], t)
    wide = torch.repeat_interleave(t.detach(), 2, -1)
    return _leaf(torch.cat((wide[..., :1], wide), -1)[..., 1::2], t)


def _transposed(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """The dims in another order in memory."""
    order = list(range(t.dim()))
    rng.shuffle(order)
    back = [order.index(d) for d in range(t.dim())]
    return _leaf(t.detach().permute(order).contiguous().permute(back), t)


def _expanded(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """One dim of stride 0."""
    dims = [d for d in range(t.dim()) if t.shape[d] > 1]
    if not dims:
        return t
    d = rng.choice(dims)
    return _leaf(t.detach().narrow(d, 0, 1).expand(t.shape), t)


def _channels_last(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Channels innermost."""
    kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
    return _leaf(t.detach().contiguous(memory_format=kinds[t.dim()]), t) if t.dim() in kinds else _transposed(t, rng)


def _scattered(values: tuple, t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    out = t.detach().clone()
    for _ in range(max(1, out.numel() // 4) if out.numel() else 0):
        out[tuple(rng.randrange(n) for n in out.shape)] = rng.choice(values)
    return _leaf(out, t)


def _special(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Some elements nan, infinite, -0.0, subnormal."""
    if t.is_floating_point():
        return _scattered(SPECIAL, t, rng)
    return t


def _extreme(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Whole numbers at the ends of their range, which as indices are out of range."""
    if t.dtype == torch.bool or t.is_floating_point() or t.is_complex():
        return t
    ends = torch.iinfo(t.dtype)
    return _scattered((0, 1, ends.min, ends.max, -1), t, rng)


def _single(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """No dims: one of its elements."""
    return _leaf(t.detach().flatten()[0].clone(), t) if t.numel() else t


def _empty(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """A first dim of size 0."""
    return _leaf(t.detach()[:0].clone(), t) if t.dim() else t


def _one(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """A last dim of size 1 that keeps its stride."""
    return _leaf(t.detach()[..., :1], t) if t.dim() else t


LAYOUTS = {"strided": _strided, "transposed": _transposed, "expanded": _expanded, "channels_last": _channels_last}
CONTENTS = {"special": _special, "extreme": _extreme}
SHAPES = {"single": _single, "empty": _empty, "one": _one}
MIXED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
NUMBERS = (2, -3, 0.5, True, 0, 2.5, float("nan"), float("inf"))
TWISTS = (*LAYOUTS, *CONTENTS, *SHAPES, "mixed", "number")


def twisted(twist: str, inputs: tuple, seed: str) -> tuple:
    """(input, args, kwargs) of a sample, changed. seed: text that chooses what is left to chance."""
    rng = random.Random(seed)
    change = {**LAYOUTS, **CONTENTS, **SHAPES}.get(twist)
    if change is not None:
        return mapped(inputs, lambda t: change(t, rng))
    if twist == "mixed":  # each tensor keeps its dtype or gets another one
        return mapped(inputs, lambda t: _leaf(t.detach().to(rng.choice((t.dtype, *MIXED))), t))
    count = [0]

    def number(t: torch.Tensor) -> object:
        """The first tensor stays; others become a number, or a tensor of a number in another dtype."""
        count[0] += 1
        if count[0] == 1:
            return t
        value = rng.choice(NUMBERS)
        if rng.random() < 0.5:
            return value
        return torch.tensor(value, device=t.device) if rng.random() < 0.5 else torch.tensor(value).to(rng.choice(MIXED))

    return mapped(inputs, number)
