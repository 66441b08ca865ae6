"""Parameters made in a region: a new leaf over the data. Where one leaves the region, the exit gives it its class."""

from __future__ import annotations

import torch

from bytejit.common.gradients import is_dense
from bytejit.guards.references import Ref
from bytejit.guards.sources import Attr, Computed
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


def copied(t: Tracer, v: TensorVar, stores: list[object]) -> Var:
    """copy.deepcopy of a tensor. stores: the memory of those that the same call has copied. Raises: Break."""
    cls = t.type_of(v)
    is_parameter = cls is torch.nn.Parameter
    if not is_parameter and cls is not torch.Tensor:
        raise Break(f"copy.deepcopy of a {cls.__name__}")
    t.tensor_attributes.guard_history(v, v.fake.requires_grad)
    if not is_leaf(v.fake):
        raise Break("copy.deepcopy of a tensor that has a grad_fn")
    if not is_parameter:
        _check_copied_whole(t, v, stores)
    if not v.fake.requires_grad and not is_parameter:
        return t.tensors.call_tensor_op(torch.Tensor.clone, [v], {})
    data = t.tensors.call_tensor_op(torch.Tensor.clone, [t.tensors.call_tensor_op(torch.Tensor.detach, [v], {})], {})
    if is_parameter:
        return parameter(t, expect(data, TensorVar), v.fake.requires_grad)
    return t.tensors.call_tensor_op(torch.Tensor.requires_grad_, [data], {})


def _check_copied_whole(t: Tracer, v: TensorVar, stores: list[object]) -> None:
    """Eager copies a tensor's memory, once for all tensors in it, with its gradient and its attributes. A clone is the same where
    the tensor is alone in its memory, and has none of these; guarded. Raises: Break where not."""
    m, real = v.fake.m, v.real
    if v.attrs or real is not None and (real.grad is not None or real.__dict__):
        raise Break("copy.deepcopy of a tensor with a gradient or attributes")
    whole = m.offset == 0 and is_dense(v.fake) and (m.store.nbytes == v.fake.nbytes if real is None else has_whole_memory(real))
    if not whole:
        raise Break("copy.deepcopy of a tensor that is a part of its memory")
    if any(m.store is store for store in stores):
        raise Break("copy.deepcopy of tensors that share memory")
    stores.append(m.store)
    if real is not None:
        t.guard("ID_IS", Attr(v.origin, "grad"), None)
        t.guard("LEN_IS", Attr(v.origin, "__dict__"), 0)
        t.guard("EQUALS", Computed(Ref.strong(has_whole_memory, "has_whole_memory"), (v.origin,)), True)


def has_whole_memory(x: torch.Tensor) -> bool:
    """Whether a tensor's elements are all that its memory holds, each once."""
    return x.storage_offset() == 0 and is_dense(x) and x.untyped_storage().nbytes() == x.nbytes
