"""The torch operators of bytejit's own, `torch.ops.bytejit`: the one `torch.library.Library` that defines and implements them."""

from __future__ import annotations

import torch

OPERATORS = torch.library.Library("bytejit", "FRAGMENT")  # torch forgets the operators when this object goes
