"""What the recorder knows of a tensor: its storage's root, and how a view of it came about."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common.spec import Spec, span_of
from bytejit.fake.tensor import Fake, spec_of
from bytejit.shapes import symbols


class Root:
    """One storage. node: its value; spec: how the node sees it. offset: where the value begins in the storage, in elements.
    fake: the tensor that the storage was made for; other tensors bound to it are views. lazy: for a view that is conjugated
    or negated on reading, the storage that it views; lazy_version: the version of that storage. reshaped: its shape was
    changed while it had views. nothing: torch's derivatives know that it was made of zeros (`zero_tensors.py`).
    """

    __slots__ = tuple("node spec offset version index store fake lazy lazy_version reshaped bytes nothing".split())

    def __init__(self, node: torch.fx.Node, fake: Fake, index: int | None = None) -> None:
        self.node, self.spec, self.offset, self.fake = node, spec_of(fake), fake.m.offset, fake
        self.version, self.index, self.store = 0, index, fake.m.store
        self.lazy: Root | None = None
        self.lazy_version, self.reshaped = 0, False
        self.bytes: tuple[int, int] | None = None  # see `span`
        self.nothing = False

    def stale(self) -> bool:
        """Whether what it views was written after it was computed."""
        return self.lazy is not None and self.lazy.version != self.lazy_version

    def meets(self, other: Root) -> bool:
        """Whether the memory from the first to the last element is partly another's. Parts of one buffer (parameters of a
        recurrent layer on a GPU, of a model trained as one flat tensor) do not meet; `guarded` looks again at each call."""
        if self.store is not other.store:
            return False
        (first, end), (others, others_end) = self.span(), other.span()
        return first < others_end and others < end

    def span(self) -> tuple[int, int]:
        """Where in the storage the elements begin and end. Units: bytes."""
        if self.bytes is None:
            elements = span_of(*(tuple(map(symbols.hint, of)) for of in (self.spec.shape, self.spec.stride)))
            first, size = symbols.hint(self.offset), self.spec.dtype.itemsize
            self.bytes = first * size, (first + elements) * size
        return self.bytes


class Bound:
    """A fake's value: the root's (parent None) or a view op of the parent's. `node` is valid at `version`
    of the root.
    """

    __slots__ = ("root", "parent", "func", "args", "spec", "node", "version", "where")

    def __init__(
        self,
        root: Root,
        parent: Bound | None = None,
        func: Any = None,
        args: tuple = (),
        spec: Spec | None = None,
        where: Any = None,
    ) -> None:
        self.root, self.parent, self.func, self.args, self.spec, self.where = root, parent, func, args, spec, where
        self.node = root.node if parent is None else None
        self.version = root.version

    def whole(self) -> Bound:
        """The root's own value, which all views between are taken off."""
        return self if self.parent is None else self.parent.whole()


def hashable(value: Any) -> Any:
    """A hashable form of an op's argument in which 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(value, (list, tuple)):
        return tuple(map(hashable, value))
    if symbols.is_symbolic(value):
        return "size", symbols.expr(value)
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    return value if isinstance(value, torch.fx.Node) else (type(value), value)
