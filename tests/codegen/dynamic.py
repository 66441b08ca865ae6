"""Small graphs with symbolic sizes, compiled once and run at several sizes: what the tests of dynamic shapes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bytejit.backends.cpu import CompiledGraph, compile_plan, cpu_machine
from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.cpu.schedule import schedule
from bytejit.codegen.loops.check import check_loops, check_plan
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.common.options import config
from bytejit.common.spec import contiguous_stride
from bytejit.fake.rules.core import FakeStorage, Meta
from bytejit.fake.tensor import fake_like, make
from bytejit.shapes.environment import Env
from bytejit.shapes.symbols import Manner


@dataclass(frozen=True)
class Dynamic:
    """A function compiled with symbolic sizes. names: symbols in the order of the int placeholders; dims: for each tensor the
    symbol of each dim, or None."""

    compiled: CompiledGraph
    aten: Any
    env: Env
    names: tuple[str, ...]
    dims: tuple[tuple, ...]

    def sizes(self, args: Sequence[torch.Tensor]) -> list[int]:
        """The values of the symbols for these tensors."""
        found = {n: t.shape[d] for t, dims in zip(args, self.dims) for d, n in enumerate(dims) if n}
        return [found[n] for n in self.names]

    def check_conditions(self, args: Sequence[torch.Tensor]) -> None:
        """Asserts that the graph was made for these sizes too: else it would be compiled again for them."""
        space = dict(zip(self.names, self.sizes(args)))
        for condition, _ in self.env.conditions:
            assert eval(condition.text(), {}, space), f"{condition} does not hold at {space}"

    def __call__(self, *args: torch.Tensor) -> Any:
        return self.compiled.call(*self.sizes(args), *args)


def traced(fn: Callable, args: Sequence[torch.Tensor], dims: Sequence[Sequence[str | None]]) -> tuple:
    """(graph module, fakes, env) of fn over tensors whose dims have symbols by name; the ints come first."""
    env, sym = Env(), {}
    for t, names in zip(args, dims):
        for size, name in zip(t.shape, names):
            if name and name not in sym:
                sym[name] = env.symbol(name, hint=size)
    fakes: list[Any] = list(sym.values())
    for t, names in zip(args, dims):
        names = (*names, *(None,) * (t.dim() - len(names)))
        shape = tuple(sym[n] if n else size for n, size in zip(names, t.shape))
        fake = fake_like(t)
        fakes.append(
            make(Meta(shape, contiguous_stride(shape), 0, t.dtype, t.device, FakeStorage(t.nbytes))) if any(names) else fake
        )
    gm = torch.fx.symbolic_trace(fn)
    first = next(iter(gm.graph.nodes))
    with gm.graph.inserting_before(first):
        for name in sym:
            gm.graph.placeholder(name)
    gm.recompile()
    return gm, fakes, env


def compiled(
    fn: Callable,
    args: Sequence[torch.Tensor],
    dims: Sequence[Sequence[str | None]],
    threads: int = 2,
    choose: Callable | None = None,
) -> Dynamic:
    """fn compiled for every size of the named dims."""
    gm, fakes, env = traced(fn, args, dims)
    try:
        aten = normalise(gm, fakes)
    except RuntimeError as e:  # torch 2.11's matmul takes no symbols: the tracer marks such a call as this does
        if "symbolic sizes" not in str(e):
            raise
        for node in gm.graph.nodes:
            node.meta["manner"] = Manner(env, decompose=True)
        aten = normalise(gm, fakes)
    if choose is not None:
        aten = choose(aten)
    target = cpu_machine(threads)
    plan = check_plan(schedule(check_loops(fuse(check_loops(lower(aten)))), target))
    made = compile_plan(plan, config.current, aten)
    names = tuple(n.target for n in gm.graph.nodes if n.op == "placeholder")[: len(fakes) - len(args)]
    padded = tuple((*names_of, *(None,) * (t.dim() - len(names_of))) for t, names_of in zip(args, dims))
    return Dynamic(made, aten, env, names, padded)


def flat(x: Any) -> list:
    return list(x) if isinstance(x, (tuple, list)) else [x]


def agree(
    fn: Callable,
    make_args: Callable,
    dims: Sequence[Sequence[str | None]],
    sizes: Sequence[tuple],
    tol: float | None = None,
    choose: Callable | None = None,
) -> Dynamic:
    """Asserts that fn, compiled at the first of `sizes`, returns at each of them what eager does, strides included."""
    graph = compiled(fn, make_args(*sizes[0]), dims, choose=choose)
    for size in sizes:
        args = make_args(*size)
        graph.check_conditions(args)
        expected = flat(fn(*args))
        for _ in range(2):
            got = flat(graph(*args))
            assert len(got) == len(expected)
            for a, b in zip(got, expected):
                if not isinstance(b, torch.Tensor):
                    assert type(a) is type(b) and a == b, (size, a, b)
                    continue
                torch.testing.assert_close(a, b, equal_nan=True, rtol=tol, atol=tol)
                assert a.stride() == b.stride() or b.numel() < 2, (size, a.stride(), b.stride())
    return graph
