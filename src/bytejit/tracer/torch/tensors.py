"""Operations on tensors in a trace, as nodes of the graph. What needs a tensor's data breaks the graph."""

from __future__ import annotations

import collections
import enum
import operator
import types
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.graph_calls import said_of
from bytejit.common.overriding import TENSOR_CLASSES, is_composed
from bytejit.common.packed_objects import PackedCall
from bytejit.common.where import Where
from bytejit.compat import numpy_types
from bytejit.fake.composed import composed_in
from bytejit.fake.composites import composite_of
from bytejit.fake.sized import infer_sized
from bytejit.fake.tensor import DataDependent, Fake, NoFake
from bytejit.guards.references import PLAIN_VALUE
from bytejit.shapes.symbols import is_symbolic
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import NotConstant, is_c_enumeration, is_constant, to_python
from bytejit.tracer.core.descriptions import words
from bytejit.tracer.core.frame import Frame
from bytejit.tracer.core.operations import is_program_code, is_torch_python, plainly_given
from bytejit.tracer.core.read_values import Decides, refuse_reads
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import (
    NONE,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    Lazy,
    SeqVar,
    SliceVar,
    SymVar,
    TensorVar,
    Var,
    expect,
)
from bytejit.tracer.objects.own_methods import OF_NUMBERS, OF_SEQUENCES, answers
from bytejit.tracer.sizes.numbers import numbers_in
from bytejit.tracer.sizes.numpy_numbers import TAKE_BOOLS_FOR_FLOATS, numpy_bool, plain_index, plain_number
from bytejit.tracer.sizes.uniform_numbers import decided
from bytejit.tracer.sizes.unit_strides import READERS

from . import conjugate_views
from .float_parameters import as_floats
from .optimizers import with_tensor_factor
from .packed_objects import packed
from .warned import Warns, heard, heard_of

NEEDS_DATA = {
    "item",
    "tolist",
    "numpy",
    "__array__",
    "__bool__",
    "__int__",
    "__float__",
    "__complex__",
    "__index__",
    "data_ptr",
    "__contains__",
    "__dlpack__",
    "storage",
    "untyped_storage",
    "register_hook",
    "__reduce_ex__",
    "__deepcopy__",
    "retain_grad",
    "register_post_accumulate_grad_hook",
    "__repr__",
    "__str__",
    "__format__",
}
# of these, those that only read the value
READS_DATA = {"item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__"}
PUTS = torch.Tensor.index_put, torch.Tensor.index_put_
INDEXED = operator.getitem, operator.setitem, *PUTS
# methods that compute nothing when they return their own tensor
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


MAY_OVERRIDE = (TensorVar, InstanceVar, SeqVar, Lazy)  # a sequence may hold what does
NONE_OVERRIDES = (None, *TENSOR_CLASSES, torch.Size)


def as_operator(fn: Any) -> Any:
    """`x.__getitem__(i)` and `x.__setitem__(i, v)` are what `x[i]` and `x[i] = v` are."""
    if fn is torch.Tensor.__getitem__:
        return operator.getitem
    return operator.setitem if fn is torch.Tensor.__setitem__ else fn


def current_cuda(x: Any) -> bool:
    """Whether an argument names the current GPU: "cuda" without an index."""
    return type(x) is str and x == "cuda" or type(x) is torch.device and x.type == "cuda" and x.index is None


class NeedsValue(Break):
    """An operation on a tensor whose value decides what comes out."""


class Tensors(Component):
    """The part of the tracer that runs operations on tensors."""

    def call_tensor_op(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """Record fn(*args, **kwargs) as a node; a result without tensors is a constant. Raises: Break."""
        fn, args, kwargs = packed(self.t, as_operator(fn), [self.t.values.real(a) for a in args], kwargs)
        args, kwargs = plainly_given(fn, args, {k: self.t.values.real(v) for k, v in kwargs.items()})
        args, kwargs = as_floats(self.t, fn, args, kwargs)
        if "generator" in kwargs and (drawn := self.t.drawn_tensors.drawn(fn, args, kwargs)) is not None:
            return drawn
        if (
            self.t.overrides.modes
            or any(type(a) in MAY_OVERRIDE and getattr(a, "cls", None) not in NONE_OVERRIDES for a in (*args, *kwargs.values()))
        ) and (found := self.t.overrides.overridden(fn, args, kwargs)) is not None:
            return found
        if fn in INDEXED and isinstance(args[0], TensorVar) and len(args) > 1:
            args[1] = plain_index(self.t, args[1])
            if (picked := self.t.indexing.arrange(args, fn in PUTS)) is not None:
                return self.call_tensor_op(fn, picked, kwargs) if fn is operator.setitem else picked[0]
        method = self.method_name(fn, args)
        if method in NEEDS_DATA and isinstance(args[0], TensorVar):
            why = f"Tensor.{method}() needs a tensor's value"
            if method in READS_DATA and len(args) == 1:
                return self.t.reads.number(args[0], getattr(torch.Tensor, method), why)
            raise Break(why)
        if self.op_name(fn).rpartition(".")[2].strip("_") in TAKE_BOOLS_FOR_FLOATS:
            args, kwargs = [numpy_bool(a) for a in args], {k: numpy_bool(self.t.values.real(v)) for k, v in kwargs.items()}
        try:
            node_args = tuple(self.to_node_arg(a) for a in args)
            node_kwargs = {k: self.to_node_arg(v) for k, v in kwargs.items()}
        except NotConstant as e:
            if (found := self.followed(fn, args, kwargs)) is not None:  # it may call what it is given
                return found
            raise Break(f"{said_of(fn)} of {e}") from None
        if method == "cuda" or any(map(current_cuda, (*node_args, *node_kwargs.values()))):
            self.t.guards.add_state("cuda_device")
        fake_args, fake_kwargs = torch.fx.node.map_arg((node_args, node_kwargs), lambda n: n.meta["val"])
        try:
            result = self.run_fake(fn, fake_args, fake_kwargs, follows=True)
        except Warns:
            return self.followed(fn, args, kwargs)  # type: ignore[return-value]
        except NeedsValue:
            if (found := self.by_value(fn, method, args, kwargs)) is None:
                raise
            return found
        if not self.makes_tensors(result):
            if method in READERS:
                self.t.unit_strides.note_strides_read()
            return self.t.calls.model(result) if result is not None else self.effect_only(fn, method, node_args, node_kwargs)
        known = self.t.by_fake.get(id(result))
        if known is not None and known in args and method in MAY_RETURN_SELF:
            return known  # x.contiguous(), x.to(same): the very same tensor
        node = self.add_node(fn, method, node_args, node_kwargs)
        node.meta["val"] = result
        given = next((a for a, fake in zip(args, fake_args) if fake is result), None)  # foreach in place: the list itself
        return self.wrap_result(node, result) if given is None or isinstance(result, torch.Tensor) else given

    def by_value(self, fn: Any, method: str | None, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """An operation whose result the values of tensors decide, where these are known or counted by the graph; None where
        not."""
        if (scaled := with_tensor_factor(self.t, self.op_name(fn), args, kwargs)) is not None:
            return scaled
        again = [a if method and a is args[0] else self.t.tensor_values.sizes_by_value(a) for a in args]
        if fn in (operator.getitem, operator.setitem):
            again[1] = self.t.indexing.index_by_value(args, again[1], reads=fn is operator.getitem)
        named = {k: self.t.tensor_values.sizes_by_value(v) for k, v in kwargs.items()}
        if not all(map(operator.is_, (*again, *named.values()), (*args, *map(self.t.values.real, kwargs.values())))):
            return self.call_tensor_op(fn, again, named)
        counted = self.t.tensor_values.counted(fn, args, kwargs) or self.t.measures.measured_result(fn, args, kwargs)
        if counted is not None:
            return counted
        try:
            return self.followed(fn, args, kwargs)  # a value may only decide whether it raises: the graph checks that
        except Break:
            self.t.break_where, self.t.break_depth = None, 0  # the call breaks the graph, not what it calls
            return None

    def followed(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """The call of a function of torch's in Python, followed as any other function; None for others."""
        if not isinstance(fn, types.FunctionType) or not special_cases.TORCH_FUNCTIONS.made(fn):
            return None
        return self.t.calls.inline(expect(self.t.values.constant(fn), FuncVar), args, kwargs)

    def one_tensor(self, fn: Any, args: list[Var]) -> TensorVar:
        """`call_tensor_op` for an operation that returns one tensor. Raises: Break."""
        made = self.call_tensor_op(fn, args, {})
        assert isinstance(made, TensorVar), made
        return made

    def tensors_of(self, fn: Any, args: list[Var]) -> list[Var]:
        """`call_tensor_op` for an operation that returns several tensors. Raises: Break."""
        made = self.call_tensor_op(fn, args, {})
        assert isinstance(made, SeqVar), made
        return made.items

    def run_fake(self, fn: Any, args: tuple, kwargs: dict[str, Any], follows: bool = False) -> Any:
        """fn(*args, **kwargs) on fakes. Raises: NeedsValue, Break."""
        try:
            with heard(self.t):
                if self.t.composed_tensors.met and any(True for _ in composed_in((args, kwargs))) or type(fn) is PackedCall:
                    return self.t.composed_tensors.run(fn, args, kwargs)
                with heard_of(self.t, fn, follows):
                    if self.t.sizes.env is not None and any(map(is_symbolic, numbers_in((args, kwargs)))):
                        return self.t.size_inference.run_symbolic(fn, args, kwargs)
                    with self.t.fake_mode:
                        said = infer_sized(fn, args, kwargs)
                        return said[1] if said is not None else (composite_of(fn, args, kwargs) or fn)(*args, **kwargs)
        except DataDependent:
            raise NeedsValue(f"what {said_of(fn)} returns depends on a tensor's values") from None
        except NoFake as e:
            raise Break(f"{said_of(fn)}: {e}") from None
        except Break:
            raise
        except Exception as e:
            # with known sizes it may succeed; else eager raises too, and the original code does so with the user's traceback
            if self.t.sizes.env is not None:
                self.t.size_inference.refuse_symbols((args, kwargs))
            raise Break(f"{said_of(fn)} raises {type(e).__name__}: {str(e)[:200]}") from None

    def op_name(self, fn: Any) -> str:
        return getattr(fn, "__name__", None) or str(fn)

    def method_name(self, fn: Any, args: list[Var]) -> str | None:
        """The name under which a Tensor method is recorded; None for functions."""
        name = getattr(fn, "__name__", None)
        if name is None or not args or not isinstance(args[0], TensorVar):
            return None
        if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)) or (
            isinstance(fn, types.FunctionType) and torch.Tensor.__dict__.get(name) is fn
        ):
            return name
        return None

    def add_node(self, fn: Any, method: str | None, args: tuple, kwargs: dict[str, Any]) -> torch.fx.Node:
        late = self.t.context_variables.held or self.t.deferred.warns
        if method is None and late and is_program_code(fn) and not is_torch_python(fn):
            raise Break(f"{self.op_name(fn)} may read a context variable that was set, or warn of something itself")
        if method is None:
            self.t.program_operators.called(fn, self.op_name(fn))
        self.t.effects.mutations += 1
        if method is not None:
            node = self.t.graph.call_method(method, args, kwargs)
        else:
            node = self.t.graph.call_function(fn, args, kwargs)
        node.meta["where"] = self.where()
        if self.t.sizes.manner is not None:
            node.meta["manner"], self.t.sizes.manner = self.t.sizes.manner, None
        self.t.tried = self.t.tried or self.in_try(managers=False)
        if method is None and is_program_code(fn):
            self.t.catches = self.t.catches or self.in_try()
        return node

    def in_try(self, managers: bool = True) -> bool:
        """Whether a handler of the code that is traced catches what the present instruction raises. managers: the handlers of
        context managers count; else not where the function has no others."""
        frame = self.t.frame
        while frame is not None:
            decoded = frame.decoded
            if decoded.handlers[decoded.ins[frame.ip].index] is not None and (managers or decoded.catches):
                return True
            frame = frame.parent
        return False

    def users_frame(self) -> Frame:
        """The innermost frame outside torch."""
        frame = self.t.frame
        assert frame is not None, "nothing is being traced"
        while frame.parent is not None and not frame.users:
            frame = frame.parent
        return frame

    def where(self) -> Where:
        """The user's line."""
        frame = self.users_frame()
        key = (frame.code.co_filename, frame.line, frame.code.co_qualname)
        found = self.t.places.get(key)
        if found is None:
            found = self.t.places[key] = Where(*key)
        return found

    def effect_only(self, fn: Any, method: str | None, args: tuple, kwargs: dict[str, Any]) -> Var:
        """Record a call for its effect: x[i] = y, a foreach op."""
        node = self.add_node(fn, method, args, kwargs)
        node.meta["val"] = None
        return NONE

    def makes_tensors(self, result: Any) -> bool:
        if isinstance(result, torch.Tensor):
            return True
        return isinstance(result, (tuple, list)) and not isinstance(result, torch.Size) and any(map(self.makes_tensors, result))

    def wrap_result(self, node: torch.fx.Node, result: Any) -> Var:
        if isinstance(result, torch.Tensor):
            known = self.t.by_fake.get(id(result))
            if known is not None:  # in-place: the tensor itself, now made by this node
                known.node = node if known.source is None else known.node
                return known
            composed = not isinstance(result, Fake) and is_composed(type(result)) and hasattr(result, "m")
            if not composed and not isinstance(result, Fake):
                raise Break(f"an operation that makes a {type(result).__name__}")
            var = TensorVar(node, result, cls=type(result) if composed else None)
            self.t.by_fake[id(result)] = var
            return conjugate_views.of_hidden(self.t, var) if result.conjugated else var
        if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
            items: list[Var] = []
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

    def to_node_arg(self, v: Var) -> Any:
        """A Var as an argument of an FX node. Raises: NotConstant."""
        v = self.t.values.real(v)
        refuse_reads(v)
        if isinstance(v, TensorVar):
            if v.node is None:
                if v.cls is None:
                    raise Break("a tensor that left the function transform in which it was made")
                raise Break(f"a tensor of the subclass {v.cls.__name__}, which has a __torch_dispatch__")
            return v.node
        if type(v := plain_number(self.t, self.t.drawn.early(v))) is SymVar:
            return self.t.numbers.number_node(v.value)
        if isinstance(v, Known):
            if type(v.obj) in numpy_types.SCALARS:
                value = v.obj.item()
                if type(value) is complex and not isinstance(v.obj, complex):
                    raise Break("a NumPy complex64 as an argument of an operation: torch takes its real part", "pass complex(x)")
                if type(value) is bool:
                    raise Break(
                        "a NumPy bool as an argument of an operation: some operations take it for a float", "pass bool(x)"
                    )
                return value
            if isinstance(v.obj, enum.Enum):  # a graph's text cannot spell a member
                plain = next((c for c in PLAIN_VALUE if isinstance(v.obj, c)), None)
                return v.obj if plain is None else PLAIN_VALUE[plain](v.obj)
            if is_constant(v.obj) and not is_c_enumeration(type(v.obj)):
                return v.obj
            raise NotConstant(words(v))  # a graph's text cannot spell a class, a module, a function, an enumeration of C's
        if isinstance(v, SeqVar):
            if v.cls is collections.deque:  # torch takes it for a sequence, but not for sizes
                raise NotConstant(words(v))
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
            # torch may ask it, or not: that differs between operations
            if answers(v, ("__getitem__",) if isinstance(v.base, Known) else (*OF_SEQUENCES, *OF_NUMBERS)):
                raise Break(f"a {v.cls.__name__}, a sequence of its own kind, given to an operation")
            return self.to_node_arg(v.base)
        return to_python(self.t, v)

    def tensor_truth(self, v: TensorVar) -> bool:
        checked = self.t.checks.checked_truth(v)
        if checked is not None:
            return checked
        known = self.t.tensor_values.python_value(v, bool)
        if known is not None:
            return self.t.const(known)
        if (sure := decided(v)) is not None:
            return sure
        raise Decides("a tensor decides a branch", "use torch.where, or let this block run in the original code")
