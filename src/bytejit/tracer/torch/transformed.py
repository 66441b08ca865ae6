"""The target of a function transform's node: it runs a graph under torch's transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import func as functorch

from bytejit.common.graph_calls import GraphCall, parts_of, why_opaque


def transformed(kind: str, part: torch.fx.GraphModule, count: int, options: tuple) -> GraphCall:
    """The node's target: tensors -> tuple of tensors. count: how many of them the transform takes; the others are the
    function's closure."""
    run = KINDS[kind]

    def under_transform(*inputs: Any) -> tuple:
        closed = inputs[count:]
        with torch._C.DisableTorchFunction():
            return tuple(run(lambda *args: tuple(part.forward(*args, *closed)), inputs[:count], *options))

    opaque = any(why_opaque(n) or n.target is torch.manual_seed or draws(n) for n in part.graph.nodes)
    why = "a function transform of random numbers or of an autograd function" if opaque else ""
    return GraphCall(under_transform, f"{kind}_of_part", why, (part,))


def _vmap(f: Callable, args: tuple, in_dims: tuple, out_dims: tuple, randomness: str) -> tuple:
    return torch.vmap(f, in_dims, out_dims, randomness)(*args)


def _grad(f: Callable, args: tuple, count: int) -> tuple:
    if count != 1:
        raise RuntimeError("torch.func.grad: the function has to return one tensor")

    def first(*given: Any) -> tuple:
        value, *rest = f(*given)
        return value, tuple(rest)

    grads, (value, rest) = functorch.grad_and_value(first, tuple(range(len(args))), has_aux=True)(*args)
    return (*grads, value, *rest)


def _forward(f: Callable, args: tuple, count: int) -> tuple:
    outputs, _, rest = functorch.vjp(lambda *a: _split(f(*a), count), *args, has_aux=True)
    return (*outputs, *rest)


def _vjp(f: Callable, args: tuple, primals: int, count: int) -> tuple:
    return functorch.vjp(lambda *a: f(*a)[:count], *args[:primals])[1](args[primals:])


def _jvp(f: Callable, args: tuple, primals: int, count: int) -> tuple:
    outputs, pushed, rest = functorch.jvp(lambda *a: _split(f(*a), count), args[:primals], args[primals:], has_aux=True)
    return (*outputs, *pushed, *rest)


def _split(values: tuple, count: int) -> tuple:
    return values[:count], values[count:]


RANDOM = (
    "rand",
    "dropout",
    "bernoulli",
    "normal",
    "multinomial",
    "uniform",
    "poisson",
    "exponential",
    "rrelu",
    "gumbel",
    "scaled_dot_product",
    "shuffle",
    "cauchy",
    "geometric",
)


def draws(node: torch.fx.Node) -> bool:
    """Whether a node may draw random numbers, by its name."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    inner = (n for part in parts_of(node) for n in part.graph.nodes)
    return any(r in name for r in RANDOM) or any(map(draws, inner))


KINDS: dict[str, Callable] = {"vmap": _vmap, "grad": _grad, "forward": _forward, "vjp": _vjp, "jvp": _jvp}
