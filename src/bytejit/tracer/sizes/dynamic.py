"""Which sizes, ints and floats of a trace become symbols: those that have changed between calls, or were said to (numbers.py has
their values as graph nodes and as text, symbol_guards.py their guards).

`Symbols.env` is None until the first symbol is made; sympy is imported then.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

import torch

from bytejit.common import torch_controls
from bytejit.common.registry import DYNAMIC_DIMS, STATIC_DIMS
from bytejit.guards.changing_sources import Looked
from bytejit.guards.conditions import SizeCondition
from bytejit.guards.item_sources import TupleItem
from bytejit.guards.module_sources import ModuleBuffer, ModuleParam
from bytejit.guards.sources import Computed, Local, Source, StackSlot, TensorSize, TensorStride
from bytejit.guards.tensor_checks import TensorCheck
from bytejit.shapes.symbols import Manner, is_symbolic
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.open_values import Differs
from bytejit.tracer.core.sizes import Dynamic, Feed
from bytejit.tracer.core.values import SymVar, Var

if TYPE_CHECKING:
    from bytejit.shapes.environment import Env

NUMBERS = (int, float, bool)


class Symbols(Component):
    """The part of the tracer that deals in symbolic numbers."""

    def start_symbols(self, dynamic: Dynamic) -> None:
        """No symbols yet."""
        self.dynamic = dynamic
        self.finishing = False  # whether the region has ended: what becomes a constant now can break nothing
        self.env: Env | None = None  # until the first symbol is made
        self.sizes_leave = False  # whether a symbolic number leaves the region
        self.manner: Manner | None = None  # of the operation inferred last
        self.symbols: dict[Source, Feed] = {}
        self.sources: dict[Any, Source] = {}  # sympy symbol -> its source
        self.number_nodes: dict[Any, torch.fx.Node] = {}
        self.checks: dict[Source, tuple[tuple, tuple]] = {}  # tensor -> symbolic shape and stride, as its guard has them
        self.fake_sizes: dict[Source, tuple[tuple, tuple]] = {}
        self.marked: dict[Source, int] = {}  # sizes that the user marked dynamic -> what they are now
        self.copies: list[tuple] = []  # (memory, memory of its copy, terms)
        self.t.hysteresis.start_varying()
        self.t.unit_strides.start_unit_strides()
        self.t.measures.start_measuring()

    def environment(self) -> Env:
        """The environment of the symbols. It is made with the first symbol."""
        if self.env is None:
            from bytejit.shapes.environment import Env  # sympy comes with it

            self.env = Env(lambda: self.t.tensors.where() if self.t.frame is not None else None, self.t.measures.refuse_inside)
            self.env.refuse_constant = self.refuse_constant
        return self.env

    # ---- making symbols ----------------------------------------------------------------------------------------------
    def symbol(
        self, source: Source, real: int | float, low: int | None = 2, high: int | None = None, now: int | None = None
    ) -> Any:
        """The symbol of a size, an int or a float from outside: a placeholder of the graph. `now`: as in Feed."""
        found = self.symbols.get(source)
        if found is not None:
            return found.value
        env = self.environment()
        name = f"{'f' if type(real) is float else 's'}{len(self.symbols)}"
        value = env.float_symbol(name, real) if isinstance(real, float) else env.symbol(name, real, low, high)
        node = self.t.graph.placeholder(name)
        node.target, node.meta["val"] = node.name, value
        feed = self.symbols[source] = Feed(source, value, node, now)
        self.t.inputs.append(feed)
        self.sources[value.node.e], self.number_nodes[value.node.e] = source, node
        if self.dynamic.is_unlike(source):
            env.unlike.add(value.node.e)
        return value

    def refuse_constant(self, e: Any) -> None:
        """Refuse to make a number that differs in each call a constant. Raises: Break."""
        if not (self.t.job.measure or self.finishing):
            name = next(s.name() for symbol, s in self.sources.items() if symbol in e.free_symbols and self.dynamic.is_unlike(s))
            raise Differs(name)

    def computed_symbol(self, source: Source, now: int | float) -> Any:
        """The symbol of a number that is computed before the graph, of any value. The program decides nothing by it, but where
        a break is no choice."""
        value = self.symbol(source, now, None)
        self.t.measures.measured[value.node.e] = self.number_nodes[value.node.e]
        self.t.measures.before.add(value.node.e)
        if not self.t.job.measure:
            self.environment().inside.add(value.node.e)
        return value

    def drawn_symbol(self, source: Source, now: int | float) -> Any:
        """The symbol of a random number that is drawn before the graph: no guard may see it either."""
        value = self.computed_symbol(source, now)
        self.t.measures.before.discard(value.node.e)
        self.environment().inside.add(value.node.e)
        if not self.t.job.measure:  # a break is better than a graph with a check that no kernel makes
            self.environment().never.add(value.node.e)
        return value

    def erase(self, nodes: Iterable[torch.fx.Node]) -> None:
        """Take nodes, given in the graph's order, out of it."""
        held = dict.fromkeys(nodes)
        self.forget_numbers(held)
        for node in reversed(held):
            self.t.graph.erase_node(node)

    def forget_numbers(self, held: Container[torch.fx.Node]) -> None:
        """Forget the numbers that these nodes compute, because the nodes leave the graph or become a part of their own. A
        number that is needed again gets a new node."""
        for e in [e for e, node in self.number_nodes.items() if node in held]:
            del self.number_nodes[e]

    def input_sizes(self, obj: torch.Tensor, source: Source) -> tuple[tuple, tuple] | None:
        """Shape and stride of a tensor from outside with symbols for sizes that are dynamic; None where none is."""
        d, shape, stride = self.dynamic, tuple(obj.shape), obj.stride()
        marks, fixed = getattr(obj, DYNAMIC_DIMS, None) or {}, getattr(obj, STATIC_DIMS, ())
        weak: frozenset[int] = frozenset()
        said = torch_controls.dims_of(obj)
        if said is not None:
            marks, weak, fixed = {**said.dynamic, **marks}, said.weak, said.fixed.union(fixed).difference(marks)
        if named := d.named.dims(source, len(shape)).difference(fixed, marks):
            marks, weak = {**marks, **dict.fromkeys(named, (None, None))}, weak | named
        if not d.at_once and not d.changed and not marks:
            return None
        traced = self.t.hysteresis.traced_sizes(shape, source, fixed)
        if isinstance(source, (ModuleParam, ModuleBuffer)) or isinstance(obj, torch.nn.Parameter):
            marks, d, traced = {}, Dynamic(False, d.changed, d.static), {}
        sizes: list = list(shape)
        for i, n in enumerate(shape):
            key, (low, high) = TensorSize(source, i), marks.get(i, (None, None))
            if i in marks and i not in weak and n > 1:
                self.marked[key] = n
            if traced.get(i, n) < 2 or i in fixed or key in d.static or not (i in marks or i in traced or d.wants(key)):
                continue
            if n >= (low or 1) and (high is None or n <= high):
                sizes[i] = self.bounded(key, traced.get(i, n), low, high, n)
        self.t.hysteresis.note_varying(shape, sizes)
        check = self.steps_of(shape, stride, sizes)
        steps: list = []
        for i, s in enumerate(check):
            step = TensorStride(source, i)
            if s > 1 and step in d.changed and step not in d.static:  # not at once: most follow from sizes
                steps.append(self.symbol(step, s))
                self.t.guard("EXPR", source, self.t.numbers.expr_guard(steps[-1].node.e, f"2 <= {steps[-1].node.e}"))
            else:
                steps.append(s)
        if not any(map(is_symbolic, (*sizes, *steps))):
            return None
        guarded = tuple(None if is_symbolic(s) else s for s in steps)
        for i in sorted(range(len(shape)), key=lambda i: (stride[i], -i)):  # inner dims first
            if not is_symbolic(steps[i]) and steps[i] < 0:
                inner = -1 - steps[i]
                steps[i] = steps[inner] * sizes[inner]
        self.checks[source] = tuple(-1 if is_symbolic(s) else s for s in sizes), guarded
        self.fake_sizes[source] = tuple(sizes), tuple(steps)
        return tuple(sizes), tuple(steps)

    def bounded(self, key: Source, n: int, low: int | None, high: int | None, now: int) -> torch.SymInt:
        """The symbol of a size that is `now` and is traced as n; a range that the user promised is guarded."""
        size = self.symbol(key, n, 1, None, now if now != n else None)
        if low is not None and low > 1:
            operator.truth(size >= low)
        if high is not None:
            operator.truth(size <= high)
        return size

    def steps_of(self, shape: tuple, stride: tuple, sizes: list) -> list[int]:
        """Strides, where one that follows from a symbolic size is -1-k: shape[k] * stride[k]."""
        out = list(stride)
        order = sorted((i for i in range(len(shape))), key=lambda i: (stride[i], shape[i] != 1, -i))
        moved: set[int] = set()
        for i in order:
            for k in order:
                if (
                    k != i
                    and stride[k] * shape[k] == stride[i]
                    and stride[k] <= stride[i]
                    and stride[k] != 0
                    and (shape[k] > 1 or k > i)
                    and (is_symbolic(sizes[k]) or k in moved and shape[k] > 1)
                    and self.before(k, i, out)
                ):
                    out[i] = -1 - k
                    moved.add(i)
                    break
        return out

    def before(self, k: int, i: int, steps: list[int]) -> bool:
        """Whether stride k can be known without stride i."""
        while steps[k] < 0:
            k = -1 - steps[k]
            if k == i:
                return False
        return k != i

    def tensor_check(self, obj: torch.Tensor, source: Source, requires_grad: bool) -> TensorCheck:
        """The guard of an input tensor, its symbolic sizes left open."""
        shape, stride = self.checks.get(source) or (tuple(obj.shape), obj.stride())
        return TensorCheck.of(obj, requires_grad, shape, self.t.unit_strides.without_unit_strides(shape, stride))

    def wrap_number(self, obj: int | float, source: Source) -> Var | None:
        """A symbol for an int or float from outside that changes; None where it stays a constant."""
        d = self.dynamic
        at_once = d.at_once and isinstance(source, (Local, StackSlot)) or self.of_changing(source) or d.named.holds(source)
        if not (at_once or d.has_changed(source)) or source in d.static:
            return None
        if isinstance(obj, float):
            self.t.guard("TYPE_IS", source, float)
            return SymVar(self.symbol(source, obj), source)
        if not self.is_usable(obj):
            return None
        self.t.guard("TYPE_IS", source, int)
        return self.int_symbol(obj, source)

    @staticmethod
    def of_changing(source: Source) -> bool:
        """Whether a value comes from others that change between calls: so it does, too."""
        return isinstance(source.base if type(source) is TupleItem else source, (Computed, Looked))

    @staticmethod
    def is_usable(obj: int) -> bool:
        """Whether an int may be a symbol: 0 and 1 matter in themselves, and larger ones are no sizes."""
        return not 0 <= obj < 2 and -(2**31) <= obj <= 2**31

    def int_symbol(self, obj: int, source: Source) -> SymVar:
        """The symbol of an int from outside, its sign guarded."""
        known = source in self.symbols
        value = self.symbol(source, obj) if obj >= 0 else self.symbol(source, obj, None, -1)
        if not known:
            name = str(value.node.e)
            self.t.guard("EXPR", source, SizeCondition(f"{name} >= 2" if obj >= 0 else f"{name} < 0", ((name, source),)))
        return SymVar(value, source)
