"""Tensor subclasses: which ones the trace can model."""

from __future__ import annotations

import torch

from bytejit.common import special_cases
from bytejit.common.overriding import PLAIN
from bytejit.tracer.core.signals import Break
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


def dispatches(cls: type) -> bool:
    """Whether a tensor subclass runs ATen operations itself."""
    return class_lookup(cls, "__torch_dispatch__")[1] not in (torch.Tensor, torch._C.TensorBase)


def check_class(cls: type) -> None:
    """Raises: Break for a tensor subclass whose instances are not modelled."""
    class_lookup(cls, "__torch_function__")  # guards it: one that the class gets later is asked
    if dispatches(cls):
        raise Break(f"a tensor of the subclass {cls.__name__}, which has a __torch_dispatch__")
    own = [c for c in MRO(cls) if not special_cases.TORCH.made(c) and c is not object and c not in PLAIN]
    if issubclass(cls, torch.nn.parameter.UninitializedTensorMixin) or any(
        name.startswith("__") and name.endswith("__") and name not in HARMLESS for c in own for name in NAMESPACE(c)
    ):
        raise Break(f"a tensor of the subclass {cls.__name__}")
