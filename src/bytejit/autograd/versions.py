"""Version checks of the tensors that eager would have saved for the backward pass.

Eager raises an error when the program writes a saved tensor between the two passes. A compiled region saves fewer tensors, or
copies of them. To raise the same error it compares the versions of the inputs and outputs that eager would have saved.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import torch

from bytejit.codegen.aten.outputs import counts_apart
from bytejit.codegen.aten.recorded_values import Root
from bytejit.common.light_dataclass import light_dataclass
from bytejit.fake.tensor import Fake

from .leaf_order import ACCUMULATES, order_of_leaves

SAVED, RAW = "_saved_", "_raw_saved_"
NON_LEAF = "_NonLeafBackward"
APPLIED = "TracedFunctionBackward"
# kept up to date by the forward pass itself, which changes no version
STATISTICS = ("running_mean", "running_var")
TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if "
    "you need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)


@light_dataclass(frozen=True)
class Holder:
    """An autograd node of eager's that saves tensors, or several equal ones. results: the program's results whose backward
    pass goes through it, as bits. leads_to: the inputs whose gradients go through it, as bits. inputs, outputs: the program's
    inputs and outputs whose memory it saves. texts: how eager's errors name what it saves. own: of which of these it says so also
    once a view of it was written: the node made it."""

    results: int
    leads_to: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    texts: Mapping[tuple[str, int], str] = field(default_factory=dict, compare=False)
    own: frozenset[str] = field(default=frozenset(), compare=False)

    def named(self, error: RuntimeError, of: str, i: int) -> RuntimeError:
        """An error of `changed_since`, about what this node saves. of: "input" or "output"."""
        text = self.texts.get((of, i))
        if text is not None and "::CopySlices" in str(error) and text not in self.own:
            return error
        if text is not None and names_are_short():
            text = re.sub(r"Backward\d*,$", ",", text)
        return error if text is None else RuntimeError(re.sub(_NAMED, lambda found: f"{text} is at version", str(error), count=1))


_NAMED = r" \[[\d, ]*\]\](, which is output \d+ of [\w:]+,)? is at version"  # what changed_since and torch write behind the type


@light_dataclass(frozen=True)
class Kept:
    """What eager saves. holders: without repeats, in the order of a backward pass. reach: for each result, the inputs that a
    pass from it leads to, as bits. order: the inputs that are leaves, in the order of a backward pass. alone: the results
    whose autograd node has no other result. applied: for each output of the program's own autograd functions, the results
    that its gradient comes from, as bits. makers: for each result, the name of the node that made it, and which of its results it
    is; "" where eager's has another name."""

    holders: tuple[Holder, ...] = ()
    reach: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    applied: frozenset[int] = frozenset()
    makers: tuple[tuple[str, int], ...] = ()


class Versions:
    """The inputs and outputs that eager saves and the compiled node does not. given: inputs that the node saves itself."""

    def __init__(self, kept: Kept, given: Sequence[int]) -> None:
        self.inputs = tuple(sorted({i for h in kept.holders for i in h.inputs}.difference(given)))
        self.outputs = tuple(sorted({i for h in kept.holders for i in h.outputs}))

    def seen(self, inputs: Sequence, outputs: Sequence) -> tuple:
        """Weak references to these tensors, with their versions. None stands for what has no version."""
        found = [inputs[i] for i in self.inputs] + [outputs[i] for i in self.outputs]
        return tuple([None if t.is_inference() else (weakref.ref(t), t._version) for t in found])

    def changed(self, seen: tuple) -> tuple[dict[int, RuntimeError], dict[int, RuntimeError]]:
        """Eager's errors for the inputs and the outputs among these that were written since."""
        errors = list(map(_error, seen))
        inputs = {i: e for i, e in zip(self.inputs, errors) if e is not None}
        return inputs, {i: e for i, e in zip(self.outputs, errors[len(self.inputs) :]) if e is not None}


def is_changed(seen: tuple) -> bool:
    """Whether one of these was written since. Cost: a call for each."""
    for row in seen:
        if row is not None:
            t = row[0]()
            if t is not None and t._version != row[1]:
                return True
    return False


def _error(row: tuple | None) -> RuntimeError | None:
    t = None if row is None else row[0]()
    return None if row is None or t is None or t._version == row[1] else changed_since(t, row[1])


def _counted_with(x: Fake, of_store: tuple[list[int], list[int]], flat: Sequence) -> tuple[list[int], list[int]]:
    """The inputs, and of the outputs those whose writes the version of a saved tensor counts: not those of `.data`."""
    return of_store[0], [i for i in of_store[1] if not counts_apart(flat[i], x)]


def kept_by_eager(primals: Sequence[Fake], inputs: Sequence[Root | None], flat: Sequence, leaves: Sequence) -> Kept:
    """Returns what the autograd nodes behind `primals` hold. flat: the program's outputs; leaves: (input, its fake) of what
    needs a gradient."""
    by_store: dict[int, tuple[list[int], list[int]]] = {}
    for i, root in enumerate(inputs):
        if root is not None:
            by_store.setdefault(id(root.store), ([], []))[0].append(i)
    for i, x in enumerate(flat):
        if type(x) is Fake and x.bound.root.index is None:
            by_store.setdefault(id(x.m.store), ([], []))[1].append(i)
    order = _ordered(primals)
    leads_to = _leading(order, leaves)
    holders: dict[Holder, None] = {}
    nodes = _nodes(primals, order)
    for node, results in nodes.items():
        names = [n for n in dir(node) if n.startswith(RAW) and _filled(node, n)]
        if not names:
            continue
        watched = [n for n in names if not n.endswith(STATISTICS) and not _hooked(node, n)]
        saved = {id(x.m.store): x for n in reversed(watched) for x in _saved(node, SAVED + n.removeprefix(RAW))}
        found = [(_counted_with(x, by_store[s], flat), _text_of(x)) for s, x in saved.items() if s in by_store]
        own = frozenset(_text_of(x) for x in saved.values() if x.grad_fn is node)
        texts = {(of, i): text for row, text in found for side, of in enumerate(("input", "output")) for i in row[side]}
        ins, outs = (tuple(sorted(i for side, i in texts if side == of)) for of in ("input", "output"))
        texts = {at: text for at, text in texts.items() if text}
        holders.setdefault(Holder(results, leads_to[node], ins, outs, texts, own))
    results_of = Counter(p.grad_fn for p in primals)
    alone = tuple(k for k, p in enumerate(primals) if results_of[p.grad_fn] == 1)
    reach = tuple(leads_to[p.grad_fn] for p in primals)
    makers = tuple((_eager_name(p.grad_fn), p.output_nr) for p in primals)
    return Kept(tuple(holders), reach, order_of_leaves(primals, leaves), alone, _applied(primals, nodes), makers)


def _eager_name(node: torch.autograd.graph.Node) -> str:
    """The name of eager's node. "" where a node stands for one that has another name."""
    return node.name() if re.fullmatch(r"[A-Z]\w*Backward\d+", node.name()) else ""


def _ordered(primals: Sequence[Fake]) -> list[torch.autograd.graph.Node]:
    """The nodes behind the results, each after those that follow it."""
    order: dict[torch.autograd.graph.Node, None] = {}
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
    return list(order)


def _nodes(primals: Sequence[Fake], order: Sequence[torch.autograd.graph.Node]) -> dict[torch.autograd.graph.Node, int]:
    """The nodes behind the results, in the order in which torch's engine comes to them, and for each the results that go backward
    through it, as bits. order: as `_ordered` has them."""
    found = dict.fromkeys(order, 0)
    for k, p in enumerate(primals):
        found[p.grad_fn] |= 1 << k
    for node in reversed(order):
        for following, _ in node.next_functions:
            if following is not None:
                found[following] |= found[node]
    return {n: found[n] for n in sorted(order, key=lambda n: n._sequence_nr(), reverse=True)}


def _applied(primals: Sequence[Fake], nodes: Mapping[torch.autograd.graph.Node, int]) -> frozenset[int]:
    """Returns for each output of an autograd function of the program's the results that its gradient comes from, as bits. nodes:
    as `_nodes` returns them."""
    found: Counter = Counter()
    for k, p in enumerate(primals):
        found[p.grad_fn, p.output_nr] |= 1 << k
    for node, results in nodes.items():
        for edge in node.next_functions:
            found[edge] |= results
    return frozenset(bits for (node, _), bits in found.items() if node is not None and node.name() == APPLIED)


def _leading(order: Sequence[torch.autograd.graph.Node], leaves: Sequence) -> dict[torch.autograd.graph.Node, int]:
    """The nodes behind the results, and for each the inputs that a pass through it leads to, as bits. order: as `_ordered` has
    them."""
    at = {leaf.grad_fn: 1 << i for i, leaf in leaves if leaf.grad_fn is not None}
    leaf_at = {id(leaf): 1 << i for i, leaf in leaves if leaf.grad_fn is None}
    found: dict[torch.autograd.graph.Node, int] = {}
    for node in order:
        own = leaf_at.get(id(node.variable), 0) if node.name() == ACCUMULATES else at.get(node, 0)
        for following, _ in node.next_functions:
            own |= found.get(following, 0)
        found[node] = own
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


def _text_of(saved: Fake) -> str:
    """Returns how eager describes, behind its type, a saved tensor that was written since. "" where sizes are symbols, and for an
    input that was computed before: it knows itself what made it."""
    made = saved.grad_fn
    if not all(type(n) is int for n in saved.shape) or made is not None and made.name() == NON_LEAF:
        return ""
    if made is None:
        return f" {list(saved.shape)}]"
    # the write has given a view another node
    name, place = ("AsStridedBackward0", 0) if saved._is_view() else (made.name(), saved.output_nr)
    return f" {list(saved.shape)}], which is output {place} of {name},"


def _saved(node: torch.autograd.graph.Node, name: str) -> Iterator[Fake]:
    """Yields the tensors that a node holds under a name; none where one was written already: eager says so by itself."""
    try:
        held = getattr(node, name)
    except (RuntimeError, AttributeError):
        return
    for x in held if isinstance(held, (list, tuple)) else (held,):
        if type(x) is Fake:
            yield x


@functools.cache
def names_are_short() -> bool:
    """Whether this torch's error names a node Exp, and not ExpBackward0, as older ones do."""
    with torch.enable_grad():
        y = torch.ones((), requires_grad=True).exp()
    y.detach().zero_()
    try:
        return y.grad_fn._saved_result is not None  # type: ignore[union-attr]
    except RuntimeError as e:
        return "ExpBackward" not in str(e)


def maker_of(t: torch.Tensor) -> tuple[str, int]:
    """The name of the node of eager's that made a tensor, and which of its results it is. ("", 0): none did."""
    node = t.grad_fn
    if node is None:
        return "", 0
    program = getattr(node, "program", None)
    makers = program.parts.kept.makers if program is not None else ()
    named = makers[t.output_nr] if t.output_nr < len(makers) else ("", 0)
    return named if named[0] else (node.name(), t.output_nr)


def of_eager(error: RuntimeError, t: torch.Tensor) -> RuntimeError:
    """torch's error for a saved tensor that was written, in which the node that made it is eager's."""
    name, place = maker_of(t)
    if names_are_short():
        name = re.sub(r"Backward\d*$", "", name)
    said = re.sub(r"which is output \d+ of [\w:]+,", f"which is output {place} of {name},", str(error), count=1)
    return RuntimeError(said)


def changed_since(t: torch.Tensor, version: int) -> RuntimeError:
    """Eager's error for a saved tensor that was written."""
    name, place = maker_of(t)
    name = re.sub(r"Backward\d*$", "", name) if names_are_short() else name
    made = f", which is output {place} of {name}," if name else ""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{t.type()} {list(t.shape)}]{made} is at version {t._version}; expected version {version} instead. Hint: enable "
        "anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )
