"""The backend `openvino`: parts of the ATen graph as ONNX models, compiled by OpenVINO for the CPU; the rest by torch."""

from __future__ import annotations

import openvino as ov
import torch
from torch import fx

from bytejit.codegen.onnx.model import Model
from bytejit.codegen.onnx.table import tensors_of

from .onnx_parts import Engine, Run, Unloadable, backend_of

KEPT = frozenset({torch.float32, torch.bool})  # OpenVINO's CPU plugin computes i64 in i32, and f64 in f32


class OpenVino(Engine):
    """OpenVINO's CPU plugin, in single precision."""

    name = "openvino"

    def __init__(self) -> None:
        self.core = ov.Core()

    def unavailable(self, devices: set[torch.device]) -> str:
        return "" if {d.type for d in devices} <= {"cpu"} else "OpenVINO runs graphs on the CPU only"

    def refuses(self, node: fx.Node) -> str:
        for spec in tensors_of(node):
            if spec.dtype not in KEPT:
                return f"OpenVINO does not keep {spec.dtype}"
        return ""

    def load(self, model: Model, device: torch.device) -> Run:
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "EXECUTION_MODE_HINT": "ACCURACY",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        try:
            compiled = self.core.compile_model(self.core.read_model(model.data), "CPU", settings)
        except RuntimeError as e:
            raise Unloadable(str(e).strip().rpartition("\n")[2]) from None
        return requested(compiled)


def requested(compiled: ov.CompiledModel) -> Run:
    """The callable of a compiled model, which reads and writes torch's memory."""
    idle: list[ov.InferRequest] = []  # a request can run one call at a time

    def run(given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        request = idle.pop() if idle else compiled.create_infer_request()
        for i, t in enumerate(given):
            request.set_input_tensor(i, ov.Tensor(t.detach().numpy(), shared_memory=True))
        for i, t in enumerate(made):
            request.set_output_tensor(i, ov.Tensor(t.detach().numpy(), shared_memory=True))
        request.infer()
        idle.append(request)

    return run


openvino = backend_of(OpenVino())
