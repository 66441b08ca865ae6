"""Attributes of tensors: their properties, those that the program sets, and `.data` and `.grad`."""

from __future__ import annotations

import types

import torch

from bytejit.common.graph_calls import set_data
from bytejit.common.overriding import is_composed
from bytejit.fake.rules.core import Meta
from bytejit.fake.tensor import DataDependent, was_written
from bytejit.guards.sources import Attr, Called, TensorGrad
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, NONE, Known, Lazy, MethodVar, TensorVar, Var, is_object
from bytejit.tracer.objects.class_facts import class_lookup
from bytejit.tracer.torch.conjugate_views import is_read_conjugated, is_read_negated
from bytejit.tracer.torch.histories import is_leaf, step_of
from bytejit.tracer.torch.tensors import NONE_OVERRIDES
from bytejit.tracer.torch.transform_levels import check_history_known

SAID_BY_THE_REAL_ONE = ("_version", "_python_dispatch")  # a fake has others

# of an input: no guard on tensors says what they are, and a fake has others
GUARDED_ONE_BY_ONE = ("retains_grad", "output_nr", "grad_dtype", "_has_grad_dtype_override", "_post_accumulate_grad_hooks")

SAME = {"_grad": "grad", "_grad_fn": "grad_fn"}  # two names of one attribute


class TensorAttributes(Component):
    """The tracer's part for attributes of tensors."""

    def tensor_getattr(self, v: TensorVar, name: str) -> Var:
        name = SAME.get(name, name)
        if name == "grad":
            self.t.backward.looked_at += 1
        if name in v.attrs:
            return v.attrs[name]
        if name == "__class__":
            return Known(self.t.type_of(v))
        if (self.t.overrides.modes or v.cls not in NONE_OVERRIDES) and (
            own := self.t.overrides.subclass_getattr(v, name)
        ) is not None:
            return own
        if v.cls is not None and is_composed(v.cls) and (own := self.t.composed_tensors.attribute(v, name)) is not None:
            return own
        if name == "grad":
            if v.source is not None:
                return self.t.values.memo_lazy(("grad", id(v)), v.real.grad, lambda: TensorGrad(v.origin))
            return NONE
        if name == "grad_fn":
            check_history_known(self.t, v)
            self.check_history(v)
        if name in ("grad_fn", "_backward_hooks"):
            if name == "grad_fn" and step_of(v.fake) is None and v.source is None:
                return NONE
            if name == "grad_fn" and v.source is not None:
                step = step_of(v.fake)
                if (step is None) != (v.real.grad_fn is None) or step is not None and was_written(v.fake):
                    raise Break("a tensor's grad_fn, which the region has changed")
                return self.t.values.memo_lazy(("grad_fn", id(v)), v.real.grad_fn, lambda: Attr(v.origin, "grad_fn"))
            raise Break(f"a tensor's {name}")
        class_lookup(torch.Tensor, name)
        found = torch.Tensor.__dict__.get(name)
        if found is None:
            found = getattr(torch.Tensor, name, None)
        if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType, types.FunctionType)):
            return (
                MethodVar(Known(found), v)
                if not isinstance(found, types.FunctionType)
                else MethodVar(self.t.values.constant(found), v)
            )
        if found is None:
            return self._user_attribute(v, name)
        if isinstance(found, (types.GetSetDescriptorType, property)):
            if name == "__dict__":
                raise Break("a tensor's __dict__")
            return self._tensor_property(v, name)
        return self.t.values.constant(getattr(v.fake, name))

    def check_history(self, v: TensorVar) -> None:
        """Raises: Break where another tensor from outside that may be a view of the same base, or that base, has got gradients
        by a write: then so has v, which its fake does not know."""
        for i in self.t.inputs if not v.fake.requires_grad else ():
            if isinstance(i, TensorVar) and i.fake.m.store is v.fake.m.store and i.fake.requires_grad and was_written(i.fake):
                raise Break("whether a tensor requires gradients, behind a write into what may be its base or a view of it")

    def _tensor_property(self, v: TensorVar, name: str) -> Var:
        if name in ("is_leaf", "requires_grad"):
            check_history_known(self.t, v)
            self.check_history(v)
        if name == "is_leaf" or name == "requires_grad" and not self.t.grad_matters:
            self.guard_history(v, name == "is_leaf")
        if name == "is_leaf" and v.source is not None and v.fake.requires_grad is v.real.requires_grad:
            return self.t.values.constant(v.real.is_leaf)
        if name in GUARDED_ONE_BY_ONE and v.source is not None:
            try:
                value = getattr(v.real, name)
            except (AttributeError, RuntimeError):
                raise Break(f"a tensor's {name}") from None
            return self.t.values.memo_lazy(("t", id(v), name), value, lambda: Attr(v.origin, name))
        if name == "_base":
            return self._base(v)
        if name == "_has_symbolic_sizes_strides":  # only the fake's are
            return FALSE
        if name == "_version" and self._is_untouched(v):
            return self.t.values.memo_lazy(("t", id(v), name), v.real._version, lambda: Attr(v.origin, name))
        if name in SAID_BY_THE_REAL_ONE:
            raise Break(f"a tensor's {name}")
        try:
            value = getattr(v.fake, name)
        except DataDependent:
            raise Break(f"a tensor's {name} needs its value") from None
        except (RuntimeError, TypeError) as e:  # what `imag` of a real tensor raises: TypeError since torch 2.15
            raise Break(f"a tensor's {name}: {e}") from None
        if isinstance(value, torch.Tensor):
            return self.t.tensors.call_tensor_op(getattr, [v, Known(name)], {})
        return self.t.calls.model(value)

    def _is_untouched(self, v: TensorVar) -> bool:
        """Whether v is from outside, and the region has written no tensor from outside so far: some may be views of others."""
        if v.source is None or v.real is None or is_composed(type(v.real)) or v.real.is_inference():
            return False
        inputs = [i for i in self.t.inputs if isinstance(i, TensorVar)]
        return not (any(was_written(i.fake) for i in inputs) or self.t.effects.data_set or self.t.program_operators.reaches)

    def guard_history(self, v: TensorVar, leaf: bool) -> None:
        """Guard whether v requires gradients. leaf: also whether it is a leaf. Raises: Break for what is made with gradients off
        and may be a view of a view from outside: it may require them or not."""
        if not self.t.grad_matters:
            self.t.reads_grad = True
        if v.source is not None and leaf:
            self.t.guard("EQUALS", Attr(v.source, "is_leaf"), v.real.is_leaf)
        for i in self.t.inputs if v.source is None and v.fake.requires_grad and not self.t.grad_matters else ():
            if isinstance(i, TensorVar) and i.fake.requires_grad:
                self.t.guard("EQUALS", Called(Attr(i.origin, "_is_view")), i.real._is_view())
                if i.real._is_view():
                    raise Break("whether a view that is made with gradients off requires them")

    def _base(self, v: TensorVar) -> Var:
        """The tensor that v is a view of, or None. An input may be a view itself: its own is then that of its views."""
        of = v if v.source is not None or v.fake._base is None else self.t.by_fake.get(id(v.fake._base))
        if of is None:
            raise Break("a tensor's _base")
        if of.source is None:
            return NONE if of is v else of
        base = self.t.values.real(self.t.values.memo_lazy(("_base", id(of)), of.real._base, lambda: Attr(of.origin, "_base")))
        return base if of is v or not self.t.comparisons.is_same(base, NONE) else of

    def _user_attribute(self, v: TensorVar, name: str) -> Var:
        """An attribute that someone set on the tensor, or that its class has."""
        if v.real is not None:
            if name in getattr(v.real, "__dict__", {}):
                return self.t.values.memo_lazy(("t", id(v), name), v.real.__dict__[name], lambda: Attr(v.origin, name))
            if hasattr(type(v.real), name):
                raise Break(f"the attribute {name} of a {type(v.real).__name__}")
            self.t.guard("ATTR_ABSENT", v.source, name)
        raise self.t.attributes.no_attribute(self.t.type_of(v).__name__, name)

    def tensor_setattr(self, v: TensorVar, name: str, value: Var) -> None:
        value, name = self.t.values.real(value), SAME.get(name, name)
        if name == "data" and isinstance(value, TensorVar):
            self.set_data(v, value)
            return
        self.t.backward.looked_at += name == "grad"
        if name == "requires_grad" and isinstance(value, Known):
            if not is_leaf(v.fake):
                raise Break("setting requires_grad of a tensor that is no leaf")
            self.t.tensors.call_tensor_op(torch.Tensor.requires_grad_, [v, value], {})
            return
        if name == "grad" and is_leaf(v.fake) and fits_as_grad(v, value):
            pass
        elif hasattr(torch.Tensor, name):
            raise Break(f"setting a tensor's {name}")
        v.attrs[name] = value
        self.t.touch(v)

    def set_data(self, v: TensorVar, value: TensorVar) -> None:
        """v.data = value: a node; from then on v has the memory of `value`."""
        if self.t.sizes.env is not None or v.fake.m.device != value.fake.m.device or v.fake.m.dtype != value.fake.m.dtype:
            raise Break("setting a tensor's data")
        m = value.fake.m
        v.fake.data = value.fake
        v.fake.m = Meta(m.shape, m.stride, m.offset, m.dtype, m.device, m.store)
        self.t.tensors.effect_only(set_data, None, (v.node, value.node), {})
        self.t.effects.data_set.append(v)


def fits_as_grad(v: TensorVar, value: Var) -> bool:
    """Whether torch takes `value` as the gradient of a tensor."""
    if not isinstance(value, TensorVar):
        return is_object(value, None)
    a, b = v.fake.m, value.fake.m
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _asked_of_the_real_one(name: str) -> None:
    """A method without arguments, of which no guard on tensors says what it returns."""
    method = getattr(torch.Tensor, name)

    @models(method)
    def asked(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        v = t.values.real(args[0])
        if isinstance(v, TensorVar) and v.source is not None:
            return Lazy(method(v.real), Called(Attr(v.source, name)))
        return t.tensors.call_tensor_op(method, args, kwargs)


_asked_of_the_real_one("is_shared")
_asked_of_the_real_one("_is_zerotensor")


@models(torch.Tensor._is_view)
def is_view(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = args[0]
    if isinstance(v, TensorVar) and v.source is not None:
        return Lazy(v.real._is_view(), Called(Attr(v.source, "_is_view")))
    raise Break("whether a tensor of the region is a view")


def conjugated(t: Tracer, v: Var) -> bool:
    """Whether `v` is conjugated when it is read. Raises: Break."""
    if not isinstance(v, TensorVar):
        raise Break("whether a complex tensor is conjugated when it is read")
    return v.source is None and v.fake.is_complex() and v.node is not None and is_read_conjugated(v.node)


@models(torch.detach_, torch.Tensor.detach_)
def detach_in_place(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Of a tensor from outside a guard says that it is no view: torch refuses to detach these in place."""
    v = t.values.real(args[0]) if args else NONE
    if isinstance(v, TensorVar) and v.source is not None:
        t.guard("EQUALS", Called(Attr(v.source, "_is_view")), v.real._is_view())
        if v.real._is_view():
            raise Break("Tensor.detach_ of a view")
    return t.tensors.call_tensor_op(torch.Tensor.detach_, args, kwargs)


@models(torch.is_conj, torch.Tensor.is_conj)
def is_conj(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return Known(conjugated(t, t.values.real(args[0])))


@models(torch.resolve_conj, torch.Tensor.resolve_conj)
def resolve_conj(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The tensor itself, or a copy of one that is conjugated when it is read."""
    if not conjugated(t, t.values.real(args[0])):
        return args[0]
    back = t.tensors.call_tensor_op(torch.conj, args, {})
    return t.tensors.call_tensor_op(torch.conj_physical, [back], {})


def negated(t: Tracer, v: Var) -> bool:
    """Whether `v` is negated when it is read. Raises: Break."""
    if not isinstance(v, TensorVar):
        raise Break("whether a tensor is negated when it is read")
    return v.source is None and v.node is not None and is_read_negated(v.node)


@models(torch.is_neg, torch.Tensor.is_neg)
def is_neg(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return Known(negated(t, t.values.real(args[0])))


@models(torch.resolve_neg, torch.Tensor.resolve_neg)
def resolve_neg(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The tensor itself, or a copy of one that is negated when it is read."""
    return t.tensors.call_tensor_op(torch.clone, args, {}) if negated(t, t.values.real(args[0])) else args[0]
