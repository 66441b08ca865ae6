"""A part of an ATen graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import onnx
import torch
from torch import fx

from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real
from bytejit.common.dtypes import ONNX
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec, lies_dense

from . import table
from .writer import Cannot, ModelWriter, OnnxNode, element

OPSET, IR_VERSION = 20, 9  # read by onnxruntime since 1.17 and by OpenVINO since 2024.0


@light_dataclass(frozen=True)
class Port:
    """An input or an output of a model. position: in the part's placeholders or results; order: the dimensions from the outermost
    to the innermost in memory, which is their order in the model's tensor."""

    name: str
    position: int
    spec: Spec
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple:
        """The sizes of the model's tensor."""
        return tuple(self.spec.shape[d] for d in self.order)


@light_dataclass(frozen=True)
class Model:
    """An ONNX model. data: serialized; sizes: the inputs of one element that are sizes (int64) or floats (float64) of the call;
    text: for the debug folder."""

    data: bytes
    inputs: tuple[Port, ...]
    sizes: dict[str, Index | Real]
    outputs: tuple[Port, ...]
    text: str


def axis_order(spec: Spec) -> tuple[int, ...]:
    """The dimensions from the largest stride to the smallest; those of one element keep their positions."""
    strides = [ix.hint(s) for s in spec.stride]
    wide = [d for d, n in enumerate(spec.shape) if n != 1]
    ordered = iter(sorted(wide, key=lambda d: -strides[d]))
    return tuple(d if n == 1 else next(ordered) for d, n in enumerate(spec.shape))


def is_dense(spec: Spec) -> bool:
    """Whether a tensor has no gaps in memory and is contiguous in some order of its dimensions."""
    return lies_dense(spec.shape, spec.stride, ix.hint)


def size_dtype(size: Index | Real) -> torch.dtype:
    """The dtype of the model's input for a size or a float of the call."""
    return torch.float64 if isinstance(size, Real) else torch.int64


def to_model(part: Aten, weights: Mapping[fx.Node, torch.Tensor]) -> Model:
    """The ONNX model of a part of a graph. weights: placeholders that become constants of the model. Raises: Cannot."""
    writer, env = ModelWriter(), {}
    inputs: list[Port] = []
    frozen: dict[str, torch.Tensor] = {}
    placeholders = [n for n in part.graph.nodes if n.op == "placeholder"]
    for i, node in enumerate(placeholders):
        spec = node.meta.get("spec")
        if not isinstance(spec, Spec):
            continue
        name = f"in{i}"
        if node in weights:
            frozen[name] = weights[node]
            env[node] = table.Tensor(name, spec.dtype, spec.shape)
            continue
        inputs.append(Port(name, i, spec, axis_order(spec)))
        env[node] = _logical(writer, inputs[-1])
    for node in part.graph.nodes:
        if node.op == "call_function":
            env[node] = table.write(writer, node, env)
    outputs = [_end(writer, i, node, env) for i, node in enumerate(list(part.graph.nodes)[-1].args[0])]
    read = keep_read(writer, {port.name for port in outputs})
    inputs = [port for port in inputs if port.name in read]
    return _model(writer, inputs, outputs, {name: t for name, t in frozen.items() if name in read})


def keep_read(writer: ModelWriter, read: set[str]) -> set[str]:
    """Drop the nodes, results and constants that nothing reads. read: the names of the outputs. Returns all names that are
    read."""
    kept = []
    for op in reversed(writer.ops):
        outputs = op.outputs
        while outputs and outputs[-1] not in read:
            outputs = outputs[:-1]
        if outputs:
            kept.append(replace(op, outputs=tuple(name if name in read else "" for name in outputs)))
            read |= set(op.inputs)
    writer.ops = kept[::-1]
    writer.constants = {name: t for name, t in writer.constants.items() if name in read}
    writer.sizes = {size: name for size, name in writer.sizes.items() if name in read}
    return read


def _logical(writer: ModelWriter, port: Port) -> table.Tensor:
    """An input with its dimensions in the graph's order."""
    back = tuple(port.order.index(d) for d in range(len(port.order)))
    made = writer.transpose(table.Tensor(port.name, port.spec.dtype), back)
    return table.Tensor(made.name, port.spec.dtype, port.spec.shape)


def _end(writer: ModelWriter, i: int, node: fx.Node, env: Mapping[fx.Node, Any]) -> Port:
    """An output, with its dimensions as they lie in memory."""
    spec = node.meta["spec"]
    if env[node] is None:
        raise Cannot("this result has no form in ONNX")
    port = Port(f"out{i}", i, spec, axis_order(spec))
    made = writer.transpose(env[node], port.order)
    writer.ops.append(OnnxNode("Identity", (made.name,), (port.name,), ()))
    return port


def _model(writer: ModelWriter, inputs: list[Port], outputs: list[Port], frozen: Mapping[str, torch.Tensor]) -> Model:
    make = onnx.helper
    infos = [[_info(p.name, ONNX[p.spec.dtype], p.shape) for p in ports] for ports in (inputs, outputs)]
    infos[0] += [_info(name, ONNX[size_dtype(size)], (1,)) for size, name in writer.sizes.items()]
    nodes = [make.make_node(op.type, op.inputs, op.outputs, **dict(op.attributes)) for op in writer.ops]
    constants = [_constant(name, t) for name, t in {**writer.constants, **frozen}.items()]
    graph = make.make_graph(nodes, "part", infos[0], infos[1], constants)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    sizes = {name: size for size, name in writer.sizes.items()}
    return Model(model.SerializeToString(), tuple(inputs), sizes, tuple(outputs), _text(writer))


def _info(name: str, kind: int, shape: tuple) -> onnx.ValueInfoProto:
    """The ONNX description of an input or output; a size that is known only at the call is a symbolic name."""
    return onnx.helper.make_tensor_value_info(name, kind, [n if isinstance(n, int) else repr(n) for n in shape])


def _constant(name: str, value: torch.Tensor) -> onnx.TensorProto:
    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return onnx.helper.make_tensor(name, element(value.dtype), tuple(value.shape), data, raw=True)


def _text(writer: ModelWriter) -> str:
    """The nodes in lines, for the debug folder."""
    lines = [f"{name} = {t.tolist()!r}" for name, t in writer.constants.items()]
    for op in writer.ops:
        attributes = "".join(f", {name}={value}" for name, value in op.attributes)
        lines.append(f"{', '.join(op.outputs)} = {op.type}({', '.join(op.inputs)}{attributes})")
    return "\n".join(lines) + "\n"
