"""What the tests of our own library kernels share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=[1, 2], ids=["one_thread", "two_threads"])
def threads(request):
    """Torch's thread count in the test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
