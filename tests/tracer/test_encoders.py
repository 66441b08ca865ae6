"""`TransformerEncoder` in evaluation: eager fills padding with zeros where sequences begin at the left."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bytejit

PADDING = {
    "at the right": [[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]],
    "at the left": [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 1, 1]],
    "a whole row": [[0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]],
    "none": [[0] * 4] * 3,
}


class Loud(nn.LayerNorm):
    """Breaks the graph within the encoder."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(tuple(x.shape))
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm", [None, nn.LayerNorm, Loud])
@pytest.mark.parametrize("padding", PADDING)
def test_padding_as_eager(padding: str, norm: type | None) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, norm=norm and norm(8)).eval()
    x, mask = torch.randn(3, 4, 8), torch.tensor(PADDING[padding], dtype=torch.bool)
    compiled = bytejit.compile(lambda x, mask: model(x, src_key_padding_mask=mask).mean(1), backend="eager")
    with torch.no_grad():
        for given in (mask, mask.float().masked_fill(mask, float("-inf"))):
            want = model(x, src_key_padding_mask=given).mean(1)
            torch.testing.assert_close(compiled(x, given), want, equal_nan=True)
    x.requires_grad_()  # eager packs nothing
    torch.testing.assert_close(compiled(x, mask), model(x, src_key_padding_mask=mask).mean(1), equal_nan=True)
    assert norm is Loud or not bytejit.counters["breaks"]
