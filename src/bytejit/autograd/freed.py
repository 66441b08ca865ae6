"""What a backward pass frees, and which later ones it rules out.

Eager frees what each node saved when a backward pass runs through that node, and raises an error when a later one runs through it
again. A pass runs through the nodes between the results that it starts from and the inputs that it is for. A compiled region is
one node, and torch frees all that it saved at once. Passes that share no node with saved tensors may still run one after the
other: what the later ones need is kept.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node

from .versions import TWICE, Kept, changed_since, of_eager

UNPACK = getattr(torch._C._autograd.SavedTensor, "unpack", None)  # torch 2.11 has none


class Freed:
    """What a backward pass of one program frees. results: the number of outputs that have gradients. inputs: those that
    autograd follows. read: returns the places of the saved values that the backward graph reads when some tangents and
    gradients are left out. places: where the saved inputs stand among the saved values."""

    def __init__(self, kept: Kept, results: int, inputs: Sequence[int], read: Callable, places: dict[int, int]) -> None:
        self.holders, self.results, self.inputs, self.read, self.places = kept.holders, results, inputs, read, places
        self.followed = sum(1 << i for i in inputs)
        self.reach = [bits & self.followed for bits in kept.reach]
        self.by_all = (1 << len(self.holders)) - 1
        self.spares = any(self.open(self.by_all))
        self.by_input = not self.is_one_neck()
        self.known: dict[int, frozenset[int]] = {}
        self.passes: dict[tuple[frozenset[int], frozenset[int]], int] = {}

    def is_one_neck(self) -> bool:
        """Whether all passes of results that share a node run through one that saves something, whatever they are for: then what
        a pass frees is known without its inputs."""
        if any(bits != self.followed for bits in self.reach):
            return False
        necks = [h.results for h in self.holders if self.followed & ~h.leads_to == 0]
        return all(any(h.results & ~neck == 0 for neck in necks) for h in self.holders)

    def by(self, missing: frozenset[int], unwanted: frozenset[int]) -> int:
        """The holders, as bits, that a pass runs through. missing: the tangents without which it comes; unwanted: the inputs
        whose gradients nobody asks for."""
        if not missing and not unwanted:
            return self.by_all
        if (missing, unwanted) not in self.passes:
            results, wanted = self.of_pass(missing, unwanted)
            runs = [h.results & results and (not unwanted or h.leads_to & wanted) for h in self.holders]
            self.passes[missing, unwanted] = sum(1 << n for n, run in enumerate(runs) if run)
        return self.passes[missing, unwanted]

    def of_pass(self, missing: frozenset[int], unwanted: frozenset[int]) -> tuple[int, int]:
        """The results that a pass starts from, and the inputs that it is for, as bits."""
        results = sum(1 << k for k in range(self.results) if k not in missing)
        return results, self.followed & ~sum(1 << i for i in unwanted)

    def leads_nowhere(self, missing: frozenset[int], unwanted: frozenset[int]) -> bool:
        """Whether a pass comes to none of the inputs that it is for: another part of the program's graph is."""
        if not unwanted:
            return len(missing) == self.results
        results, wanted = self.of_pass(missing, unwanted)
        return not any(bits & wanted and results >> k & 1 for k, bits in enumerate(self.reach))

    def looked_at(self, missing: frozenset[int], unwanted: frozenset[int]) -> frozenset[int]:
        """The places of the inputs whose versions eager compares in a pass, whether it reads them or not."""
        through = self.by(missing, unwanted)
        held = {i for n, h in enumerate(self.holders) if through >> n & 1 for i in h.inputs}
        return frozenset(self.places[i] for i in held if i in self.places)

    def open(self, freed: int) -> list[int]:
        """Returns for each result the inputs, as bits, to which it may still go backward."""
        found = list(self.reach)
        for n, h in enumerate(self.holders):
            if freed >> n & 1:
                found = [bits & ~h.leads_to if h.results >> k & 1 else bits for k, bits in enumerate(found)]
        return found

    def left(self, freed: int) -> frozenset[int] | None:
        """The places of the saved values that later passes may need; None: there can be none."""
        open_to = self.open(freed)
        if not any(open_to):
            return None
        if freed not in self.known:
            missing = frozenset(k for k, bits in enumerate(open_to) if not bits)
            wanted = functools.reduce(operator.or_, open_to)
            found = set(self.read(missing, frozenset(i for i in self.inputs if not wanted >> i & 1)))
            for n, h in enumerate(self.holders):
                found.update(self.places[i] for i in h.inputs if not freed >> n & 1 and i in self.places)
            self.known[freed] = frozenset(found)
        return self.known[freed]

    def refusal(self, through: int, freed: int, inputs: Mapping, outputs: Mapping) -> RuntimeError | None:
        """Eager's error for a backward pass through these holders; None if there is none. It is the error of the first
        holder that is freed, or of which a saved tensor was written. inputs, outputs: the errors for those that were
        written."""
        for n, h in enumerate(self.holders):
            if through >> n & 1:
                if freed >> n & 1:
                    return RuntimeError(TWICE)
                sides = ("input", inputs, h.inputs), ("output", outputs, h.outputs)
                found = [h.named(errors[i], of, i) for of, errors, held in sides for i in held if i in errors]
                if found:
                    return found[0]
        return None


def freed_of(node: Node) -> Freed | None:
    """What passes free of a region, by its node; None for another node."""
    found = getattr(getattr(node, "program", None), "freed", None)
    return found if isinstance(found, Freed) else None


def errors_of(ctx: FunctionCtx, inputs: Sequence[int]) -> dict[int, RuntimeError]:
    """Eager's errors for the inputs that a node saved, before anything else, and that were written since."""
    if ctx.held is not None:
        made = [ctx.held.error(k) for k in range(len(inputs))]
    else:
        raw = ctx._raw_saved_tensors if inputs and not ctx.freed else ()
        made = [_error_of(x, ctx.saved_versions[k] if ctx.saved_versions else None) for k, x in zip(range(len(inputs)), raw)]
    return {i: e for i, e in zip(inputs, made) if e is not None}


def _error_of(raw: torch._C._autograd.SavedTensor, known: int | None) -> RuntimeError | None:
    if raw.unpack_hook is not None:
        return None
    if UNPACK is None:
        return None if known is None or raw.data._version == known else changed_since(raw.data, known)
    try:
        UNPACK(raw)
    except RuntimeError as e:
        return of_eager(e, raw.data)
    return None


class Held:
    """Saved values that outlive the first backward pass, by their places among all saved values. written: the errors for those
    that were written before that pass."""

    def __init__(
        self, values: dict[int, torch.Tensor], versions: dict[int, int], written: dict[int, RuntimeError], places: int
    ) -> None:
        self.values, self.versions, self.written, self.places = values, versions, written, places

    @staticmethod
    def of_node(ctx: FunctionCtx, left: frozenset[int], inputs: int) -> Held:
        """Returns what a node saved at the places `left`, of which the first `inputs` are inputs. Torch frees it after the
        backward pass."""
        raw = ctx._raw_saved_tensors
        values: dict[int, torch.Tensor] = {}
        versions, written = {}, {}
        whole = UNPACK is None or any(raw[i].unpack_hook is not None for i in left)
        try:
            known = ctx.saved_tensors if whole else ()
        except RuntimeError as e:  # see below
            return Held({i: raw[i].data for i in left}, {}, dict.fromkeys(left, e), len(raw))
        for i in left:
            try:
                found = known[i] if UNPACK is None or whole else UNPACK(raw[i])
                values[i] = found if i < inputs else found.detach()  # a result would keep this node, and it the result
                versions[i] = found._version
            except RuntimeError as e:  # an error of the backward pass that reads it, not of this one
                values[i], written[i] = raw[i].data, e
        return Held(values, versions, written, len(raw))

    def reduced(self, left: frozenset[int]) -> Held:
        """Returns the values at the places `left`."""
        return Held({i: self.values[i] for i in left}, self.versions, self.written, self.places)

    def error(self, i: int) -> RuntimeError | None:
        """Eager's error where the value at a place was written."""
        if i in self.written or i not in self.values:
            return self.written.get(i)
        t = self.values[i]
        return None if t._version == self.versions[i] else changed_since(t, self.versions[i])

    def checked(self, read: frozenset[int]) -> Sequence[torch.Tensor]:
        """Returns the values of all places, an empty tensor where nothing is read. Raises: RuntimeError where a value that is
        read was written."""
        for error in map(self.error, read):
            if error is not None:
                raise error
        return [self.values[i] if i in self.values else torch.empty(0) for i in range(self.places)]
