"""Wrappers of a graph's callable: modes that it sets, checks of its inputs, and the way through torch."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from bytejit.codegen.aten.graph import Alias, Aten, OutputValue
from bytejit.common import profiler_ranges, registry
from bytejit.common.boxed import wrapped
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.spec import span_of
from bytejit.fake.tensor import Fake
from bytejit.runtime.rollback import raise_behind_writes, undoing, versions


def fakes_of(gm: torch.fx.GraphModule) -> list:
    return [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]


def not_normalised(gm: torch.fx.GraphModule) -> str:
    """Returns why a graph cannot be made functional here; "" when it can."""
    info = info_of(gm)
    if info.needs_grad and info.inference is not None:
        return "its outputs need gradients, and it sets inference mode"
    if info.inference == "mixed":
        return "only some of its outputs are inference tensors"
    if info.measures:
        return "it has sizes that are known only when it runs"
    if info.sets_data:
        return "it sets a tensor's data"
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder" and "look" in n.meta]
    if any(n.meta["val"].m is not n.meta["look"] for n in inputs):
        return "it changes an input's shape or strides"
    if info.needs_grad and used_untracked(gm):
        return "its outputs need gradients, and it sets requires_grad of an input that it has used"
    return ""


def tracked_anew(gm: torch.fx.GraphModule) -> list[tuple[int, bool]]:
    """The inputs whose requires_grad the graph sets, or that it makes leaves, each with the value."""
    inputs = [n.meta for n in gm.graph.nodes if n.op == "placeholder"]
    return [
        (i, meta["val"].requires_grad)
        for i, meta in enumerate(inputs)
        if "autograd" in meta and meta["val"].is_leaf and (meta["val"].requires_grad, True) != tuple(meta["autograd"])
    ]


def used_untracked(gm: torch.fx.GraphModule) -> bool:
    """Whether an input is used before the graph turns its requires_grad on, or makes a leaf of it, or it is turned off again. If
    the graph runs again within a node of autograd, the node would wrongly follow that use too, or none."""
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    turned_on = [inputs[i] for i, on in tracked_anew(gm) if on]
    if any(n.meta["autograd"][0] or next(iter(n.users)).target != "requires_grad_" for n in turned_on):
        return True
    off = [u for n in inputs if "autograd" in n.meta and not n.meta["val"].requires_grad for u in n.users]
    return any(u.target == "requires_grad_" and False not in (*u.args, *u.kwargs.values()) for u in off)


def setting_requires_grad(gm: torch.fx.GraphModule, call: Callable) -> Callable:
    """`call`, and then `requires_grad` of inputs as the graph sets it, which no kernel does. It is on before a call that makes a
    node of autograd: one of the node's edges is of that input."""
    flags = tracked_anew(gm)
    if not flags:
        return call
    first = [i for i, on in flags if on and info_of(gm).needs_grad]
    last = [(i, on) for i, on in flags if i not in first]
    anew = views_of_detached(gm, frozenset(i for i, on in last if not on))

    def setting(*inputs: Any) -> Any:
        try:
            for i in first:
                inputs[i].requires_grad_(True)
            found = call(*inputs)
        except BaseException:
            for i in first:
                inputs[i].requires_grad_(False)
            raise
        for i, on in last:
            if not inputs[i].is_leaf:
                inputs[i].detach_()
            inputs[i].requires_grad_(on)
        if not anew:
            return found
        return tuple([viewed_anew(inputs[anew[k]], t) if k in anew else t for k, t in enumerate(found)])

    return setting


def views_of_detached(gm: torch.fx.GraphModule, detached: frozenset[int]) -> dict[int, int]:
    """The results that are views which the graph makes of inputs behind their detaching, each with its input."""
    wanted = list(gm.graph.nodes)[-1].args[0]
    if not detached or not isinstance(wanted, (tuple, list)):
        return {}
    inputs = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    at = {id(inputs[i]): i for i in detached}
    shown = {k: n.meta["val"] for k, n in enumerate(wanted) if isinstance(n, torch.fx.Node) and type(n.meta.get("val")) is Fake}
    return {k: at[id(v._base)] for k, v in shown.items() if not v.requires_grad and v._is_view() and id(v._base) in at}


def viewed_anew(x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """A view of a detached tensor, where it was made of it before that."""
    return x.as_strided(view.shape, view.stride(), view.storage_offset()) if view.requires_grad else view


def through_torch(gm: torch.fx.GraphModule, reason: str) -> Callable:
    """Run the FX graph as it is: right, unfused, counted."""
    registry.count("fallbacks", f"a graph runs through torch: {reason}")
    report_of(gm).through_torch = reason
    return gm.forward


def in_mode(gm: torch.fx.GraphModule, call: Callable) -> Callable:
    """`call` in the mode that the graph itself sets: in or out of inference mode, or without gradients."""
    info = info_of(gm)
    if info.inference is not None:
        return within(partial(torch._C._InferenceMode, info.inference), call)
    if not info.grads_off or info.needs_grad:
        return call

    def without_grad(*inputs: Any) -> Any:
        grad = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)
            found = call(*inputs)  # no output has gradients: what is an input's memory is made apart from it
            found = tuple(t.detach() if isinstance(t, torch.Tensor) and t.requires_grad else t for t in found)
        finally:
            torch._C._set_grad_enabled(grad)
        return found

    return without_grad


def without_autocast(gm: torch.fx.GraphModule, call: Callable) -> Callable:
    """`call`, run with autocast off: the casts are in its operations already. This is needed only if autocast is on around
    the region; autocast within the region is not on when `call` runs. Cost: 0.5 us a call, where it is needed."""
    return wrapped(partial(within, torch._C._DisableAutocast), call) if info_of(gm).autocast else call


def within(manager: Callable, call: Callable) -> Callable:
    """`call` within a manager written in C. It is entered under the `try` already: a signal's handler may raise at the end of any
    call, `__enter__` too, and on Python 3.14 a `with` statement holds nothing yet there. The result is stored within the `try`:
    on Python 3.11 a call that ends it is no longer in it when the handler runs."""

    def inside(*inputs: Any) -> Any:
        entered = manager()
        try:
            entered.__enter__()
            found = call(*inputs)
        finally:
            entered.__exit__(None, None, None)
        return found

    return inside


def share_memory(inputs: tuple, written: list[int]) -> bool:
    """Whether a written input has memory of another input. Cost: 0.1 us an input where each has a storage of its own."""
    storages = [t.untyped_storage()._cdata for t in inputs if isinstance(t, torch.Tensor)]
    if len(set(storages)) == len(storages):
        return False
    shared = {s for s, n in Counter(storages).items() if n > 1}
    found, changed = list[tuple[int, int, bool]](), set(written)
    for i, t in enumerate(inputs):
        if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata in shared and t.numel():
            size = t.nbytes if t.is_contiguous() else span_of(t.shape, t.stride()) * t.itemsize
            found.append((t.data_ptr(), size, i in changed))
    found.sort()
    end = end_of_written = 0
    for first, size, writes in found:
        if first < end_of_written or writes and first < end:
            return True
        end = max(end, first + size)
        end_of_written = max(end_of_written, first + size) if writes else end_of_written
    return False


def overlap_in_memory(inputs: tuple, written: list[int]) -> bool:
    """Whether the storage of a written input has bytes of another input's. Cost: 1 us an input."""
    spans = [(s.data_ptr(), s.nbytes()) if (s := storage_of(t)) is not None else (0, 0) for t in inputs]
    return any(
        first < spans[i][0] + spans[i][1] and spans[i][0] < first + size
        for i in written
        for j, (first, size) in enumerate(spans)
        if j != i and size
    )


def storage_of(x: Any) -> torch.UntypedStorage | None:
    return x.untyped_storage() if isinstance(x, torch.Tensor) else None


def counted(call: Callable, aten: Aten) -> Callable:
    """`call`, with tensor versions set as eager would have left them: for each write of the program into an input, and for
    the tensors that the call makes. (The call itself writes each input once.)"""
    made = {i: o.version for i, o in enumerate(aten.outputs) if isinstance(o, (OutputValue, Alias)) and o.version}
    return writes_counted(counting_made(call, made, aten.single) if made else call, aten)


def counting_made(call: Callable, made: Mapping[int, int], single: bool) -> Callable:
    """`call`, after which outputs have these versions."""
    at, versions = tuple(made), tuple(made.values())

    def setting_versions(*inputs: Any) -> Any:
        found = call(*inputs)
        torch._C._autograd._unsafe_set_version_counter((found,) if single else tuple([found[i] for i in at]), versions)
        return found

    return setting_versions


def writes_counted(call: Callable, aten: Aten) -> Callable:
    """`call`, after which the versions of the inputs that it writes count the program's writes: it writes each once itself."""
    silent = {m.input: 0 for m in aten.mutations if m.writes == 0}
    more = tuple(m.input for m in aten.mutations for _ in range(1, m.writes))
    writes = counting(call, silent) if silent else call
    if not more:
        return writes
    bump = torch.autograd.graph.increment_version

    def counted_call(*inputs: Any) -> Any:
        found = writes(*inputs)
        bump([inputs[i] for i in more])
        return found

    return counted_call


def counting(call: Callable, counts: Mapping[int, int]) -> Callable:
    """`call`, after which the versions of inputs are so much higher than before it, whatever `call` counts."""
    at, added = tuple(counts), tuple(counts.values())

    def setting_versions(*inputs: Any) -> Any:
        tensors = tuple([inputs[i] for i in at])
        versions = tuple([t._version + n for t, n in zip(tensors, added)])
        found = call(*inputs)
        torch._C._autograd._unsafe_set_version_counter(tensors, versions)
        return found

    return setting_versions


def guarded(gm: torch.fx.GraphModule, call: Callable, aten: Aten) -> Callable:
    """`call`; when an input that it writes shares memory with another input, the graph runs through torch instead."""
    call = profiler_ranges.around(setting_requires_grad(gm, in_mode(gm, call)), profiler_ranges.events_of(gm.graph))
    if not aten.mutations:
        return call
    written = sorted({m.input for m in aten.mutations})
    silent = {m.input for m in aten.mutations if m.writes == 0}
    told = [i for i in written if i not in silent and i < len(fakes_of(gm))]
    plain, shared = undoing(gm.forward, tuple(written), False), overlap_in_memory if info_of(gm).arrays else share_memory

    def checked(*inputs: Any) -> Any:
        if shared(inputs, written):
            registry.count("fallbacks", "a graph runs through torch: a written input shares memory with another")
            return plain(*inputs)
        before = None if silent else versions(inputs, told)
        try:
            return call(*inputs)
        except Exception as error:
            raise_behind_writes(error, inputs, told, before)
            raise

    report_of(gm).writes_last = weakref.ref(checked)
    return checked
