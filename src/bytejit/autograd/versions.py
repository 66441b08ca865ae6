"""Version checks of the tensors that eager would have saved for the backward pass.

Eager raises an error when the program writes a saved tensor between the two passes. A compiled region saves fewer tensors, or
copies of them. To raise the same error it compares the versions of the inputs and outputs that eager would have saved.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from bytejit.codegen.aten.recorded_values import Root
from bytejit.fake.tensor import Fake

SAVED, RAW = "_saved_", "_raw_saved_"
# kept up to date by the forward pass itself, which changes no version
STATISTICS = ("running_mean", "running_var")
TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if "
    "you need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)


@dataclass(frozen=True)
class Kept:
    """What eager saves: among a program's inputs and outputs. holders: of each node that saves something, the results that go
    backward through it, without repeats."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    holders: tuple[frozenset[int], ...] = ()

    def seen(self, inputs: Sequence, outputs: Sequence) -> tuple:
        """Weak references to these tensors, with their versions."""
        found = [inputs[i] for i in self.inputs] + [outputs[i] for i in self.outputs]
        return tuple((weakref.ref(t), t._version) for t in found if not t.is_inference())


def kept_by_eager(primals: Sequence[Fake], inputs: Sequence[Root | None], flat: Sequence) -> Kept:
    """What the autograd nodes behind `primals` hold. flat: the program's outputs."""
    stores: set[int] = set()
    holders: dict[int, None] = {}
    for node, results in _nodes(primals).items():
        for name in dir(node):
            if not name.startswith(RAW) or not _filled(node, name):
                continue
            holders[results] = None
            if not name.endswith(STATISTICS) and not _hooked(node, name):
                stores |= set(map(id, _stores(node, SAVED + name.removeprefix(RAW))))
    return Kept(
        tuple(i for i, root in enumerate(inputs) if root is not None and root.version > 0 and id(root.store) in stores),
        tuple(i for i, x in enumerate(flat) if type(x) is Fake and x.bound.root.index is None and id(x.m.store) in stores),
        tuple(frozenset(k for k in range(len(primals)) if bits >> k & 1) for bits in holders),
    )


def _nodes(primals: Sequence[Fake]) -> dict[torch.autograd.graph.Node, int]:
    """The nodes behind the results, and for each the results that go backward through it, as bits."""
    order: dict[torch.autograd.graph.Node, None] = {}  # each after those that follow it
    seen = {None}
    stack = [(p.grad_fn, False) for p in primals]
    while stack:
        node, left = stack.pop()
        if left:
            order[node] = None
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions]
    found = dict.fromkeys(order, 0)
    for k, p in enumerate(primals):
        found[p.grad_fn] |= 1 << k
    for node in reversed(order):
        for following, _ in node.next_functions:
            if following is not None:
                found[following] |= found[node]
    return found


def _filled(node: torch.autograd.graph.Node, name: str) -> bool:
    """Whether a node saves something under a name. An optional operand that was not given is None."""
    if _hooked(node, name):
        return True
    named = SAVED + name.removeprefix(RAW)
    try:
        held = getattr(node, named if hasattr(type(node), named) else name)  # an autograd function's have no names
    except RuntimeError:  # written since, or freed by the region's own backward pass
        return True
    return any(x is not None for x in held) if isinstance(held, (list, tuple)) else held is not None


def _hooked(node: torch.autograd.graph.Node, name: str) -> bool:
    """Whether hooks have packed what a node holds under a name (a checkpoint's, the program's): to look at it would be to run
    them, and eager compares no versions."""
    try:
        held = getattr(node, name)
    except RuntimeError:  # a function of the program's: the region went back through it, and it holds nothing any more
        return False
    return any(getattr(x, "unpack_hook", None) is not None for x in (held if isinstance(held, (list, tuple)) else (held,)))


def _stores(node: torch.autograd.graph.Node, name: str) -> Iterator:
    """The storages of what a node holds under a name; none where it was written already: eager says so by itself."""
    try:
        held = getattr(node, name)
    except (RuntimeError, AttributeError):
        return
    for x in held if isinstance(held, (list, tuple)) else (held,):
        if type(x) is Fake:
            yield x.m.store


def check_unchanged(seen: tuple) -> None:
    """Raises: RuntimeError, as eager does, where one of these was written since."""
    for ref, version in seen:
        t = ref()
        if t is not None and t._version != version:
            raise changed_since(t, version)


def changed_since(t: torch.Tensor, version: int) -> RuntimeError:
    """Eager's error for a saved tensor that was written."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{t.type()} {list(t.shape)}] is at version {t._version}; expected version {version} instead. Hint: enable "
        "anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True)."
    )
