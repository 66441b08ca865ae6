"""Option `activation_memory_budget`: keep fewer bytes for the backward pass, and compute more again.

At a budget of 1 only cheap calls are made again; at 0 everything that may be, which is a minimum cut. Between the two, values
are dropped one by one, each time the one with the most bytes for the work of making it again, until the rest fits.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Set

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import bytes_of
from bytejit.codegen.loops import index as ix
from bytejit.codegen.ops.calls import acts
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .min_cut import Cut, fused, row_of
from .nodes import base_of, is_view_node

aten = torch.ops.aten
FASTER = {"cpu": 8, "cuda": 60}  # multiply-adds that take as long as a byte moved
STATEFUL = "_rnn"  # part of the names of calls that may draw random numbers from a state inside a library
OWN_SIZE = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
FIRST = {aten.addmm.default: 1, aten.baddbmm.default: 1}  # the argument that is the first matrix; 0 in other products
PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.linear.default, *FIRST})


# ---- what a node is --------------------------------------------------------------------------------------------------
def repeatable(n: fx.Node) -> bool:
    """Whether a second run of a call returns the same result and has no other effect."""
    if n.op != "call_function" or "checkpointed" in n.meta or not isinstance(n.meta.get("spec"), (Spec, tuple)):
        return False
    if n.target is operator.getitem:
        return isinstance(n.args[0], fx.Node) and repeatable(n.args[0])
    schema = getattr(n.target, "_schema", None)
    if schema is None or schema.is_mutable or acts(n) or STATEFUL in schema.name or not OWN_SIZE.isdisjoint(n.target.tags):
        return False
    return n.target.namespace == "aten" or row_of(n) is not None


def size(spec: object) -> float:
    """Returns the size of a tensor or of several. Units: bytes."""
    return bytes_of(spec) if isinstance(spec, Spec) else sum(map(size, spec)) if isinstance(spec, tuple) else 0.0


def shape_of(x: object) -> tuple[int, ...]:
    """Returns the shape of a node that is a tensor, with symbols as they were when the graph was made."""
    return tuple(map(ix.hint, x.meta["spec"].shape)) if isinstance(x, fx.Node) else ()


def multiply_adds(n: fx.Node) -> float:
    """Multiply-adds of a product, convolution or attention; 0 for other calls, whose time is that of moving bytes."""
    if n.target in PRODUCTS:
        return math.prod(shape_of(n)) * shape_of(n.args[FIRST.get(n.target, 0)])[-1]
    if n.target is aten.convolution.default:
        x, w, transposed = shape_of(n.args[0]), shape_of(n.args[1]), n.args[6]
        return math.prod(x if transposed else shape_of(n)) * math.prod(w[1:])
    if "scaled_dot_product" in str(n.target):
        return 2.0 * math.prod(shape_of(n.args[0])) * shape_of(n.args[1])[-2]
    return 0.0


def work(n: fx.Node, made: Set[fx.Node] = frozenset()) -> float:
    """The estimated time of a call, in bytes moved. made: calls that run too and may share its kernel."""
    if n.target is operator.getitem or is_view_node(n):
        return 0.0
    operands = {base_of(i) for i in n.all_input_nodes}
    moved = sum(size(i.meta.get("spec")) for i in operands if not (i in made and fused(i)))
    moved += 0.0 if fused(n) else size(n.meta["spec"])
    first = next((i.meta["spec"] for i in operands if isinstance(i.meta.get("spec"), Spec)), None)
    return max(moved, multiply_adds(n) / FASTER.get(first.device.type if first else "cpu", 8))


class LeastBytes(Cut):
    """The minimum cut when every call that may be made again is cheap. `weights`: inputs that are kept as they are."""

    def cheap(self, n: fx.Node) -> bool:
        """Whether a call may be made again."""
        return n in self.forward and repeatable(n)

    def width(self, n: fx.Node) -> float:
        """Returns what it costs to keep a value. Units: bytes."""
        return 0.0 if n in self.weights else math.inf if is_view_node(n) else bytes_of(n.meta["spec"])


# ---- the choice ------------------------------------------------------------------------------------------------------
# calls to make again -> (all calls of the backward graph, the values that are kept)
Walk = Callable[[set[fx.Node]], tuple[set[fx.Node], list[fx.Node]]]


def total(kept: Iterable[fx.Node]) -> float:
    """Units: bytes."""
    return sum(bytes_of(n.meta["spec"]) for n in kept)


@light_dataclass(frozen=True)
class Chosen:
    """What is made again. most, least: the bytes kept at a budget of 1 and of 0."""

    again: set[fx.Node]
    most: float
    least: float


def choose(budget: float, cheap: set[fx.Node], all_of_them: set[fx.Node], held: frozenset[fx.Node], walk: Walk) -> Chosen:
    """The calls to make again so that the kept values fit. cheap, all_of_them: those at a budget of 1 and of 0. held: inputs
    that stay alive anyway."""
    calls, kept = walk(cheap)
    most, least = total(kept), total(walk(all_of_them)[1])
    limit = least + budget * (most - least)
    found = _Greedy(set(cheap), all_of_them, held, calls, dict.fromkeys(kept)).until(limit, most) if budget > 0 else all_of_them
    return Chosen(found, most, least)


@light_dataclass(frozen=True)
class _Greedy:
    """Drops values. again: calls that may be made again by now; calls: those that are; kept: values that are saved."""

    again: set[fx.Node]
    all_of_them: set[fx.Node]
    held: frozenset[fx.Node]
    calls: set[fx.Node]
    kept: dict[fx.Node, None]

    def until(self, limit: float, now: float) -> set[fx.Node]:
        """Drops values until the rest fits. Where that is not enough, everything that can be is made again."""
        serial = itertools.count()
        queue = [(-self.gain(n), next(serial), n) for n in self.kept if n in self.all_of_them]
        heapq.heapify(queue)
        while now > limit:
            if not queue:
                return self.all_of_them
            _, at, n = heapq.heappop(queue)
            gain = self.gain(n)
            if gain <= 0:
                continue
            if queue and gain < -queue[0][0]:  # what was given up since has made it dearer
                heapq.heappush(queue, (-gain, at, n))
                continue
            made, more = self.opened(n)
            now += total(more - self.held) - total([n])
            self.again.update(made)
            self.calls.update(made)
            del self.kept[n]
            self.kept.update(dict.fromkeys(more - self.held))
        return self.again

    def gain(self, n: fx.Node) -> float:
        """Bytes saved for the time of moving one byte when a value is dropped; 0 where nothing is saved."""
        made, more = self.opened(n)
        saved = total([n]) - total(more - self.held)
        return saved / max(sum(work(m, made) for m in made), 1.0) if saved > 0 else 0.0

    def opened(self, value: fx.Node) -> tuple[set[fx.Node], set[fx.Node]]:
        """Returns what else is computed again, and what else is kept, when a value is dropped."""
        made: set[fx.Node] = set()
        more: set[fx.Node] = set()
        stack = [value]
        while stack:
            n = stack.pop()
            if n in made or n in more or n in self.calls or n in self.kept and n is not value:
                continue
            if n in self.again or n in self.all_of_them or not isinstance(n.meta.get("spec"), Spec) or is_view_node(n):
                made.add(n)
                stack += n.all_input_nodes
            else:
                more.add(n)
        return made, more
