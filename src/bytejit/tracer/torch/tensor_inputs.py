"""Tensors from outside: inputs of the graph, or what no graph takes."""

from __future__ import annotations

import torch

from bytejit.common import special_cases
from bytejit.common.errors import Bug
from bytejit.common.overriding import TENSOR_CLASSES, answers_as_torch, is_composed, overrides
from bytejit.fake.tensor import Fake, fake_like
from bytejit.guards.sources import Source
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import Break, NotNow
from bytejit.tracer.core.values import TensorVar

from .histories import check_usable
from .subclasses import check_class, dispatches


class TensorInputs(Component):
    """The part of the tracer that takes tensors from outside."""

    def tensor(self, obj: torch.Tensor, source: Source) -> TensorVar:
        """A tensor from outside: a placeholder of the graph."""
        if isinstance(obj, Fake):
            raise Break("a fake tensor of another trace")
        if not answers_as_torch(type(obj)) and not (self.t.job.may_wait and torch.nn.parameter.is_lazy(obj)):
            raise Break(f"a tensor of the subclass {type(obj).__name__}, which says itself what a tensor looks like")
        if obj.layout is not torch.strided or obj.is_quantized or obj.is_nested:
            kind = "quantised" if obj.is_quantized else "nested" if obj.is_nested else obj.layout
            raise Break(f"a {kind} tensor")
        if obj.is_conj() or obj.is_neg():
            raise Break("a tensor that is conjugated or negated when it is read")
        check_usable(obj)
        if type(obj) not in TENSOR_CLASSES:
            if self.t.job.may_wait and torch.nn.parameter.is_lazy(obj):
                raise NotNow
            if dispatches(type(obj)) and overrides(type(obj)) == "own" and not special_cases.TORCH.made(type(obj)):
                return self.opaque(obj, source)
            if not is_composed(type(obj)):
                check_class(type(obj))
                self.t.overrides.relies_on_overrides()
        if torch._C._functorch.is_functorch_wrapped_tensor(obj):
            raise Break("a tensor inside a function transform")
        if self.t.graph_leaves:
            raise Bug(f"{source.name()} is looked at when the graph is finished")
        if is_composed(type(obj)):
            fake = self.t.composed_tensors.from_outside(obj, source)
        else:
            sizes = self.t.sizes.input_sizes(obj, source)
            self.t.guard("TENSOR", source, self.t.sizes.tensor_check(obj, source, self.t.grad_matters))
            fake = fake_like(obj, self.t.stores, *(sizes or ()))
        node = self.t.graph.placeholder(self.placeholder_name(source))
        node.target = node.name  # unique, while the names of two sources may become equal
        # as it is when the graph begins: `requires_grad_`, `resize_` and `t_` change the fake
        node.meta.update(val=fake, autograd=(obj.requires_grad, obj.is_leaf), look=fake.m)
        var = TensorVar(node, fake, source, obj, type(obj))
        self.t.inputs.append(var)
        self.t.by_fake[id(fake)] = var
        return var

    def opaque(self, obj: torch.Tensor, source: Source) -> TensorVar:
        """A tensor whose class runs operations itself. Its attributes and overrides are known, but no graph takes it."""
        self.t.overrides.relies_on_overrides()
        self.t.guard("TENSOR", source, self.t.sizes.tensor_check(obj, source, True))
        var = TensorVar(None, fake_like(obj), source, obj, type(obj))
        self.t.by_fake[id(var.fake)] = var
        return var

    def placeholder_name(self, source: Source) -> str:
        """An identifier for an input. Two sources may differ only in characters that an identifier cannot have: FX numbers
        such names."""
        name = "".join(c if c.isalnum() else "_" for c in source.name()).strip("_") or "x"
        return f"p_{name}" if name[0].isdigit() or name == "self" else name  # `self` is the module that FX makes
