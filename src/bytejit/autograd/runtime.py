"""Runs the forward and the backward graph as one node of torch's autograd.

What the backward pass needs is saved by torch's own `save_for_backward`. So torch's version checks, its errors and the
program's `saved_tensors_hooks` work as in eager. A backward pass that is itself differentiated (`create_graph=True`) runs the
traced graph once more through torch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import torch
from torch import fx

from bytejit.codegen.aten.applied_functions import conditions, has_passes
from bytejit.codegen.aten.graph import Alias, Aten, Input, base_of
from bytejit.codegen.aten.outputs import kinds_of
from bytejit.common import registry, special_cases
from bytejit.common.ambient import preserved
from bytejit.common.applied import Applied
from bytejit.common.autocast import autocast_now, autocast_state
from bytejit.common.boxed import Boxed
from bytejit.common.checkpointed import is_reentrant
from bytejit.common.gradients import CREATION, refuses_writes
from bytejit.common.graph_info import info_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spared_hooks import sparing
from bytejit.compat.checkpoint_frames import runs_again
from bytejit.runtime.rollback import random_states, undoing

from .asked import NONE, is_for_all, not_asked_for
from .differentiable import differentiable
from .freed import UNPACK, Freed, Held, errors_of
from .hooks import spare
from .leaf_order import arranged
from .partition import Parts
from .recipes import Made
from .region_node import CompiledRegion, apply_of
from .results import maker
from .undefined import without
from .unused import Watched
from .versions import Versions, is_changed

MOST_SPARED_PASSES = 8  # kinds of passes for some inputs that one graph is compiled for, where that only saves work


@light_dataclass(frozen=True)
class BackwardPass:
    """A compiled backward graph. places: for each gradient, its place among the outputs. read: the inputs that the graph
    reads, or that eager would read."""

    call: Callable
    places: tuple[int | None, ...]
    read: frozenset[int]


class TrainingProgram:
    """A graph whose outputs need gradients. forward: runs `parts.forward`; backward(aten): compiles a backward graph."""

    def __init__(self, gm: fx.GraphModule, parts: Parts, forward: Callable, backward: Callable[[Aten], Callable]) -> None:
        self.parts, self.forward, self.build = parts, forward, backward
        self.plain = gm.forward
        self.undone = undoing(gm.forward, parts.written, False) if parts.written else gm.forward
        applies = [n.target for n in gm.graph.nodes if has_passes(n)]
        self.reentrant, self.applies = any(map(is_reentrant, gm.graph.nodes)), bool(applies)
        self.hidden = not all(isinstance(target, Applied) for target in applies)  # one is in a part, such as a checkpoint's
        self.conditions = conditions(gm)
        self.autocast, self.casts = autocast_now(), autocast_state()
        # by which tangents are undefined, and which gradients are not asked for
        self.made: dict[tuple[frozenset[int], frozenset[int]], BackwardPass] = {}
        self.lock = threading.Lock()
        # (input, place of its gradient): an input that no result depends on is not followed; its history ends here
        grads = dict([g for g in parts.grads if g[1] is not None] or parts.grads)
        self.inputs = tuple(arranged(list(grads), parts.kept.order))
        self.grads = tuple((i, grads[i]) for i in self.inputs)
        self.followed = tuple(i for i in self.inputs if i in parts.written)  # autograd asks for their history behind the write
        leaves = set(parts.kept.order)
        self.behind = tuple(k for k, i in enumerate(self.inputs) if i not in leaves)  # edges to what others have made
        self.others = tuple(i for i in range(parts.inputs) if i not in parts.saved_inputs)
        self.first = len(parts.tangents)  # results that autograd does not follow begin here
        self.after = parts.results + parts.saved
        outs = parts.forward.outputs
        shown = [k for k in range(parts.saved) if outs[parts.results + k] in outs[: self.first]]
        detached = frozenset(k for k in range(self.first) if isinstance(parts.forward.outputs[k], Alias))
        # views that an autograd function of the program's returns: torch refuses writes into them
        shut = [kind == CREATION.IN_CUSTOM_FUNCTION.name for kind in kinds_of(gm, CREATION.DEFAULT.name)]
        self.shut = frozenset(r.index for r, is_shut in zip(parts.recipes, shut) if is_shut and isinstance(r, Made))
        self.detached = detached - self.shut
        self.outs = tuple(map(maker, parts.recipes))
        # of several results, those whose hooks eager calls only with a gradient
        self.hooked = tuple(k for k in parts.kept.alone if Made(k) in parts.recipes) if self.first > 1 else ()
        self.unused: Watched | None = Watched(info_of(gm).where)  # None: a call has gone backward, or enough are watched
        self.watched = Versions(parts.kept, parts.saved_inputs)
        self.watches = bool(self.first and (self.watched.inputs or self.watched.outputs))
        self.places = parts.saved + len(parts.saved_inputs)
        at = {i: k for k, i in enumerate(parts.saved_inputs)}
        self.freed = Freed(parts.kept, self.first, self.inputs, self.read_without, at)
        self.shown = frozenset(shown)  # saved values that are results as well
        ends = len(self.inputs)
        self.samples = tuple({0, ends // 2, ends - 1}) if ends > 1 else ()
        self.spared: set[tuple[frozenset[int], frozenset[int]]] = set()  # passes that computed more than they were for
        # the one result is the program's only output as it is
        self.apply = apply_of(parts.kept.makers[0][0] if self.first == 1 and parts.kept.makers else "")
        self.is_bare = self.first == 1 and tuple(parts.recipes) == (Made(0),) and not self.watches
        spares = self.freed.spares and (parts.saved_inputs or parts.saved or parts.kept.holders)
        by_pass = self.freed.by_input or self.behind or spares or self.reentrant or applies or self.conditions
        self.is_straight = self.first == 1 and not by_pass  # a pass depends on nothing but what `straight` looks at

    def __call__(self, *inputs: object) -> object:
        if torch.is_anomaly_enabled() or hooks_of(False) is not None:
            why = "anomaly mode is on" if torch.is_anomaly_enabled() else seen_by_hooks()
            if why:
                registry.count("fallbacks", f"a graph runs through torch: {why}")
                return self.undone(*inputs)
        if self.followed and any(refuses_writes(inputs[i]) for i in self.followed):
            registry.count("fallbacks", "a graph runs through torch: it writes one of several views, whose history ends by that")
            return self.undone(*inputs)
        grad, states = torch.is_grad_enabled(), random_states() if self.parts.random else ()
        try:
            torch._C._set_grad_enabled(False)
            before = self.before(inputs) if self.parts.copied else inputs
            made = self.forward(*inputs)
            if self.detached or self.shut:  # a view that was made without gradients is such a result of a node, and no other
                made = [t.view_as(t) if k in self.shut else t.detach() if k in self.detached else t for k, t in enumerate(made)]
            torch._C._set_grad_enabled(True)
            if self.first:
                grown = self.apply((self, before, made, states), *[inputs[i] for i in self.inputs])
                if self.unused is not None:
                    self.watch(grown if self.first == 1 else grown[0], made[self.parts.results : self.after])
                if self.is_bare and grad:
                    return grown if self.parts.single else (grown,)
                for k in self.hooked:
                    sparing(grown[k])
                made = (grown if self.first > 1 else (grown,)) + tuple(made[self.first :])
            found = tuple([out(made, inputs) for out in self.outs])
            if self.watches:
                made[0].grad_fn.seen = self.watched.seen(inputs, found)
        finally:
            if not (grad and torch.is_grad_enabled()):
                torch._C._set_grad_enabled(grad)
        return found[0] if self.parts.single else found

    def before(self, inputs: Sequence) -> tuple:
        """The inputs as they are now. A backward pass that is itself differentiated runs the forward pass again from them."""
        return tuple([x.detach().clone() if i in self.parts.copied else x for i, x in enumerate(inputs)])

    def watch(self, result: torch.Tensor, saved: Sequence) -> None:
        """Looks whether this call is one of many that never go backward."""
        if result.grad_fn is not None and self.unused is not None and not self.unused.goes_on(result.grad_fn, saved):
            self.unused = None

    # ---- backward ----------------------------------------------------------------------------------------------------
    def backward(self, missing: frozenset[int], unwanted: frozenset[int]) -> BackwardPass:
        """The compiled backward graph without some tangents and gradients, built on first use."""
        key = missing, unwanted
        found = self.made.get(key)
        if found is None:
            with self.lock:
                if key not in self.made:
                    whole = self.parts.backward, tuple(range(len(self.parts.backward.outputs)))
                    aten, places = without(self.parts, *key) if missing or unwanted else whole
                    read = read_inputs(aten) | self.freed.looked_at(*key)
                    self.made[key] = BackwardPass(preserved(self.build, aten), places, read)
                found = self.made[key]
        return found

    def saved_values(self, ctx: CompiledRegion, missing: frozenset[int], unwanted: frozenset[int]) -> Sequence[torch.Tensor]:
        """Returns what the forward pass saved. Raises: RuntimeError where the program has written what the pass reads."""
        if not self.places:
            return ()
        if ctx.held is not None:
            return ctx.held.checked(self.backward(missing, unwanted).read)
        raw = ctx._raw_saved_tensors if missing or unwanted else ()
        if not raw or any(x.unpack_hook is not None for x in raw):
            return ctx.saved_tensors
        read, known = self.backward(missing, unwanted).read, ctx.saved_versions
        if UNPACK is not None:
            return [UNPACK(x) if i in read else x.data for i, x in enumerate(raw)]
        if any(raw[i].data._version != known[i] for i in read if i < len(known)):
            return ctx.saved_tensors  # it raises
        return [x.data for x in raw]

    def gradients(self, ctx: CompiledRegion, tangents: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """The gradients of `self.inputs`, None where there are none."""
        self.unused = None
        if self.is_straight:
            straight = self.straight(ctx, tangents[0])
            if straight is not None:
                return straight
        one = self.first == 1 and tangents[0] is not None
        missing = NONE if one else frozenset([i for i, t in enumerate(tangents) if t is None])
        frees = not keeps_graph()
        by_input = (frees or ctx.freed) and (self.freed.by_input or self.behind)
        unwanted = not_asked_for(ctx, self.inputs) if by_input else self.not_needed(ctx, missing)
        if ctx.freed & self.freed.by(missing, unwanted) or is_changed(ctx.seen):
            unwanted = self.allowed(ctx, missing)
        nothing = self.freed.leads_nowhere(missing, unwanted)
        made = [None] * len(self.inputs) if nothing else self.computed(ctx, tangents, missing, unwanted, frees)
        if missing:
            spare(ctx, made, unwanted, self.inputs)
        if frees:
            if self.is_whole(ctx, missing, unwanted):
                ctx.freed, ctx.others, ctx.now = self.freed.by_all, None, {}
            else:
                self.let_go(ctx, self.freed.by(missing, unwanted))
        return made

    def straight(self, ctx: CompiledRegion, tangent: torch.Tensor | None) -> Sequence[torch.Tensor | None] | None:
        """The gradients of the pass that most programs run: the only one through its node, for all inputs. None: it is another.
        Between kernels that leave nothing in the caches each line costs some 2 us."""
        back = self.made.get(WHOLE)
        if back is None or type(back.call) is not Boxed or tangent is None or ctx.freed:
            return None
        if torch.is_grad_enabled() or keeps_graph():
            return None
        if self.samples and not is_for_all(ctx, self.samples) or ctx.seen and is_changed(ctx.seen):
            return None
        if is_batched(tangent) or torch._C._is_any_autocast_enabled():
            return None
        try:
            box = [*ctx.saved_tensors, self.fitted(0, tangent, ctx), *ctx.numbers]
        except RuntimeError:  # what was written may be of a part that this pass does not come to
            return None
        ctx.freed, ctx.others = self.freed.by_all, None
        if self.parts.copied:
            ctx.now = {}
        CLEAR(ctx)
        made = back.call.boxed(box)
        return [None if at is None or back.places[at] is None else made[back.places[at]] for _, at in self.grads]

    def is_whole(self, ctx: CompiledRegion, missing: frozenset[int], unwanted: frozenset[int]) -> bool:
        """Whether a pass is the first of its node, runs through all that saved something, and leaves nothing for another."""
        return not (missing or unwanted or self.freed.spares) and ctx.held is None

    def not_needed(self, ctx: CompiledRegion, missing: frozenset[int]) -> frozenset[int]:
        """Returns the inputs whose gradients this pass need not compute, where leaving them out only saves work. A graph for such
        passes is compiled for the first pass of all, or once there were two of them."""
        if not self.samples or is_for_all(ctx, self.samples) or torch.is_grad_enabled():
            return NONE
        unwanted = not_asked_for(ctx, self.inputs)
        key = missing, unwanted
        if key in self.made or not self.made or key in self.spared:
            return unwanted
        if len(self.spared) < MOST_SPARED_PASSES:
            self.spared.add(key)
        return NONE

    def allowed(self, ctx: CompiledRegion, missing: frozenset[int]) -> frozenset[int]:
        """Looks at all that eager saves where the pass runs. Returns: what it is not for. Raises: RuntimeError as eager does."""
        unwanted = not_asked_for(ctx, self.inputs)
        inputs, outputs = self.watched.changed(ctx.seen)
        inputs |= errors_of(ctx, self.parts.saved_inputs)
        error = self.freed.refusal(self.freed.by(missing, unwanted), ctx.freed, inputs, outputs)
        if error is not None:
            raise error
        return unwanted

    def computed(
        self,
        ctx: CompiledRegion,
        tangents: Sequence[torch.Tensor | None],
        missing: frozenset[int],
        unwanted: frozenset[int],
        frees: bool,
    ) -> Sequence[torch.Tensor | None]:
        """The gradients, from the compiled graph where it can be used. frees: the pass is without retain_graph."""
        plain = self.only_through_torch(missing, tangents)
        if plain and not torch.is_grad_enabled():
            registry.count("fallbacks", f"a backward pass runs through torch: {plain}")
            with torch.enable_grad():
                return preserved(differentiable, self, ctx, tangents, False)
        if torch.is_grad_enabled():
            registry.count("fallbacks", "a backward pass runs through torch: it is differentiated again (create_graph=True)")
            return preserved(differentiable, self, ctx, tangents)
        saved: Sequence[torch.Tensor] | None = None
        with contextlib.suppress(RuntimeError):  # what was written may be of a part that this pass does not come to
            saved = self.saved_values(ctx, missing, unwanted)
        if saved is None:
            unwanted = self.allowed(ctx, missing)
            saved = self.saved_values(ctx, missing, unwanted)
        given = [self.fitted(i, t, ctx) for i, t in enumerate(tangents)]
        back = self.backward(missing, unwanted)
        if frees and isinstance(back.call, Boxed) and self.is_last(ctx, missing, unwanted):
            box, saved, given = [*saved, *given, *ctx.numbers], (), []  # nothing else holds what was saved
            ctx.freed |= self.freed.by(missing, unwanted)
            ctx.others, ctx.now = None, {}
            CLEAR(ctx)
            made = back.call.boxed(box)
        else:
            made = back.call(*saved, *given, *ctx.numbers)
        return [None if at is None or back.places[at] is None else made[back.places[at]] for _, at in self.grads]

    def is_last(self, ctx: CompiledRegion, missing: frozenset[int], unwanted: frozenset[int]) -> bool:
        """Whether no pass can come after this one, which does not retain the graph."""
        if self.is_whole(ctx, missing, unwanted):
            return True
        return ctx.held is None and self.freed.left(ctx.freed | self.freed.by(missing, unwanted)) is None

    def let_go(self, ctx: CompiledRegion, through: int) -> None:
        """Frees what eager frees after a backward pass without retain_graph; torch itself frees what the node saved. through:
        the holders that it ran through."""
        ctx.freed |= through
        left = self.freed.left(ctx.freed)
        if left is None:
            ctx.held, ctx.others, ctx.now = None, None, {}
            return
        if left or self.applies:  # what a pass through torch reads
            left |= frozenset(range(len(self.parts.saved_inputs)))
        else:
            ctx.others, ctx.now = None, {}
        if self.places:
            inputs = len(self.parts.saved_inputs)
            ctx.held = Held.of_node(ctx, left, inputs) if ctx.held is None else ctx.held.reduced(left)

    def read_without(self, missing: frozenset[int], unwanted: frozenset[int]) -> frozenset[int]:
        """The places among what is saved that the backward graph without some tangents and gradients reads."""
        return read_inputs(without(self.parts, missing, unwanted)[0]).intersection(range(self.places))

    def only_through_torch(self, missing: frozenset[int], tangents: Sequence[torch.Tensor | None]) -> str:
        """Returns why a backward pass cannot use the compiled graph; "" where it can. missing: outputs that were not used."""
        if any(t is not None and is_batched(t) for t in tangents):
            return "it is for many gradients at once"
        if torch._C._is_any_autocast_enabled() and autocast_state() != self.casts:  # which casts what gradients are made of
            return "autocast is on around it and was not around the forward pass"
        if self.reentrant and not torch.autograd._is_checkpoint_valid():
            return "a reentrant checkpoint asks how it was called"
        if self.applies and missing and self.is_applied_to(missing):
            return "an output of a graph with an autograd function was not used"
        if self.conditions and not all(holds() for holds in self.conditions):
            return "what the backward of an autograd function reads is another than it was"
        return ""

    def is_applied_to(self, missing: frozenset[int]) -> bool:
        """Whether the backward of an autograd function gets a gradient from outputs alone that were not used: what it makes of
        zeros, or of nothing, need not be linear."""
        given = ~sum(1 << i for i in missing)
        return self.hidden or any(not results & given for results in self.parts.kept.applied)

    def fitted(self, i: int, tangent: torch.Tensor | None, ctx: CompiledRegion) -> torch.Tensor:
        """A tangent in the layout that the backward graph was compiled for. An undefined tangent becomes uninitialised
        memory, which nothing reads."""
        spec = self.parts.tangents[i]
        at = self.parts.layouts[i]
        shape, stride = (spec.shape, spec.stride) if at is None else (ctx.sizes[at[0] : at[1]], ctx.sizes[at[1] : at[2]])
        if tangent is None:
            return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)  # see undefined.without
        if type(tangent) is torch.Tensor and tangent.stride() == tuple(stride) and tangent.dtype is spec.dtype:
            return tangent
        return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device).copy_(tangent)


WHOLE = NONE, NONE  # the pass with all tangents and for all gradients
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
is_batched = torch._C._functorch.is_legacy_batchedtensor
hooks_of = torch._C._autograd._top_saved_tensors_default_hooks


def seen_by_hooks() -> str:
    """Returns why saved tensors must be eager's: the program's own hooks see them, or a checkpoint that computes them again in
    the original code. torch's others (`save_on_cpu`) take any tensors: then ""."""
    pack, _ = hooks_of(False)
    if special_cases.CHECKPOINTS.made(pack):
        return "" if runs_again(pack) else "a checkpoint runs the original code again"
    return "" if special_cases.TORCH.made(pack) else "hooks of the program's see what it saves"


# frees what a node saved while it runs; without it the node is freed after it
CLEAR = getattr(torch._C._FunctionBase, "maybe_clear_saved_tensors", lambda ctx: None)


def read_inputs(aten: Aten) -> frozenset[int]:
    """The inputs of a graph that it reads or gives back."""
    given = [n for n in aten.graph.nodes if n.op == "placeholder"]
    back = {base.index for base in map(base_of, aten.outputs) if isinstance(base, Input)}
    return frozenset(i for i, n in enumerate(given) if n.users or i in back)
