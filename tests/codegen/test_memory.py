"""The arena: no two live buffers share bytes, dead operands are overwritten, inputs never."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from graphs import aten, same, stages
from interp import run

from bytejit.codegen.loops.memory import ALIGN, extent, lives, plan_memory

W = torch.randn(32, 32)


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = F.layer_norm((x @ w).relu() + x, (32,))
    return x


PROGRAMS = {
    "chain": chain,
    "branches": lambda x, w: sum((x.sin() * i) @ w for i in range(1, 6)).exp(),
    "reused late": lambda x, w: (lambda a: F.gelu(F.gelu(a @ w) @ w) + a)(x.cos()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_live_buffers_do_not_overlap(name: str) -> None:
    _, fused, plan = same(PROGRAMS[name], torch.randn(16, 32), W, rtol=1e-3, atol=1e-4)
    memory = plan_memory(fused)
    assert memory.offsets == plan.offsets
    life = lives(fused)
    temps = [b for b in fused.buffers.values() if b.kind == "temp" and b.name in life]
    assert {b.name for b in temps} == set(memory.offsets)
    for a in temps:
        assert memory.offsets[a.name] % ALIGN == 0
        for b in temps:
            if a.name < b.name and life[a.name][0] <= life[b.name][1] and life[b.name][0] <= life[a.name][1]:
                apart = (
                    memory.offsets[a.name] + extent(a) <= memory.offsets[b.name]
                    or memory.offsets[b.name] + extent(b) <= memory.offsets[a.name]
                )
                assert apart or memory.inplace.get(b.name) == a.name or memory.inplace.get(a.name) == b.name


def test_a_long_chain_needs_a_few_buffers() -> None:
    def fn(x, w):
        for _ in range(20):
            x = (x @ w).sin() @ w
            x = x.cos()
        return x

    _, fused, plan = same(fn, torch.randn(16, 32), W, rtol=1e-2, atol=1e-3)
    assert plan.arena <= 4 * 16 * 32 * 4


def test_inputs_and_outputs_are_not_in_the_arena() -> None:
    _, fused, plan = same(lambda x, w: (x.sin(), (x.sin() @ w).cos()), torch.randn(16, 32), W)
    kinds = {fused.buffers[n].kind for n in plan.offsets}
    assert kinds <= {"temp"}


def test_extern_results_are_freed_after_their_last_reader() -> None:
    _, _, plan = same(lambda x: torch.linalg.matrix_exp(x).sin().sum(0), W * 0.1)
    assert any(plan.buffers[b].kind == "extern" for s in plan.steps for b in s.free)


def test_empty_buffers_take_no_room() -> None:
    _, _, plan = same(lambda x, w: (x[:0] @ w).sum(), torch.randn(16, 32), W)
    assert plan.arena <= ALIGN * len(plan.offsets)


@dataclass(frozen=True)
class Mutation:
    input: int
    position: int


def mutated(fn, *args, outputs: tuple = ()) -> tuple:
    """The plan of a graph whose first result is copied into its first input, run on copies of args; and eager's results."""
    graph = replace(aten(fn, *args), mutations=(Mutation(0, 0),), outputs=outputs)
    plan = stages(graph)[2]
    own = [a.clone() for a in args]
    got = run(plan, own)
    expected = fn(*args)
    torch.testing.assert_close(own[0], expected[0])
    for a, b in zip(got[1:], expected[1:]):
        torch.testing.assert_close(a, b)
    return plan


def test_a_mutation_is_written_in_place() -> None:
    plan = mutated(lambda x, y: (x * 2 + y, y.sum()), torch.randn(8, 4), torch.randn(4))
    assert plan.mutations[0].done and plan.outputs[0].view.buffer == "p0"


def test_a_mutation_is_copied_where_the_old_value_is_read_later_or_elsewhere() -> None:
    plan = mutated(lambda x, w: (lambda a: (a, (a @ w) + x))(x.sin()), torch.randn(4, 4), torch.randn(4, 4))
    assert not plan.mutations[0].done
    plan = mutated(lambda x: (x.flip(0) + 1, x[0] * 1), torch.randn(4, 4))
    assert not plan.mutations[0].done


def test_a_mutation_that_the_user_also_gets_is_copied() -> None:
    @dataclass(frozen=True)
    class Value:
        position: int

    assert not mutated(lambda x: (x + 1,), torch.randn(4), outputs=(Value(0),)).mutations[0].done


def test_no_input_is_written_before_an_index_is_checked() -> None:
    plan = mutated(lambda x, i, y: (x + 1, y[i] * 2), torch.randn(4), torch.tensor([0, 1]), torch.randn(4))
    order = [s.kernel.ops for s in plan.steps]
    assert plan.mutations[0].done <= ("add.Tensor" in order[-1])
