"""The backend `onnxrt`: parts of the ATen graph as ONNX models, run by onnxruntime; the rest by torch."""

from __future__ import annotations

import onnxruntime
import torch
from torch import fx

from bytejit.codegen.onnx.model import Model, size_dtype
from bytejit.common.dtypes import ONNX
from bytejit.common.text import first_line

from .onnx_parts import Engine, Run, Unloadable, backend_of

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
FATAL = 4  # level of onnxruntime's log: models that do not load are reported in bytejit.counters


class OnnxRuntime(Engine):
    """onnxruntime, with the provider of the graph's device."""

    name = "onnxrt"

    def unavailable(self, devices: set[torch.device]) -> str:
        if len(devices) != 1:
            return "its tensors are on several devices"
        kind = next(iter(devices)).type
        if PROVIDERS.get(kind) not in onnxruntime.get_available_providers():
            return f"this onnxruntime has no provider for {kind}"
        return ""

    def refuses(self, node: fx.Node) -> str:
        return ""

    def load(self, model: Model, device: torch.device) -> Run:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = FATAL
        provider = PROVIDERS[device.type]
        providers = [(provider, {"device_id": device.index or 0})] if device.type == "cuda" else [provider]
        try:
            session = onnxruntime.InferenceSession(model.data, options, providers=providers)
        except Exception as e:  # onnxruntime's errors have no common base
            raise Unloadable(first_line(e)) from None
        return bound(session, model, device)


def bound(session: onnxruntime.InferenceSession, model: Model, device: torch.device) -> Run:
    """The callable of a session, which reads and writes torch's memory."""
    where = (device.type, device.index or 0)
    inputs = [(p.name, ONNX[p.spec.dtype], where) for p in model.inputs]
    inputs += [(name, ONNX[size_dtype(size)], ("cpu", 0)) for name, size in model.sizes.items()]
    outputs = [(p.name, ONNX[p.spec.dtype]) for p in model.outputs]

    def run(given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # the session has a stream of its own
        binding = session.io_binding()
        for (name, kind, at), t in zip(inputs, given):
            binding.bind_input(name, *at, kind, tuple(t.shape), t.data_ptr())
        for (name, kind), t in zip(outputs, made):
            binding.bind_output(name, *where, kind, tuple(t.shape), t.data_ptr())
        session.run_with_iobinding(binding)
        if device.type == "cuda":
            binding.synchronize_outputs()

    return run


onnxrt = backend_of(OnnxRuntime())
