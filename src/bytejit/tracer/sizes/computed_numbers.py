"""Numbers that the program reads from small tensors (`1.0 / float(self.num_batches_tracked)`), as inputs of the graph.

A number that follows by a few operations from small tensors as they are when the region starts is computed from the real
tensors before the graph runs, by the same operations, and is a symbol. What the region writes on the way is written into a
copy. The value is guarded by nothing: what the program decides by it (a branch, how often to loop) breaks the graph before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.dtypes import FLOAT_DTYPES, INT_DTYPES
from bytejit.common.graph_modules import module_of
from bytejit.fake.tensor import Fake, fakes_in, was_written
from bytejit.guards.module_sources import ModuleBuffer
from bytejit.guards.references import Ref
from bytejit.guards.source import Source
from bytejit.guards.sources import Computed
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.values import SymVar, TensorVar, Var

from .measured import READS
from .node_chains import WRITES, called, copied, nodes_behind

MOST_ELEMENTS = 64  # of a tensor on the way
MOST_OPERATIONS = 16  # on the way
# what may be on the way: it computes the same under autocast, and with whatever precision torch is set to
SAME_EVERYWHERE = frozenset(
    """abs add alias amax amin any all bitwise_and bitwise_or bitwise_not ceil clamp clone contiguous cpu detach div divide double
    eq flatten float floor floor_divide floordiv ge getattr getitem gt int le long lt max maximum min minimum mod mul multiply ne
    neg negative remainder reshape round rsub select sign squeeze sub subtract to truediv trunc unsqueeze view where __radd__
    __rmul__ __rsub__ argmax argmin""".split()
)


class ComputedNumbers(Component):
    """The part of the tracer that makes symbols of numbers read from small tensors."""

    def number(self, v: TensorVar, function: Any) -> Var | None:
        """function(v), one of READS, as a symbol; None where it does not follow from a few small tensors."""
        if function not in READS or v.fake.numel() != 1 or v.fake.dtype not in FLOAT_DTYPES | INT_DTYPES:
            return None
        if self.t.effects.data_set or v.node is None or function is torch.Tensor.tolist and v.fake.dim() or v.fake.requires_grad:
            return None
        key = ("computed", v.node, len(self.t.graph.nodes) if was_written(v.fake) else 0)
        if key not in self.t.memo:
            self.t.memo[key] = self._symbol(v)
            self.t.keep.append(v)
        item, made = self.t.memo[key], READS[function]
        return item if item is None or made is None else self.t.numbers.symbolic_call(made, [item], {})

    def _symbol(self, v: TensorVar) -> Var | None:
        nodes = nodes_behind(self.t.graph, v.node, MOST_OPERATIONS, self._is_computable) or []
        by_node = {x.node: x for x in self.t.inputs if isinstance(x, TensorVar)}
        leaves = [by_node[n] for n in nodes if n.op == "placeholder"]
        if not leaves:
            return None
        written = [x for x in leaves if was_written(x.fake)]
        if written and len({x.fake.m.store for x in leaves}) < len(leaves):  # copies would not be the same memory
            return None
        run = number_of(nodes, v.node, frozenset(x.node for x in written))
        try:
            now = run(*(x.real for x in leaves))
        except Exception:  # the program's own operation raises: so it does where it is
            return None
        source: Source = Computed(Ref.strong(run, f"{v.node}.item"), tuple(x.origin for x in leaves))
        return SymVar(self.t.sizes.computed_symbol(source, now))

    def _is_computable(self, node: torch.fx.Node) -> bool:
        """Whether a node is a small tensor that the region starts with, or that SAME_EVERYWHERE or WRITES makes."""
        name, fakes = called(node), list(fakes_in(node.meta.get("val")))
        if not fakes or not all(map(_is_small, fakes)):
            return False
        if node.op == "placeholder":
            return self._is_leaf(node)
        return (
            node.op in ("call_function", "call_method")
            and (name in SAME_EVERYWHERE or name in WRITES)
            and "out" not in node.kwargs
        )

    def _is_leaf(self, node: torch.fx.Node) -> bool:
        """Whether a placeholder is one number, or a few of a module."""
        var = next((x for x in self.t.inputs if x.node is node), None)
        return isinstance(var, TensorVar) and (var.fake.numel() == 1 or isinstance(var.source, ModuleBuffer))


def _is_small(fake: Any) -> bool:
    return (
        type(fake) is Fake and all(type(n) is int for n in fake.shape) and fake.numel() <= MOST_ELEMENTS and not fake.is_complex()
    )


def number_of(nodes: list[torch.fx.Node], last: torch.fx.Node, written: frozenset[torch.fx.Node]) -> Callable[..., int | float]:
    """The nodes as a function of the placeholders among them, which it does not write: the last one's only element."""
    graph, made = copied(nodes)
    for node in nodes:
        if node in written:
            with graph.inserting_after(made[node]):
                copy = graph.call_method("clone", (made[node],))
            made[node].replace_all_uses_with(copy, lambda user, copy=copy: user is not copy)
            made[node] = copy
    graph.output(made[last])
    run = module_of(graph).forward

    def number(*tensors: torch.Tensor) -> int | float:
        with torch.no_grad():
            return run(*tensors).item()

    return number
