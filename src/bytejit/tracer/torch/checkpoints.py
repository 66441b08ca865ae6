"""torch.utils.checkpoint in a region: its function is traced, and at the end becomes a graph of its own. One node runs this
graph under the same checkpoint, so its values are not kept but computed again in the backward pass.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Sequence

import torch
import torch.utils.checkpoint

from bytejit.common import saved_tensors
from bytejit.common.checkpointed import CHECKPOINT, CONTEXTS, Checkpointed
from bytejit.guards.sources import Attr, Ref
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, FuncVar, InstanceVar, Lazy, SeqVar, TensorVar, Var, expect
from bytejit.tracer.core.versions import newer

from .effects_of_calls import has_external_effects
from .parts import part_of, taken_by

SELECTIVE, REENTRANT = torch.utils.checkpoint.create_selective_checkpoint_contexts, "use_reentrant"
KEYWORDS = [p.name for p in inspect.signature(CHECKPOINT).parameters.values() if p.kind is p.KEYWORD_ONLY]
OPTIONS = {*KEYWORDS, "preserve_rng_state"}  # until torch 2.14 that one is among the other keywords


def begin(*args: object, **options: object) -> None:
    """Marks where a checkpointed function begins in the graph while it is traced; `args`: the tensors given to it."""


def end() -> None:
    """Marks the end of a checkpointed function."""


@models(torch.utils.checkpoint.checkpoint)
def checkpoint(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    given = {k: v for k, v in kwargs.items() if k in OPTIONS}
    named = {k: v for k, v in kwargs.items() if k not in OPTIONS}
    if not args and "function" not in named:  # torch 2.15+: a decorator. Before, an error
        return t.calls.inline(expect(t.values.constant(CHECKPOINT), FuncVar), args, kwargs)
    function, *rest = args or [named.pop("function")]
    return checkpointed(t, function, rest, named, given)


@models(*newer(torch.utils.checkpoint, "_checkpoint_impl"))
def checkpoint_of_a_decorator(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    function, rest, named = args
    given = {t.const(k): v for k, v in t.iteration.mapping_items(named) or ()}
    return checkpointed(t, function, t.iteration.iterate(rest), given, kwargs)


def checkpointed(t: Tracer, function: Var, rest: list[Var], named: dict[str, Var], given: dict[str, Var]) -> Var:
    """What function(*rest, **named) returns under a checkpoint with the options `given`."""
    rest = [t.values.real(a) for a in rest]
    contexts = t.values.real(given[CONTEXTS]) if CONTEXTS in given else None
    if isinstance(contexts, FuncVar) and contexts.real is torch.utils.checkpoint.noop_context_fn:  # the default
        contexts = None
    if t.const(given.get("debug", FALSE)):
        raise Break("torch.utils.checkpoint with debug")
    t.guards.add_state("saved_hooks_refusal")
    if saved_tensors.refusal() is not None:
        raise Break("torch.utils.checkpoint where hooks of saved tensors are refused")
    options = {k: t.const(v) for k, v in given.items() if k != CONTEXTS}
    reentrant = options.get(REENTRANT)
    if reentrant is None:
        raise Break("torch.utils.checkpoint, reentrant", "pass use_reentrant")
    if reentrant and (named or contexts is not None or not any(isinstance(a, TensorVar) and a.fake.requires_grad for a in rest)):
        raise Break("torch.utils.checkpoint, reentrant, with these arguments", "pass use_reentrant=False")
    if not torch.is_grad_enabled():
        return t.calls.call(function, rest, named)
    if contexts is not None:
        options[CONTEXTS] = contexts_of(t, contexts)
    tensors = [a for a in [*rest, *map(t.values.real, named.values())] if isinstance(a, TensorVar)]
    nodes = tuple(dict.fromkeys(a.node for a in tensors))
    result = kept_apart(t, lambda: t.values.real(t.calls.call(function, rest, named)), nodes, options)
    if reentrant:
        check_reentrant(t, result, tensors)
    return result


def check_reentrant(t: Tracer, result: Var, given: Sequence[TensorVar]) -> None:
    """Check that the results of a checkpointed function are the same as a reentrant checkpoint's. That is a function of
    autograd, so all its results need gradients. Raises: Break if one of the function's results does not, or is an argument."""
    outputs = [t.values.real(v) for v in (result.items if isinstance(result, SeqVar) and result.cls is tuple else [result])]
    stores = [v.fake.m.store for v in given]
    for v in outputs:
        if not isinstance(v, TensorVar) or not v.fake.requires_grad or any(v.fake.m.store is s for s in stores):
            raise Break("torch.utils.checkpoint, reentrant, of a function whose results are not all new tensors with gradients")


def contexts_of(t: Tracer, v: Var) -> Callable:
    """The program's `context_fn`, as it can be called later. Raises: Break for all but functions, and torch's own for
    selective checkpoints."""
    if isinstance(v, FuncVar):
        return kept_function(v)
    function, items, options = partial_of(t, v)
    if function is not None and function.real is SELECTIVE and len(items) == 1:
        return functools.partial(SELECTIVE, chosen_by(t, items[0]), **options)
    raise Break("torch.utils.checkpoint with a context_fn that is neither a function nor a partial of torch's own")


def chosen_by(t: Tracer, v: Var) -> object:
    """The policy of a selective checkpoint: a list of operators, a function, or a partial of one with constants. Raises:
    Break."""
    if isinstance(v, FuncVar):
        return kept_function(v)
    function, items, options = partial_of(t, v)
    if function is None:
        return t.const(v)
    return functools.partial(kept_function(function), *(t.const(x) for x in items), **options)


def partial_of(t: Tracer, v: Var) -> tuple[FuncVar | None, list[Var], dict]:
    """The function and arguments of a partial; no function for what is none. Raises: Break for names whose values are none."""
    if not isinstance(v, InstanceVar) or v.cls is not functools.partial:
        return None, [], {}
    if v.real is None:
        function, args, named = v.slots["func"], v.slots["args"], v.slots["keywords"]
    else:
        function, args, named = (Lazy(getattr(v.real, n), Attr(v.origin, n)) for n in ("func", "args", "keywords"))
    function = t.values.real(function)
    if not isinstance(function, FuncVar):
        return None, [], {}
    options = {t.const(k): t.const(x) for k, x in t.iteration.mapping_items(named) or ()}
    return function, [t.values.real(x) for x in t.iteration.iterate(args)], options


def kept_function(v: FuncVar) -> Callable:
    """A function that calls the program's, which it does not keep alive. Raises: Break for one that closes over values."""
    if v.real is None:
        if v.closure or v.defaults or v.kwdefaults:
            raise Break("torch.utils.checkpoint with a context_fn that was made in the region of values there")
        return types.FunctionType(v.code, v.globals, v.code.co_name)
    ref = Ref(v.real)
    return lambda *args, **kwargs: ref.get()(*args, **kwargs)


def kept_apart(t: Tracer, run: Callable[[], Var], given: tuple, options: dict) -> Var:
    """Trace what a checkpoint runs, between marks. Raises: Break where running it twice would be seen."""
    if has_external_effects(t):
        raise Break("torch.utils.checkpoint after a change that its function may see when it runs again")
    before = {v: v.fake._version for v in t.by_fake.values() if not v.fake.is_inference()}
    deferred = t.deferred.count
    looked_at = t.backward.looked_at
    first = t.graph.call_function(begin, given, options)
    try:
        with t.deferred.part():
            result = run()
    except Raised:
        t.graph.erase_node(first)
        raise
    if (
        has_external_effects(t)
        or t.deferred.count != deferred
        or any(v.fake._version != n for v, n in before.items())
        or looked_at != t.backward.looked_at
    ):
        raise Break("torch.utils.checkpoint of a function that has side effects")
    t.graph.call_function(end)
    t.checkpoints = True
    return result


def group(t: Tracer, outputs: list) -> list:
    """The traced graph with each checkpointed part as one node; the outputs' nodes, where they are now."""
    opened: list[torch.fx.Node] = []
    for node in list(t.graph.nodes) if t.checkpoints else ():
        if node.target is begin:
            opened.append(node)
        elif node.target is end:
            outputs = _grouped(t.graph, opened.pop(), node, outputs)
    return outputs


def _grouped(graph: torch.fx.Graph, first: torch.fx.Node, last: torch.fx.Node, outputs: list) -> list:
    """Makes one part a node in front of `last`, and removes its marks."""
    inside, node = [], first.next
    while node is not last:
        if node.op != "placeholder":
            inside.append(node)
        node = node.next
    if any(isinstance(v, torch.Tensor) and v.requires_grad for n in inside for v in _values(n)):
        held = set(inside)
        taken = taken_by(inside)
        saved = [n for n in first.args if n in taken]
        taken = [*saved, *(n for n in taken if n not in saved)]
        given = [n for n in inside if n in outputs or not held.issuperset(n.users)]
        moved = _call(last, taken, len(saved), inside, given, dict(first.kwargs))
        outputs = [moved.get(n, n) for n in outputs]
        for n in reversed(inside):
            graph.erase_node(n)
    graph.erase_node(first)
    graph.erase_node(last)
    return outputs


def _values(node: torch.fx.Node) -> tuple:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _call(last: torch.fx.Node, taken: list, saved: int, inside: list, given: list, options: dict) -> dict:
    """The node that runs a part, and one for each value that is used outside of it: old node -> new node."""
    graph, part = last.graph, part_of(taken, inside, tuple(given))
    with graph.inserting_before(last):
        call = graph.call_function(Checkpointed(part, saved, options), tuple(taken))
        call.meta["val"], call.meta["where"] = tuple(n.meta["val"] for n in given), inside[0].meta.get("where")
        moved = {}
        for i, n in enumerate(given):
            moved[n] = graph.call_function(operator.getitem, (call, i))
            moved[n].meta.update(n.meta)
            n.replace_all_uses_with(moved[n], delete_user_cb=lambda user: user not in inside)
    return moved
