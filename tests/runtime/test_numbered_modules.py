"""Layers that differ in their number share code where the number is only a key, and give eager's results where it is more."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit
from bytejit.runtime.alike_modules import looks_of
from tests.models.zoo import torchvision
from tests.runtime.test_alike_modules import compile_forward, compile_module, way  # noqa: F401


class Layer(nn.Module):
    def __init__(self, number: int, use: Callable) -> None:
        super().__init__()
        self.number, self.lin, self.use, self.act = number, nn.Linear(4, 4), use, functools.partial(F.gelu, approximate="tanh")

    def forward(self, x: torch.Tensor, state: object) -> torch.Tensor:
        return self.use(self.number, self.act(self.lin(x)), state)


def growing(i: int, x: torch.Tensor, cache: list) -> torch.Tensor:
    """As caches of keys and values are filled and grow."""
    while len(cache) <= i:
        cache.append(None)
    cache[i] = x if cache[i] is None else torch.cat([cache[i], x])
    return cache[i].sum(0) + x


def appended(i: int, x: torch.Tensor, cache: list) -> torch.Tensor:
    if len(cache) <= i:
        cache.append(x)
    else:
        cache[i] = torch.cat([cache[i], x])
    return cache[i].mean() + x


def named(i: int, x: torch.Tensor, table: dict) -> torch.Tensor:
    table[i] = table[i] + x if i in table else x
    return table[i] * 2


KEYS: dict[str, tuple[Callable, type, int]] = {"appended": (appended, list, 6), "named": (named, dict, 5)}
MORE: dict[str, Callable] = {
    "added": lambda i, x, state: x + i,
    "sizes": lambda i, x, state: x[:, : i + 1].sum(1),
    "branch": lambda i, x, state: x + 1 if i in (2, 5) else x * 2,
    "parity": lambda i, x, state: x.sin() if i % 2 else x.cos(),
    "shape": lambda i, x, state: x.new_full((i + 1,), 2.0),
    "both": lambda i, x, state: named(i, x, state) + i,
    "text": lambda i, x, state: state.setdefault(f"layer {i}", x) + x,
    "growing": growing,
}


def check(made: list[nn.Module], plain: list[nn.Module], kind: type, order: list[int]) -> list[int]:
    """Compares calls with eager's, over three steps. Returns how many graphs each step made."""
    states, counts = (kind(), kind()), []
    with torch.no_grad():
        for _ in range(3):
            before = bytejit.counters.total("graphs")
            for n in order:
                x = torch.randn(2, 4)
                torch.testing.assert_close(made[n](x, states[0]), plain[n](x, states[1]))
            counts.append(bytejit.counters.total("graphs") - before)
    torch.testing.assert_close(states[0], states[1])
    assert not bytejit.counters["fallbacks"]
    return counts


@pytest.mark.parametrize("name", KEYS)
def test_a_number_that_is_a_key_is_compiled_once_more(way: Callable, name: str) -> None:  # noqa: F811
    use, kind, most = KEYS[name]
    layers = [Layer(i, use) for i in range(12)]
    counts = check([way(m, dynamic=None) for m in copy.deepcopy(layers)], layers, kind, [*range(12)])
    assert sum(counts) <= most, counts


@pytest.mark.parametrize("order", [[*range(7)], [3, 0, 6, 1, 2, 5, 4]])
@pytest.mark.parametrize("name", MORE)
def test_a_number_that_decides(way: Callable, name: str, order: list[int]) -> None:  # noqa: F811
    layers = [Layer(i, MORE[name]) for i in range(7)]
    check([way(m) for m in copy.deepcopy(layers)], layers, list if name == "growing" else dict, order)


def test_one_function_for_all_layers() -> None:
    layers = [Layer(i, appended) for i in range(12)]
    f = bytejit.compile(Layer.forward, backend="eager")
    counts = check([functools.partial(f, m) for m in layers], layers, list, [*range(12)])
    assert sum(counts) <= 6, counts


def test_a_number_without_an_item_raises_as_eager() -> None:
    made = [compile_module(Layer(i, lambda i, x, state: x + state[i])) for i in (0, 1, 2, -4, 3)]
    state = [torch.ones(4)] * 3
    for m in made[:3]:
        m(torch.ones(2, 4), state)
    for m in made[3:]:
        with pytest.raises(IndexError, match="list index out of range"):
            m(torch.ones(2, 4), state)


def test_only_so_many_numbers_share_code() -> None:
    made = [compile_forward(Layer(i, appended)) for i in range(40)]
    assert len({id(m.forward.__func__.__code__) for m in made}) == 3


def test_partials_are_compared_by_what_they_hold() -> None:
    a, b, c = (Layer(0, appended) for _ in range(3))
    c.act = functools.partial(F.gelu, approximate="none")
    assert looks_of(a) == looks_of(b) != looks_of(c)


@pytest.mark.models
def test_layers_of_a_language_model_share_code() -> None:
    """As regional compiles do it, with the cache that grows."""
    torchvision()
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=8, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, vocab_size=50
    )
    torch.manual_seed(0)
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.randint(0, 50, (1, 5))
    want = model.generate(ids, max_new_tokens=6, do_sample=False)
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = compile_module(layer)
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), want)
    assert bytejit.counters.total("graphs") <= 6 and not bytejit.counters["fallbacks"]
