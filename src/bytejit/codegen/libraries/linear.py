"""Which library multiplies: linear, addmm and mm nodes are replaced by the call that timing found fastest, posts
fused where that wins."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    VIEWS,
    Constants,
    at_hints,
    aten,
    call_before,
    contiguous,
    is_static,
    plain_cpu,
    replace,
    sole_user,
    spec_of,
)
from bytejit.common.spec import Spec

POSTS = {aten.relu.default: "relu", aten.gelu.default: "gelu"}
SAMPLE = 64                    # rows of a product that are compared with float64
LEAST_WORK = 2_000_000      # multiply-adds below which a call's own cost decides and the choice is not worth timing


@dataclass(frozen=True)
class Linear:
    """x [..., K] times w [N, K] transposed, plus b [N]. w_node: the node that holds the weight; flipped: it holds
    [K, N]."""

    node: fx.Node
    x: fx.Node
    w_node: fx.Node
    b: fx.Node | None
    flipped: bool

    @property
    def w_spec(self) -> Spec:
        """Spec of the weight as [N, K]."""
        spec = spec_of(self.w_node)
        if not self.flipped:
            return spec
        return Spec(spec.shape[::-1], spec.stride[::-1], spec.dtype, spec.device)

    @property
    def work(self) -> int:
        """Multiply-adds."""
        n, k = self.w_spec.shape
        return math.prod(at_hints(spec_of(self.x)).shape[:-1]) * n * k


def match_linear(node: fx.Node) -> Linear | None:
    """A node as a `Linear`; None when it is none, or of a kind (dtype, device, a weight of symbolic size, beta, alpha) that the
    rows do not serve."""
    if node.op != "call_function" or node.kwargs:
        return None
    if node.target is aten.linear.default:
        x, w = node.args[:2]
        found = Linear(node, x, w, node.args[2] if len(node.args) > 2 else None, False)
    elif node.target is aten.addmm.default and len(node.args) == 3:
        found = _from_product(node, node.args[1], node.args[2], node.args[0])
    elif node.target is aten.mm.default:
        found = _from_product(node, node.args[0], node.args[1], None)
    else:
        return None
    bias = spec_of(found.b)
    if not plain_cpu(spec_of(found.x), spec_of(found.w_node), *([bias] if found.b is not None else [])):
        return None
    if not is_static(spec_of(found.w_node)) or len(spec_of(found.w_node).shape) != 2:
        return None
    good_bias = found.b is None or bias.shape == (found.w_spec.shape[0],)
    return found if good_bias and 0 not in (*spec_of(found.x).shape, *found.w_spec.shape) else None


def _from_product(node: fx.Node, x: fx.Node, m: fx.Node, b: fx.Node | None) -> Linear:
    turned = isinstance(m, fx.Node) and m.op == "call_function" and (
        m.target is aten.t.default
        or m.target is aten.transpose.int and sorted(d % 2 for d in m.args[1:3]) == [0, 1]
        or m.target is aten.permute.default and [d % 2 for d in m.args[1]] == [1, 0])
    return Linear(node, x, m.args[0], b, False) if turned else Linear(node, x, m, b, True)


def match_post(node: fx.Node) -> tuple[fx.Node, str] | None:
    """The relu or gelu that alone reads a node's result, views between them allowed, and what the rows call it."""
    user = sole_user(node)
    while user is not None and user.op == "call_function" and user.target in VIEWS:
        user = sole_user(user)
    if user is None or user.target not in POSTS:
        return None
    name = POSTS[user.target]
    if name == "gelu" and user.kwargs.get("approximate", "none") == "tanh":
        name = "gelu_tanh"
    return user, name


def choose_linears(graph: fx.Graph, tune: Any, library: Any, constants: Constants | None = None) -> None:
    """Replace each matmul whose default is not the fastest. Changes `graph`; with `constants` it may prepack
    constant weights."""
    for node in list(graph.nodes):
        found = match_linear(node)
        if found is None or found.work < LEAST_WORK:
            continue
        packs = constants is not None and constants.of(found.w_node) is not None
        post = match_post(node)
        name = _time(found, post[1] if post else None, packs, tune, library)
        row = library.ROWS[name.split("+")[0]]
        if row is library.rows("linear")[0]:
            continue
        _apply(graph, found, row, post if "+" in name else None, constants)
    if "linear_own" in library.available():
        join_products(graph, library.gemm.MOST)


def join_products(graph: fx.Graph, most: int) -> None:
    """Our own products of one operand (query, key and value) become one call: threads start and end once, and share the
    work of all, `most` a call. Those join whose weights and biases are there when the first one runs. Changes `graph`."""
    one, several = torch.ops.bytejit.linear.default, torch.ops.bytejit.linears.default
    order = {node: i for i, node in enumerate(graph.nodes)}
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is one and (len(node.args) < 4 or not node.args[3]):
            groups.setdefault(_seen_through(node.args[0]), []).append(node)
    for group in groups.values():
        first = group[0]
        alike = [n for n in group if spec_of(n.args[0]).shape == spec_of(first.args[0]).shape
                 and all(order[a] < order[first] for a in n.args[1:3] if isinstance(a, fx.Node))]
        for start in range(0, len(alike) - 1, most):
            part = alike[start:start + most]
            made = call_before(graph, part[0], several, (first.args[0], [n.args[1] for n in part], [n.args[2] for n in part]),
                               tuple(spec_of(n) for n in part))
            for i, node in enumerate(part):
                replace(node, call_before(graph, node, operator.getitem, (made, i), spec_of(node)))


def _seen_through(node: fx.Node) -> fx.Node:
    """The tensor behind views: linears are often fed through a view each."""
    while node.op == "call_function" and node.target in VIEWS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _candidates(x_spec: Spec, n: int, post: str | None, packs: bool, library: Any) -> list:
    """Each row as it stands, then with the post fused; a row without it runs torch's own op after, so that times
    compare."""
    after = {None: None, "relu": torch.relu, "gelu": torch.nn.functional.gelu,
             "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh")}[post]
    rows = math.prod(at_hints(x_spec).shape[:-1])
    made = []
    for row in library.rows("linear", packed=packs):
        prepare = None
        if row.pack:
            def prepare(x, w, b, _row=row):
                return x, _row.pack(w.contiguous(), rows=rows), b

        def plain(x, w, b=None, _row=row):
            result = _row(x=x, w=w, b=b, n=n)
            return after(result) if after else result

        def fused(x, w, b=None, _row=row):
            return _row(x=x, w=w, b=b, post=post, n=n)

        made.append((row.name, plain, prepare))
        if post in row.posts:
            made.append((f"{row.name}+{post}", fused, prepare))
    return made


def _operands(x: Spec, w: Spec) -> list[Spec]:
    """Specs that a product is timed on. A bias is always there: it costs nothing beside the product and the timings
    serve both."""
    x = at_hints(x)
    flat = Spec((math.prod(x.shape[:-1]), x.shape[-1]), (x.shape[-1], 1), x.dtype, x.device)
    return [flat, w, Spec((w.shape[0],), (1,), x.dtype, x.device)]


def least_seconds(shape: tuple[int, int], x: Spec, tune: Any, library: Any) -> float | None:
    """Seconds of the fastest call for a constant weight of `shape` [N, K]; None when tuning is off."""
    made = [tune.candidate(*c) for c in _candidates(x, shape[0], None, True, library)]
    choice = tune.choose("linear", _operands(x, Spec(shape, (shape[1], 1), x.dtype, x.device)), made, cold=[1],
                         sample=SAMPLE)
    return None if choice is None else min(choice.seconds.values())


def _time(found: Linear, post: str | None, packs: bool, tune: Any, library: Any) -> str:
    made = [tune.candidate(*c) for c in _candidates(spec_of(found.x), found.w_spec.shape[0], post, packs, library)]
    choice = tune.choose("linear", _operands(spec_of(found.x), found.w_spec), made, cold=[1],
                         attrs=post or "", sample=SAMPLE)
    if choice is not None:
        return choice.name
    # nothing known and tuning off: prepacked when it may be, else what torch itself would take
    return made[-1].name.split("+")[0] if packs and len(made) > 1 else made[0].name


def _apply(graph: fx.Graph, found: Linear, row: Any, post: tuple | None, constants: Constants | None) -> None:
    node, spec = found.node, spec_of(found.node)
    if row.pack:
        rows = math.prod(at_hints(spec_of(found.x)).shape[:-1])
        real = constants.of(found.w_node)
        weight = (real.t() if found.flipped else real).contiguous()
        w = constants.add(graph, row.pack(weight, rows=rows), "packed", spec=Spec.of(weight))
    elif found.flipped:
        w = call_before(graph, node, aten.t.default, (found.w_node,), found.w_spec)
    else:
        w = found.w_node
    target, args = row.build(x=found.x, w=w, b=found.b, post=post[1] if post else None,
                             n=found.w_spec.shape[0])
    new = call_before(graph, node, target, args, contiguous(spec))
    replace(node, new)
    if post:
        replace(post[0], post[0].args[0])
