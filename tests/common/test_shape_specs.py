"""Sizes that a program names for torch.compile are symbolic from the first compile: `dynamic_shapes`, `dynamic_sources`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bytejit

specs = pytest.importorskip("torch.fx.experimental.dynamic_spec", reason="of torch 2.13 and newer")
DICT, SEQ, OBJECT, INT = (getattr(specs, name, None) for name in ("DictSpec", "SeqSpec", "ObjectSpec", "IntVar"))


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x * 2 if mask is None else x * mask.sum()


def rows(*rest: object) -> Any:
    return specs.TensorSpec([specs.ShapeVar("rows"), *rest])


def one(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def many(x: torch.Tensor, n: int, *rest: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    return x.sum() * n + rest[1].sum() + more["last"].sum()


def nested(batch: Any, sizes: list, options: dict) -> torch.Tensor:
    return batch.mask.sum() + sizes[1].sum() + options["a"].sum()


def x_of(n: int) -> torch.Tensor:
    return torch.ones(n, 2)


def call_nested(n: int) -> tuple:
    return SimpleNamespace(mask=torch.ones(n)), [torch.ones(3), torch.ones(n)], {"a": torch.ones(n)}


def seen_by(f: Any, calls: list[tuple[tuple, dict]], **given: object) -> int:
    """How many graphs the calls take, each with the right result."""
    graphs: list[torch.fx.GraphModule] = []
    with bytejit.patch_torch_compile():
        made = torch.compile(f, backend=lambda gm, inputs: graphs.append(gm) or gm.forward, **given)
    for args, kwargs in calls:
        torch.testing.assert_close(made(*args, **kwargs), f(*args, **kwargs))
    return len(graphs)


SIZES = (3, 4, 5)
CASES: dict[str, tuple[Any, Callable, list]] = {
    "a dictionary": (one, lambda: {"x": rows(None)}, [((x_of(n),), {}) for n in SIZES]),
    "parameters": (one, lambda: specs.ParamsSpec({"x": rows(2)}), [((x_of(n),), {}) for n in SIZES]),
    "all of it": (one, lambda: specs.ShapesSpec(specs.ParamsSpec({"x": rows(None)})), [((x_of(n),), {}) for n in SIZES]),
    "a module": (Net(), lambda: {"x": rows(None)}, [((x_of(n),), {}) for n in SIZES]),
    "a module's argument by name": (
        Net(),
        lambda: {"mask": specs.TensorSpec([specs.ShapeVar("n")])},
        [((x_of(2),), {"mask": torch.ones(n)}) for n in SIZES],
    ),
    "more arguments": (
        many,
        lambda: {"n": INT("n"), "*args": [None, rows(None)], "**kwargs": {"last": rows(None)}},
        [((x_of(2), n, x_of(2), x_of(n)), {"last": x_of(n)}) for n in SIZES],
    ),
    "parts of values": (
        nested,
        lambda: {
            "batch": OBJECT({"mask": rows()}),
            "sizes": SEQ([None, rows()]),
            "options": DICT({"a": rows()}),
        },
        [(call_nested(n), {}) for n in SIZES],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_graph_for_what_is_named(case: str) -> None:
    f, spec, calls = CASES[case]
    assert seen_by(f, calls) == 2
    bytejit.reset()
    assert seen_by(f, calls, dynamic_shapes=spec()) == 1
    bytejit.reset()
    assert seen_by(f, calls, shapes_spec=spec()) == 1


@pytest.mark.skipif(not hasattr(specs, "dynamic_spec"), reason="of torch 2.15")
def test_a_decorated_function() -> None:
    class Decorated(torch.nn.Module):
        @specs.dynamic_spec({"x": rows(None)})
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    f = specs.dynamic_spec({"x": rows(None)})(lambda x: x + 1)
    for made in (f, Decorated()):
        assert seen_by(made, [((x_of(n),), {}) for n in SIZES]) == 1
        with pytest.raises(ValueError, match="give one of them"):
            seen_by(made, [], dynamic_shapes={"x": None})


def test_bad_specifications() -> None:
    with pytest.raises(TypeError, match="expected a dict, ShapesSpec or ParamsSpec"):
        seen_by(one, [], dynamic_shapes=[rows()])
    with pytest.raises(ValueError, match="both given"):
        seen_by(one, [], dynamic_shapes={"x": rows()}, dynamic=True)


@pytest.mark.parametrize("f", [one, Net()], ids=["function", "module"])
def test_the_option(f: Any) -> None:
    for entries, count in (((), 2), ("L['x']", 1), (("L['y']", "L['x']:0"), 1), (("L['x']:1",), 2)):
        bytejit.reset()
        graphs: list[torch.fx.GraphModule] = []
        backend = lambda gm, inputs, graphs=graphs: graphs.append(gm) or gm.forward
        made = bytejit.compile(f, backend=backend, options={"dynamic_sources": entries} if entries else None)
        for n in SIZES:
            torch.testing.assert_close(made(x_of(n)), f(x_of(n)))
        assert len(graphs) == count
