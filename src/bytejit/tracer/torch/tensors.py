"""Tensor values: inputs, operations as graph nodes, attributes, and what needs a tensor's data (which breaks the graph)."""
from __future__ import annotations

import enum
import operator
import types

import torch

from bytejit.common.overriding import PLAIN, overrides
from bytejit.common.where import Where
from bytejit.compat import numpy_types
from bytejit.errors import Bug
from bytejit.fake.rules.core import Meta
from bytejit.fake.tensor import DataDependent, Fake, NoFake, fake_like
from bytejit.guards.references import PLAIN_VALUE
from bytejit.guards.sources import Attr, TensorGrad
from bytejit.shapes.symbols import is_symbolic
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import Break, NotNow
from bytejit.tracer.core.values import (
    NONE,
    DictVar,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    SeqVar,
    SliceVar,
    SymVar,
    TensorVar,
    Var,
)
from bytejit.tracer.objects.containers import NotConstant, is_constant, to_python
from bytejit.tracer.sizes.dynamic import numbers_in
from bytejit.tracer.sizes.numpy_numbers import plain_index, plain_number
from bytejit.tracer.sizes.unit_strides import READERS

from .operations import is_program_code
from .overrides import check_class, dispatches

NEEDS_DATA = {"item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__complex__", "__index__", "data_ptr",
              "__contains__", "__dlpack__", "storage", "untyped_storage", "backward", "register_hook", "__reduce_ex__",
              "__deepcopy__", "retain_grad", "register_post_accumulate_grad_hook", "__repr__", "__str__", "__format__"}
# of these, what only tells the value
READS_DATA = {"item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__"}
# methods that compute nothing when they answer their own tensor
MAY_RETURN_SELF = {
    "contiguous",
    "to",
    "float",
    "double",
    "half",
    "bfloat16",
    "int",
    "long",
    "bool",
    "cpu",
    "cuda",
    "type",
    "type_as",
}


MAY_OVERRIDE = (TensorVar, InstanceVar, SeqVar, Lazy)     # a sequence may hold what does
NONE_OVERRIDES = (None, *PLAIN, torch.Size)
SCALED = {"addcdiv": torch.div, "addcdiv_": torch.div, "addcmul": torch.mul, "addcmul_": torch.mul}
PYTHON_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool, complex: torch.complex128}


def current_cuda(x: object) -> bool:
    """Whether an argument names the current GPU: "cuda" without an index."""
    return type(x) is str and x == "cuda" or type(x) is torch.device and x.type == "cuda" and x.index is None


class NeedsValue(Break):
    """An operation on a tensor whose value decides what comes out."""


class Tensors(Component):
    """The part of the tracer that deals in tensors."""

    def tensor_input(self, obj: torch.Tensor, source) -> Var:
        """A tensor from outside: a placeholder of the graph."""
        if isinstance(obj, Fake):
            raise Break("a fake tensor of another trace")
        if obj.layout is not torch.strided or obj.is_quantized or obj.is_nested:
            raise Break(f"a {'quantised' if obj.is_quantized else obj.layout} tensor")
        if type(obj) not in PLAIN:
            if self.t.job.may_wait and torch.nn.parameter.is_lazy(obj):
                raise NotNow
            if dispatches(type(obj)) and overrides(type(obj)) == "own" and not type(obj).__module__.startswith("torch."):
                return self.opaque_tensor(obj, source)
            check_class(type(obj))
            self.t.overrides.relies_on_overrides()
        if torch._C._functorch.is_functorch_wrapped_tensor(obj):
            raise Break("a tensor inside a function transform")
        if self.t.graph_leaves:
            raise Bug(f"{source.name()} is looked at when the graph is finished")
        sizes = self.t.sizes.input_sizes(obj, source)
        self.t.guard("TENSOR", source, self.t.sizes.tensor_check(obj, source, self.t.grad_matters))
        sharing = self.t.storages.setdefault(obj.untyped_storage()._cdata, [])
        self.t.overlapping += [(other, source) for other in sharing if other.real.numel() > 0]
        fake = fake_like(obj, self.t.stores, *(sizes or ()))
        node = self.t.graph.placeholder(self.placeholder_name(source))
        node.target = node.name         # unique, unlike what two sources' names may come to
        node.meta["val"] = fake
        var = TensorVar(node, fake, source, obj, type(obj))
        self.t.inputs.append(var)
        sharing.append(var)
        self.t.by_fake[id(fake)] = var
        return var

    def opaque_tensor(self, obj: torch.Tensor, source) -> Var:
        """A tensor that runs its operations itself: its attributes and what overrides make of it are known, no graph takes it."""
        self.t.overrides.relies_on_overrides()
        self.t.guard("TENSOR", source, self.t.sizes.tensor_check(obj, source, True))
        var = TensorVar(None, fake_like(obj), source, obj, type(obj))
        self.t.by_fake[id(var.fake)] = var
        return var

    def placeholder_name(self, source) -> str:
        name = "".join(c if c.isalnum() else "_" for c in source.name()).strip("_") or "x"
        name = first = f"p_{name}" if name[0].isdigit() else name
        taken, n = {v.node.target for v in self.t.inputs}, 1
        while name in taken:                # two sources may differ in what no identifier can hold
            name, n = f"{first}_{n}", n + 1
        return name

    # ---- operations ---------------------------------------------------------------------------------------------------
    def call_tensor_op(self, fn, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """Record fn(*args, **kwargs) as a node; a result without tensors is a constant. Raises: Break."""
        args = [self.t.values.real(a) for a in args]
        if (self.t.overrides.modes or any(type(a) in MAY_OVERRIDE and getattr(a, "cls", None) not in NONE_OVERRIDES for a in (
                *args, *kwargs.values()))) and (found := self.t.overrides.overridden(fn, args, kwargs)) is not None:
            return found
        if fn in (operator.getitem, operator.setitem) and isinstance(args[0], TensorVar):
            args[1] = self.index_without_masks(args[0], plain_index(self.t, args[1]))
            picked = self.pick_symbolic(args)
            if picked is not None:
                return self.call_tensor_op(fn, picked, kwargs) if fn is operator.setitem else picked[0]
        method = self.method_name(fn, args)
        if method in NEEDS_DATA and isinstance(args[0], TensorVar):
            known = (
                self.t.tensor_values.python_value(args[0], getattr(torch.Tensor, method))
                if method in READS_DATA and len(args) == 1
                else None
            )
            if known is not None:
                return known
            raise Break(f"Tensor.{method}() needs a tensor's value")
        try:
            node_args = tuple(self.to_node_arg(a) for a in args)
            node_kwargs = {k: self.to_node_arg(v) for k, v in kwargs.items()}
        except NotConstant as e:
            raise Break(f"{self.op_name(fn)} of {e}") from None
        if method == "cuda" or any(map(current_cuda, (*node_args, *node_kwargs.values()))):
            self.t.guards.add_state("cuda_device")
        fake_args, fake_kwargs = torch.fx.node.map_arg((node_args, node_kwargs), lambda n: n.meta["val"])
        try:
            result = self.run_fake(fn, fake_args, fake_kwargs)
        except NeedsValue:
            if (scaled := self.scaled_by_tensor(method, args, kwargs)) is not None:
                return scaled
            again = [a if method and a is args[0] else self.t.tensor_values.sizes_by_value(a) for a in args]
            if fn is operator.getitem:
                again[1] = self.t.tensor_values.index_by_value(again[1])
            named = {k: self.t.tensor_values.sizes_by_value(v) for k, v in kwargs.items()}
            if all(map(operator.is_, (*again, *named.values()), (*args, *map(self.t.values.real, kwargs.values())))):
                counted = self.t.tensor_values.counted(fn, args, kwargs) or self.t.measures.measured_result(fn, args, kwargs)
                if counted is None:
                    raise
                return counted
            return self.call_tensor_op(fn, again, named)
        if not self.makes_tensors(result):
            if method in READERS:
                self.t.unit_strides.note_strides_read()
            return self.t.calls.model(result) if result is not None else self.effect_only(fn, method, node_args, node_kwargs)
        known = self.t.by_fake.get(id(result))
        if known is not None and known in args and method in MAY_RETURN_SELF:
            return known                                # x.contiguous(), x.to(same): the very same tensor
        node = self.add_node(fn, method, node_args, node_kwargs)
        node.meta["val"] = result
        return self.wrap_result(node, result)

    def index_without_masks(self, of: TensorVar, key: Var) -> Var:
        """A list of bools in an index picks known places: it becomes the list of their numbers."""
        parts = [self.t.values.real(p) for p in key.items] if isinstance(key, SeqVar) and key.cls is tuple else [key]
        dim, out = 0, []
        for part in parts:
            bools = [self.t.values.real(b) for b in part.items] if isinstance(part, SeqVar) and part.cls is list else []
            if bools and all(isinstance(b, Known) and type(b.obj) is bool for b in bools) \
                    and dim < of.fake.dim() and len(bools) == of.fake.shape[dim]:
                part = SeqVar([Known(i) for i, b in enumerate(bools) if b.obj], list)
            elif not isinstance(part, (SliceVar, SeqVar, SymVar)) and not (isinstance(part, Known) and type(part.obj) is int):
                return key                      # None, an ellipsis, a tensor: dimensions no longer count one by one
            dim += 1
            out.append(part)
        out = [self.index_of_sizes(part) for part in out]
        return SeqVar(out, tuple) if isinstance(key, SeqVar) and key.cls is tuple else out[0]

    def index_of_sizes(self, part: Var) -> Var:
        """A list of numbers in an index, some of them symbolic: a tensor."""
        return (self.t.numpy_arrays.tensor_of_sizes(part, {}) or part) if isinstance(part, SeqVar) and part.cls is list else part

    def pick_symbolic(self, args: list[Var]) -> list[Var] | None:
        """The arguments of getitem or setitem where ints in the index are symbolic, which torch's binding would make constants:
        what the rest of the index leaves, and of that the place that the symbolic ones pick. None where none is."""
        key = args[1]
        parts = [self.t.values.real(p) for p in key.items] if isinstance(key, SeqVar) and key.cls is tuple else [key]
        if not any(type(p) is SymVar for p in parts):
            return None
        taken = sum(isinstance(p, SliceVar) or type(p) is SymVar or isinstance(p, Known) and type(p.obj) is int for p in parts)
        rest, dims, dim = [], [], 0
        for part in parts:
            if type(part) is SymVar:
                dims.append((dim, part))
                part = SliceVar([NONE, NONE, NONE])
            elif isinstance(part, Known) and part.obj is ...:
                dim += args[0].fake.dim() - taken - 1
            elif isinstance(part, Known) and type(part.obj) is int:
                dim -= 1
            elif not isinstance(part, SliceVar) and not (isinstance(part, Known) and part.obj is None):
                return None             # a tensor, a list: where its dimensions go depends on all
            rest.append(part)
            dim += 1
        found = args[0]
        if any(not (isinstance(p, SliceVar) and p.parts == [NONE, NONE, NONE]) for p in rest):
            found = self.call_tensor_op(operator.getitem, [found, SeqVar(rest, tuple)], {})
        for dim, part in reversed(dims):
            found = self.call_tensor_op(torch.Tensor.select, [found, Known(dim), part], {})
        return [found, Known(...), *args[2:]]

    def scaled_by_tensor(self, method: str | None, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """x.addcdiv_(a, b, value=t) and the like with a factor that is a tensor, whose value torch would ask for: torch's
        optimizers count steps in tensors where they are compiled. None for other calls."""
        factor = self.t.values.real(kwargs["value"]) if set(kwargs) == {"value"} else None
        if method not in SCALED or not isinstance(factor, TensorVar) or factor.fake.dim() or len(args) != 3:
            return None
        product = self.call_tensor_op(SCALED[method], args[1:], {})
        product = self.call_tensor_op(torch.mul, [product, factor], {})
        return self.call_tensor_op(torch.Tensor.add_ if method.endswith("_") else torch.Tensor.add, [args[0], product], {})

    def run_fake(self, fn, args, kwargs):
        try:
            if self.t.sizes.env is not None and any(map(is_symbolic, numbers_in((args, kwargs)))):
                return self.t.sizes.run_symbolic(fn, args, kwargs)
            with self.t.fake_mode:
                return fn(*args, **kwargs)
        except DataDependent as e:
            raise NeedsValue(f"{self.op_name(fn)} needs a tensor's value ({e})") from None
        except NoFake as e:
            raise Break(f"{self.op_name(fn)}: {e}") from None
        except Break:
            raise
        except Exception as e:
            # with known sizes it may pass; else eager raises as well: the original code does so, with the user's traceback
            if self.t.sizes.env is not None:
                self.t.sizes.refuse_symbols((args, kwargs))
            raise Break(f"{self.op_name(fn)} raises {type(e).__name__}: {str(e)[:200]}") from None

    def op_name(self, fn) -> str:
        return getattr(fn, "__name__", None) or str(fn)

    def method_name(self, fn, args: list[Var]) -> str | None:
        """The name under which to record a Tensor method, None for functions."""
        name = getattr(fn, "__name__", None)
        if name is None or not args or not isinstance(args[0], TensorVar):
            return None
        if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)) or (
                isinstance(fn, types.FunctionType) and torch.Tensor.__dict__.get(name) is fn):
            return name
        return None

    def add_node(self, fn, method, args, kwargs) -> torch.fx.Node:
        self.t.effects.mutations += 1
        if method is not None:
            node = self.t.graph.call_method(method, args, kwargs)
        else:
            node = self.t.graph.call_function(fn, args, kwargs)
        node.meta["where"] = self.where()
        if self.t.manner is not None:
            node.meta["manner"], self.t.manner = self.t.manner, None
        if method is None and is_program_code(fn):
            self.t.catches = self.t.catches or self.in_try()
        return node

    def in_try(self) -> bool:
        """Whether a handler of the code that is traced catches what the present instruction raises."""
        frame = self.t.frame
        while frame is not None:
            if frame.decoded.handlers[frame.decoded.ins[frame.ip].index] is not None:
                return True
            frame = frame.parent
        return False

    def where(self) -> Where:
        """The user's line: the innermost frame outside torch."""
        frame = self.t.frame
        while frame.parent is not None and frame.globals.get("__name__", "").startswith("torch."):
            frame = frame.parent
        key = (frame.code.co_filename, frame.line, frame.code.co_qualname)
        found = self.t.places.get(key)
        if found is None:
            found = self.t.places[key] = Where(*key)
        return found

    def effect_only(self, fn, method, args, kwargs) -> Var:
        """A call for its effect: x[i] = y, a foreach op."""
        node = self.add_node(fn, method, args, kwargs)
        node.meta["val"] = None
        return NONE

    def makes_tensors(self, result) -> bool:
        if isinstance(result, torch.Tensor):
            return True
        return isinstance(result, (tuple, list)) and not isinstance(result, torch.Size) and any(map(self.makes_tensors, result))

    def wrap_result(self, node, result) -> Var:
        if isinstance(result, torch.Tensor):
            known = self.t.by_fake.get(id(result))
            if known is not None:                       # in-place: the tensor itself, now made by this node
                known.node = node if known.source is None else known.node
                return known
            if not isinstance(result, Fake):
                raise Break(f"an operation that makes a {type(result).__name__}")
            var = TensorVar(node, result)
            self.t.by_fake[id(result)] = var
            return var
        if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
            items = []
            for i, part in enumerate(result):
                if self.makes_tensors(part):
                    known = self.t.by_fake.get(id(part))
                    if known is not None:
                        items.append(known)
                        continue
                    child = self.t.graph.call_function(operator.getitem, (node, i))
                    child.meta["val"], child.meta["where"] = part, node.meta["where"]
                    items.append(self.wrap_result(child, part))
                else:
                    items.append(self.t.calls.model(part))
            return SeqVar(items, type(result))
        return self.t.calls.model(result)

    def to_node_arg(self, v: Var):
        """A Var as an argument of an FX node. Raises: NotConstant."""
        v = self.t.values.real(v)
        if isinstance(v, TensorVar):
            if v.node is None and v.cls is None:
                raise Break("a tensor that left the function transform in which it was made")
            if v.node is None:
                raise Break(f"a tensor of the subclass {v.cls.__name__}, which has a __torch_dispatch__")
            return v.node
        if type(v := plain_number(self.t, v)) is SymVar:
            return self.t.sizes.number_node(v.value)
        if isinstance(v, Known):
            if type(v.obj) in numpy_types.SCALARS:
                value = v.obj.item()
                if type(value) is bool:
                    raise Break("a NumPy bool given to an operation, which takes some of them for floats", "give bool(x)")
                return value
            if isinstance(v.obj, enum.Enum):        # a graph's text cannot spell a member
                plain = next((c for c in PLAIN_VALUE if isinstance(v.obj, c)), None)
                return v.obj if plain is None else PLAIN_VALUE[plain](v.obj)
            if isinstance(v.obj, type) and v.obj in PYTHON_DTYPES:
                return PYTHON_DTYPES[v.obj]         # a graph's text cannot spell a class
            if is_constant(v.obj) or isinstance(v.obj, (type, types.ModuleType, types.BuiltinFunctionType)):
                return v.obj
            raise NotConstant(repr(v))
        if isinstance(v, SeqVar):
            items = [self.to_node_arg(e) for e in v.items]
            if hasattr(v.cls, "_fields"):
                return v.cls(*items)
            return items if v.cls is list else tuple(items)
        if isinstance(v, SliceVar):
            return slice(*(self.to_node_arg(p) for p in v.parts))
        if isinstance(v, DictVar):
            self.t.values.complete(v)
            return {self.t.const(k): self.to_node_arg(e) for k, e in v.items.values()}
        if isinstance(v, InstanceVar) and v.base is not None and not isinstance(v.base, DictVar):
            return self.to_node_arg(v.base)
        return to_python(self.t, v)

    def tensor_truth(self, v: TensorVar) -> bool:
        known = self.t.tensor_values.python_value(v, bool)
        if known is not None:
            return known.obj
        raise Break("a tensor decides a branch", "use torch.where, or let this block run in the original code")

    # ---- attributes -----------------------------------------------------------------------------------------------------
    def tensor_getattr(self, v: TensorVar, name: str) -> Var:
        if name in v.attrs:
            return v.attrs[name]
        if name == "__class__":
            return Known(self.t.type_of(v))
        if (self.t.overrides.modes or v.cls not in NONE_OVERRIDES) and (
            own := self.t.overrides.subclass_getattr(v, name)
        ) is not None:
            return own
        if name == "grad":
            if v.source is not None:
                return self.t.values.memo_lazy(("grad", id(v)), v.real.grad, lambda: TensorGrad(v.source))
            return NONE
        if name in ("grad_fn", "_backward_hooks"):
            if name == "grad_fn" and v.fake.grad_fn is None and v.source is None:
                return NONE
            if name == "grad_fn" and v.source is not None:
                return self.t.values.memo_lazy(("grad_fn", id(v)), v.real.grad_fn, lambda: Attr(v.source, "grad_fn"))
            raise Break(f"a tensor's {name}")
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
            return self._tensor_property(v, name)
        return self.t.values.constant(getattr(v.fake, name))

    def _tensor_property(self, v: TensorVar, name: str) -> Var:
        if name == "is_leaf" and v.source is not None:
            return self.t.values.constant(v.real.is_leaf)
        if name == "_version":
            raise Break("a tensor's version")
        try:
            value = getattr(v.fake, name)
        except DataDependent:
            raise Break(f"a tensor's {name} needs its value") from None
        except (RuntimeError, NotImplementedError) as e:
            raise Break(f"a tensor's {name}: {e}") from None
        if isinstance(value, torch.Tensor):
            return self.call_tensor_op(getattr, [v, Known(name)], {})
        return self.t.calls.model(value)

    def _user_attribute(self, v: TensorVar, name: str) -> Var:
        """An attribute that someone set on the tensor, or that its class has."""
        if v.real is not None:
            if name in getattr(v.real, "__dict__", {}):
                return self.t.values.memo_lazy(("t", id(v), name), v.real.__dict__[name], lambda: Attr(v.source, name))
            if hasattr(type(v.real), name):
                raise Break(f"the attribute {name} of a {type(v.real).__name__}")
            self.t.guard("ATTR_ABSENT", v.source, name)
        raise self.t.attributes.no_attribute(self.t.type_of(v).__name__, name)

    def tensor_setattr(self, v: TensorVar, name: str, value: Var) -> None:
        value = self.t.values.real(value)
        if name == "data" and isinstance(value, TensorVar):
            self.set_data(v, value)
            return
        if name == "requires_grad" and isinstance(value, Known):
            self.call_tensor_op(torch.Tensor.requires_grad_, [v, value], {})
            return
        if name == "grad" and v.fake.requires_grad and v.fake.is_leaf and fits_as_grad(v, value):
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
        self.effect_only(set_data, None, (v.node, value.node), {})
        self.t.effects.data_set.append(v)


def set_data(x: torch.Tensor, value: torch.Tensor) -> None:
    """`x.data = value`, for a graph."""
    x.data = value


def fits_as_grad(v: TensorVar, value: Var) -> bool:
    """Whether torch takes `value` as the gradient of a tensor."""
    if not isinstance(value, TensorVar):
        return isinstance(value, Known) and value.obj is None
    a, b = v.fake.m, value.fake.m
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
