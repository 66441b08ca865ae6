"""What a graph that raises half-way leaves behind is undone, so that the original code can run in its place."""

from __future__ import annotations

from collections.abc import Callable

import torch


def undoing(graph: Callable, written: tuple[int, ...]) -> Callable:
    """A graph that runs op by op and writes inputs: when it raises, they are what they were.

    Cost: a copy of each written input a call.
    """
    def run(*inputs):
        before = [(inputs[i].detach(), inputs[i].detach().clone()) for i in written]
        try:
            return graph(*inputs)
        except BaseException:
            with torch.no_grad():
                for i, (own, saved) in zip(written, before):
                    if inputs[i].untyped_storage()._cdata != own.untyped_storage()._cdata:      # its .data was set
                        inputs[i].data = own
                    own.copy_(saved)
            raise
    return run


def random_states() -> list[tuple[torch.Generator, torch.Tensor]]:
    """The default generators that exist, and where they stand; of GPUs, not while a CUDA graph is recorded: they cannot tell."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        generators += torch.cuda.default_generators
    return [(g, g.get_state()) for g in generators]


def rewinding(graph: Callable, settled: Callable[[Callable], None]) -> Callable:
    """A graph that may draw random numbers: when it raises, the generators stand where they stood.

    The first run that ends well tells whether it draws any: `settled` is told what is to run from then on, `graph` itself
    or a function that saves the generators' states in each call (2 us).
    """
    def keeping(*inputs):
        before = random_states()
        try:
            return graph(*inputs)
        except BaseException:
            for generator, state in before:
                generator.set_state(state)
            raise

    def first(*inputs):
        before = random_states()
        found = keeping(*inputs)
        after = dict(random_states())
        drew = any(not torch.equal(after.get(g, state), state) for g, state in before)
        settled(keeping if drew else graph)
        return found
    return first
