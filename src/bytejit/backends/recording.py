"""Decides which graphs on a GPU are recorded and replayed as CUDA graphs, and reports it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.codegen.aten.graph import Aten
from bytejit.common import logs
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.options import Options
from bytejit.common.spec import Spec
from bytejit.kernels.cuda_graphs import TIMED, WARM, Policy, replayed

FEW = 2  # with fewer launches a replay saves nothing. One call of a library may launch twenty kernels
WAITING = {
    "forced": f"recorded after {WARM} calls",
    "auto": f"recorded after {WARM + TIMED} calls where launching takes much of a call and a replay is faster",
}


class Told:
    """Reports what became of the recordings of a graph, each reason once: in its report, which `explain` prints, and in the log
    `cudagraphs`."""

    def __init__(self, gm: torch.fx.GraphModule, options: Options) -> None:
        self.lines = report_of(gm).cudagraphs
        self.where = next((n.meta["where"] for n in gm.graph.nodes if n.meta.get("where") is not None), None)
        self.options = options

    def __call__(self, what: str) -> None:
        if what not in self.lines:
            self.lines.append(what)
            logs.log("cudagraphs", what, self.where, self.options)


def draws(node: torch.fx.Node) -> bool:
    """Whether an op draws random numbers. Attention and recurrent layers do so only with dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    named = {a.name: a.default_value for a in node.target._schema.arguments}
    given = named | dict(zip(named, node.args)) | node.kwargs
    dropout = given.get("dropout_p", given.get("dropout"))
    return dropout is None or dropout != 0 and given.get("train", True) is not False


def waits(node: torch.fx.Node) -> bool:
    """Whether an op waits for the GPU because the shape of its result depends on data. Of indexing, only that by masks does."""
    if node.target is torch.ops.aten.index.Tensor:
        specs = [i.meta["spec"] for i in node.args[1] if isinstance(i, torch.fx.Node)]
        return any(s.dtype in (torch.bool, torch.uint8) for s in specs)
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return bool(tags & set(getattr(node.target, "tags", ())))


KNOWN = {"aten", "prims", "bytejit", "mkldnn", "torchvision"}


def known(node: torch.fx.Node) -> bool:
    """Whether an op belongs to torch, so that it does nothing but launch kernels."""
    return node.op != "call_function" or getattr(node.target, "namespace", "aten") in KNOWN


def how_of(options: Options) -> str:
    """The policy of CUDA graphs that a mode stands for; "" for none."""
    if options.cudagraphs is None and options.mode == "default":
        return "auto"
    return "forced" if options.use_cudagraphs else ""


def record_graph(gm: torch.fx.GraphModule, aten: Aten, call: Callable, index: int, how: str) -> Callable:
    """`call` of a graph on one GPU, recorded and replayed by the policy `how` (see `kernels/cuda_graphs.py`)."""
    if not how:
        return call
    random = any(map(draws, aten.graph.nodes))
    reason = "it draws random numbers" if random and how == "auto" else ""
    for n in aten.graph.nodes:
        spec = n.meta.get("spec")
        if isinstance(spec, Spec) and spec.device.type == "cpu" and n.op in ("placeholder", "call_function") and n.users:
            reason = reason or "a tensor is on the CPU"
        if waits(n):
            reason = reason or f"{n.target} waits for the GPU"
        if how == "auto" and not known(n):
            reason = reason or f"{n.target} is the program's own: it may do something else in each call"
    weights = info_of(gm).weights
    written = frozenset(m.input for m in aten.mutations)
    fresh = frozenset(i for i, n in enumerate(aten.inputs()) if "fresh" in n.meta)
    new_grads = info_of(gm).new_grads
    tell = Told(gm, info_of(gm).settings.options)
    if not reason:
        tell(WAITING[how])
    return replayed(call, Policy(how, index, weights, written, reason, tell, fresh, new_grads), info_of(gm).replayer)
