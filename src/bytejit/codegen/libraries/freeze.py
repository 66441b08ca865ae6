"""Freezing: parameters become constants of the graph, on the user's promise not to write into them behind torch's back.

What depends on constants alone is evaluated once; affine steps behind a convolution (an eval batch norm) are folded
into its weight and bias, in double precision; linears that share an input are merged; weights are prepacked by
`choose_libraries`. A write is noticed through the parameter's version counter, its address and its identity: an
optimizer step, `load_state_dict`, `.to()`, a new parameter in its place. `p.data.add_()` bumps no counter: that is
the promise.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.rewrite import (
    Constants,
    aten,
    call_before,
    copy_graph,
    drop_dead,
    is_static,
    replace,
    sole_user,
    spec_of,
    spec_or_none,
)
from bytejit.codegen.passes import Journal, Pass
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec, contiguous_stride

from .choices import choose_each, choose_together
from .linear import least_seconds, match_linear
from .pass_list import choose_libraries
from .products import Product

LARGEST = 1 << 24  # elements: a computed constant larger than this stays in the graph
RANDOM = torch.Tag.nondeterministic_seeded


def freeze(
    aten_graph: Aten,
    params: Mapping[int, torch.Tensor],
    passes: Sequence[Pass],
    tune: Any,
    library: Any,
    journal: Journal | None = None,
) -> tuple[Aten, tuple[torch.Tensor, ...], Callable[[Sequence], bool]]:
    """Fold and prepack the inputs in `params` (input index -> real tensor). passes, tune, library: as in `choose_libraries`.

    Returns the new `Aten`, whose graph has further placeholders after the old ones (those stay, mostly unread); the
    tensors to pass for them at every call; and check(inputs) -> bool: whether every frozen input is still the
    tensor, at the address and version, that was folded. Inputs that the graph mutates are left as they are. Some
    constants are in a library's own layout (`node.meta["opaque"]`): only the library call that they were packed for
    can read them.
    """
    graph = copy_graph(aten_graph.graph)
    mutated = {m.input for m in aten_graph.mutations}
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    frozen = {i: t for i, t in params.items() if i not in mutated}
    constants = Constants()
    with torch.no_grad():
        known = {inputs[i]: t.detach() for i, t in frozen.items()}
        constant_nodes = _constant_nodes(graph, set(known))
        fold_affine(graph, known, constant_nodes, constants)
        merge_linears(graph, known, constants, tune, library)
        _materialise(graph, known, constant_nodes, constants)
        drop_dead(graph)
        constants.prune(graph)
        result = choose_libraries(dataclasses.replace(aten_graph, graph=graph), passes, tune, library, constants, journal)
    added = constants.in_order(result.graph)
    return dataclasses.replace(result, constants=(*aten_graph.constants, *added)), added, watch(frozen)


def watch(frozen: Mapping[int, torch.Tensor]) -> Callable[[Sequence], bool]:
    """check(inputs): every frozen input is the same tensor, unwritten. Cost: about 0.1 us an input."""
    seen = tuple((i, t, t._version, t.data_ptr()) for i, t in sorted(frozen.items()))

    def check(inputs: Sequence) -> bool:
        for i, tensor, version, address in seen:
            if inputs[i] is not tensor or tensor._version != version or tensor.data_ptr() != address:
                return False
        return True

    return check


# ---- what is constant ----------------------------------------------------------------------------------------------


def _constant_nodes(graph: fx.Graph, known: set[fx.Node]) -> set[fx.Node]:
    """Nodes that depend only on frozen inputs and plain values, and have the same value each time."""
    found = set(known)
    for node in graph.nodes:
        if node.op != "call_function" or not node.all_input_nodes:
            continue
        if isinstance(node.target, torch._ops.OpOverload) and RANDOM in node.target.tags:
            continue
        if all(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def evaluate(node: fx.Node, known: Mapping[fx.Node, torch.Tensor], double: bool = False, memo: dict | None = None) -> Any:
    """The value of a constant node. double: with float32 inputs taken as float64, so that a fold rounds once."""
    memo = {} if memo is None else memo
    if node in memo:
        return memo[node]
    if node in known:
        value = known[node]
        value = value.double() if double and value.dtype is torch.float32 else value
    else:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: evaluate(n, known, double, memo))
        value = node.target(*args, **kwargs)
    memo[node] = value
    return value


def _materialise(graph: fx.Graph, known: dict, constant: set[fx.Node], constants: Constants) -> None:
    """Replace each constant value that a non-constant node reads by a constant placeholder."""
    memo: dict = {}
    for node in list(graph.nodes):
        if node not in constant or not any(user not in constant for user in node.users):
            continue
        spec = spec_or_none(node)
        if spec is None:
            continue  # several results: the getitem behind it is what gets replaced
        size = 1
        for n in spec.shape:
            size *= n
        if node.op == "call_function" and size > LARGEST:
            continue
        if node.op == "placeholder" and _only_output(node):
            continue
        value = evaluate(node, known, memo=memo)
        value = _laid_out(value, spec)
        fresh = constants.add(graph, value, node.name)
        for user in list(node.users):
            if user not in constant and user.op != "output":
                user.replace_input_with(node, fresh)
        if node.op == "call_function":
            for user in [u for u in node.users if u.op == "output"]:
                user.replace_input_with(node, call_before(graph, user, aten.clone.default, (fresh,), spec))


def _only_output(node: fx.Node) -> bool:
    return all(u.op == "output" for u in node.users)


def _laid_out(value: torch.Tensor, spec: Spec) -> torch.Tensor:
    """The value with the strides that the graph's specs promise."""
    if tuple(value.stride()) == spec.stride and value.dtype is spec.dtype:
        return value
    laid = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    return laid.copy_(value)


# ---- affine folding ------------------------------------------------------------------------------------------------


@light_dataclass(frozen=True)
class Affine:
    """A scale and a shift behind a convolution, a double for each channel. last: the node with the result."""

    last: fx.Node
    scale: torch.Tensor
    shift: torch.Tensor


def fold_affine(graph: fx.Graph, known: dict, constant: set[fx.Node], constants: Constants) -> None:
    """Fold multiplications and additions by constants per channel into the convolution before them, batch norms
    included."""

    def match(node: fx.Node) -> fx.Node | None:
        """A convolution of constant weight and bias."""
        if node.op != "call_function" or node.target is not aten.convolution.default or node.args[6]:
            return None
        return node if all(a is None or a in constant for a in node.args[1:3]) else None

    def decide(node: fx.Node) -> Affine | None:
        channels, device = spec_of(node).shape[1], spec_of(node).device
        scale = torch.ones(channels, dtype=torch.float64, device=device)
        shift = torch.zeros(channels, dtype=torch.float64, device=device)
        last = node
        memo: dict = {}
        while (step := _affine_step(last, channels, constant, known, memo)) is not None:
            last, by, plus = step
            scale, shift = scale * by, shift * by + plus
        return None if last is node else Affine(last, scale, shift)

    choose_each(graph, match, decide, lambda node, affine: _fold(graph, node, affine, known, constants))


def _fold(graph: fx.Graph, node: fx.Node, affine: Affine, known: dict, constants: Constants) -> None:
    """Replace a convolution and what follows by a convolution with other constants."""
    x, weight, bias, *rest = node.args
    spec = spec_of(node)
    memo: dict = {}
    exact = evaluate(weight, known, double=True, memo=memo)
    before = torch.zeros_like(affine.shift) if bias is None else evaluate(bias, known, double=True, memo=memo)
    scaled = exact * affine.scale.view(-1, *(1,) * (exact.dim() - 1))
    w = constants.add(graph, _laid_out(scaled, spec_of(weight)), "weight")
    b = constants.add(graph, (before * affine.scale + affine.shift).to(spec.dtype), "bias")
    replace(affine.last, call_before(graph, node, node.target, (x, w, b, *rest), spec))
    known.update({w: constants.tensors[w.name], b: constants.tensors[b.name]})
    drop_dead(graph)


def _affine_step(node: fx.Node, channels: int, constant: set, known: dict, memo: dict) -> tuple | None:
    """The sole user of a node as (last node, scale, shift) per channel in double precision, when it is one."""
    user = sole_user(node)
    if user is None or user.op != "call_function":
        return None
    norm = user.target is aten._native_batch_norm_legit_no_training.default or (
        user.target is aten.native_batch_norm.default and user.args[5] is False
    )
    if norm and user.args[0] is node:
        return _batch_norm(user, constant, known, memo)
    affine = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
    if user.kwargs or user.target not in affine or len(user.args) != 2:
        return None
    left, right = user.args
    other = right if left is node else left
    after, before = spec_or_none(user), spec_of(node)
    if after is None or after.shape != before.shape or after.dtype is not before.dtype:
        return None
    value = _per_channel(other, channels, before, constant, known, memo)
    if value is None or (user.target is aten.div.Tensor and left is not node):
        return None
    one, zero = torch.ones_like(value), torch.zeros_like(value)
    if user.target is aten.mul.Tensor:
        return user, value, zero
    if user.target is aten.div.Tensor:
        return user, 1 / value, zero
    if user.target is aten.add.Tensor:
        return user, one, value
    return (user, one, -value) if left is node else (user, -one, value)


def _per_channel(other: Any, channels: int, of: Spec, constant: set, known: dict, memo: dict) -> torch.Tensor | None:
    """A number, or a constant that broadcasts along everything but dimension 1 of `of`, as `channels` doubles."""
    rank = len(of.shape)
    if isinstance(other, (int, float)) and not isinstance(other, bool):
        return torch.full((channels,), float(other), dtype=torch.float64, device=of.device)
    spec = spec_or_none(other)
    if spec is None or other not in constant:
        return None
    shape = (1,) * (rank - len(spec.shape)) + spec.shape
    if len(shape) != rank or shape[1] not in (1, channels) or any(n != 1 for i, n in enumerate(shape) if i != 1):
        return None
    return evaluate(other, known, double=True, memo=memo).double().reshape(-1).expand(channels)


def _batch_norm(node: fx.Node, constant: set, known: dict, memo: dict) -> tuple | None:
    (_, weight, bias, mean, var), eps = node.args[:5], node.args[-1]
    if any(n is not None and n not in constant for n in (weight, bias, mean, var)):
        return None
    results = list(node.users)
    if len(results) != 1 or results[0].args[1:] != (0,):
        return None
    values = [evaluate(n, known, double=True, memo=memo) if n is not None else None for n in (weight, bias, mean, var)]
    scale = (values[3] + eps).rsqrt() * (1 if values[0] is None else values[0])
    return results[0], scale, (0 if values[1] is None else values[1]) - values[2] * scale


# ---- merging linears -----------------------------------------------------------------------------------------------


def merge_linears(graph: fx.Graph, known: dict, constants: Constants, tune: Any, library: Any) -> None:
    """Linears on one input (query, key and value) become one with concatenated weights, and slices of its result, where the
    wide product is timed to take no longer than the narrow ones together."""

    def match(node: fx.Node) -> Product | None:
        found = match_linear(node)
        return found if found is not None and found.m in known and (found.b is None or found.b in known) else None

    def decide(found: list[Product]) -> list:
        """For the first of a group the whole group, where merging pays."""
        groups: dict[tuple, list[Product]] = {}
        for one in found:
            groups.setdefault((_origin(one.x), spec_of(one.x).shape, one.b is None), []).append(one)
        merged = {g[0].node: g for g in groups.values() if len(g) > 1 and _can_merge(g) and _merging_pays(g, tune, library)}
        return [merged.get(one.node) for one in found]

    choose_together(graph, match, decide, lambda first, group: _merge(graph, group, known, constants))


def _can_merge(group: list[Product]) -> bool:
    specs = [spec_of(g.node) for g in group]
    return all(is_static(s) and s.stride == contiguous_stride(s.shape) for s in specs)


def _merge(graph: fx.Graph, group: list[Product], known: dict, constants: Constants) -> None:
    """One linear in place of a group, before the first of them, and a slice of its result for each."""
    first = group[0]
    weights = [known[g.m] if g.transposed else known[g.m].t() for g in group]
    w = constants.add(graph, torch.cat(weights), "weights")
    b = constants.add(graph, torch.cat([known[g.b] for g in group]), "biases") if first.b is not None else None
    spec = spec_of(first.node)
    shape = (*spec.shape[:-1], sum(map(len, weights)))
    wide = Spec(shape, contiguous_stride(shape), spec.dtype, spec.device)
    merged = call_before(graph, first.node, aten.linear.default, (first.x, w, b), wide)
    starts = [0, *itertools.accumulate(map(len, weights))]
    parts = []
    for start, end in itertools.pairwise(starts):
        narrow = Spec((*shape[:-1], end - start), wide.stride, spec.dtype, spec.device)
        parts.append(call_before(graph, first.node, aten.slice.Tensor, (merged, len(shape) - 1, start, end), narrow))
    for g, part in zip(group, parts, strict=True):
        _restride_views(g.node, part)
        replace(g.node, part)


def _merging_pays(group: list[Product], tune: Any, library: Any) -> bool:
    """Decided by timing. Without timing yes: one call reads the input once and starts its threads once."""
    each = [least_seconds(g.weight.shape, spec_of(g.x), tune, library) for g in group]
    narrow = [seconds for seconds in each if seconds is not None]
    outputs = sum(g.weight.shape[0] for g in group)
    wide = least_seconds((outputs, group[0].weight.shape[1]), spec_of(group[0].x), tune, library)
    return wide is None or len(narrow) < len(each) or wide <= sum(narrow)


def _origin(node: fx.Node) -> tuple:
    """Equal for views of one tensor that are the same view: linears are often fed through a view each."""
    path = []
    views = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
    while node.op == "call_function" and node.target in views:
        path.append(tuple(node.args[1]))
        node = node.args[0]
    return (node, tuple(path[:1]))


def _restride_views(old: fx.Node, new: fx.Node) -> None:
    """Give the views behind a matmul's result the strides they have on a slice; a reader that is no view needs
    nothing."""
    fakes = {old: torch.empty_strided(spec_of(new).shape, spec_of(new).stride, dtype=spec_of(new).dtype, device="meta")}
    pending = [old]
    while pending:
        node = pending.pop()
        for user in node.users:
            if user.op != "call_function" or not _is_view(user.target) or user.all_input_nodes != [node]:
                continue
            args, kwargs = fx.map_arg((user.args, user.kwargs), lambda n: fakes[n])
            fakes[user] = user.target(*args, **kwargs)
            spec = spec_of(user)
            user.meta["spec"] = Spec(spec.shape, tuple(fakes[user].stride()), spec.dtype, spec.device)
            pending.append(user)


def _is_view(target: Any) -> bool:
    """The op's result shares its operand's memory. (_unsafe_view does though its schema hides it: linears of torch 2.15.)"""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target is aten._unsafe_view.default:
        return True
    returns, arguments = target._schema.returns, target._schema.arguments
    alias = arguments[0].alias_info if arguments else None
    return len(returns) == 1 and alias is not None and not alias.is_write
