"""What the backends that run ONNX models share: parts of a graph become models, each with a callable around it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.libraries.freeze import watch
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.sizes import Real, SizeText
from bytejit.codegen.onnx import table
from bytejit.codegen.onnx.model import Model, is_dense, to_model
from bytejit.common import registry
from bytejit.common.ambient import preserved
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.spec import Spec

from .splitting import count_refused, joined, numbers_of, part_names, part_of, split
from .surround import without_autocast
from .training import from_aten

Run = Callable[[list[torch.Tensor], list[torch.Tensor]], None]  # (inputs, then sizes; outputs, which it writes)
MOST_WEIGHTS = 1 << 30  # bytes of weights within one model: a serialized one holds 2 GiB at most


class Unloadable(Exception):
    """An engine cannot load a model. The message is the reason, in one line."""


class Engine(ABC):
    """A library that runs ONNX models, as bytejit uses it."""

    name: str

    @abstractmethod
    def unavailable(self, devices: set[torch.device]) -> str:
        """Returns why graphs on these devices cannot run; "" when they can."""

    @abstractmethod
    def refuses(self, node: fx.Node) -> str:
        """Returns why torch runs a call that ONNX can express; "" where the engine computes the same as torch."""

    @abstractmethod
    def load(self, model: Model, device: torch.device) -> Run:
        """The callable of a model. All its tensors are row-major. Raises: Unloadable."""


def backend_of(engine: Engine) -> Callable:
    """The backend of an engine."""

    def backend(gm: fx.GraphModule, example_inputs: list) -> Callable:
        return from_aten(gm, lambda part, aten: without_autocast(part, frozen_or_not(part, aten, engine, example_inputs)))

    return backend


def frozen_or_not(gm: fx.GraphModule, aten: Aten, engine: Engine, inputs: Sequence) -> Callable:
    """The callable of a graph. Under the option `freeze` the weights are constants of the models, which are built again when a
    weight was written."""
    info = info_of(gm)
    if not info.settings.options.freeze or info.needs_grad or info.is_backward:
        return Graph(gm, aten, engine, {}).build()
    state: dict[str, Any] = {}

    def fold(args: Sequence) -> None:
        weights = {i: t for i, t in enumerate(args) if isinstance(t, torch.Tensor) and i in info.weights}
        state["call"], state["check"] = Graph(gm, aten, engine, weights).build(), watch(weights)

    def call(*args: Any) -> Any:
        if not state["check"](args):
            registry.count("recompiles", "a frozen weight was written")
            preserved(fold, args)
        return state["call"](*args)

    fold(inputs)
    return call


class Graph:
    """Turns one graph into models. weights: input tensors that become constants of the models."""

    def __init__(self, gm: fx.GraphModule, aten: Aten, engine: Engine, weights: Mapping[int, torch.Tensor]) -> None:
        self.gm, self.aten, self.engine = gm, aten, engine
        inputs = [n for n in aten.graph.nodes if n.op == "placeholder"]
        self.weights = {inputs[i]: t for i, t in weights.items()}
        self.refused: dict[fx.Node, str] = {}  # calls that the engine could not load -> why
        self.texts: list[str] = []

    def build(self) -> Callable:
        """The graph's callable: the engine runs its parts, torch the rest."""
        devices = {s.device for n in self.aten.graph.nodes for s in table.tensors_of(n)}
        if reason := self.engine.unavailable(devices):
            return self.through_torch(reason)
        while True:
            found = split(self.aten, self.refuses)
            self.texts.clear()
            try:
                call = joined(self.aten, found, self.compile) if found.parts else None
                break
            except Failed as e:
                self.refuse(e)
        count_refused(found, self.engine.name)
        if call is None:
            return self.through_torch(f"{self.engine.name} takes none of its operations")
        report, kind = report_of(self.gm), "backward_" if info_of(self.gm).is_backward else ""
        report.stages += [(f"{kind}aten", self.aten.text(), ".txt"), (f"{kind}parts", part_names(found), ".txt")]
        report.stages += [(f"{kind}onnx{i}", text, ".txt") for i, text in enumerate(self.texts)]
        return call

    def through_torch(self, reason: str) -> Callable:
        """A callable that runs the whole graph through torch."""
        registry.count("fallbacks", f"a graph runs through torch: {reason}")
        report_of(self.gm).through_torch = reason
        return run_aten(self.aten)

    # ---- what stays with torch ---------------------------------------------------------------------------------------
    def refuses(self, node: fx.Node) -> str:
        """Returns why torch runs a call; "" when the engine can."""
        reason = self.refused.get(node) or table.refuses(node) or self.engine.refuses(node)
        spec = node.meta.get("spec")
        if not reason and isinstance(spec, Spec) and not is_dense(spec) and not table.is_view(node.target):
            return "its result has gaps in memory"
        return reason

    def refuse(self, failed: Failed) -> None:
        """Record the calls of a part that the engine cannot load even alone; if each loads alone, all calls of the part."""
        stage = [n.meta["origin"] for n in failed.part.graph.nodes if n.op == "call_function"]
        numbers = numbers_of(self.aten)
        found: dict[fx.Node, str] = {}
        for node in stage:
            items = [n for n in stage if n.target is table.getitem and n.args[0] is node]
            if node.target is table.getitem:
                continue
            ends = items or [node]
            try:
                self.compile(part_of((node, *items), ends, numbers))
            except Failed as e:
                found[node] = str(e)
        self.refused |= found or dict.fromkeys(stage, str(failed))

    # ---- parts -------------------------------------------------------------------------------------------------------
    def compile(self, part: Aten) -> Callable:
        """A part's callable. Raises: Failed."""
        weights = {n: self.weights[n.meta["origin"]] for n in part.graph.nodes if n.meta.get("origin") in self.weights}
        if sum(t.nbytes for t in weights.values()) > MOST_WEIGHTS:
            registry.count("fallbacks", f"{self.engine.name}: more than 1 GiB of weights: they are not frozen")
            weights = {}
        device = next((s.device for n in part.graph.nodes for s in table.tensors_of(n)), torch.device("cpu"))
        try:
            model = to_model(part, weights)
            run = self.engine.load(model, device)
        except (Unloadable, table.Cannot) as e:
            raise Failed(part, str(e)) from None
        self.texts.append(model.text)
        return PartCall(part, model, run, self.engine.name)


class Failed(Exception):
    """A part of a graph cannot be made into a model, or the engine cannot load it."""

    def __init__(self, part: Aten, reason: str) -> None:
        super().__init__(reason)
        self.part = part


class PartCall:
    """A part's callable: its inputs -> the tuple of its values. When the engine raises, torch runs the part."""

    def __init__(self, part: Aten, model: Model, run: Run, name: str) -> None:
        self.part, self.model, self.run, self.name = part, model, run, name
        self.sizes, fixed = sizes_of(part, model)
        self.known = self.sizes(*[None] * count_inputs(part)) if fixed else None

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        numbers, outputs = self.known or self.sizes(*inputs)
        given = []
        for port in self.model.inputs:
            given.append(inputs[port.position].permute(port.order).contiguous())
        for value in numbers:
            given.append(torch.tensor([value], dtype=torch.float64 if isinstance(value, float) else torch.int64))
        made = [
            torch.empty_strided(shape, stride, dtype=port.spec.dtype, device=port.spec.device)
            for port, (shape, stride) in zip(self.model.outputs, outputs)
        ]
        try:
            self.run(given, [t.permute(port.order) for t, port in zip(made, self.model.outputs)])
        except Exception as e:
            registry.count("fallbacks", f"{self.name} raised {type(e).__name__}: torch runs the part")
            return run_aten(self.part)(*inputs)
        return made


def count_inputs(part: Aten) -> int:
    return sum(n.op == "placeholder" for n in part.graph.nodes)


def sizes_of(part: Aten, model: Model) -> tuple[Callable, bool]:
    """A function of the part's inputs that returns the model's sizes, and shape and strides of each output; and whether its
    result is the same in each call."""
    symbols: dict[str, str] = {}
    for i, node in enumerate(n for n in part.graph.nodes if n.op == "placeholder"):
        spec = node.meta.get("spec")
        if isinstance(spec, Real):
            symbols[spec.symbol] = f"p{i}"
        for name, size in ix.symbols(spec).items():
            if spec == ix.index(size):
                symbols[name] = f"p{i}"
    used: list[str] = []

    def symbol(name: str, text: str = "") -> str:
        used.append(name)
        return write.words(text) if text else symbols[name]

    write = SizeText(symbol)
    numbers = "".join(f"{write(size)}, " for size in model.sizes.values())
    outputs = "".join(f"({write.dims(p.spec.shape)}, {write.dims(p.spec.stride)}), " for p in model.outputs)
    scope: dict[str, Any] = {"math": math}
    given = ", ".join(f"p{i}" for i in range(count_inputs(part)))
    exec(f"def sizes({given}):\n    return ({numbers}), ({outputs})\n", scope)
    return scope["sizes"], not used
