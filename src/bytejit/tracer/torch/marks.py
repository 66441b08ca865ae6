"""Calls of callables that the user marked with bytejit's or torch's decorators: in the graph, not in it, constant, another
function."""

from __future__ import annotations

import types
from typing import Any

import torch

from bytejit.common import registry, special_cases, torch_controls
from bytejit.common.quiet_reads import name_of
from bytejit.fake.tensor import was_written
from bytejit.guards.references import Ref
from bytejit.guards.sources import KnownSource
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import NotConstant, is_constant
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import NONE, SeqVar, TensorVar, Var
from bytejit.tracer.objects.library import real_object


class Marks(Component):
    """The tracer's part for marks."""

    def call_marked(self, fn: object, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """The result of calling a marked callable; None when it has no mark that decides here. Raises: Break."""
        if registry.marked("disallow", fn):
            raise Break(f"{name_of(fn)} is marked bytejit.disallow_in_graph", "allow it with bytejit.allow_in_graph")
        if registry.marked("allow", fn):
            return self.t.tensors.call_tensor_op(fn, args, kwargs)
        if registry.marked("constant", fn):
            return self.call_constant(fn, args, kwargs)
        return self.call_marked_for_torch(fn, args, kwargs) if torch_controls.loaded() else None

    def call_marked_for_torch(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """The same for marks of torch's own compiler."""
        if torch_controls.constant(fn):
            return self.call_constant(fn, args, kwargs)
        if reason := torch_controls.refused(fn):
            if torch_controls.is_graph_break(fn):
                if special_cases.TORCH.runs(self.t.present_frame.globals):
                    return NONE  # torch's own code (optimizers) disables its own compiler here, not the program
                said = [*args, *kwargs.values()]
                reason = f"{reason[:-2]}({self.t.const(said[0])!r})" if said else reason
            raise Break(reason)
        if torch_controls.allowed(fn) and not (torch_controls.nonstrict(fn) and not self.takes_as_node(args, kwargs)):
            return self.t.tensors.call_tensor_op(fn, args, kwargs)
        instead = torch_controls.substitute(fn)
        if instead is not None and not self.within(instead.__code__):
            return self.t.calls.call(self.t.values.constant(instead), args, kwargs)
        # a function within another that torch.compile made is part of it
        inner = torch_controls.noted(torch_controls.wrapped(fn))
        if inner is fn or not isinstance(inner, (types.FunctionType, types.MethodType)):
            return None
        first = [self.kept(inner.__self__)] if isinstance(inner, types.MethodType) else []
        function = inner.__func__ if isinstance(inner, types.MethodType) else inner
        return self.t.calls.call(self.t.values.constant(function), [*first, *args], kwargs)

    def takes_as_node(self, args: list[Var], kwargs: dict[str, Var]) -> bool:
        """Whether a node can be given these arguments: tensors, constants, lists and tuples of these."""

        def fits(v: Var) -> bool:
            v = self.t.values.real(v)
            if isinstance(v, SeqVar):
                return v.cls in (list, tuple, torch.Size) and all(map(fits, v.items))
            return isinstance(v, TensorVar) or is_constant(getattr(v, "obj", v))

        return all(map(fits, (*args, *kwargs.values())))

    def within(self, code: types.CodeType) -> bool:
        """Whether a function of this code is being traced: what stands in for another may call that."""
        frame = self.t.frame
        while frame is not None:
            if frame.code is code:
                return True
            frame = frame.parent
        return False

    # ---- constant results --------------------------------------------------------------------------------------------
    def call_constant(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """fn(*args, **kwargs), called now; its result holds for as long as the entry does. Raises: Break, Raised."""
        try:
            real = [self.known_value(a) for a in args]
            named = {k: self.known_value(v) for k, v in kwargs.items()}
        except NotConstant as e:
            raise Break(f"{name_of(fn)} (assume_constant_result) of {e}") from None
        try:
            with torch._C._EnableTorchFunction():
                result = fn(*real, **named)
        except Exception as e:  # the program's own function: its exception is the program's, too
            raise self.t.raised(e) from None
        return self.kept(result)

    def known_value(self, v: Var) -> object:
        """The object behind a value in this call; of a tensor that the graph computes, its value. Raises: NotConstant."""
        v = self.t.values.real(v)
        if isinstance(v, TensorVar):
            return v.real if v.real is not None and not was_written(v.fake) else self.t.measures.rehearse(v.node)
        if (
            isinstance(v, SeqVar)
            and v.cls in (list, tuple)
            and any(isinstance(self.t.values.real(i), (TensorVar, SeqVar)) for i in v.items)
        ):
            return v.cls(map(self.known_value, v.items))
        return real_object(self.t, v)

    def kept(self, value: Any) -> Var:
        """A value of the program that the entry keeps."""
        if type(value) in (list, tuple):
            return SeqVar([self.kept(v) for v in value], type(value))
        if is_constant(value):
            return self.t.values.constant(value)
        ref = Ref(value)
        if ref.weak:
            ref = Ref.strong(value)
        return self.t.values.wrap(value, KnownSource(ref), guard=False)
