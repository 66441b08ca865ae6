"""The operators of attentions whose scores a program changes (flex_attention): the mark that the tracer leaves around what it
wrote out, and the kernel that `codegen/libraries/flex.py` puts in its place. Importing this defines them."""

from __future__ import annotations

import torch

from .own_operators import OPERATORS

OPERATORS.define(
    "flex_mark(Tensor q, Tensor k, Tensor v, Tensor scores, Tensor changed, Tensor seen, Tensor made, Tensor sums, Tensor tops, "
    "Tensor few, Tensor few_at, Tensor? full, Tensor? full_at, int rows, int keys, float scale) -> (Tensor, Tensor, Tensor)"
)
OPERATORS.define(
    "gpu_flex(Tensor q, Tensor k, Tensor v, Tensor few, Tensor few_at, Tensor? full, Tensor? full_at, Tensor[] captured, "
    "int[] strides, int rows, int keys, float scale, str score, str seen) -> (Tensor, Tensor, Tensor)"
)


def written_out(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs without a kernel: returns what the program wrote out."""
    made, sums, tops = given[6:9]
    return made.clone(), sums.clone(), tops.clone()


OPERATORS.impl("flex_mark", written_out, "CompositeExplicitAutograd")


def wanted(query: torch.Tensor, changed: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a mark may become a kernel: on a GPU, where no gradient is asked for."""
    return query.device.type == "cuda" and not (changed.requires_grad or value.requires_grad)
