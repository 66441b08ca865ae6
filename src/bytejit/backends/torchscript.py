"""The backends of TorchScript: `aot_ts` runs the normalised ATen graph, `ts` and `ofi` the trace of the torch-level graph.

A trace keeps torch's own composite calls (a linear layer, a batch norm), which TorchScript's passes look for. It is taken only
where it is sure to be right: sizes are known, nothing is written, no random number is drawn, each output is a tensor of its own,
no value of a tensor is looked at. Any other graph is written as TorchScript from its ATen form, with sizes as arguments; what
TorchScript refuses runs through torch, counted. Training: the forward and the backward graph are two such functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.graph import Aten, OutputValue
from bytejit.codegen.aten.rewrite import is_static, spec_or_none
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.libraries.freeze import watch
from bytejit.codegen.ops.calls import acts
from bytejit.common import registry, special_cases
from bytejit.common.ambient import preserved
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.graph_modules import module_of
from bytejit.common.text import first_line

from .aot_backend import with_outputs
from .script_text import ScriptRefused, fixed_values, scripted
from .surround import through_torch, without_autocast
from .training import from_aten

Traced = Callable[[fx.GraphModule, Aten, Sequence], Callable]
MOST_FOLDS = 4  # of one graph: torch keeps the weights of a frozen module until the process ends


def aot_ts(gm: fx.GraphModule, example_inputs: list) -> Callable:
    """Backend: the normalised ATen graph as TorchScript, also trained."""
    return from_aten(gm, _scripted)


def ts(gm: fx.GraphModule, example_inputs: list) -> Callable:
    """Backend: the torch-level graph, traced to TorchScript. Where a trace would not be right, as `aot_ts`."""
    return _traced_or_scripted(gm, example_inputs, _trace)


def ofi(gm: fx.GraphModule, example_inputs: list) -> Callable:
    """Backend: the traced graph with its weights frozen, under torch.jit.optimize_for_inference. Inference only.

    A write to a frozen weight makes it anew, a few times. Where a trace would not be right, as `aot_ts`; a graph whose outputs
    need gradients runs through torch. torch keeps the weights of what it froze until the process ends.
    """
    if info_of(gm).needs_grad:
        return through_torch(gm, "ofi is for inference, and its outputs need gradients")
    return _traced_or_scripted(gm, example_inputs, _freeze)


def _traced_or_scripted(gm: fx.GraphModule, example_inputs: Sequence, trace: Traced) -> Callable:
    def build(part: fx.GraphModule, aten: Aten) -> Callable:
        if part is gm and not info_of(gm).needs_grad:
            try:
                return without_autocast(gm, trace(gm, aten, example_inputs))
            except ScriptRefused as e:
                registry.count("fallbacks", f"a graph is not traced: {e}")
        return _scripted(part, aten)

    return from_aten(gm, build)


def _scripted(part: fx.GraphModule, aten: Aten) -> Callable:
    """A graph without gradients as TorchScript; through torch where TorchScript refuses it."""
    report = report_of(part)
    report.stages = [("aten", aten.text(), ".txt")]
    if not list(aten.graph.nodes)[-1].args[0]:
        return run_aten(aten)  # nothing is computed
    try:
        call, source = scripted(aten.graph)
    except ScriptRefused as e:
        registry.count("fallbacks", f"a graph runs through torch: {e}")
        report.through_torch = str(e)
        return without_autocast(part, run_aten(aten))
    report.stages.append(("torchscript", source, ".py"))
    return without_autocast(part, with_outputs(aten, call))


# ---- traces ----------------------------------------------------------------------------------------------------------
def _trace(gm: fx.GraphModule, aten: Aten, inputs: Sequence) -> Callable:
    """The torch-level graph, traced. Raises: ScriptRefused."""
    _check(gm, aten, lambda n: True)
    return _traced(lambda *args: gm.forward(*args), inputs)


def _freeze(gm: fx.GraphModule, aten: Aten, inputs: Sequence) -> Callable:
    """The same with the weights folded in; notices writes to them by version and address. Raises: ScriptRefused."""
    weights = info_of(gm).weights
    given = [n for n in aten.graph.nodes if n.op == "placeholder"]
    frozen = {given[i] for i in weights}
    _check(gm, aten, lambda n: n not in frozen)
    folds: list[Callable] = [_Folded(gm, inputs, weights)]

    def again(args: Sequence) -> Callable:
        registry.count("recompiles", "a frozen weight was written")
        try:
            return _scripted(gm, aten) if len(folds) >= MOST_FOLDS else _Folded(gm, args, weights)
        except ScriptRefused as e:
            registry.count("fallbacks", f"a graph is not traced: {e}")
            return _scripted(gm, aten)

    def call(*args: Any) -> Any:
        now = folds[-1]
        if isinstance(now, _Folded) and not now.unwritten(args):
            folds.append(now := preserved(again, args))
        return now(*args)

    return call


class _Folded:
    """A graph with some inputs as constants, traced, frozen and optimized. Raises: ScriptRefused."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence, weights: frozenset[int]) -> None:
        self.unwritten = watch({i: inputs[i] for i in weights})
        self.rest = [i for i in range(len(inputs)) if i not in weights]
        rest = [inputs[i] for i in self.rest]
        self.run = _traced(_Frozen(_with_constants(gm, inputs, weights)), rest, torch.jit.optimize_for_inference)
        try:
            with torch.no_grad():
                made, want = self.run(*rest), gm.forward(*inputs)
        except RuntimeError as e:  # some layers have no form in the library that it chose
            raise ScriptRefused(f"what TorchScript made of it fails: {str(e).strip().rpartition(chr(10))[2]}") from None
        if any(t.shape != like.shape or t.dtype is not like.dtype for t, like in zip(made, want)):
            raise ScriptRefused("what TorchScript made of it has other results")
        self.strides = [like.stride() for like in want]

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        made = self.run(*[args[i] for i in self.rest])
        return tuple([t if t.stride() == stride else _relaid(t, stride) for t, stride in zip(made, self.strides)])


class _Frozen(torch.nn.Module):
    """A module for the tracer. A graph module that is called prints what it raises."""

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body.eval()
        self.eval()

    def forward(self, *args: torch.Tensor) -> Sequence[torch.Tensor]:
        """Runs the graph, and returns what it returns."""
        return self.body.forward(*args)


def _with_constants(gm: fx.GraphModule, inputs: Sequence, weights: frozenset[int]) -> fx.GraphModule:
    """The graph as a module that holds some of its inputs."""
    root, graph = torch.nn.Module(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for i, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
        if i in weights:
            root.register_buffer(f"weight{i}", inputs[i].detach())
        copies[n] = graph.get_attr(f"weight{i}") if i in weights else graph.placeholder(n.name)
    for n in gm.graph.nodes:
        if n.op == "get_attr":
            root.register_buffer(n.target, getattr(gm, n.target))
        if n.op != "placeholder":
            copies[n] = graph.node_copy(n, copies.__getitem__)
    return module_of(graph, root)


def _relaid(t: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy with other strides."""
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)


def _traced(call: Callable, inputs: Sequence, then: Callable = lambda made: made) -> Callable:
    """`then` of what TorchScript's tracer makes of a function of tensors. Raises: ScriptRefused."""
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        try:
            made = then(torch.jit.trace(call, tuple(inputs), check_trace=False))
        except RuntimeError as e:
            raise ScriptRefused(f"TorchScript refuses it: {first_line(e)}") from None
    doubt = next((w.message for w in said if issubclass(w.category, torch.jit.TracerWarning)), None)
    if doubt is not None:  # a tensor's value decided something
        raise ScriptRefused(f"TorchScript's tracer warns: {first_line(doubt).partition('. ')[0]}")
    return made


def _check(gm: fx.GraphModule, aten: Aten, varying: Callable[[fx.Node], bool]) -> None:
    """Raises: ScriptRefused where a trace would not do what the graph does."""
    if aten.mutations:
        raise ScriptRefused("it writes into an input")
    distinct = {out.position for out in aten.outputs if isinstance(out, OutputValue)}
    if aten.single or not aten.outputs or not all(isinstance(out, OutputValue) for out in aten.outputs):
        raise ScriptRefused("an output is no tensor of its own")
    if len(distinct) < len(aten.outputs) or fixed_values(aten.graph, varying):
        raise ScriptRefused("an output is another one, or depends on no input")
    for n in aten.graph.nodes:
        if n.op == "placeholder" and not is_static(spec_or_none(n)):
            raise ScriptRefused("an input is no tensor of known sizes")
        if n.op == "call_function" and acts(n):
            raise ScriptRefused(f"{n.target} has an effect")
    for n in gm.graph.nodes:
        if n.op == "call_module" or n.op == "call_function" and not special_cases.OPERATORS.made(n.target):
            raise ScriptRefused(f"{n.target} is no operator of torch's")
        values = n.meta.get("val")
        values = values if isinstance(values, (tuple, list)) else (values,)
        if n.op in ("call_function", "call_method") and not all(v is None or isinstance(v, torch.Tensor) for v in values):
            raise ScriptRefused(f"{n.target} returns a number")
