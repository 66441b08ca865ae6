"""The operators of sums at places that are sorted (`codegen/libraries/sorted_sums.py`). Importing this defines them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .own_operators import OPERATORS

OPERATORS.define("flat_places(Tensor[] indices, int[] sizes) -> Tensor")
OPERATORS.define("sort_places(Tensor places) -> (Tensor, Tensor)")
OPERATORS.define("add_sorted(Tensor? base, Tensor values, Tensor places, Tensor order, int rows) -> Tensor")


def flat_places(indices: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """The places that index tensors name in the leading dims of a tensor, row-major, in int32, of the shape that the indices
    broadcast to. sizes: of those dims. Raises: IndexError for an index out of range."""
    made = torch.zeros((), dtype=torch.int64, device=indices[0].device)
    for index, size in zip(torch.broadcast_tensors(*indices), sizes, strict=True):
        if ((index < -size) | (index >= size)).any():
            raise IndexError(f"an index is out of range for a dimension of size {size}")
        made = made * size + torch.where(index < 0, index + size, index)
    return made.int()


def sort_places(places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat places sorted, and where each was, in int64: equal ones in their order."""
    return torch.sort(places, stable=True)


OPERATORS.impl("flat_places", flat_places, "CompositeExplicitAutograd")
OPERATORS.impl("sort_places", sort_places, "CompositeExplicitAutograd")
