"""Functions made by torch.jit.script: the tracer follows the Python function behind one where it means the same as in
TorchScript."""

from __future__ import annotations

import types

import torch

from bytejit.common.torch_controls import SCRIPTED
from bytejit.guards.sources import Attr
from bytejit.tracer.core.models import CALLED
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import InstanceVar, Lazy, TensorVar, Var, is_object

NUMBERS = {"int": int, "float": float, "bool": bool, "str": str}  # TorchScript converts other types to these


def call_scripted(t: Tracer, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A call of a scripted function. Raises: Break where TorchScript would convert an argument or refuse it."""
    behind = getattr(fn.real, SCRIPTED, None)
    if not isinstance(behind, types.FunctionType):
        raise Break("a call of a torch.jit.ScriptFunction without the Python function that it was made of")
    names = [a.name for a in fn.real.schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    if len(args) > len(names) or any(not fits(t, str(a.type), given.get(a.name)) for a in fn.real.schema.arguments):
        raise Break("a call of a torch.jit.ScriptFunction that converts its arguments")
    return t.calls.call(Lazy(behind, Attr(fn.origin, SCRIPTED)), args, kwargs)


def fits(t: Tracer, kind: str, v: Var | None) -> bool:
    """Whether an argument, None where the default is taken, is of a parameter's type as it is."""
    v = v if v is None else t.values.real(v)
    nothing = is_object(v, None)
    if v is None or nothing and kind.startswith("Optional["):
        return True
    kind = kind.removeprefix("Optional[").removesuffix("]")
    return isinstance(v, TensorVar) if kind == "Tensor" else kind in NUMBERS and t.type_of(v) is NUMBERS[kind]


CALLED[torch.jit.ScriptFunction] = call_scripted
