"""Parameters made in a region: a new leaf over the data. Where one leaves the region, the exit gives it its class."""

from __future__ import annotations

import torch

from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar, Var, expect

from .histories import is_leaf

KINDS = (torch.nn.Parameter, torch.nn.Buffer)


@models(torch.Tensor._make_subclass)
def make_subclass(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Traces the call that nn.Parameter.__new__ makes."""
    cls, data = t.as_class(args[0]), args[1]
    if (
        isinstance(data, TensorVar)
        and cls is not None
        and issubclass(cls, torch.Tensor)
        and not issubclass(cls, KINDS)
        and cls is not torch.Tensor
        and not kwargs
        and (len(args) < 3 or not t.comparisons.truth(args[2]))
    ):
        with t.overrides.without_overrides():
            plain = expect(t.tensors.call_tensor_op(torch.Tensor.detach, [data], {}), TensorVar)
            return t.overrides.as_subclass(plain, cls)
    if cls is not torch.nn.Parameter or not isinstance(data, TensorVar) or kwargs or len(args) > 3:
        raise Break(f"Tensor._make_subclass of {getattr(cls, '__name__', cls)}")
    return parameter(t, data, t.comparisons.truth(args[2]) if len(args) > 2 else False)


def parameter(t: Tracer, data: TensorVar, requires_grad: bool) -> TensorVar:
    """nn.Parameter(data, requires_grad)."""
    with t.overrides.without_overrides():
        made = t.tensors.call_tensor_op(torch.Tensor.detach, [data], {})
        if requires_grad:
            made = t.tensors.call_tensor_op(torch.Tensor.requires_grad_, [made], {})
    made = expect(made, TensorVar)
    made.cls = torch.nn.Parameter
    return made


def copied(t: Tracer, v: TensorVar) -> Var:
    """copy.deepcopy of a leaf tensor that requires gradients, or of a parameter. Raises: Break."""
    if not is_leaf(v.fake):
        raise Break("copy.deepcopy of a tensor that has a grad_fn")
    data = t.tensors.call_tensor_op(torch.Tensor.clone, [t.tensors.call_tensor_op(torch.Tensor.detach, [v], {})], {})
    if t.type_of(v) is torch.nn.Parameter:
        return parameter(t, expect(data, TensorVar), v.fake.requires_grad)
    if v.real is not None and (v.real.grad is not None or v.real.__dict__) or v.attrs:
        raise Break("copy.deepcopy of a tensor with a gradient or attributes")
    return t.tensors.call_tensor_op(torch.Tensor.requires_grad_, [data], {})
