"""Writes to places read from memory (rows/scatter.py, passes/inplace.py) as kernels of both printers against eager: values, what
was written, what a fault leaves behind; and that nothing is copied where a program writes into a part of what it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from both import both, both_raise
from dynamic import agree
from graphs import aten

import bytejit
from bytejit.backends import plan_cache
from bytejit.codegen.loops.ir import Kernel, Loops
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes import write_inputs
from bytejit.codegen.loops.simplify import points
from bytejit.codegen.loops.text import parse, text

pytestmark = pytest.mark.cxx
r = torch.randn


def ints(n: int, *shape: int) -> torch.Tensor:
    return torch.arange(1000, 1000 + torch.Size(shape).numel()).mul(7919).remainder(n).view(shape)


I3, I2 = torch.tensor([2, 0, -1]), torch.tensor([3, 1])
CACHE = (r(2, 3, 16, 4), torch.tensor([5]), r(2, 3, 1, 4))


def put(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x[:, :, i] = s * 2
    return x.sum()


def put_slice(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x[:, :, 5:7] = s.sin()
    return x.mean(2)


def put_deep(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x[0].index_copy_(1, i, s[0])
    x[1, :, 3] = s[1, :, 0]
    x[:, 1, i] = s[0, 0]
    return x + 1


def old_value_read(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> Any:
    old = x.exp()
    x[:, :, i] = s
    return old, x * 2


def old_value_kept(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> Any:
    old = x.clone()
    x[:, :, i] = s
    return old, x * 2


def from_itself(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x[i] = x[i.flip(0)] * 2
    return x


def equal_places_added_to(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x[i] += 1
    return x


def added_to_itself(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x[i] += 1
    x[:, i] *= x[:, i]
    return x


def twice(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x.index_add_(0, i, s)
    y = x * 2
    x.index_add_(0, i, s)
    return y


def of_a_temp(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    y = (x * 3).softmax(1)
    y[i] = s
    return y.index_add(0, i, s).relu()


def one_hot(i: torch.Tensor) -> torch.Tensor:
    return i.new_zeros(i.shape[0], 9, dtype=torch.float32).scatter_(1, i[:, None], 1.0) * 2


def experts(x: torch.Tensor) -> torch.Tensor:
    w, i = x.softmax(-1).topk(2, -1)
    return torch.zeros_like(x).scatter_(-1, i, w / w.sum(-1, keepdim=True))


def graph_sum(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add_(0, dst, x[src] * 2) + x


CASES: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "put": (put, CACHE),
    "put_slice": (put_slice, (r(2, 3, 16, 4), r(2, 3, 2, 4))),
    "put_deep": (put_deep, CACHE),
    "put_transposed": (put, (r(2, 16, 3, 4).transpose(1, 2), *CACHE[1:])),
    "put_gaps": (put, (r(2, 3, 32, 4)[:, :, ::2], *CACHE[1:])),
    "put_half": (put, (CACHE[0].half(), CACHE[1], CACHE[2].half())),
    "put_bool": (lambda x, i: x.index_put_((i,), torch.tensor(True)), (torch.zeros(5, 4, dtype=torch.bool), I3)),
    "old_value_read": (old_value_read, CACHE),
    "old_value_kept": (old_value_kept, CACHE),
    "from_itself": (from_itself, (r(6, 4), torch.tensor([1, 3]))),
    "added_to_itself": (added_to_itself, (r(6, 6), torch.tensor([1, 3]))),
    "equal_places_added_to": (equal_places_added_to, (r(6, 6), torch.tensor([1, 3, 1, 1]))),
    "twice": (twice, (r(6, 5), torch.tensor([1, 3, 1]), r(3, 5))),
    "of_a_temp": (of_a_temp, (r(6, 5), torch.tensor([1, 3]), r(2, 5))),
    "index_put": (lambda x, i, s: x.index_put((i,), s) + 1, (r(4, 9), I3, r(3, 9))),
    "index_put_apart": (lambda x, i, j, s: (x.__setitem__((i, slice(None), j[:, None]), s), x)[1], (r(4, 6, 5), I3, I2, r(3, 6))),
    "index_put_broadcast": (lambda x, i, j: (x.__setitem__((i, j[:, None]), 2.5), x)[1], (r(4, 6, 5), I3, I2)),
    "index_put_row": (lambda x, i, j, s: (x.__setitem__((slice(None), i, j), s), x)[1], (r(2, 4, 6), I2[:1], I2, r(2, 2))),
    "index_put_i32": (lambda x, i, s: x.index_put((i,), s), (r(4, 9), I3.int(), r(9))),
    "index_put_none": (lambda x, i, s: x.index_put((i,), s), (r(4, 9), I3[:0], r(0, 9))),
    "index_put_same": (lambda x, i, s: x.index_put((i,), s), (r(4, 3), torch.tensor([1, 1, 1]), r(3, 3))),
    "index_put_mask": (lambda x, s: x.index_put((x > 0,), s), (r(4, 9), torch.tensor(2.0))),
    "accumulate": (lambda x, i, s: x.index_put((i,), s, accumulate=True), (r(4, 9), torch.tensor([1, 1, -1]), r(3, 9))),
    "accumulate_ints": (lambda x, i, s: x.index_put((i,), s, accumulate=True), (ints(9, 4, 9), I3, ints(9, 3, 9))),
    "index_copy": (lambda x, i, s: (x.index_copy(1, i, s), x.index_copy_(1, i, s * 2)), (r(3, 8, 4), I2, r(3, 2, 4))),
    "index_copy_flat": (lambda x, i, s: x.index_copy(0, i, s), (r(8), I2, r(2))),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (r(4, 9), torch.tensor([2, 2, 0]), r(3, 9))),
    "index_add_alpha": (lambda x, i, s: x.index_add(1, i, s, alpha=-2), (r(4, 9), I2, r(4, 2))),
    "index_add_f64": (lambda x, i, s: x.index_add(-1, i, s), (r(2, 4).double(), I2, r(2, 2).double())),
    "index_fill": (lambda x, i: (x.index_fill(0, i, 3.5), x.index_fill(1, i, -1)), (r(4, 9), I3)),
    "index_fill_tensor": (lambda x, i, v: x.index_fill(0, i, v), (r(4, 9), I3, torch.tensor(2.5))),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), (r(4, 9), ints(9, 4, 6), r(4, 6))),
    "scatter_rows": (lambda x, i, s: x.scatter(0, i, s), (r(9, 4), ints(9, 6, 3), r(7, 5))),
    "scatter_value": (lambda x, i: x.scatter(1, i, 2), (r(4, 9), ints(9, 3, 7))),
    "scatter_few": (lambda x, i, s: x.sin().scatter(1, i, s) * 2, (r(4, 9), ints(9, 3, 2), r(4, 3))),
    "scatter_few_columns": (lambda x, i: x.scatter(0, i, 0.5), (r(4, 9), ints(4, 2, 7))),
    "scatter_here": (lambda x, i, s: x.scatter_(1, i, s), (r(4, 9), ints(9, 4, 2), r(4, 2))),
    "scatter_bf16": (lambda x, i, s: x.scatter(1, i, s), (r(4, 9).bfloat16(), ints(9, 4, 6), r(4, 6).bfloat16())),
    "one_hot": (one_hot, (ints(9, 5),)),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (r(4, 9), ints(4, 7, 9), r(7, 9))),
    "scatter_add_expanded": (lambda x, i, s: x.scatter_add(0, i[:, None].expand(7, 9), s), (r(4, 9), ints(4, 7), r(7, 9))),
    "scatter_add_last": (lambda x, i, s: x.scatter_add(1, i, s.relu()), (r(4, 9), ints(9, 4, 20), r(4, 20))),
    "scatter_reduce_sum": (lambda x, i, s: x.scatter_reduce(0, i, s, "sum"), (r(4, 9), ints(4, 7, 9), r(7, 9))),
    "scatter_add_ints": (lambda x, i, s: x.scatter_add(0, i, s), (ints(9, 4, 9), ints(4, 7, 9), ints(9, 7, 9))),
    "graph_sum": (graph_sum, (r(6, 5), ints(6, 20), ints(5, 20))),
    "select_scatter": (lambda x, s: (x.select_scatter(s, 0, -1), x.select_scatter(s[:4], 1, 2)), (r(4, 9), r(9))),
    "slice_scatter": (lambda x, s: x.slice_scatter(s, 1, 1, 8, 3), (r(4, 9), r(4, 3))),
    "slices": (lambda x, s: (x[1:3, ::2].copy_(s), x[0].zero_(), x)[2] * 1, (r(9, 30), r(2, 15))),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    fn, args = CASES[name]
    both(fn, *args)


def test_weights_of_experts() -> None:
    both(experts, r(5, 8), externs=("aten.topk.default",))


def at(x: torch.Tensor, pos: int, k: torch.Tensor) -> torch.Tensor:
    x[:, :, pos] = k[:, :, 0]
    return x[:, :, : pos + 1].sum(2)


def upto(x: torch.Tensor, pos: int, k: torch.Tensor) -> torch.Tensor:
    x[:, :, pos : pos + k.shape[2]] = k
    return x.sum()


def around(x: torch.Tensor, pos: int, k: torch.Tensor) -> torch.Tensor:
    x[:, :, pos % x.shape[2]] = k[:, :, 0]
    return x.mean()


@pytest.mark.parametrize("fn", [at, upto, around])
def test_positions_that_change(fn: Callable) -> None:
    """Two compiles: one for the first position, one for all others."""
    compiled = bytejit.compile(fn)
    mine = r(2, 3, 16, 4)
    theirs = mine.clone()
    for pos in (3, 4, 5, 7, 11, 2):
        k = r(2, 3, 2, 4)
        torch.testing.assert_close(compiled(mine, pos, k), fn(theirs, pos, k))
        assert torch.equal(mine, theirs)
    assert sum(bytejit.counters["graphs"].values()) == 2


def placed(fn: Callable, *args: Any, monkeypatch: pytest.MonkeyPatch) -> Loops:
    """The loops of fn after its updates have their places."""
    made, before = [], write_inputs.place_writes
    monkeypatch.setattr(plan_cache, "load", lambda *_: None)
    monkeypatch.setattr(write_inputs, "place_writes", lambda loops: (made.append(before(loops)), made[-1])[1])
    both(fn, *args, triton=False)
    return made[0]


@pytest.mark.parametrize(
    "name", ["put", "put_slice", "put_deep", "twice", "from_itself", "added_to_itself", "scatter_here", "slices"]
)
def test_nothing_is_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written goes where it belongs: no kernel but those that read the result touches the rest."""
    fn, args = CASES[name]
    loops = placed(fn, *args, monkeypatch=monkeypatch)
    assert not any("clone" in k.ops or "copy" in k.name for k in loops.steps if isinstance(k, Kernel))
    assert all(m.done for m in loops.mutations) and loops.mutations


def parts(x: torch.Tensor) -> torch.Tensor:
    out = x.new_zeros(8, 4, 30)
    for i in range(8):
        out[i, :, i:] = x[:, i:] * i
    return out


def parts_on_either_side(x: torch.Tensor) -> torch.Tensor:
    out = x.exp().expand(6, 4, 30).clone()
    for i in range(6):
        out[i].t()[i:].copy_(x.t()[: 30 - i])
        out[:, 2:, 7] = i
    return out.sin()


def parts_between_reads(x: torch.Tensor) -> Any:
    out = x + 1
    seen = []
    for i in range(6):
        seen.append(out.sum())
        out[:, i] = out[:, i + 1] * 2
        if i == 3:
            seen.append(out.clone())
    return out, seen[4], *seen[:3]


def parts_of_a_value_read_later(x: torch.Tensor) -> Any:
    base = x.cos()
    out = base.clone()
    for i in range(5):
        out[:, i::7] = base[:, i : i + 1]
    return out * 2, base


PARTS = [parts, parts_on_either_side, parts_between_reads, parts_of_a_value_read_later]


@pytest.mark.parametrize("fn", PARTS)
def test_a_tensor_written_part_by_part(fn: Callable) -> None:
    both(fn, r(4, 30))


def test_each_part_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = placed(parts, r(4, 30), monkeypatch=monkeypatch)
    kernels = [k for k in loops.steps if isinstance(k, Kernel)]
    assert sum(points([*k.axes, *p.axes]) for k in kernels for p in k.nests) <= 2 * parts(r(4, 30)).numel()


def test_what_is_read_afterwards_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args = CASES["index_put"]
    loops = placed(fn, *args, monkeypatch=monkeypatch)
    assert any("clone" in k.ops for k in loops.steps if isinstance(k, Kernel))


def test_text_of_loops_reads_back() -> None:
    loops = lower(aten(lambda x, i, s: x.index_put((i,), s), r(4, 9), I3, r(3, 9)))
    assert " over p0" in text(loops) and text(parse(text(loops))) == text(loops)


def test_the_last_of_equal_places_wins() -> None:
    n = 3000
    i = torch.cat([torch.arange(n), torch.arange(n)])
    both(lambda x, i, s: x.index_copy(0, i, s), torch.zeros(n, 3), i, r(2 * n, 3), triton=False)
    both(lambda x, i, s: x.scatter(0, i, s), torch.zeros(n), i, r(2 * n), triton=False)


FAULTS: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "index_put": (lambda x, i: x.index_put((i,), x.new_ones(2, 9)), (r(4, 9), torch.tensor([0, 4]))),
    "index_put_low": (lambda x, i: x.index_put_((i,), x.new_ones(9)), (r(4, 9), torch.tensor([0, -5]))),
    "index_copy": (lambda x, i: x.index_copy_(0, i, x.new_ones(2, 9)), (r(4, 9), torch.tensor([0, -1]))),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1), (r(4, 9), torch.tensor([0, 4]))),
    "scatter": (lambda x, i: x.scatter(1, i, 1.0), (r(4, 9), torch.tensor([[0, 9]]))),
    "scatter_negative": (lambda x, i: x.scatter_(1, i, 1.0), (r(4, 9), torch.tensor([[0, -1, 2, 3, 4, 5]]))),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, x), (r(4, 9), torch.tensor([[0, 9]]))),
}


@pytest.mark.parametrize("name", FAULTS)
def test_out_of_range(name: str) -> None:
    fn, args = FAULTS[name]
    both_raise(fn, *args)


def test_a_fault_leaves_what_was_written_before_it() -> None:
    """x was added to once, though the program's own code runs again from its start."""

    def here(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return w[i].sum(1)

    def there(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.index_add_(0, i.clamp(max=3), y)
        return w[i].sum(1)

    both_raise(here, torch.zeros(300, 300), r(4, 500), torch.tensor([1, 9]))
    both_raise(there, torch.zeros(300, 300), r(2, 300), r(4, 500), torch.tensor([1, 9]))


def args_of(n: int, m: int) -> tuple[torch.Tensor, ...]:
    x = torch.arange(1.0 * n * m).view(n, m)
    return x.cos(), torch.arange(n) // 2, x.sin()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i, s: x.index_put((i,), s[:1]) + 1,
        lambda x, i, s: x.index_add(0, i, s * 2),
        lambda x, i, s: x.index_copy(0, i, s),
        lambda x, i, s: x.scatter(1, i[:, None], 2.0),
        lambda x, i, s: x.scatter_add(0, i[:, None].expand(x.shape), x * 2),
    ],
)
def test_sizes_that_change(fn: Callable) -> None:
    agree(fn, args_of, (("s0", "s1"), ("s0",), ("s0", "s1")), [(6, 7), (4, 9), (21, 16)])
