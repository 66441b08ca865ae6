"""Undo the effects of a graph that raises half-way, so that the original code can run in its place.

An interrupt may come while it is undone: then that is done again, which changes nothing where it was done, and the interrupt
goes on. `putting_back` of common/ambient.py says why the attempts stand nested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bytejit.common.errors import BehindWrites, behind_writes
from bytejit.common.gradients import refused
from bytejit.common.overriding import untold

from .ownership import frames_of, is_of_graph

States = list[tuple[torch.Generator, torch.Tensor]]


class Saved(NamedTuple):
    """A tensor before it is written. version: of inference tensors there is none; step: its node of autograd."""

    tensor: torch.Tensor
    own: torch.Tensor  # an alias
    copy: torch.Tensor  # followed by autograd where the tensor is
    version: int | None
    step: object


def random_states() -> States:
    """The default generators that exist, and where they stand; of GPUs, not while a CUDA graph is recorded: they cannot tell."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        generators += torch.cuda.default_generators
    return [(g, g.get_state()) for g in generators]


def saved(tensors: list[torch.Tensor]) -> list[Saved]:
    """Save what `put_back` needs to restore the memory, the values and the histories of tensors."""
    return untold(lambda: [_saved(x) for x in tensors], ())


def _saved(x: torch.Tensor) -> Saved:
    step = _step(x)
    if step is None:
        copy = x.detach().clone()
    elif torch.is_grad_enabled():
        copy = x.clone()
    else:
        with torch.enable_grad():
            copy = x.clone()
    return Saved(x, x.detach(), copy, None if x.is_inference() else x._version, step)


def _step(x: torch.Tensor) -> object:
    """The node of autograd that made a tensor; None also where autograd refuses to say."""
    return None if x.is_inference() or not x.requires_grad or refused(x) else x.grad_fn


def put_back(tensors: list[Saved], generators: States) -> None:
    """Restore the memory, the values, the histories and the versions of tensors, and the states of random generators."""
    for generator, state in generators:
        generator.set_state(state)
    if tensors:
        untold(_put_back, (tensors,))


def _put_back(tensors: list[Saved]) -> None:
    for x, own, copy, version, step in tensors:
        rewritten = _step(x) not in (step, None)
        with torch.no_grad():
            if x.untyped_storage()._cdata != own.untyped_storage()._cdata:  # its .data was set
                x.data = own
            _each_once(own, own).copy_(_each_once(copy, own))
            if rewritten and not x._is_view():
                x.detach_()
        if rewritten and step is not None:  # the undone write is a step of autograd: a later one puts the history before it back
            with torch.enable_grad():
                x.copy_(copy)
        if version is not None and not rewritten:  # views of the tensor keep steps by version
            torch._C._autograd._unsafe_set_version_counter((x,), (version,))


def _each_once(x: torch.Tensor, layout: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that holds each element of an expanded `layout` once: torch does not write into expanded memory."""
    for dim, (size, stride) in enumerate(zip(layout.shape, layout.stride())):
        if stride == 0 and size > 1:
            x = x.narrow(dim, 0, 1)
    return x


def undoing(graph: Callable, written: tuple[int, ...], random: bool) -> Callable:
    """A graph that, when it raises, leaves its written inputs, and the random generators where `random`, as they were.

    Cost: a copy of each written input a call; 2 us for the generators.
    """

    def undone_run(*inputs: Any) -> Any:
        tensors = saved([inputs[i] for i in written]) if written else []
        generators = random_states() if random else []
        try:
            return graph(*inputs)
        except BaseException:
            try:
                put_back(tensors, generators)
            except BaseException:
                put_back(tensors, generators)
                raise
            raise

    return undone_run


def versions(inputs: tuple, written: list[int]) -> list[int] | None:
    """The versions of inputs that a graph writes; None where one is an inference tensor. 0.3 us, and 0.1 us an input."""
    try:
        return [inputs[i]._version for i in written]
    except RuntimeError:
        return None


def raise_behind_writes(error: Exception, inputs: tuple, written: list[int], before: list[int] | None) -> None:
    """Raise BehindWrites for an exception of a graph that has written inputs, and not put them back. written: the inputs whose
    versions tell; before: their versions. None: only where the exception comes from tells; the graph's own code writes last.

    Near the recursion limit few frames are left, fewer than the graph itself needs."""
    if type(error) is RecursionError:
        if before is None or [inputs[i]._version for i in written] != before:
            raise BehindWrites("RecursionError behind the writes of a graph") from error
        return
    frames = list(frames_of(error))
    if any(f.f_globals is globals() and f.f_code.co_name == "undone_run" for f in frames):
        return
    if before is None and not any(map(is_of_graph, frames)) or before is not None and versions(inputs, written) != before:
        raise behind_writes(error) from error


def rewinding(graph: Callable, written: tuple[int, ...], use: Callable[[Callable], None]) -> Callable:
    """A graph that may draw random numbers: when it raises, all is as it was. written: inputs that it writes op by op.

    The first run that ends well tells whether it draws any: `use` is told what is to run from then on.
    """
    plain = undoing(graph, written, False) if written else graph
    keeping = undoing(graph, written, True)

    def first(*inputs: Any) -> Any:
        before = random_states()
        found = keeping(*inputs)
        after = dict(random_states())
        use(keeping if any(not torch.equal(after.get(g, state), state) for g, state in before) else plain)
        return found

    return first
