"""Graphs of a few operations, which torch itself may run as fast: they are timed both ways, and compiled where that is faster.

One operation has nothing to be fused with, and torch's own kernel is often as fast as memory is. Where its result needs
gradients, the node that stands for a compiled graph costs 10 us and more in each pass, as it is a Python function. Larger graphs
are not timed: what fusing saves there is many times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from bytejit.common.graph_info import info_of, report_of
from bytejit.common.profiling import FLAG
from bytejit.common.spec import Spec, span_of
from bytejit.common.warned import silently, warnings_to
from bytejit.fake.tensor import Fake, spec_of
from bytejit.kernels.tune import MARGIN, Candidate, Choice, span_bytes

from .surround import fakes_of, tracked_anew
from .target import Target

MOST = 2  # operations of a graph without gradients that is timed
MOST_WITH_GRADIENTS = 5
MOST_BYTES = 64 << 20  # of all inputs
MOST_REPEATS, WARM = 16, 1 << 20  # a run is so many calls, or as many as have so many bytes of inputs: caches are as in a loop
WHY = "it has few operations, and torch's own calls are as fast"
OPERATION = "graph"  # its name among the timed choices
# what these run is not theirs alone: other modes, other calls, the program's code
HOMES = ("torch", "torch._C._nn", "torch.nn.functional", "torch._C._linalg", "torch._C._special", "_operator", "math")
IN_PLACE = ("i", "set", "del")  # how the names of operators begin that write


def faster(gm: fx.GraphModule, target: Target, compiled: Callable) -> Callable:
    """The callable of a graph: `compiled`, or the graph through torch."""
    if report_of(gm).through_torch or not is_small(gm, target):
        return compiled
    fakes = fakes_of(gm)
    tuner = target.tuner()
    result = list(gm.graph.nodes)[-1].args[0][0].meta["val"]
    followed = tuple(f.requires_grad for f in fakes) if result.requires_grad else ()
    ways = [Candidate("torch", gm.forward), Candidate("own", compiled)]
    with torch._C.DisableTorchFunction(), warnings_to(silently):
        state = torch.get_rng_state()
        try:
            choice = timed(tuner, [spec_of(f) for f in fakes], ways, followed, gm.code)
        except Exception:  # it refuses numbers that are made up: no positive definite matrix, a zero to divide by, no such index
            return compiled
        finally:
            torch.set_rng_state(state)
    tuner.save()
    if choice is None or is_own(choice):
        return compiled
    report_of(gm).through_torch = WHY
    return gm.forward


def is_own(choice: Choice) -> bool:
    """Whether kernels are the faster way. Least times that were met twice decide, however often a busy machine kept either
    waiting."""
    if choice.sure and {"own", "torch"} <= set(choice.seconds):
        return choice.seconds["own"] < MARGIN * choice.seconds["torch"]
    return choice.name == "own"


def timed(tuner: Any, specs: Sequence[Spec], ways: Sequence[Candidate], followed: Sequence[bool], text: str) -> Choice | None:
    """The choice between ways to run a graph, forward or, where inputs are followed by autograd, in both passes."""

    repeats = max(2, min(MOST_REPEATS, WARM // max(size_of(specs), 1)))

    def once(run: Callable, operands: tuple) -> torch.Tensor:
        if not followed:
            return run(*operands)[0]
        with torch.enable_grad():
            found = run(*operands)[0]
            asked = [x for x in operands if x.requires_grad]
            grads = torch.autograd.grad(found, asked, found.detach(), allow_unused=True)
            return next(g for g in grads if g is not None)

    def way(name: str, run: Callable) -> Candidate:
        def prepared(*operands: torch.Tensor) -> tuple:
            made = tuple(map(numbers, operands))
            for x, on in zip(made, followed):
                x.requires_grad_(on)
            for _ in range(2):  # kernels are built, memory is there
                once(run, made)
            return made

        def several(*operands: torch.Tensor) -> torch.Tensor:
            for _ in range(repeats - 1):
                once(run, operands)
            return once(run, operands)

        return Candidate(name, several, prepared)

    shown = [way(w.name, w.call) for w in ways]
    return tuner.choose(OPERATION, specs, shown, attrs=f"{''.join('01'[on] for on in followed)} {' '.join(text.split())}")


def numbers(x: torch.Tensor) -> torch.Tensor:
    """A tensor in the same layout, of numbers between 0 and 1 that differ where they are no integers."""
    if not x.is_floating_point():
        return x
    flat = torch.empty(span_of(x.shape, x.stride()), dtype=x.dtype)
    return flat.uniform_(0.1, 0.9).as_strided(x.shape, x.stride())


def is_small(gm: fx.GraphModule, target: Target) -> bool:
    """Whether a graph is one that is timed: of few calls of torch's functions that write nothing, with inputs that are plain
    tensors of known sizes, and one result."""
    info = info_of(gm)
    untracked = info.grads_off and not info.needs_grad
    plain = not (untracked or info.overrides or info.arrays or info.autocast or info.is_backward or info.backward)
    if info.texts or target.options.debug:  # somebody wants to see kernels
        return False
    if target.name != "cpu" or info.inference is not None or not plain or target.options.interpret or target.options.freeze:
        return False
    calls = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    if not 0 < len(calls) <= (MOST_WITH_GRADIENTS if info.needs_grad else MOST) or not all(map(is_plain_call, calls)):
        return False
    results = list(gm.graph.nodes)[-1].args[0]
    one = isinstance(results, (tuple, list)) and len(results) == 1 and results[0] in calls and not tracked_anew(gm)
    return one and all(map(is_plain_input, fakes_of(gm))) and within_limits(fakes_of(gm)) and not is_watched()


def is_plain_call(node: fx.Node) -> bool:
    """Whether a node calls a function or a method of torch's that writes into none of its arguments."""
    value = node.meta.get("val")
    if type(value) is not Fake or "out" in node.kwargs:
        return False
    if node.op == "call_method":
        return not str(node.target).endswith("_")
    name, home = getattr(node.target, "__name__", "_"), getattr(node.target, "__module__", None) or "torch"
    if home == "_operator":
        return not name.startswith(IN_PLACE)
    return node.op == "call_function" and home in HOMES and not name.endswith("_") and not node.kwargs.get("inplace")


def is_plain_input(fake: object) -> bool:
    """Whether an input is a tensor on the CPU of known sizes, which autograd follows from itself."""
    if type(fake) is not Fake or fake.device.type != "cpu" or fake.is_complex():
        return False
    spec = spec_of(fake)
    return all(type(n) is int for n in (*spec.shape, *spec.stride)) and 0 not in spec.shape


def within_limits(fakes: Sequence[Fake]) -> bool:
    """Whether there are inputs, and they have few enough bytes."""
    return 0 < size_of([spec_of(f) for f in fakes]) <= MOST_BYTES


def size_of(specs: Sequence[Spec]) -> int:
    """Bytes of operands."""
    return sum(map(span_bytes, specs))


def is_watched() -> bool:
    """Whether somebody would see the calls that are timed: modes, hooks, profilers."""
    c = torch._C
    return bool(
        torch.is_anomaly_enabled()
        or c._autograd._top_saved_tensors_default_hooks(False) is not None
        or c._len_torch_dispatch_stack()
        or FLAG._is_profiler_enabled
    )
