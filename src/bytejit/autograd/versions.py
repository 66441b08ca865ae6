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
    """What eager saves: among a program's inputs and outputs, and whether it saves anything at all."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    anything: bool = False

    def seen(self, inputs: Sequence, outputs: Sequence) -> tuple:
        """Weak references to these tensors, with their versions."""
        found = [inputs[i] for i in self.inputs] + [outputs[i] for i in self.outputs]
        return tuple((weakref.ref(t), t._version) for t in found if not t.is_inference())


def kept_by_eager(primals: Sequence[Fake], inputs: Sequence[Root | None], flat: Sequence) -> Kept:
    """What the autograd nodes behind `primals` hold. flat: the program's outputs."""
    anything, stores = False, set()
    for node in _nodes(primals):
        for name in dir(node):
            if not name.startswith(RAW):
                continue
            anything = True
            if not name.endswith(STATISTICS) and not _hooked(node, name):
                stores |= set(map(id, _stores(node, SAVED + name.removeprefix(RAW))))
    return Kept(
        tuple(i for i, root in enumerate(inputs) if root is not None and root.version > 0 and id(root.store) in stores),
        tuple(i for i, x in enumerate(flat) if type(x) is Fake and x.bound.root.index is None and id(x.m.store) in stores),
        anything,
    )


def _nodes(primals: Sequence[Fake]) -> Iterator:
    seen, stack = set(), [p.grad_fn for p in primals]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack += [following for following, _ in node.next_functions]


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
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{t.type()} {list(t.shape)}] is at version {t._version}; expected version {version} instead. Hint: enable "
                "anomaly detection to find the operation that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True)."
            )
