"""numpy arrays made in the trace from known values: numpy itself computes them while tracing.

An array that leaves the region is copied anew at each call. An array that came to share memory with a tensor, or an
array from outside, is not known here: code that reads it breaks the graph.
"""

from __future__ import annotations

import types
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.dtypes import INDEX_DTYPES
from bytejit.compat import numpy_types
from bytejit.shapes.symbols import hint
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import NotConstant, to_python
from bytejit.tracer.core.descriptions import words
from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.numpy_values import ArrayVar, NumpyVar, TensorArrayVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, NONE, TRUE, DictVar, FuncVar, Known, SeqVar, SymVar, TensorVar, Var, is_object
from bytejit.tracer.objects.argument_counts import describe
from bytejit.tracer.sizes.listed_numbers import tensor_made_anew
from bytejit.tracer.sizes.numpy_numbers import plain_number

from .traced_arrays import OF_TENSORS

# functions of numpy that read or write files, set numpy's own state, or call back
NOT_FOLDED = set(
    """load save savez savez_compressed savetxt loadtxt genfromtxt fromfile fromregex memmap set_printoptions
    get_printoptions seterr geterr seterrcall geterrcall setbufsize getbufsize info show_config show_runtime test
    frompyfunc apply_along_axis apply_over_axes piecewise fromfunction fromiter frombuffer from_dlpack
    get_include""".split()
)
FIELDS = {"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "T", "mT", "real", "imag"}
NOT_FOLDED_METHODS = {
    "tofile",
    "dump",
    "dumps",
    "setflags",
    "__reduce__",
    "__reduce_ex__",
    "__setstate__",
    "__array_wrap__",
    "__array_finalize__",
    "__array_ufunc__",
    "__array_function__",
    "__array_interface__",
    "__dlpack__",
    "__new__",
    "__getattribute__",
    "__setattr__",
    "__delattr__",
    "__init__",
    "__iter__",
    "byteswap",
}
# methods that return a Python number, or nothing, and leave the array as it is
READERS = {
    "item",
    "tolist",
    "tobytes",
    "__len__",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__complex__",
    "__contains__",
    "__str__",
    "__repr__",
    "__format__",
    "any",
    "all",
}
INDICES = (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64)  # of an array that indexes a tensor
LARGEST = 4096  # items of an array that becomes a tensor of the graph


class Arrays(Component):
    """The part of the tracer that deals in numpy arrays."""

    def array(self, real: Any) -> Var:
        """The Var of an array that belongs to the trace."""
        if real.dtype.hasobject or type(real) is not numpy_types.ARRAY:
            raise Break(f"a numpy array of {real.dtype}" if real.dtype.hasobject else f"a {type(real).__name__}")
        known = self.t.arrays.get(id(real))
        if known is None:
            known = self.t.arrays[id(real)] = ArrayVar(real, self.t.limits.steps)
        return known

    def array_call(self, function: Callable, args: list[Var], kwargs: dict[str, Var] | None = None) -> Var:
        """function(*args, **kwargs) of numpy, now. Raises: Break where a value is not known, Raised with numpy's exception."""
        if self.t.traced_arrays.is_traced([*args, *(kwargs or {}).values()]) or of_a_tensor(self.t, function, args):
            return self.t.traced_arrays.call(function, args, kwargs or {})
        try:
            real_args = [to_python(self.t, a) for a in args]
            real_kwargs = {k: to_python(self.t, v) for k, v in (kwargs or {}).items()}
        except NotConstant as e:
            raise Break(f"a call of {describe(function)} with {e}") from None
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                result = function(*real_args, **real_kwargs)
            except Exception as e:
                raise self.t.raised(e) from None
        if said:
            raise Break(f"{describe(function)} warns: {said[0].message}")
        if getattr(function, "__name__", "") not in READERS:
            self.t.effects.mutations += 1  # it may have written an array
        return self.array_result(result)

    def array_result(self, value: Any) -> Var:
        if isinstance(value, numpy_types.ARRAY):
            return self.array(value)
        if type(value) in (list, tuple) and any(isinstance(v, numpy_types.ARRAY) for v in value):
            return SeqVar([self.array_result(v) for v in value], type(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return SeqVar([self.array_result(v) for v in value], type(value))
        if isinstance(value, dict) and any(isinstance(v, numpy_types.ARRAY) for v in value.values()):
            return DictVar({k: (Known(k), self.array_result(v)) for k, v in value.items()})
        return self.t.calls.model(value)

    def array_getattr(self, v: ArrayVar, name: str) -> Var | None:
        """An attribute that is known, None for what is looked up on the class."""
        if type(v) is TensorArrayVar and (name in FIELDS or vars(numpy_types.ARRAY).get(name) is None):
            return self.t.traced_arrays.attribute(v, name)
        if name in FIELDS:
            return self.array_call(lambda a: getattr(a, name), [v])
        if isinstance(vars(numpy_types.ARRAY).get(name), types.GetSetDescriptorType):
            raise Break(f"reading the attribute {name} of a numpy array")
        return None

    def tensor_of_sizes(self, v: Var, options: dict[str, Var]) -> Var | None:
        """torch.tensor(v, **options) of numbers, or of nested lists of them, of which some are symbolic: torch.tensor would need
        their values. None where none is, or where it is something else."""
        v = plain_number(self.t, self.t.values.real(v))
        leaf = "requires_grad" in options and self.t.comparisons.truth(options["requires_grad"])
        options = {k: o for k, o in options.items() if k != "requires_grad"}
        if leaf:
            made = self.tensor_of_sizes(v, options)
            return made and self.t.tensors.call_tensor_op(torch.Tensor.requires_grad_, [made], {})
        if type(v) is SymVar:
            return self.t.tensors.call_tensor_op(torch.full, [SeqVar([], tuple), v], options)
        found = self._numbers_in(v)
        if found is None:
            return None
        shape, items = found
        if not any(type(x) is SymVar for x in items) or any(self.t.numbers.number_of(x) is None for x in items):
            return None
        if "dtype" not in options:
            kinds = {type(hint(self.t.numbers.number_of(x))) for x in items}
            options = {**options, "dtype": Known(torch.get_default_dtype() if float in kinds else torch.int64)}
        ones = [self.t.tensors.call_tensor_op(torch.full, [SeqVar([], tuple), x], options) for x in items]
        made = self.t.tensors.call_tensor_op(torch.stack, [SeqVar(ones, list)], {})
        return made if len(shape) == 1 else self.t.tensors.call_tensor_op(torch.Tensor.view, [made, *map(Known, shape)], {})

    def _numbers_in(self, v: Var) -> tuple[list[int], list[Var]] | None:
        """The shape of nested lists, and what is in them, in order; None where they are of unlike lengths, or empty."""
        if not isinstance(v, SeqVar) or v.cls not in (list, tuple, torch.Size) or not v.items:
            return None
        items = [plain_number(self.t, self.t.values.real(x)) for x in v.items]
        if not any(isinstance(x, SeqVar) for x in items):
            return [len(items)], items
        rows = [self._numbers_in(x) for x in items]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows) or any(shape != known[0][0] for shape, _ in known):
            return None
        return [len(rows), *known[0][0]], [x for _, row in known for x in row]

    def as_index(self, v: ArrayVar) -> Var:
        """Convert an array that indexes a tensor into a tensor. Integers become int64, as torch has it. Arrays of other
        dtypes, and arrays without dimensions, are returned unchanged."""
        if type(v) is TensorArrayVar and v.cls is not numpy_types.ARRAY:
            return v
        of = self.t.traced_arrays.tensor(v).fake if type(v) is TensorArrayVar else numpy_types.as_tensor(v.array)
        if of is None or not of.dim() or of.dtype not in INDICES:
            return v
        made = self.t.calls.call_python(torch.tensor, [v])
        return made if of.dtype in (torch.int64, torch.bool) else self.t.calls.call_python(torch.Tensor.long, [made])

    def array_to_tensor(self, v: ArrayVar) -> list:
        """The items as nested lists, for a tensor of the graph. Raises: Break."""
        if v.array.size > LARGEST or v.array.size == 0:
            raise Break(f"a numpy array of {v.array.size} items made a tensor")
        if v.shared:
            raise Break("a numpy array that shares memory with a tensor")
        return v.array.tolist()


def of_a_tensor(t: Tracer, function: Callable, args: list[Var]) -> bool:
    """Whether an array is to be made of a tensor."""
    return getattr(function, "__name__", "") in OF_TENSORS and bool(args) and isinstance(t.values.real(args[0]), TensorVar)


def numpy_dtype(t: Tracer, v: Var | None) -> torch.dtype | None:
    """The dtype of a tensor made of a NumPy scalar, or of a list of them; None for other data. Raises: Break."""
    v = t.values.real(v) if v is not None else None
    if isinstance(v, SeqVar) and v.cls in (list, tuple):
        found = [numpy_dtype(t, x) for x in v.items]
        if any(found) and len({*found}) > 1:
            raise Break("a tensor made of NumPy numbers among others")
        return found[0] if found else None
    if not isinstance(v, Known) or t.type_of(v) not in numpy_types.SCALARS:
        return None
    try:
        return torch.tensor(v.real if type(v) is NumpyVar else v.obj).dtype
    except (TypeError, ValueError) as e:
        raise t.raised(e) from None


def with_dtype(t: Tracer, v: Var | None, args: list[Var], named: dict[str, Var]) -> dict[str, Var]:
    """The keywords of torch.tensor and the like, with the dtype that NumPy numbers in the data have where none is given."""
    given = named.get("dtype")
    if given is not None and not t.comparisons.is_same(given, NONE) or (dtype := numpy_dtype(t, v)) is None:
        return named
    return {**named, "dtype": Known(dtype)}


def without_numpy_bools(t: Tracer, v: Var) -> Var:
    """A number, or a list of them, with NumPy's bools as Python's: beside its dtype, data says the same with both."""
    v = t.values.real(v)
    if isinstance(v, SeqVar) and v.cls in (list, tuple):
        items = [without_numpy_bools(t, x) for x in v.items]
        return v if all(a is t.values.real(b) for a, b in zip(items, v.items)) else SeqVar(items, v.cls)
    if isinstance(v, Known) and type(v.obj) in numpy_types.SCALARS and type(value := v.obj.item()) is bool:
        return t.values.constant(value)
    return v


def with_lists(t: Tracer, v: Var) -> Var:
    """Data for a tensor, deques in it as lists."""
    v = t.values.real(v)
    if not isinstance(v, SeqVar) or v.cls not in (list, tuple, deque):
        return v
    items = [with_lists(t, x) for x in v.items]
    same = v.cls is not deque and all(a is t.values.real(b) for a, b in zip(items, v.items))
    return v if same else SeqVar(items, tuple if v.cls is tuple else list)


def _tensor_of(function: Callable, shares: bool) -> None:
    def make(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if len(args) == 1 and function is not torch.from_numpy:
            anew = tensor_made_anew(t, t.values.real(args[0]), kwargs)
            if anew is not None:
                return anew
        args = [with_lists(t, args[0]), *args[1:]] if args else args
        v = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        if type(v) is TensorArrayVar:
            alias = t.calls.call_python(torch.Tensor.detach, [t.traced_arrays.tensor(v)])
            named = {k: a for k, a in kwargs.items() if k not in ("data", "obj")}
            if function is torch.from_numpy:
                return alias
            if function is torch.tensor and "pin_memory" not in named:  # which warns of a tensor
                return t.tensors.call_tensor_op(torch.asarray, [alias, *args[1:]], {**named, "copy": TRUE})
            return t.tensors.call_tensor_op(function, [alias, *args[1:]], named)
        if not isinstance(v, ArrayVar):
            if function is torch.from_numpy:
                raise Break(f"torch.from_numpy of {words(v) if v is not None else 'nothing'}")
            plain = (
                function in (torch.tensor, torch.as_tensor) or function is torch.asarray and kwargs.keys() <= {"dtype", "device"}
            )
            if v is not None and plain and len(args) == 1:
                kwargs = with_dtype(t, v, args, kwargs)
                made = t.numpy_arrays.tensor_of_sizes(v, kwargs)
                if made is not None:
                    return made
            named = with_dtype(t, v, args, kwargs)
            return t.tensors.call_tensor_op(function, [without_numpy_bools(t, a) for a in args[:1]] + args[1:], named)
        try:
            dtype = torch.from_numpy(v.array).dtype
        except TypeError as e:
            raise t.raised(e) from None
        data = t.calls.model(t.numpy_arrays.array_to_tensor(v))
        if shares:
            for other in t.arrays.values():
                if numpy_types.may_share_memory(other.array, v.array):
                    other.shared = True
            t.effects.mutations += 1
        named = {k: a for k, a in kwargs.items() if k not in ("data", "obj")}
        if "dtype" not in named or is_object(named["dtype"], None):
            named["dtype"] = Known(dtype)
        return t.tensors.call_tensor_op(torch.tensor, [data, *args[1:]], named)

    MODELS[function] = make


for _function, _shares in ((torch.tensor, False), (torch.as_tensor, True), (torch.asarray, True), (torch.from_numpy, True)):
    _tensor_of(_function, _shares)


@models(torch.Tensor.new_tensor)
def new_tensor(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    of, options = args[0], {k: v for k, v in kwargs.items() if k != "data"}
    data = args[1] if len(args) == 2 else kwargs.get("data") if len(args) == 1 else None
    if data is not None and isinstance(of, TensorVar) and "requires_grad" not in options:
        like = {"dtype": Known(of.fake.dtype), "device": Known(of.fake.device)}
        made = t.numpy_arrays.tensor_of_sizes(
            data, {**like, **{k: v for k, v in options.items() if not t.comparisons.is_same(v, NONE)}}
        )
        if made is not None:
            return made
    return t.tensors.call_tensor_op(torch.Tensor.new_tensor, args, kwargs)


@models(torch.Tensor.numpy)
def to_numpy(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if len(args) != 1 or any(not t.comparisons.is_same(v, FALSE) for v in kwargs.values()) or not isinstance(args[0], TensorVar):
        raise Break("Tensor.numpy() with force")
    return t.traced_arrays.of_tensor(args[0])


@models(torch.Tensor.new)
def new(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """x.new(*sizes), where a torch.Size says sizes too: in a graph it would be a tuple, and that says data."""
    given = args[1:]
    if kwargs or given and not isinstance(args[0], TensorVar):
        raise Break("Tensor.new with options")
    if len(given) == 1 and isinstance(given[0], SeqVar) and given[0].cls is torch.Size:
        given = given[0].items
    if all(t.numbers.number_of(t.values.real(n)) is not None for n in given):
        return t.tensors.call_tensor_op(
            torch.Tensor.new_empty, [args[0], SeqVar(list(given) or [t.values.constant(0)], tuple)], {}
        )
    return t.tensors.call_tensor_op(torch.Tensor.new, args, {})


def places_of(indices: Any, shape: tuple) -> Any:
    """torch.unravel_index, for sizes that are symbolic: tensors are made of them."""
    sizes, steps = list(shape), [1]
    for n in reversed(sizes[1:]):
        steps.insert(0, steps[0] * n)
    steps, sizes = (torch.tensor(v, device=indices.device, dtype=torch.int64) for v in (steps, sizes))
    return (indices.unsqueeze(-1).floor_divide(steps) % sizes).unbind(-1)


@models(torch.unravel_index)
def unravel_index(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    indices, shape = (*args, *kwargs.values())[:2] if len(args) + len(kwargs) == 2 and "indices" not in kwargs else (None, None)
    sizes = [t.values.real(n) for n in shape.items] if isinstance(shape, SeqVar) else []
    if (
        any(type(n) is SymVar for n in sizes)
        and all(t.numbers.number_of(n) is not None for n in sizes)
        and isinstance(shape, SeqVar)
        and isinstance(indices, TensorVar)
        and indices.fake.dtype in INDEX_DTYPES
    ):
        function = t.values.constant(places_of)
        assert isinstance(function, FuncVar), function
        return t.calls.inline(function, [indices, shape], {})
    return t.tensors.call_tensor_op(torch.unravel_index, args, kwargs)


def _folded(function: Callable) -> None:
    MODELS[function] = lambda t, args, kwargs: t.numpy_arrays.array_call(function, args, kwargs)


for _space in numpy_types.namespaces():
    for _name, _value in _space.items():
        if callable(_value) and not isinstance(_value, type) and not _name.startswith("_") and _name not in NOT_FOLDED:
            _folded(_value)
for _name, _value in vars(numpy_types.ARRAY).items():
    if isinstance(_value, (types.MethodDescriptorType, types.WrapperDescriptorType)) and _name not in NOT_FOLDED_METHODS:
        _folded(_value)
