"""torch.Tensor(...), torch.FloatTensor(...), torch.LongTensor(...) and the like: of sizes, or of nested lists of numbers."""

from __future__ import annotations

import torch

from bytejit.tracer.core.models import MODELS
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.texts import TextVar
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Known, SeqVar, SymVar, Var

CPU = torch.device("cpu")
KINDS = ("", "Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


def leaves(t: Tracer, v: Var) -> list[Var]:
    """Returns the numbers in nested lists and tuples. Raises: Break for anything else in them."""
    v = t.values.real(v)
    if isinstance(v, SeqVar) and v.cls in (list, tuple):
        return [leaf for item in v.items for leaf in leaves(t, item)]
    if type(v) is TextVar or not issubclass(t.type_of(v), (bool, int, float)) or not isinstance(v, (Known, SymVar)):
        raise Break(f"a legacy constructor of tensors called with a {t.type_of(v).__name__}")
    return [v]


def _constructor(cls: type) -> None:
    def make(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        args = [t.values.real(a) for a in args]
        if kwargs or cls().device != CPU:
            raise Break("a legacy constructor of tensors called with keywords, or for another device")
        options: dict[str, Var] = {"dtype": Known(cls().dtype), "device": Known(CPU)}
        if len(args) == 1 and isinstance(args[0], SeqVar):
            if args[0].cls is torch.Size:
                return t.tensors.call_tensor_op(torch.empty, [args[0]], options)
            kinds = {t.type_of(v) for v in leaves(t, args[0])}
            if not cls().dtype.is_floating_point and float in kinds:  # torch raises, or truncates
                raise Break("a legacy constructor of integers called with floats")
            return t.calls.call_python(torch.tensor, args, options)
        if any(t.type_of(a) is not int for a in args):
            raise Break("a legacy constructor of tensors called with what are no sizes")
        return t.tensors.call_tensor_op(torch.empty, [SeqVar(args or [Known(0)], tuple)], options)

    MODELS[cls] = make


for _kind in KINDS:
    _constructor(getattr(torch, f"{_kind}Tensor"))
