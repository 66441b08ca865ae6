"""Small integer tensors whose values the program asks for (`if mask.any():`, `lengths.max().item()`).

Where such a value follows from integers and bools on the CPU by a few operations, the trace computes it from the real
tensors, goes on with it as a constant, and guards that it is the same: the guard runs those operations again before the
graph does. So do operations whose result has as many elements as the values say (`nonzero`, `unique`): the result is a
constant of the graph. Of floats from outside only comparisons of a few in a buffer are computed (`self.p[0] > 0`), and whether
all or some are equal to something (`(mask == causal).all()`). Values of large tensors, and of tensors from outside that
the region writes, stay unknown: they break the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.graph_modules import module_of
from bytejit.common.identity import IdentityMap
from bytejit.fake.tensor import Fake, was_written
from bytejit.guards.conditions import ComputedItems
from bytejit.guards.module_sources import ModuleBuffer, ModuleParam
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.sizes import DrawnTensor
from bytejit.tracer.core.values import SeqVar, SliceVar, TensorVar, Var

from .node_chains import PURE, UNSET, WRITES, called, copied, nodes_behind

MOST_ELEMENTS = 16_384  # of a tensor that the computation may pass through
MOST_OPERATIONS = 64  # of the computation
VALUES_LIMIT = 2  # entries of a site that hold for some values of tensors only (a mask with and without holes)
EQUAL_LIMIT = 6  # the same where the values are whether floats are equal to something, which seldom changes
SEEN_LIMIT = 2  # values of what is asked of a buffer that graphs are made for: a flag set once, no place where the next item goes
MOST_FLOATS = 64  # floats of a buffer of which something is asked
COUNTED = frozenset(
    """nonzero argwhere where unique _unique2 unique_dim unique_consecutive masked_select bincount
    repeat_interleave""".split()
)


# what floats from outside may be asked for: whether they are the same as something (a mask, of which the program asks
# whether it is the usual one) seldom changes, unlike what is computed of them
COMPARED = frozenset({"eq", "ne", "equal", "isinf", "isneginf", "isposinf", "isnan", "isfinite"})


# owner: TensorValues._counts; size: a set for each value that was asked of a module's buffer; goes with the module
_VALUES_SEEN: IdentityMap[dict[tuple, set[int]]] = IdentityMap()


class TensorValues(Component):
    """The part of the tracer that finds values of tensors while tracing."""

    def tensor_value(self, v: TensorVar, changes: bool | None = None) -> torch.Tensor | None:
        """The tensor's value, guarded; None where it cannot be known. changes: also one that changes; by default where a break
        is no choice."""
        changes = self.t.job.measure if changes is None else changes
        key = ("value", changes, v.node, len(self.t.graph.nodes) if was_written(v.fake) else 0)
        if key not in self.t.memo:
            self.t.memo[key] = self._find_value(v, changes)
            self.t.keep.append(v)
        return self.t.memo[key]

    def python_value(self, v: TensorVar, function: Callable) -> Var | None:
        """function(tensor) for one of item, tolist, bool, int..., from the tensor's value; None where it is unknown."""
        if function is torch.Tensor.__index__ and (v.fake.is_floating_point() or v.fake.is_complex()):
            return None  # it raises
        value = self.tensor_value(v, False)
        if value is None and (number := self.t.computed_numbers.number(v, function)) is not None:
            return number
        if value is None and self.t.job.measure:
            value = self.tensor_value(v)
        if value is None:
            return self.t.measures.measured_value(v, function)
        try:
            return self.t.calls.model(function(value))
        except Exception as e:
            raise self.t.raised(e) from None

    def sizes_by_value(self, v: Var) -> Var:
        """An argument with Python ints in place of integer tensors of no dimension whose value is known, where an
        operation takes sizes, places or slices."""
        v = self.t.values.real(v)
        if isinstance(v, TensorVar) and v.fake.dim() == 0 and v.fake.dtype is torch.int64:
            known = self.python_value(v, torch.Tensor.item)
            return v if known is None else known
        if isinstance(v, SeqVar) and v.cls in (tuple, list, torch.Size):
            parts = [self.sizes_by_value(p) for p in v.items]
            return v if all(a is self.t.values.real(b) for a, b in zip(parts, v.items)) else SeqVar(parts, v.cls)
        if isinstance(v, SliceVar):
            parts = [self.sizes_by_value(p) for p in v.parts]
            return v if all(a is self.t.values.real(b) for a, b in zip(parts, v.parts)) else SliceVar(parts)
        return v

    def _find_value(self, v: TensorVar, changes: bool) -> torch.Tensor | None:
        if v.node is None:
            return None
        outside = v.real is not None and v.source is not None
        nodes = self._chain(v.node) if not outside else [v.node] if self._is_leaf(v.node) else None
        if nodes is None:
            return None
        by_node = {x.node: x for x in self.t.inputs if not isinstance(x, DrawnTensor)}
        leaves = [by_node[n] for n in nodes if n.op == "placeholder"]
        tensors = [x for x in leaves if isinstance(x, TensorVar)]
        if any(x.real.numel() > MOST_ELEMENTS or x in self.t.effects.data_set for x in tensors):
            return None
        lasting = all(isinstance(x.source, (ModuleBuffer, ModuleParam)) for x in leaves)  # a symbolic int is a leaf, too
        limit = VALUES_LIMIT if all(self._is_leaf(x.node) for x in leaves) else EQUAL_LIMIT
        if not lasting and not changes and self.t.job.by_value >= limit:
            return None
        run = _function(nodes, v.node)
        try:
            with torch.no_grad():
                value = run(*(x.real for x in leaves))
                if any(called(n) in UNSET for n in nodes) and not torch.equal(
                    value, _function(nodes, v.node, 1)(*(x.real for x in leaves))
                ):
                    return None
        except Exception as e:
            raise Break(f"{v.node} raises {type(e).__name__}: {str(e)[:200]}") from None
        if not isinstance(value, torch.Tensor) or value.numel() > MOST_ELEMENTS or value.isnan().any():
            return None
        if lasting and not changes and self._counts(tensors, nodes, value):
            return None
        if leaves:
            leaves.sort(key=lambda x: not isinstance(x, TensorVar))
            order = [x.node for x in leaves]
            run = _function(sorted(nodes, key=lambda n: order.index(n) if n in order else len(order)), v.node)
            self.t.by_value = self.t.by_value or not lasting
            self.t.guard("VALUE", leaves[0].source, ComputedItems(run, tuple(x.origin for x in leaves), value.tolist()))
        return value

    def _counts(self, tensors: list[TensorVar], nodes: list[torch.fx.Node], value: torch.Tensor) -> bool:
        """Whether the program counts in a module's buffers: the value computed from them was different in so many traces.
        Each value may be in a new tensor."""
        asked, found = (*(called(n) for n in nodes if n.op != "placeholder"),), False  # each site has its own name for the buffer
        for x in tensors:
            if not isinstance(x.source, (ModuleBuffer, ModuleParam)) or (module := self.t.modules.get(x.source)) is None:
                continue
            seen = (_VALUES_SEEN.get(module) or _VALUES_SEEN.set(module, {})).setdefault((x.source.key, asked), set())
            if len(seen) <= SEEN_LIMIT:
                seen.add(hash(tuple(value.flatten().tolist())))
            found = found or len(seen) > SEEN_LIMIT
        return found

    def _chain(self, last: torch.fx.Node) -> list[torch.fx.Node] | None:
        """The nodes that a node's value takes, in order; None where it takes something that is not known."""
        compared: list[torch.fx.Node] = []  # floats from outside
        is_whole = isinstance(last.meta["val"], Fake) and not last.meta["val"].dtype.is_floating_point

        def is_known(node: torch.fx.Node) -> bool:
            name, value = called(node), node.meta.get("val")
            if node.op == "placeholder":
                if not self._is_leaf(node) and not (is_whole and self._is_setting(node)):
                    if not is_whole or not _few_floats(value):
                        return False
                    compared.append(node)
                return True
            nothing = name == "empty_strided" and isinstance(value, Fake) and value.numel() == 0
            if node.op not in ("call_function", "call_method") or not (nothing or any(name in s for s in (PURE, WRITES, UNSET))):
                return False
            return name in WRITES or _small(value, True)

        nodes = nodes_behind(self.t.graph, last, MOST_OPERATIONS, is_known)
        used = set(nodes or ())
        if any(called(user) not in COMPARED for node in compared for user in node.users if user in used):
            return None
        return nodes

    def counted(self, fn: Callable, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """The result of an operation that makes as many elements as its arguments' values say, as constants of the graph;
        None where the values are not known."""
        if getattr(fn, "__name__", "") not in COUNTED or "out" in kwargs:
            return None
        tensors = [v for v in map(self.t.values.real, (*args, *kwargs.values())) if isinstance(v, TensorVar)]
        known = {id(v): self.tensor_value(v) for v in tensors}
        if any(v is None for v in known.values()):
            return self._repeated(fn, args, kwargs, known)
        real: list[Any] = [known.get(id(self.t.values.real(a)), a) for a in args]
        named: dict[str, Any] = {k: known.get(id(self.t.values.real(a)), a) for k, a in kwargs.items()}
        if fn in (torch.where, torch.Tensor.where):
            fn, named = torch.nonzero, {"as_tuple": self.t.values.constant(True)}
        as_tuple = self.t.const(named.pop("as_tuple")) if "as_tuple" in named else False
        plain = [a if isinstance(a, torch.Tensor) else self.t.const(a) for a in real]
        options = {k: a if isinstance(a, torch.Tensor) else self.t.const(a) for k, a in named.items()}
        if as_tuple:  # of a number, torch gives the place in a vector of one
            plain, options = [torch.atleast_1d(p) for p in plain], {k: torch.atleast_1d(p) for k, p in options.items()}
        try:
            result = fn(*plain, **options)
        except (RuntimeError, ValueError, TypeError, IndexError) as e:
            raise Break(f"{getattr(fn, '__name__', fn)} raises: {e}") from None
        parts = result if isinstance(result, tuple) else (result,)
        if any(p.numel() > MOST_ELEMENTS or not _in_rows(p) and not (p.dim() == 2 and _in_rows(p.t())) for p in parts):
            return None
        made = [self._constant_tensor(p) for p in parts]
        if as_tuple:
            return self.t.tensors.call_tensor_op(torch.unbind, [made[0], self.t.values.constant(1)], {})
        return SeqVar(made, tuple) if isinstance(result, tuple) else made[0]

    def _repeated(self, fn: Callable, args: list[Var], kwargs: dict[str, Var], known: dict) -> Var | None:
        """repeat_interleave of any tensor, as often as a tensor of known value says."""
        repeats = kwargs.get("repeats", args[1] if len(args) > 1 else None)
        times = None if repeats is None else known.get(id(self.t.values.real(repeats)))
        repeating = fn in (torch.repeat_interleave, torch.Tensor.repeat_interleave)
        if not repeating or times is None or times.dim() != 1 or "output_size" in kwargs:
            return None
        return self.t.tensors.call_tensor_op(fn, args, {**kwargs, "output_size": self.t.values.constant(int(times.sum()))})

    def _constant_tensor(self, value: torch.Tensor) -> Var:
        """A tensor made in the graph, of known elements."""
        if not value.numel():
            return self.t.tensors.call_tensor_op(
                torch.empty_strided,
                [self.t.calls.model(tuple(value.shape)), self.t.calls.model(value.stride())],
                {"dtype": self.t.values.constant(value.dtype), "device": self.t.values.constant(value.device)},
            )
        if not _in_rows(value):  # the places that nonzero finds lie in columns
            return self.t.tensors.call_tensor_op(torch.Tensor.t, [self._constant_tensor(value.t())], {})
        made = self.t.tensors.call_tensor_op(
            torch.tensor,
            [self.t.calls.model(value.flatten().tolist())],
            {"dtype": self.t.values.constant(value.dtype), "device": self.t.values.constant(value.device)},
        )
        if value.dim() == 1:
            return made
        return self.t.tensors.call_tensor_op(torch.Tensor.reshape, [made, self.t.calls.model(tuple(value.shape))], {})

    def index_by_value(self, key: Var) -> Var:
        """The numbers of the places that a mask of known value picks; the key itself where it is none."""
        key = self.t.values.real(key)
        if not isinstance(key, TensorVar) or key.fake.dtype is not torch.bool or key.fake.dim() == 0:
            return key
        value = self.tensor_value(key)
        if value is None:
            return key
        places = [self.t.calls.model(p.tolist()) for p in value.nonzero(as_tuple=True)]
        return places[0] if len(places) == 1 else SeqVar(places, tuple)

    def _is_setting(self, node: torch.fx.Node) -> bool:
        """Whether a placeholder is a few floats of a module's buffer: a condition on them (`self.p[0] > 0`) seldom changes."""
        var = next(x for x in self.t.inputs if x.node is node)
        return (
            isinstance(var, TensorVar)
            and isinstance(var.source, ModuleBuffer)
            and _small(var.fake)
            and var.fake.device.type == "cpu"
            and var.real.numel() <= MOST_FLOATS
            and not var.fake.is_complex()
        )

    def _is_leaf(self, node: torch.fx.Node) -> bool:
        if node in self.t.drawn_tensors.nodes:  # no guard may see what is drawn
            return False
        fake = node.meta.get("val")
        if isinstance(fake, torch.SymInt):
            return True
        return (
            _small(fake)
            and isinstance(fake, torch.Tensor)
            and not fake.is_floating_point()
            and not fake.is_complex()
            and fake.device.type == "cpu"
        )


def _few_floats(fake: Any) -> bool:
    """Whether a fake is a small one of floats on the CPU, as it came."""
    return isinstance(fake, Fake) and _small(fake) and fake.is_floating_point() and fake.device.type == "cpu"


def _in_rows(value: torch.Tensor) -> bool:
    return not value.numel() or value.stride() == torch.empty(value.shape, device="meta").stride()


def _small(value: Any, written: bool = False) -> bool:
    """Whether a fake, or a tuple of them, is small and (unless it may be written) as it was made."""
    if isinstance(value, (tuple, list)):
        return all(_small(v, written) for v in value)
    if isinstance(value, (torch.SymInt, torch.SymBool)):
        return True
    if not isinstance(value, torch.Tensor) or not written and was_written(value):
        return False
    return not all(type(n) is int for n in value.shape) or value.numel() <= MOST_ELEMENTS


def _function(nodes: list, last: torch.fx.Node, unset: int = 0) -> Callable:
    """The nodes as a function of the placeholders among them; memory without a value holds `unset`."""
    graph, made = copied(nodes)
    for node in nodes:
        if called(node) in UNSET:
            name = UNSET[called(node)][unset]
            made[node].target = name if node.op == "call_method" else getattr(torch, name)
    graph.output(made[last])
    return module_of(graph).forward
