"""Language models over batches and lengths in random order: right each time, few compiles, no C++ for a new size."""

from __future__ import annotations

import random

import pytest
import torch

import bytejit
from bytejit.common import registry

from . import zoo

SIZES = [(b, n) for b in (1, 2, 3, 8) for n in (1, 2, 7, 33, 64)]


def gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=90, n_positions=64, bos_token_id=0, eos_token_id=0)
    )


def bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64, vocab_size=90))


@pytest.mark.cxx
@pytest.mark.parametrize("make", [gpt2, bert])
def test_batches_and_lengths(make) -> None:
    pytest.importorskip("transformers")
    zoo.torchvision()
    torch.manual_seed(0)
    model = make().eval()
    f = bytejit.compile(model)
    order = random.Random(3).sample(SIZES, 12)
    with torch.no_grad():
        for b, n in order:
            tokens = torch.randint(0, 90, (b, n))
            for got, want in zip(f(tokens).to_tuple(), model(tokens).to_tuple(), strict=True):
                if isinstance(want, torch.Tensor):
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert registry.counters["graphs"]["inductor"] <= 4
    assert not registry.counters["fallbacks"] and not registry.counters["faults"]
