"""Operations that torch computes for some dtypes on fakes, and in other kernels, but refuses on a CPU: eager's error comes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.tracer.core.models import MODELS
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Known, TensorVar, Var

# max_pool1d without indices has a kernel of its own, for floats; with gradients, indices or elsewhere it is max_pool2d
POOLS = (torch.nn.functional.max_pool1d, torch.max_pool1d, torch.ops.aten.max_pool1d, torch.ops.aten.max_pool1d.default)


def _of_floats(function: Callable) -> None:
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        x = args[0] if args else kwargs.get("input", kwargs.get("self"))
        indices = kwargs.get("return_indices", args[6] if len(args) > 6 else None)
        plain = not isinstance(indices, Known) or not indices.obj
        if isinstance(x, TensorVar) and plain and x.fake.device.type == "cpu" and not x.fake.dtype.is_floating_point:
            raise Break(f"max_pool1d of {x.fake.dtype}, for which torch has no kernel on a CPU")
        return t.tensors.call_tensor_op(function, args, kwargs)

    MODELS[function] = run


for _function in POOLS:
    _of_floats(_function)
