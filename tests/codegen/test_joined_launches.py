"""Small kernels side by side as one launch: which are joined, and that results stay (Triton's interpreter)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from both import TRITON
from graphs import aten
from test_triton_ways import planned
from triton_run import DEVICE, run

import bytejit
from bytejit.codegen.cuda.emit import emit_triton
from bytejit.codegen.cuda.joined_launches import LaunchPart
from bytejit.codegen.cuda.source import Launch, LaunchConfig
from bytejit.codegen.cuda.store_forwarding import Overlap
from bytejit.codegen.loops.ir import Buffer, Kernel
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes import side_by_side
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.codegen.loops.uses import reads, writes
from bytejit.kernels.build_triton import split_module

pytestmark = [pytest.mark.triton, pytest.mark.skipif(not TRITON, reason="needs Triton's interpreter")]


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


MANY = tuple(r(n + 3, 5) for n in range(40))
# program, arguments, launches
CASES: dict[str, tuple[Callable, tuple[torch.Tensor, ...], int]] = {
    "casts": (lambda *a: tuple(x.half() for x in a), MANY[:5], 1),
    "casts of more than one group": (lambda *a: tuple(x.half() for x in a), MANY, 3),
    "sums of rows and columns": (lambda x, y: (x.sin().sum(1), y.exp().amax(0), x.t() * 2), (r(9, 33), r(40, 7)), 1),
    "one behind another": (lambda x, y: (s := x.sum(1), (s[:, None] * y.sum(0)).cumsum(1))[1], (r(9, 33), r(40, 7)), 2),
    "past a product": (lambda x, y, z: (x @ x.t()) @ x + (y @ y.t()).sum() + z.sin().sum(0), (r(9, 9), r(4, 4), r(5, 9)), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_launches(name: str) -> None:
    fn, args, launches = CASES[name]
    given = [a.to(DEVICE) for a in args]
    source = emit_triton(plan := planned(fn, given))
    assert len(source.launches) == launches, source.text
    results, fault = run(plan, source, given)
    expected = fn(*given)
    for a, b in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert fault == 0


def test_equal_rows_of_parts_are_one_kernel() -> None:
    """And each kernel's own module has the parts that it calls"""

    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple:
        x, y = a.half(), b.half()
        z = (x.float() @ x.float().t()).sum(0), (y.float() @ y.float().t()).sum(0)
        return x, y, *z

    source = emit_triton(planned(fn, (r(6, 6), r(6, 6))))
    texts = split_module(source.text)
    for launch in source.launches:
        assert f"def {launch.kernel}(" in texts[launch.kernel]
        for name in texts:
            assert name == launch.kernel or f"{name}(" not in texts[launch.kernel] or f"def {name}(" in texts[launch.kernel]


def test_steps_keep_their_order_where_one_needs_the_other() -> None:
    def fn(*a: torch.Tensor) -> tuple:
        made = [x.half() for x in a[:6]]
        out = []
        for x in made:
            out.append((x.float() @ x.float().t()).sum(0) + (out[-1].sum() if out else 0))
        return (*made, *out)

    before = fuse(lower(aten(fn, *MANY[:6])), launches=False)
    after = side_by_side.side_by_side(before)
    assert sorted(map(repr, after.steps)) == sorted(map(repr, before.steps))
    made: set[str] = {n for n in before.inputs if n}
    for step in after.steps:
        assert set(reads(step)) <= made, step
        made.update(writes(step))
    kinds = [isinstance(s, Kernel) for s in after.steps]
    assert kinds.index(False) >= 6  # the casts come first, side by side


def test_what_is_too_large_or_may_raise_stays() -> None:
    small = lower(aten(lambda x, i: (x[i], x * 2), r(4, 4), torch.tensor([0, 1])))
    found = {step.ops[0].split(".")[0]: side_by_side.is_small(step, small.buffers) for step in small.steps}
    assert found == {"index": False, "mul": True}


def test_places() -> None:
    """Of 64 bytes in the arena one after another, one over two of them, one with gaps, one in a slot, one outside"""
    buffers = {name: Buffer(name, (16,), (1,), "f32", "temp") for name in ("a", "b", "over", "slot", "p0")}
    buffers["gaps"] = Buffer("gaps", (16,), (2,), "f32", "temp")
    overlap = Overlap({"a": 0, "b": 64, "over": 60, "gaps": 0}, {"slot": 0}, buffers)

    def part(reads: tuple[str, ...], writes: tuple[str, ...]) -> LaunchPart:
        return LaunchPart(Launch(0, "k", (), LaunchConfig((), 1, 1, (1,))), (), "", reads, writes, overlap)

    assert part((), ("a",)).apart(part((), ("b",))) and part(("a",), ()).apart(part(("a",), ("b",)))
    assert not part((), ("a",)).apart(part(("over",), ())) and not part(("over",), ()).apart(part((), ("a",)))
    assert not part((), ("b",)).apart(part((), ("gaps",))) and part((), ("a",)).apart(part(("slot",), ()))
    assert not part((), ("p0",)).apart(part(("a", "p0"), ()))


@pytest.mark.cxx
def test_a_step_of_training() -> None:
    """Casts of weights under autocast, and updates of all parameters"""
    torch.manual_seed(0)

    def losses(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[m for _ in range(3) for m in (torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())])
        opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            opt.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = net(x).float().square().mean()
            loss.backward()
            opt.step()
            return loss.detach()

        run = bytejit.compile(step, options={"interpret": True}) if compiled else step
        return [run(r(5, 8)) for _ in range(4)] + [p.detach().clone() for p in net.parameters()]

    for a, b in zip(losses(True), losses(False), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)
    assert not bytejit.counters["fallbacks"], bytejit.counters
