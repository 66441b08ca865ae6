"""Operations that return a view or a copy, as sizes have it: `x.transpose(1, 2).reshape(b, n, -1)` copies, unless n is 1.

The difference shows only if one of the two memories is written later, or if both leave the region. Until then that a
size is not 1, or not another size, is taken for granted without a condition; `resolve_copies` makes it one where it came to
matter.
"""

from __future__ import annotations

from typing import Any

import torch

from bytejit.fake.tensor import Fake
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.values import TensorVar

_T = torch.Tensor
MAY_COPY = frozenset({_T.reshape, torch.reshape, _T.flatten, torch.flatten, _T.contiguous, _T.reshape_as, _T.ravel, torch.ravel})


class Copies(Component):
    """The part of the tracer that remembers copies, and the conditions under which they are copies."""

    def note_copy(self, args: Any, result: Any, terms: list) -> None:
        """An operation of MAY_COPY has returned, and took for granted that the relations in `terms` stay as they are."""
        source = args[0] if args else None
        if not terms or not isinstance(source, Fake) or not isinstance(result, Fake):
            return
        if result.m.store is source.m.store:
            return  # a view: where more sizes are 1 it is one all the more
        if source.m.store.written or result.m.store.written:
            self.rely_on(terms)  # later writes could not be told from that one
            return
        self.t.sizes.copies.append((source.m.store, result.m.store, terms))

    def rely_on_copies(self, a: TensorVar, b: TensorVar) -> None:
        """The program asks whether two tensors are one: what was copied is a copy from now on."""
        for one, other, terms in self.t.sizes.copies:
            if {one, other} == {a.fake.m.store, b.fake.m.store}:
                self.rely_on(terms)

    def rely_on(self, terms: list) -> None:
        """Make it a condition of the trace that the relations are as now."""
        was = self.t.sizes.environment().where
        try:
            for kind, difference, where in terms:
                self.t.sizes.environment().where = lambda where=where: where
                self.t.sizes.environment().ask(kind, difference)
        finally:
            self.t.sizes.environment().where = was

    def resolve_copies(self, outputs: list[torch.fx.Node]) -> None:
        """Ask for the terms of copies whose memory was written since, or of which more than one end leaves the region."""
        if not self.t.sizes.copies:
            return
        outside = {v.fake.m.store for v in self.t.inputs if isinstance(v, TensorVar)}
        outside |= {f.m.store for n in outputs if isinstance(f := n.meta.get("val"), Fake)}
        for group in self.groups_of_copies():
            stores = {store for a, b, _ in group for store in (a, b)}
            if len(stores & outside) > 1 or any(store.written for store in stores):
                for _, _, terms in group:
                    self.rely_on(terms)
        self.t.sizes.copies.clear()

    def groups_of_copies(self) -> list[list]:
        """The copies, those together that have a memory in common."""
        groups: list[list] = []
        for copy in self.t.sizes.copies:
            near = [g for g in groups if any(s in (a, b) for a, b, _ in g for s in copy[:2])]
            groups = [g for g in groups if g not in near] + [[c for g in near for c in g] + [copy]]
        return groups
