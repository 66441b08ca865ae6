"""Tensor subclasses: which ones the trace can model."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.overriding import TENSOR_CLASSES
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar, Var
from bytejit.tracer.objects.class_facts import MRO, NAMESPACE, class_lookup

# special methods that a subclass may define; others (operators) are looked up on torch's classes
HARMLESS = {
    f"__{name}__"
    for name in (
        "new init torch_function repr str format module doc dict weakref slots init_subclass class_getitem annotations qualname "
        "tensor_flatten tensor_unflatten firstlineno static_attributes parameters orig_bases reduce_ex reduce deepcopy copy "
        "annotate_func annotations_cache"
    ).split()
}

LOOKS = frozenset(
    getattr(torch.Tensor, name)
    for name in "dim ndimension numel nelement size stride is_contiguous is_floating_point is_complex is_signed __len__".split()
)


def looks(t: Tracer, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
    """Returns the result of a method that reads only shape, dtype and the like of a tensor that no graph takes; else None."""
    of = args[0] if args else None
    if not isinstance(of, TensorVar) or of.node is not None or of.cls is None or fn not in LOOKS:
        return None
    given = [t.const(a) for a in args[1:]], {k: t.const(v) for k, v in kwargs.items()}
    return t.calls.model(t.tensors.run_fake(fn, (of.fake, *given[0]), given[1]))


def dispatches(cls: type) -> bool:
    """Whether a tensor subclass runs ATen operations itself."""
    return class_lookup(cls, "__torch_dispatch__")[1] not in (torch.Tensor, torch._C.TensorBase)


def check_class(cls: type) -> None:
    """Raises: Break for a tensor subclass whose instances are not modelled."""
    class_lookup(cls, "__torch_function__")  # guards it: one that the class gets later is asked
    if dispatches(cls):
        raise Break(f"a tensor of the subclass {cls.__name__}, which has a __torch_dispatch__")
    own = [c for c in MRO(cls) if not special_cases.TORCH.made(c) and c is not object and c not in TENSOR_CLASSES]
    if issubclass(cls, torch.nn.parameter.UninitializedTensorMixin) or any(
        name.startswith("__") and name.endswith("__") and name not in HARMLESS for c in own for name in NAMESPACE(c)
    ):
        raise Break(f"a tensor of the subclass {cls.__name__}")
