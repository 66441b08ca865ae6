"""Modules of one class that look alike are compiled once, whatever way they are compiled in; others are compiled by themselves.
Each still is itself: its weights, hooks, flags and attributes, before and after the first call."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit
from bytejit.runtime.alike_modules import looks_of


class Block(nn.Module):
    def __init__(self, size: int = 4, index: int = 0, act: Callable = F.gelu) -> None:
        super().__init__()
        self.norm, self.lin = nn.LayerNorm(size), nn.Linear(size, size)
        self.index, self.act, self.scale = index, act, [1.0, (2, "a")]
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        y = x + self.act(self.lin(self.norm(x))) * self.scale[0]
        if self.training:
            y = y * 2
        return y + 1 if self.index == 3 else y


X = torch.randn(3, 4)


def compile_module(m: nn.Module, **settings: object) -> nn.Module:
    return bytejit.compile(m, backend="eager", **settings)


def compile_forward(m: nn.Module, **settings: object) -> nn.Module:
    m.forward = bytejit.compile(m.forward, backend="eager", **settings)
    return m


def compile_in_place(m: nn.Module, **settings: object) -> nn.Module:
    m.compile(backend="eager", **settings)
    return m


@pytest.fixture(params=[compile_module, compile_forward, compile_in_place])
def way(request: pytest.FixtureRequest) -> Iterator[Callable]:
    """A way to compile a module."""
    if request.param is compile_in_place:
        with bytejit.patch_torch_compile():
            yield request.param
    else:
        yield request.param


def check(blocks: list[nn.Module], made: list[nn.Module], calls: int = 2) -> int:
    """Compares each block's calls with eager's, gradients included. Returns the number of graphs."""
    for _ in range(calls):
        for block, compiled in zip(blocks, made):
            plain = copy.deepcopy(block)
            plain.__dict__.pop("forward", None)
            plain.__dict__["_compiled_call_impl"] = None
            x, y = (X.clone().requires_grad_() for _ in range(2))
            got, want = compiled(x), plain(y)
            torch.testing.assert_close(got, want)
            block.zero_grad()
            got.sum().backward()
            want.sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
            for p, q in zip(block.parameters(), plain.parameters()):
                torch.testing.assert_close(p.grad, q.grad)
            torch.testing.assert_close(block.state_dict(), plain.state_dict())
    assert not bytejit.counters["fallbacks"]
    return sum(bytejit.counters["graphs"].values())


def test_equal_blocks_are_compiled_once(way: Callable) -> None:
    blocks = [Block() for _ in range(12)]
    assert check(blocks, [way(b) for b in blocks]) == 1
    assert not bytejit.counters["recompiles"]


def test_equal_blocks_that_get_an_attribute_as_soon_as_they_are_compiled(way: Callable) -> None:
    """As Lightning does, which keeps with each module what it was compiled with."""
    blocks, made = [Block() for _ in range(12)], []
    for i, b in enumerate(blocks):
        made.append(way(b))
        made[-1].compiled_with = {"backend": "eager", "number": i}
    assert check(blocks, made) == 1 and not bytejit.counters["recompiles"]


def tied(b: Block) -> None:
    b.norm.bias = b.lin.bias


def hooked(b: Block) -> None:
    b.register_forward_hook(lambda m, args, out: out * 3)


def frozen(b: Block) -> None:
    b.requires_grad_(False)


def replaced(b: Block) -> None:
    b.lin = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def without_bias(b: Block) -> None:
    b.lin.bias = None


def of_other_layout(b: Block) -> None:
    b.lin.weight.data = b.lin.weight.data.t().contiguous().t()


CHANGES: dict[str, Callable[[Block], object]] = {
    "attribute": lambda b: setattr(b, "index", 3),
    "function": lambda b: setattr(b, "act", torch.relu),
    "in a list": lambda b: b.scale.__setitem__(0, 0.5),
    "flag": lambda b: b.eval(),
    "flag below": lambda b: b.norm.eval(),
    "hook": hooked,
    "frozen": frozen,
    "tied": tied,
    "replaced": replaced,
    "no bias": without_bias,
    "layout": of_other_layout,
    "new attribute": lambda b: setattr(b, "late", 1),
}


@pytest.mark.pairs
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_blocks_that_differ(way: Callable, name: str, when: str) -> None:
    """Every second block is another one: before it is compiled, before its first call, after it."""
    blocks = [Block() for _ in range(6)]
    for b in blocks[1::2] if when == "before" else ():
        CHANGES[name](b)
    made = [way(b) for b in blocks]
    for b in blocks[1::2] if when == "between" else ():
        CHANGES[name](b)
    graphs = check(blocks, made)
    for b in blocks[1::2] if when == "after" else ():
        CHANGES[name](b)
    graphs = check(blocks, made)
    assert graphs <= 4, graphs  # for each kind with and without gradients of what it is given, at most


@pytest.mark.parametrize("name", ["attribute", "function", "in a list", "flag", "hook", "tied", "no bias"])
def test_what_looks_alike(name: str) -> None:
    blocks = Block(), Block(), Block()
    CHANGES[name](blocks[2])
    assert looks_of(blocks[0]) == looks_of(blocks[1]) != looks_of(blocks[2])


def test_blocks_that_all_differ_keep_few_entries(way: Callable) -> None:
    """A number of its own in each block: no recompile limit, and no site with an entry for each."""
    blocks = [Block(index=i) for i in range(80)]
    check(blocks, [way(b) for b in blocks], calls=1)


def test_blocks_that_get_different_later_part() -> None:
    blocks = [Block().eval().requires_grad_(False) for _ in range(80)]
    made = [compile_module(b) for b in blocks]
    assert len({type(m) for m in made}) == 1
    for i, m in enumerate(made):
        m.index = i
        m.scale = [float(i), None]
    for _ in range(4):
        for b, m in zip(blocks, made):
            torch.testing.assert_close(m(X), Block.forward(b, X))
    assert not bytejit.counters["fallbacks"]
    before = sum(bytejit.counters["graphs"].values())
    for m in made:
        m(X)
    assert sum(bytejit.counters["graphs"].values()) == before
    assert len({type(m) for m in made}) > 40 and all(isinstance(m, Block) for m in made)


def test_settings_are_kept_apart() -> None:
    seen: list[str] = []

    def backend(name: str) -> Callable:
        return lambda gm, inputs: seen.append(name) or gm.forward

    a, b = backend("a"), backend("b")
    made = [bytejit.compile(Block(), backend=f, dynamic=d) for f, d in ((a, None), (b, None), (a, True), (a, None))]
    for m in made:
        m(X)
    assert seen == ["a", "b", "a"]


def test_classes_of_one_layout_are_kept_apart() -> None:
    class Other(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 5

    blocks = [Block(), Other(), Block(), Other()]
    assert check(blocks, [compile_module(b) for b in blocks]) == 2


def test_copies_and_pickles() -> None:
    blocks = [Block(), Block()]
    made = [compile_module(b) for b in blocks]
    assert [m._orig_mod for m in made] == blocks
    again = [*map(copy.deepcopy, made), *(compile_module(pickle.loads(pickle.dumps(m))) for m in made)]
    plain = [m._orig_mod for m in again]
    assert check([*blocks, *plain], [*made, *again]) == 1
    again[0].lin.weight.data.zero_()
    assert made[0].lin.weight.abs().sum() > 0


def test_nothing_is_kept_alive(way: Callable) -> None:
    if way is compile_forward:
        return  # the program's own cycle: m.forward holds m
    blocks = [Block() for _ in range(5)]
    made = [way(b) for b in blocks]
    for m in made:
        m(X)
    refs = [(weakref.ref(m), weakref.ref(m.lin.weight)) for m in made]
    del m, blocks
    one = made[3]
    made.clear()
    gc.collect()
    assert [i for i, (m, w) in enumerate(refs) if m() or w()] == [3]
    assert one(X).shape == X.shape
    kind = weakref.ref(type(one)) if type(one) is not Block else None
    del one
    gc.collect()
    assert not any(m() or w() for m, w in refs) and (kind is None or kind() is None)


def test_the_first_dies_early() -> None:
    """What was compiled for the first block serves the others, with or without it."""
    made = [compile_module(Block().eval()) for _ in range(4)]
    made[0](X)
    del made[0]
    gc.collect()
    for m in made:
        torch.testing.assert_close(m(X), Block.forward(m, X))
    assert sum(bytejit.counters["graphs"].values()) == 1


def test_lazy_and_odd_modules() -> None:
    class Odd(nn.Module):
        """Holds itself, a tensor's subclass, a lock, sizes and a cycle."""

        def __init__(self) -> None:
            super().__init__()
            self.lazy = nn.LazyLinear(4)
            self.me, self.lock, self.sizes = [self], threading.Lock(), {1: torch.Size([2]), "n": float("nan"), "z": -0.0}
            self.odd = torch.zeros(2).as_subclass(Own)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lazy(x) * self.sizes["z"] + len(self.me)

    class Own(torch.Tensor):
        pass

    odd = [Odd(), Odd()]
    made = [compile_module(m) for m in odd]
    for _ in range(3):
        for m, c in zip(odd, made):
            got = c(X)
            torch.testing.assert_close(got, Odd.forward(m, X))
            assert bool(torch.signbit(got - 1).any()) == bool(torch.signbit(Odd.forward(m, X) - 1).any())


def test_threads() -> None:
    blocks = [Block().eval() for _ in range(8)]
    wanted = [Block.forward(b, X).detach() for b in blocks]
    wrong: list[int] = []

    def work(i: int) -> None:
        m = compile_module(blocks[i])
        for _ in range(10):
            if not torch.allclose(m(X), wanted[i], atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
