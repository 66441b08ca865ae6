"""A sample of random op chains in kernels of a GPU, with and without their backward passes (`python -m tests.fuzz --chains
--device cuda` runs many)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ..fuzz.chain_runner import check_chain, raises
from ..fuzz.chains import chain, trained
from ..programs import targets

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    with targets.strict():
        yield
    torch.set_default_device(None)


@pytest.mark.parametrize("n", range(12))
def test_chains(n: int) -> None:
    with torch.device("cpu"):
        text = chain(n)
    check_chain(text, device="cuda")
    if not raises(trained(text), "cuda"):
        check_chain(trained(text), device="cuda")
