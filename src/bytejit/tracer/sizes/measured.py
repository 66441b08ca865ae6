"""Sizes and ints that are known only when the graph runs (`x[x > 0]`, `counts.tolist()` of computed tensors), where a break is
no choice.

Under nopython they are symbols that the graph itself measures. Their hints are what they are on the inputs at hand: for
that the graph so far is run on them once. What the inference of operations relies on is checked within the graph
(`require`); where it does not hold, the graph raises, and the original code runs. What the program itself would decide by
such a number (a branch, a key, how often to loop) still breaks the graph: an entry would hold for one result only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from bytejit.common.dtypes import FLOAT_DTYPES, INT_DTYPES
from bytejit.common.errors import Unsupported
from bytejit.common.graph_calls import opaque, why_opaque
from bytejit.fake.rules.core import FakeStorage, Meta
from bytejit.fake.tensor import Fake, make, was_written
from bytejit.runtime.rollback import random_states
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import Known, SeqVar, SymVar, TensorVar, Var

from .node_chains import called

# function that reads a number -> how the number is used then
READS = {
    torch.Tensor.item: None,
    torch.Tensor.tolist: None,
    torch.Tensor.__int__: int,
    int: int,
    torch.Tensor.__float__: float,
    float: float,
    torch.Tensor.__index__: operator.index,
    operator.index: operator.index,
}
MOST_ITEMS = 64  # of one tensor that tolist() makes symbols of
PLACES = frozenset(("nonzero", "argwhere", "where"))
VALUES = frozenset(("unique", "unique_consecutive", "bincount"))
MEASURES = "it has sizes that are known only when it runs"


class NotAsTraced(RuntimeError):
    """What a graph relied on does not hold for the sizes that it measured: the original code runs in its place."""


@opaque(MEASURES)
def size_of(x: torch.Tensor, dim: int) -> int:
    """A size that is known only when the graph runs."""
    return x.shape[dim]


@opaque(MEASURES)
def item_of(x: torch.Tensor) -> int | float:
    """The one element of a tensor, for a graph."""
    return x.item()


@opaque(MEASURES)
def require(text: str, names: tuple[str, ...], *values: int | float) -> None:
    """A check within a graph. Raises: NotAsTraced."""
    if not eval(_code_of(text), {"math": math, **dict(zip(names, values))}):
        raise NotAsTraced(f"{text} does not hold for {dict(zip(names, values))}")


@lru_cache(maxsize=1000)
def _code_of(text: str) -> CodeType:
    return compile(text, "<a condition on sizes>", "eval")


class Measured(Component):
    """The part of the tracer that makes symbols of what the graph measures."""

    def start_measuring(self) -> None:
        """Nothing is measured yet."""
        self.measured: dict[Any, torch.fx.Node] = {}  # sympy symbol -> the node that measures it
        self.before: set = set()  # of these, what is computed before the graph: guards can check it
        self.rehearsed: dict[torch.fx.Node, Any] = {}  # node -> its value for the inputs of this call
        self.copied: dict[int, torch.UntypedStorage] = {}  # storages that the region writes: their copies for the rehearsal
        self.required: set = set()
        self.grad_mode: bool | None = None  # in the rehearsal, of a graph that goes backward; None: off

    # ---- what to measure -------------------------------------------------------------------------------------------------
    def measured_value(self, v: TensorVar, function: Any) -> Var | None:
        """function(tensor) as a symbol, for what asks a tensor's numbers; None where it stays unknown."""
        if not self.t.job.measure or function not in READS or v.fake.dtype not in FLOAT_DTYPES | INT_DTYPES:
            return None
        if function is not torch.Tensor.tolist or v.fake.dim() == 0:
            made = READS[function]
            if v.fake.numel() != 1 or made is operator.index and v.fake.dtype not in INT_DTYPES:
                return None
            item = self._measure_once("item", v, lambda: self._measure(item_of, (v.node,), None))
            return item if made is None else self.t.numbers.symbolic_call(made, [item], {})
        if v.fake.dim() > 1 or v.fake.shape[0] > MOST_ITEMS:
            return None
        parts = [self.t.tensors.one_tensor(operator.getitem, [v, Known(i)]) for i in range(int(v.fake.shape[0]))]
        return SeqVar([self.measured_value(p, torch.Tensor.item) for p in parts], list)

    def measured_result(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """The result of an operation that makes as many elements as its arguments' values say; None where it breaks."""
        if not self.t.job.measure or not args or not isinstance(args[0], TensorVar) or "out" in kwargs:
            return None
        name, v = getattr(fn, "__name__", ""), args[0]
        if fn in (operator.getitem, operator.setitem):
            key = self._index_by_places(args[1])
            return None if key is args[1] else self.t.tensors.call_tensor_op(fn, [v, key, *args[2:]], kwargs)
        if name in PLACES and len(args) == 1 and v.fake.dim():
            as_tuple = name == "where" or "as_tuple" in kwargs and self.t.const(kwargs["as_tuple"])
            places = self._places(v)
            return self.t.tensors.call_tensor_op(torch.unbind, [places, Known(1)], {}) if as_tuple else places
        if name == "masked_select" and len(args) == 2 and not kwargs and isinstance(args[1], TensorVar):
            both = self.t.tensors.tensors_of(torch.broadcast_tensors, args)
            return self.t.tensors.call_tensor_op(operator.getitem, both, {})
        if name == "repeat_interleave" and "output_size" not in kwargs:
            repeats = kwargs.get("repeats", args[1] if len(args) > 1 else v)
            if isinstance(repeats, TensorVar) and repeats.fake.dim() == 1 and "dim" in kwargs or repeats is v:
                total = self.measured_value(self.t.tensors.one_tensor(torch.sum, [repeats]), torch.Tensor.item)
                return None if total is None else self.t.tensors.call_tensor_op(fn, args, {**kwargs, "output_size": total})
        if name in VALUES and len(args) == 1 and kwargs.keys() <= {"sorted", "return_counts", "minlength", "weights"}:
            return self._of_length(fn, args, kwargs)
        return None

    def _index_by_places(self, key: Var) -> Var:
        """An index with the places that its masks pick in their stead."""
        key = self.t.values.real(key)
        given = [*map(self.t.values.real, key.items)] if isinstance(key, SeqVar) and key.cls is tuple else [key]
        parts: list[Var] = []
        masks = [p for p in given if isinstance(p, TensorVar) and p.fake.dtype is torch.bool and p.fake.dim()]
        if not masks:
            return key
        for part in given:
            parts += self.t.tensors.tensors_of(torch.unbind, [self._places(part), Known(1)]) if part in masks else [part]
        return parts[0] if len(parts) == 1 else SeqVar(parts, tuple)

    def _places(self, v: Var) -> Var:
        """v.nonzero(), once for each value."""
        assert isinstance(v, TensorVar), v

        def measure() -> Var:
            node = self._node(torch.nonzero, (v.node,))
            count = self._measure(size_of, (node, 0), 0)
            dims, size = v.fake.dim(), count.value
            node.meta["val"] = self._fake((size, dims), (1, size), torch.int64, v.fake.device)  # in columns
            return self.t.tensors.wrap_result(node, node.meta["val"])

        return self._measure_once("places", v, measure)

    def _of_length(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """A result, or a tuple of them, of one dimension and one measured length."""
        node = self._node(
            fn, tuple(map(self.t.tensors.to_node_arg, args)), {k: self.t.tensors.to_node_arg(a) for k, a in kwargs.items()}
        )
        real = self.rehearse(node)
        parts = [node]
        if isinstance(real, tuple):
            parts = [self._node(operator.getitem, (node, i)) for i in range(len(real))]
        size = self._measure(size_of, (parts[0], 0), 0).value
        made = []
        for part, value in zip(parts, real if isinstance(real, tuple) else (real,)):
            part.meta["val"] = self._fake((size,), (1,), value.dtype, value.device)
            made.append(self.t.tensors.wrap_result(part, part.meta["val"]))
        if not isinstance(real, tuple):
            return made[0]
        node.meta["val"] = tuple(p.meta["val"] for p in parts)
        return SeqVar(made, tuple)

    # ---- symbols -----------------------------------------------------------------------------------------------------------
    def _measure_once(self, kind: str, v: TensorVar, measure: Callable) -> Var:
        key = ("measured", kind, v.node, len(self.t.graph.nodes) if was_written(v.fake) else 0)
        if key not in self.t.memo:
            self.t.memo[key] = measure()
            self.t.keep.append(v)
        return self.t.memo[key]

    def _measure(self, function: Any, args: tuple, low: int | None) -> SymVar:
        """A symbol for what `function` measures; a size that is 0 or 1 now is taken for one that is not always so."""
        node = self._node(function, args)
        real = self.rehearse(node)
        env, name = self.t.sizes.environment(), f"u{len(self.measured)}"
        if type(real) is float:
            value = env.float_symbol(name, real)
        else:
            value = env.symbol(name, max(real, 2) if low == 0 else real, low)
        symbol = value.node.e
        self.measured[symbol] = self.t.sizes.number_nodes[symbol] = node
        env.inside.add(symbol)
        node.meta["val"] = value
        return SymVar(value)

    def _node(self, function: Any, args: tuple, kwargs: dict | None = None) -> torch.fx.Node:
        return self.t.tensors.add_node(function, None, args, kwargs or {})

    def _fake(self, shape: tuple, stride: tuple, dtype: torch.dtype, device: torch.device) -> Fake:
        with self.t.sizes.environment().rely(), self.t.fake_mode:
            return make(Meta(shape, stride, 0, dtype, device, FakeStorage(math.prod(shape) * dtype.itemsize)))

    def is_measured(self, v: Var) -> bool:
        """Whether it is a number that is known only when the graph runs."""
        v = self.t.values.real(v)
        return type(v) is SymVar and not self.measured.keys().isdisjoint(getattr(v.value.node.public, "free_symbols", ()))

    def refuse_inside(self) -> None:
        """Refuse a decision of the program by a measured number. Raises: Break."""
        raise Break(
            "a number that is known only when the graph runs decides a branch",
            "use tensor operations, or leave nopython (fullgraph) off",
        )

    # ---- the graph so far, run on the inputs of this call ------------------------------------------------------------------
    def rehearse(self, last: torch.fx.Node) -> Any:
        """The value of a node. Raises: Break, where the graph so far cannot be run apart."""
        written = {key for key, store in self.t.stores.items() if getattr(store, "written", False)}
        if not written <= self.copied.keys():
            self.start_again()
        elif self.t.backward.passes and self.grad_mode is None:
            self.start_again()
        before = random_states()
        try:
            with torch.set_grad_enabled(bool(self.grad_mode)):
                for node in self.t.graph.nodes:
                    if node not in self.rehearsed:
                        self.rehearsed[node] = self._rehearse_node(node, written)
                self.grad_mode = None if self.grad_mode is None else torch.is_grad_enabled()
        except Break:
            raise
        except Exception as e:
            raise Break(f"{last} raises {type(e).__name__}: {str(e)[:200]}") from None
        finally:
            for generator, state in before:
                generator.set_state(state)
        return self.rehearsed[last]

    def start_again(self) -> None:
        """Forget what was rehearsed."""
        self.rehearsed.clear()
        self.copied.clear()
        self.grad_mode = self.t.grad_at_start if self.t.backward.passes else None

    def _rehearse_node(self, node: torch.fx.Node, written: set) -> Any:
        if node.op == "placeholder":
            real = next(x for x in self.t.inputs if x.node is node).real
            if not isinstance(real, torch.Tensor):
                return real
            return self._copied(real, written).requires_grad_(self.grad_mode is not None and real.requires_grad)
        if self.grad_mode is not None and node.target is torch._C._set_grad_enabled:
            return torch._C._set_grad_enabled(*node.args)
        if node.meta.get("val") is None and node.op == "call_function" and not _tensors_in(node):
            return None  # sets torch's global state
        if why_opaque(node) and node.target not in (size_of, item_of):
            raise Break(f"a size that is known only when the graph runs, after a call that cannot be repeated ({called(node)})")
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.rehearsed.__getitem__)
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)

    def _copied(self, real: torch.Tensor, written: set) -> torch.Tensor:
        """An input, in memory of its own where the region writes it."""
        key = real.untyped_storage()._cdata
        if key not in written:
            return real.detach()
        if key not in self.copied:
            self.copied[key] = real.untyped_storage().clone()
        made = torch.empty(0, dtype=real.dtype, device=real.device)
        return made.set_(self.copied[key], real.storage_offset(), real.shape, real.stride())

    # ---- conditions -----------------------------------------------------------------------------------------------------------
    def inside(self, relation: Any) -> bool:
        """Whether a condition is one on measured numbers: the graph checks it, no guard can."""
        return not (self.measured.keys() - self.before).isdisjoint(relation.symbols())

    def write_requirements(self) -> None:
        """Write the conditions on measured numbers as nodes, each as early as its numbers are known. From here on, numbers
        that are computed before the graph are ordinary ones: the backend may specialise on them, and guards check them."""
        if not self.measured:
            return
        self.t.sizes.environment().inside -= self.before
        order = {node: i for i, node in enumerate(self.t.graph.nodes)}
        last: dict[torch.fx.Node, torch.fx.Node] = {}
        for relation, where in self.t.sizes.environment().conditions:
            if relation in self.required or not self.inside(relation):
                continue
            self.required.add(relation)
            symbols = sorted(relation.symbols(), key=str)
            nodes = [self.t.sizes.number_nodes[s] for s in symbols]
            at = max(nodes, key=order.__getitem__)
            with self.t.graph.inserting_after(last.get(at, at)):
                made = self.t.graph.call_function(require, (relation.text(), tuple(map(str, symbols)), *nodes))
            made.meta["val"], made.meta["where"] = None, where
            last[at] = made

    def refuse_later(self, relation: Any, where: Any) -> None:
        """Refuse when a backend relies on more than the graph checks. Raises: Unsupported."""
        if relation not in self.required:
            raise Unsupported(
                f"the backend relies on {relation.text()}, which is known only when the graph runs",
                where,
                "the graph is complete by then",
                "use another backend, or leave nopython (fullgraph) off",
            )


def _tensors_in(node: torch.fx.Node) -> bool:
    """Whether a node is given anything that the graph computes."""
    return bool(node.all_input_nodes)
