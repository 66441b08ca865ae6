"""Indices that would need a tensor's value: masks whose value is known, symbolic positions."""

from __future__ import annotations

import operator

import torch

from bytejit.compat import numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import NONE, Known, SeqVar, SliceVar, SymVar, TensorVar, Var, expect, is_object


class Indexing(Component):
    """The tracer's part that rewrites indices of tensors."""

    by_tensors = 0  # above 0, an index made of tensors alone picks elements, as under vmap

    def arrange(self, args: list[Var], puts: bool) -> list[Var] | None:
        """Brings the index among the arguments of getitem, setitem or index_put into a form that is known while tracing. Returns
        other arguments where those of `pick_symbolic` take their place. Raises: Break."""
        if not puts:
            self.check_value(args[2:])
            args[1] = self.index_without_masks(expect(args[0], TensorVar), args[1])
        args[1] = self.beside(args[0], args[1])
        return None if puts else self.pick_symbolic(args)

    def item(self, of: TensorVar, key: Var) -> Var | None:
        """`of[key]` where `by_tensors` says how; None elsewhere."""
        parts = [self.t.values.real(p) for p in key.items] if isinstance(key, SeqVar) and key.cls in (tuple, list) else [key]
        if not self.by_tensors or not all(isinstance(p, TensorVar) for p in parts):
            return None
        return self.t.tensors.call_tensor_op(torch.ops.aten.index.Tensor, [of, SeqVar(parts, list)], {})

    def beside(self, of: Var, key: Var) -> Var:
        """An index of a tensor on a GPU: what of it lies on the CPU is copied there, as eager does by itself. A tensor of no
        dimension stays: eager reads its value."""
        key = self.t.values.real(key)
        if not isinstance(of, TensorVar) or of.fake.device.type == "cpu":
            return key
        if isinstance(key, SeqVar):
            parts = [self.beside(of, part) for part in key.items]
            return key if all(map(operator.is_, parts, map(self.t.values.real, key.items))) else SeqVar(parts, key.cls)
        if not isinstance(key, TensorVar) or key.fake.device.type != "cpu" or not key.fake.dim():
            return key
        return self.t.tensors.call_tensor_op(torch.Tensor.to, [key, Known(of.fake.device)], {})

    def index_by_value(self, args: list[Var], key: Var, reads: bool) -> Var:
        """The index in a getitem or setitem whose value is needed while tracing. Masks with known values become positions.
        Raises: Break for a mask that eager refuses."""
        if not self.masks_fit(args[0], args[1]):
            raise Break("a mask whose shape does not fit the tensor that it indexes")
        given = self.t.values.real(args[1])
        if isinstance(given, SeqVar) and given.cls is not tuple and key is not given:
            raise Break("an index that is a list of tensors whose values decide: torch takes it for a tuple", "index by a tuple")
        return self.t.tensor_values.index_by_value(key) if reads else key

    def check_value(self, values: list[Var]) -> None:
        """What a setitem writes. Raises: Break for a NumPy float that is no Python float, which torch refuses to assign."""
        if not values or type(values[0]) is not Known or type(obj := values[0].obj) not in numpy_types.SCALARS:
            return
        if type(obj.item()) in (float, complex) and not isinstance(obj, (float, complex)):
            raise Break(f"a {type(obj).__name__} of NumPy's assigned to a place of a tensor")

    def masks_fit(self, of: Var, key: Var) -> bool:
        """Whether each mask in an index of a tensor has the shape of the dimensions that it picks from."""
        key = self.t.values.real(key)
        parts = [self.t.values.real(p) for p in key.items] if isinstance(key, SeqVar) and key.cls is tuple else [key]
        takes = [dimensions_taken(p) for p in parts]
        if not isinstance(of, TensorVar) or not any(takes):
            return True
        left, dim = of.fake.dim() - sum(takes), 0
        for part, taken in zip(parts, takes):
            mask = part.fake if isinstance(part, TensorVar) and part.fake.dtype is torch.bool else None
            if mask is not None and of.fake.shape[dim : dim + taken] != mask.shape:
                return False
            dim += left if isinstance(part, Known) and part.obj is ... else taken
        return left >= 0

    def index_without_masks(self, of: TensorVar, key: Var) -> Var:
        """A list of bools in an index picks known places: it becomes the list of their numbers."""
        parts = [self.t.values.real(p) for p in key.items] if isinstance(key, SeqVar) and key.cls is tuple else [key]
        dim, out = 0, []
        for part in parts:
            bools = [self.t.values.real(b) for b in part.items] if isinstance(part, SeqVar) and part.cls is list else []
            if (
                bools
                and all(isinstance(b, Known) and type(b.obj) is bool for b in bools)
                and dim < of.fake.dim()
                and len(bools) == of.fake.shape[dim]
            ):
                part = SeqVar([Known(i) for i, b in enumerate(bools) if isinstance(b, Known) and b.obj], list)
            elif not isinstance(part, (SliceVar, SeqVar, SymVar)) and not (isinstance(part, Known) and type(part.obj) is int):
                return key  # None, an ellipsis, a tensor: dimensions no longer count one by one
            dim += 1
            out.append(part)
        sized = [self.index_of_sizes(part) for part in out]
        return SeqVar(sized, tuple) if isinstance(key, SeqVar) and key.cls is tuple else sized[0]

    def index_of_sizes(self, part: Var) -> Var:
        """A list of numbers in an index, some of them symbolic: a tensor."""
        return (self.t.numpy_arrays.tensor_of_sizes(part, {}) or part) if isinstance(part, SeqVar) and part.cls is list else part

    def pick_symbolic(self, args: list[Var]) -> list[Var] | None:
        """The arguments of getitem or setitem where ints in the index are symbolic, which torch's binding would make constants:
        what the rest of the index leaves, and of that the place that the symbolic ones pick. So where a flag decides whether
        all of a tensor is written. None where neither is."""
        key = args[1]
        parts = [self.t.values.real(p) for p in key.items] if isinstance(key, SeqVar) and key.cls is tuple else [key]
        if not any(type(p) is SymVar for p in parts):
            return self._flagged(args) if len(args) == 3 else None
        taken = sum(isinstance(p, SliceVar) or type(p) is SymVar or isinstance(p, Known) and type(p.obj) is int for p in parts)
        rest, dims, dim = [], [], 0
        for part in parts:
            if type(part) is SymVar:
                dims.append((dim, part))
                part = SliceVar([NONE, NONE, NONE])
            elif isinstance(part, Known) and part.obj is ...:
                dim += expect(args[0], TensorVar).fake.dim() - taken - 1
            elif isinstance(part, Known) and type(part.obj) is int:
                dim -= 1
            elif not isinstance(part, SliceVar) and not is_object(part, None):
                return None  # a tensor, a list: where its dimensions go depends on all
            rest.append(part)
            dim += 1
        found = args[0]
        if any(not (isinstance(p, SliceVar) and p.parts == [NONE, NONE, NONE]) for p in rest):
            found = self.t.tensors.call_tensor_op(operator.getitem, [found, SeqVar(rest, tuple)], {})
        for dim, part in reversed(dims):
            found = self.t.tensors.call_tensor_op(torch.Tensor.select, [found, Known(dim), part], {})
        return [found, Known(...), *args[2:]]

    def _flagged(self, args: list[Var]) -> list[Var] | None:
        """The arguments of `x[flag] = value`, flag a bool tensor without dimensions, as those of a write of all of x; None for
        others, and for a value of more dimensions than x has, or of another dtype, which eager refuses."""
        of, flag, value = (self.t.values.real(a) for a in args)
        if (
            not isinstance(of, TensorVar)
            or not isinstance(flag, TensorVar)
            or flag.fake.dim()
            or flag.fake.dtype is not torch.bool
        ):
            return None
        if isinstance(value, Known) and type(value.obj) in (bool, int, float):
            value = self.t.tensors.call_tensor_op(torch.Tensor.new_full, [of, SeqVar([], tuple), value], {})
        elif not isinstance(value, TensorVar) or value.fake.dim() > of.fake.dim() or value.fake.dtype is not of.fake.dtype:
            return None
        return [of, Known(...), self.t.tensors.call_tensor_op(torch.where, [flag, value, of], {})]


def dimensions_taken(part: Var) -> int:
    """Returns how many dimensions of a tensor one part of an index picks from; 0 for an ellipsis."""
    if isinstance(part, TensorVar) and part.fake.dtype in (torch.bool, torch.uint8):
        return part.fake.dim()
    return int(not (isinstance(part, Known) and (part.obj is None or part.obj is ... or type(part.obj) is bool)))
