"""Guards on where tensors from outside begin in their memory: for what reads it, or counts from the memory's begin."""

from __future__ import annotations

import torch

from bytejit.common.graph_calls import called_name
from bytejit.fake.tensor import Fake
from bytejit.guards.kinds import EQUALS
from bytejit.guards.sources import Attr, Called
from bytejit.tracer.core.models import models
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar, Var

FROM_THE_BEGIN = ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter")


@models(torch.Tensor.storage_offset)
def storage_offset(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = t.values.real(args[0])
    if isinstance(v, TensorVar):
        guard_offsets(t, v.fake)
    return t.tensors.call_tensor_op(torch.Tensor.storage_offset, args, kwargs)


def guard_offsets(t: Tracer, of: Fake) -> None:
    """Guard the offsets of the inputs in whose memory a value lies."""
    for v in t.inputs:
        if isinstance(v, TensorVar) and v.fake.m.store is of.m.store:
            t.guards.add(EQUALS, Called(Attr(v.origin, "storage_offset")), v.real.storage_offset())


def guard_views_by_offset(t: Tracer) -> None:
    """Guard what the region's operations count from the memory's begin."""
    for node in t.graph.nodes:
        if node.op.startswith("call") and called_name(node) in FROM_THE_BEGIN:
            for of in node.all_input_nodes:
                if isinstance(of.meta["val"], Fake):
                    guard_offsets(t, of.meta["val"])
