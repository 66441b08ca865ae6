"""Writes what is known of symbols when a region ends as guards, and checks the program's marks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from bytejit.common import logs
from bytejit.common.errors import ConstraintViolation
from bytejit.guards.guard_set import GuardSet
from bytejit.guards.sources import Source, TensorSize
from bytejit.tracer.core.component import Component
from bytejit.tracer.sizes.dynamic import NUMBERS

if TYPE_CHECKING:  # sympy comes with it
    from bytejit.shapes.conditions import Condition


class SymbolGuards(Component):
    """The part of the tracer that writes guards on symbols."""

    def resolve(self, guards: GuardSet) -> None:
        """Write what the trace and its backend found out about symbols into guards. Once, after the backend has run."""
        self.check_marks()
        self.t.unit_strides.guard_unit_strides(guards)
        if self.t.sizes.env is None:
            return
        for source, (shape, stride) in self.t.sizes.checks.items():
            sizes, _ = self.t.sizes.fake_sizes[source]
            fixed = tuple(s if s >= 0 else self.size_check(v) for s, v in zip(shape, sizes))
            if fixed != shape:
                for g in guards.on(source):
                    if g.kind == "TENSOR":
                        guards.replace(g, g.value.with_sizes(fixed, stride))
        for relation, where in self.t.sizes.environment().conditions:
            if self.t.measures.inside(relation):
                self.t.measures.refuse_later(relation, where)
                continue
            symbols = sorted(relation.symbols(), key=str)
            if len(symbols) == 1 and self.is_said(relation, symbols[0]):
                continue
            guards.add("EXPR", self.t.sizes.sources[symbols[0]], self.t.numbers.expr_guard(relation, relation.text()), where)

    def _named(self, relation: Condition) -> str:
        """A condition with the program's names for its symbols."""
        names = {str(s): self.t.sizes.sources[s].name() for s in relation.symbols() if s in self.t.sizes.sources}
        return re.sub(r"\b[sf]\d+\b", lambda m: names.get(m[0], m[0]), relation.text())

    def check_marks(self) -> None:
        """Sizes that became constants: an error where the user marked one dynamic, else a line of the log.

        Raises: ConstraintViolation.
        """
        fixed: list[tuple[Source, int | None, Condition | None, Any]] = [
            (f.source, f.value.node.hint, *self.t.sizes.environment().why_fixed(f.value.node.e))
            for f in self.t.sizes.symbols.values()
            if isinstance(f.source, TensorSize) and isinstance(self.t.sizes.environment().simplified(f.value.node.e), int)
        ]
        done = {n.meta.get("where") for n in self.t.graph.nodes}
        fixed += [
            (key, self.t.sizes.marked.get(key), None, where) for key, where in self.t.sizes.dynamic.refused if where in done
        ]
        for key, size, relation, where in fixed:
            why = "an operation there takes constant sizes only"
            if relation is not None:
                why = f"the code needs {self._named(relation)}"
            if isinstance(key, TensorSize) and key in self.t.sizes.marked:
                raise ConstraintViolation(
                    f"{key.name()} is marked dynamic, but can only be {size}",
                    where,
                    why,
                    f"take mark_dynamic off dim {key.dim} (mark_static says so), or change that line to hold for other sizes",
                )
            logs.log("recompiles", f"{key.name()} stays {size}: {why}", where)

    def size_check(self, size: torch.SymInt) -> int:
        """A symbolic size as its tensor's guard has it: the constant that it became, or 1 or 2 as its least value, negative."""
        e = size.node.public
        return e if isinstance(e, int) else -min(max(int(self.t.sizes.environment().range(size.node.e)[0]), 1), 2)

    def is_said(self, relation: Any, symbol: Any) -> bool:
        """Whether the guard of the tensor whose size this is says it already: what constant it is, or that it is not 1."""
        from bytejit.shapes.conditions import Condition

        source = self.t.sizes.sources[symbol]
        if not isinstance(source, TensorSize) or source.base not in self.t.sizes.checks:
            return False
        return isinstance(self.t.sizes.environment().simplified(symbol), int) or relation == Condition("<=", 2, symbol)

    def drop_unused_symbols(self) -> None:
        """Take placeholders out of the graph whose symbol became a constant and that nothing uses."""
        for feed in list(self.t.sizes.symbols.values()):
            if not feed.node.users and isinstance(self.t.sizes.environment().simplified(feed.value.node.e), NUMBERS):
                self.t.graph.erase_node(feed.node)
                self.t.inputs.remove(feed)
