"""Tensors that hold other tensors, on which their class runs operations (DTensor): values of the graph like any tensor.

An operation on one is a node. What it returns is asked of the class itself, on fakes (`fake/composed.py`). The nodes run by
torch, and a backend compiles what is before and behind them (`backends/composed_parts.py`). Functions that make such a tensor
of a plain one, move it, and take the plain one out of it are nodes too.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.packed_objects import PackedCall
from bytejit.fake.composed import composed_fake, composed_in, held, looking
from bytejit.guards.sources import Attr, Called, Item
from bytejit.guards.tensor_checks import TensorCheck
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import NotConstant, to_python
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import FuncVar, InstanceVar, Known, MethodVar, SeqVar, TensorVar, Var
from bytejit.tracer.objects.class_facts import class_lookup

# functions that are one node each, when they meet no other process but by operations
NODES = frozenset(f"DTensor.{name}" for name in ("from_local", "to_local", "redistribute", "full_tensor"))


class ComposedTensors(Component):
    """The part of the tracer for tensors that hold other tensors."""

    def __init__(self, t: Any) -> None:
        super().__init__(t)
        self.met = False  # whether the region has one

    def from_outside(self, obj: torch.Tensor, source: Any) -> torch.Tensor:
        """The fake of an input. What its class makes such a tensor from is guarded, all the way down."""
        self.guard_parts(obj, source)
        self.met = True
        return composed_fake(obj, self.t.stores)

    def guard_parts(self, obj: torch.Tensor, source: Any) -> None:
        self.t.guard("TENSOR", source, TensorCheck.of(obj))
        parts, facts = held(obj)
        self.t.guard("EQUALS", Item(Called(Attr(source, "__tensor_flatten__")), 1), facts)
        for name, part in parts.items():
            at = Attr(source, name)
            if not isinstance(part, torch.Tensor):
                self.t.guard("ID_IS", at, part)
            elif type(part) is torch.Tensor:
                self.t.guard("TENSOR", at, TensorCheck.of(part))
            else:
                self.guard_parts(part, at)

    def run(self, fn: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """fn(*args, **kwargs) on fakes of which some hold others."""
        if self.t.sizes.env is not None:
            self.t.size_inference.refuse_symbols((args, kwargs))
        with self.t.fake_mode:
            found = fn(*args, **kwargs)
        for x in composed_in(found):
            self.met = True
            looking(x)
        return found

    def attribute(self, v: TensorVar, name: str) -> Var | None:
        """What the class of such a tensor adds to those of tensors; None for what it does not."""
        assert v.cls is not None
        found, owner = class_lookup(v.cls, name)
        if owner in (None, object) or not special_cases.TORCH.made(owner) or name.startswith("__"):
            return None
        if isinstance(found, types.FunctionType):
            return MethodVar(self.t.values.constant(found), v)
        if isinstance(found, (property, types.MemberDescriptorType)):
            value = getattr(v.fake, name)
            if isinstance(value, torch.Tensor):
                return self.t.tensors.call_tensor_op(getattr, [v, Known(name)], {})
            if name.startswith("_"):
                raise Break(f"{name} of a {v.cls.__name__}")
            return self.t.values.constant(value)
        return None

    def called(self, fn: FuncVar, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """The call of a function that is one node; None for others, and for what it needs other processes for."""
        if not special_cases.SHARDED_TENSORS.made(fn.real) or fn.qualname not in NODES or not args:
            return None
        args, given = [self.t.values.real(a) for a in args], {k: self.t.values.real(v) for k, v in kwargs.items()}
        if not isinstance(args[0], TensorVar):
            return None
        try:
            held = {i: self.as_it_is(a) for i, a in enumerate(args[1:], 1)}
            named = {k: self.as_it_is(v) for k, v in given.items()}
        except NotConstant:
            return None
            return None
        if named.get("run_check") or fn.name == "from_local" and held.get(1, named.get("device_mesh")) is None:
            return None
        if self.t.sizes.env is not None:
            self.t.size_inference.refuse_symbols((args[0].fake,))
        self.met = True
        return self.t.tensors.call_tensor_op(PackedCall(fn.real, held, named), [args[0]], {})

    def as_it_is(self, v: Var) -> Any:
        """An argument that is no tensor. Raises: NotConstant."""
        v = self.t.values.real(v)
        if isinstance(v, SeqVar) and v.cls in (list, tuple):
            return v.cls([self.as_it_is(item) for item in v.items])
        if isinstance(v, InstanceVar) and v.real is not None and v.source is not None:
            if not special_cases.DEVICE_MESHES.made(v.cls):
                raise NotConstant(v.cls.__name__)
            self.t.guard("ID_IS", v.source, v.real)
            return v.real
        return to_python(self.t, v)
