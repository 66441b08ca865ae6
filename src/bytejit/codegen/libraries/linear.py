"""Chooses the library of matrix products on the CPU: linear, addmm and mm nodes become the call that timing found fastest, with
a fused epilogue where that is faster.

torch's own call is the default. Our own product (`kernels/gemm.py`) serves float32; it is built when a graph has a product.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    VIEWS,
    at_hints,
    aten,
    call_before,
    contiguous,
    is_static,
    plain_cpu,
    replace,
    sole_user,
    spec_of,
    specs_of,
)
from bytejit.common.spec import Spec

from .choices import Choices, call_of, choose_each, choose_together, timed
from .loose_biases import is_loose, loosen, row_step
from .products import Product, match_product

Epilogue = tuple[fx.Node, str]  # a node, and what the rows call it
EPILOGUES = {aten.relu.default: "relu", aten.gelu.default: "gelu"}
SAMPLE = 64  # rows of a product that are compared with float64
LEAST_WORK = 2_000_000  # multiply-adds below which a call's own cost decides and the choice is not worth timing


def match_linear(node: fx.Node) -> Product | None:
    """A product that the rows serve; None for other nodes and kinds (dtype, device, a batch, a weight of symbolic size)."""
    found = match_product(node)
    if found is None or node.target is aten.bmm.default:
        return None
    found = found.through_transpose()
    specs = specs_of(found.x, found.m, *([found.b] if found.b is not None else []))
    if specs is None or not plain_cpu(*specs):
        return None
    x, m, *b = specs
    if not is_static(m) or len(m.shape) != 2:
        return None
    good_bias = not b or b[0].shape == (found.weight.shape[0],)
    return found if good_bias and 0 not in (*x.shape, *m.shape) else None


def match_epilogue(node: fx.Node) -> Epilogue | None:
    """The relu or gelu that alone reads a node's result, views between them allowed, and what the rows call it."""
    user = sole_user(node)
    while user is not None and user.op == "call_function" and user.target in VIEWS:
        user = sole_user(user)
    if user is None or user.target not in EPILOGUES:
        return None
    name = EPILOGUES[user.target]
    if name == "gelu" and user.kwargs.get("approximate", "none") == "tanh":
        name = "gelu_tanh"
    return user, name


def choose_linears(graph: fx.Graph, choices: Choices) -> None:
    """Replace each matmul whose default is not the fastest. Changes `graph`; with `constants` it may prepack
    constant weights."""
    library = choices.library

    def decide(found: Product) -> tuple[Any, Epilogue | None] | None:
        default, loose = library.rows("linear")[0], is_loose(found)
        if found.work < LEAST_WORK:
            return (default, None) if loose else None
        epilogue = match_epilogue(found.node)
        name = _time(found, epilogue[1] if epilogue else None, loose, choices.packs(found.m), choices.tune, library)
        row = library.ROWS[name.split("+")[0]]
        return (row, epilogue if "+" in name else None) if loose or row is not default else None

    choose_each(graph, match_linear, decide, lambda found, way: _apply(graph, found, *way, choices))
    if "linear_own" in library.available():
        join_products(graph, library.gemm.MOST)


def join_products(graph: fx.Graph, most: int) -> None:
    """Our own products of one operand (query, key and value) become one call, at most `most` of them: threads start once and
    share the work. A product joins if its weight and bias exist when the first one runs. Changes `graph`."""
    one, several = torch.ops.bytejit.linear.default, torch.ops.bytejit.linears.default
    order = {node: i for i, node in enumerate(graph.nodes)}
    calls: dict[fx.Node, fx.Node] = {}  # the first product of several -> the call of all

    def match(node: fx.Node) -> fx.Node | None:
        plain = node.op == "call_function" and node.target is one and (len(node.args) < 4 or not node.args[3])
        return node if plain else None

    def decide(found: list[fx.Node]) -> list[tuple[list[fx.Node], int] | None]:
        groups: dict[fx.Node, list[fx.Node]] = {}
        for node in found:
            groups.setdefault(_seen_through(node.args[0]), []).append(node)
        ways: dict[fx.Node, tuple[list[fx.Node], int]] = {}
        for group in groups.values():
            alike = [n for n in group if _joins(n, group[0], order)]
            for start in range(0, len(alike) - 1, most):
                part = alike[start : start + most]
                ways |= {node: (part, i) for i, node in enumerate(part)}
        return [ways.get(node) for node in found]

    def apply(node: fx.Node, way: tuple[list[fx.Node], int]) -> None:
        part, i = way
        if i == 0:
            operands = (node.args[0], [n.args[1] for n in part], [n.args[2] for n in part])
            calls[node] = call_before(graph, node, several, operands, tuple(spec_of(n) for n in part))
        replace(node, call_before(graph, node, operator.getitem, (calls[part[0]], i), spec_of(node)))

    choose_together(graph, match, decide, apply)


def _joins(node: fx.Node, first: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether a product of the same operand can run at the place of the first one."""
    same = spec_of(node.args[0]).shape == spec_of(first.args[0]).shape
    return same and all(order[a] < order[first] for a in node.args[1:3] if isinstance(a, fx.Node))


def _seen_through(node: fx.Node) -> fx.Node:
    """The tensor behind views: linears often have a view each in front of them."""
    while node.op == "call_function" and node.target in VIEWS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _timed(specs: list[Spec], epilogue: str | None, packs: bool, tune: Any, library: Any) -> tuple[list[str], Any]:
    """Time all ways to multiply. Returns their names, and the tuner's choice. specs: of the operands (`_operands`), without a
    bias if a kernel adds it. Each row of the library is timed as it is and, where it can, with the epilogue fused. After a row
    without it runs an operation as long as our kernel for the epilogue, so that times compare."""
    after = None if epilogue is None else library.after(epilogue)
    rows, n = specs[0].shape[0], specs[1].shape[0]
    ways: dict[str, Callable] = {}
    prepare: dict[str, Callable] = {}
    for row in library.rows("linear", packed=packs):
        plain = call_of(row, ("x", "w", "b"), n=n)
        ways[row.name] = plain if after is None else lambda *operands, plain=plain: after(plain(*operands))
        if epilogue in row.epilogues:
            ways[f"{row.name}+{epilogue}"] = call_of(row, ("x", "w", "b"), n=n, epilogue=epilogue)
        if row.pack:
            packed = lambda x, w, *b, row=row: (x, row.pack(w.contiguous(), rows=rows), *b)
            prepare |= dict.fromkeys((row.name, f"{row.name}+{epilogue}"), packed)
    attrs = f"then {epilogue}" if epilogue else ""
    return list(ways), timed(tune, "linear", specs, ways, prepare, cold=[1], attrs=attrs, sample=SAMPLE)


def _operands(x: Spec, w: Spec) -> list[Spec]:
    """Specs that a product is timed on. A bias is there also for products without: one timing serves both. An operand that
    lies transposed, as in the gradient of a weight, is timed so: some libraries copy it first."""
    x = at_hints(x)
    rows, k = math.prod(x.shape[:-1]), x.shape[-1]
    turned = row_step(x) == 1 and x.stride[-1] >= rows > 1
    flat = Spec((rows, k), (1, x.stride[-1]) if turned else (k, 1), x.dtype, x.device)
    return [flat, w, Spec((w.shape[0],), (1,), x.dtype, x.device)]


def least_seconds(shape: tuple[int, int], x: Spec, tune: Any, library: Any) -> float | None:
    """Seconds of the fastest call for a constant weight of `shape` [N, K]; None when tuning is off."""
    specs = _operands(x, Spec(shape, (shape[1], 1), x.dtype, x.device))
    _, choice = _timed(specs, None, True, tune, library)
    return None if choice is None else min(choice.seconds.values())


def _time(found: Product, epilogue: str | None, loose: bool, packs: bool, tune: Any, library: Any) -> str:
    specs = _operands(spec_of(found.x), found.weight)[: 2 if loose else 3]  # a kernel adds a loose bias
    names, choice = _timed(specs, epilogue, packs, tune, library)
    if choice is not None:
        return choice.name
    # nothing known and tuning off: prepacked when it may be, else what torch itself would take
    return names[-1].split("+")[0] if packs and len(names) > 1 else names[0]


def _apply(graph: fx.Graph, found: Product, row: Any, epilogue: Epilogue | None, choices: Choices) -> None:
    node, spec = found.node, spec_of(found.node)
    if row is choices.library.rows("linear")[0]:
        loosen(graph, found)
        return
    if row.pack:
        rows = math.prod(at_hints(spec_of(found.x)).shape[:-1])

        def pack(real: torch.Tensor) -> torch.Tensor:
            return row.pack((real if found.transposed else real.t()).contiguous(), rows=rows)

        w = choices.prepack(graph, found.m, pack, contiguous(found.weight))
    elif not found.transposed:
        w = call_before(graph, node, aten.t.default, (found.m,), found.weight)
    else:
        w = found.m
    target, args = row.build(x=found.x, w=w, b=found.b, epilogue=epilogue[1] if epilogue else None, n=found.weight.shape[0])
    new = call_before(graph, node, target, args, contiguous(spec))
    replace(node, new)
    if epilogue:
        replace(epilogue[0], epilogue[0].args[0])
