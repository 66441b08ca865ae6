"""The backend `tvm`: parts of the ATen graph as ONNX models, compiled by TVM's relax compiler with LLVM for the CPU; the rest by
torch. Sizes are known: a part with others stays with torch. TVM's maximum, minimum and relu lose nan.
"""

from __future__ import annotations

import operator
import sys
import threading

import onnx
import torch
from torch import fx

from bytejit.codegen.onnx.model import Model
from bytejit.codegen.onnx.table import tensors_of
from bytejit.common.text import first_line

from .onnx_parts import Engine, Run, Unloadable, backend_of

hook = sys.excepthook

import tvm as package  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

sys.excepthook = hook  # the program's: tvm puts its own in place

KEPT = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.bool})
ALIGNED = 64  # bytes: where TVM's kernels expect a tensor's first element
INDICES = frozenset({"index", "indices"})  # arguments of operators
aten = torch.ops.aten


class Tvm(Engine):
    """TVM's relax compiler, on the CPU."""

    name = "tvm"

    def unavailable(self, devices: set[torch.device]) -> str:
        if not {d.type for d in devices} <= {"cpu"}:
            return "tvm runs graphs on the CPU only"
        return "" if package.runtime.enabled("llvm") else "this tvm is built without LLVM"

    def refuses(self, node: fx.Node) -> str:
        for spec in tensors_of(node):
            if spec.dtype not in KEPT:
                return f"tvm is not given {spec.dtype}"
            if not all(isinstance(n, int) and n > 0 for n in spec.shape):
                return "a size is 0, or known at the call only"
        if any(a.name in INDICES and "Tensor" in str(a.type) for a in node.target._schema.arguments):
            return "tvm reads whatever memory an index out of range points to"
        if node.target is aten.native_layer_norm.default and any(n.args[1] != 0 for n in items(node)):
            return "tvm returns other means"
        if node.target in (aten.eq.Tensor, aten.ne.Tensor) and any(s.dtype is torch.bool for s in tensors_of(node)[1:]):
            return "tvm compares no bools"
        return ""

    def load(self, model: Model, device: torch.device) -> Run:
        if model.sizes:
            raise Unloadable("a size is known at the call only")
        try:
            imported = from_onnx(onnx.load_from_string(model.data), keep_params_in_input=False)
            built = package.compile(imported, target=package.target.Target("llvm"))
            main = relax.VirtualMachine(built, package.cpu())["main"]
        except Exception as e:  # errors of many kinds, by what is missing
            raise Unloadable(first_line(e)) from None
        lock = threading.Lock()  # a machine runs one call at a time

        def run(given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
            inputs = [t.detach() if t.data_ptr() % ALIGNED == 0 else t.detach().clone() for t in given]
            with lock:
                found = main(*map(package.runtime.from_dlpack, inputs))
                found = [found] if isinstance(found, package.runtime.Tensor) else found
                for t, value in zip(made, found, strict=True):
                    t.copy_(torch.from_dlpack(value))

        return run


def items(node: fx.Node) -> list[fx.Node]:
    """The items of a call's result that are read."""
    return [n for n in node.users if n.target is operator.getitem]


tvm = backend_of(Tvm())
