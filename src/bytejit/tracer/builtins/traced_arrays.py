"""NumPy in the graph: arrays made of tensors, arrays from outside, and what NumPy computes of them, as operations on tensors.

torch ships tensor versions of NumPy's functions. Where one is met in a trace, NumPy itself and the version are both tried on
made-up arrays of the same shapes, strides and types: the version is used where results, types, memory and writes are the same (up
to what `Fit` mends), and the graph breaks elsewhere. NumPy's warnings of values (a division by 0) are not given by a graph.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.common.numpy_calls import OWN, Fit, NumpyCall, Slot, filled, tensor_version, tensors_of, versions
from bytejit.common.spec import same_places, span_of
from bytejit.compat import numpy_types
from bytejit.guards.sources import Computed, Ref, Source
from bytejit.shapes.symbols import hint
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.numpy_values import ArrayVar, TensorArrayVar
from bytejit.tracer.core.signals import Break, CannotReconstruct
from bytejit.tracer.core.values import DictVar, Known, SeqVar, SliceVar, TensorVar, Var
from bytejit.tracer.objects.argument_counts import describe

LARGEST_TRIAL = 4_000_000  # elements of the arguments of a call that is tried
OF_TENSORS = frozenset(
    ("asarray", "array", "asanyarray", "ascontiguousarray")
)  # functions that take tensors and make arrays of them
# functions that read the value -> the same function of a tensor
READERS: dict[str, Callable] = {
    "item": torch.Tensor.item,
    "tolist": torch.Tensor.tolist,
    "__float__": float,
    "__int__": int,
    "float": float,
    "int": int,
    "__index__": operator.index,
    "__bool__": bool,
    "bool": bool,
    "__len__": len,
    "len": len,
}
LOOKS = frozenset(("shape", "ndim"))  # functions that tell what the attributes of their names do
UNSET = frozenset(("empty", "empty_like"))  # functions whose results hold nothing yet
# what the made-up arrays hold
FILLINGS = ("numbers of both signs", "zeros and ones", "ones", "positive definite matrices", "nan and infinities")


DETACH: Any = torch.Tensor.detach


def as_traced(v: Var) -> TensorArrayVar:
    """An array that the graph computes. Raises: Break."""
    if not isinstance(v, TensorArrayVar):
        raise Break("a NumPy function of a value that is not an array of the graph")
    return v


class TracedArrays(Component):
    """The part of the tracer that computes NumPy's arrays in the graph."""

    first_step = 0  # when an array from outside was first looked into

    # ---- arrays of tensors, tensors of arrays --------------------------------------------------------------------------------
    def of_tensor(self, v: TensorVar) -> TensorArrayVar:
        """The array that shares a tensor's memory. Raises: Break."""
        fake = v.fake
        if (
            fake.device.type != "cpu"
            or fake.requires_grad
            or self.t.type_of(v) is not torch.Tensor
            or fake.is_conj()
            or fake.is_neg()
        ):
            raise Break("Tensor.numpy() of a tensor that NumPy does not take")
        if fake.dtype not in numpy_types.OF_TORCH:
            raise Break(f"Tensor.numpy() of {fake.dtype}")
        alias = self.t.tensors.one_tensor(DETACH, [v])
        return TensorArrayVar(alias, numpy_types.ARRAY, None, self.t.limits.steps)

    def from_outside(self, real: Any, source: Source) -> TensorArrayVar:
        """An array of the program's."""
        return TensorArrayVar(None, numpy_types.ARRAY, source, self.t.limits.steps, real)

    def tensor(self, v: TensorArrayVar) -> TensorVar:
        """The tensor that stands for an array; one from outside becomes an input. Raises: Break."""
        if v.tensor is None:
            tensor = numpy_types.as_tensor(v.real)
            if tensor is None:
                raise Break(f"an array of {v.real.dtype} from outside that cannot be a tensor")
            self.first_step = self.first_step or self.t.limits.steps
            self.t.keep.append(tensor)
            source = Computed(Ref.strong(numpy_types.as_tensor, "torch.from_numpy"), (v.origin,))
            v.tensor = self.t.tensor_inputs.tensor(tensor, source)
        return v.tensor

    def check_writes(self, written: bool) -> None:
        """Raises: CannotReconstruct where the graph writes an input whose memory an array from outside may share. Allowed
        only while the trace has read no values of tensors."""
        if written and self.first_step and self.t.by_value:
            raise CannotReconstruct("a write beside an array from outside, which may share its memory,", self.first_step)

    # ---- calls -----------------------------------------------------------------------------------------------------------------
    def is_traced(self, values: Any) -> bool:
        """Whether some value is, or holds, an array that the graph computes."""
        for v in map(self.t.values.real, values):
            if type(v) is TensorArrayVar or isinstance(v, SeqVar) and self.is_traced(v.items):
                return True
            if isinstance(v, SliceVar) and self.is_traced(v.parts):
                return True
        return False

    def call(self, function: Callable, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """function(*args, **kwargs) of NumPy, in the graph. Raises: Break."""
        name = getattr(function, "__name__", "")
        if name in READERS and not kwargs and len(args) == 1:
            return self.t.calls.call_python(READERS[name], [self.tensor(as_traced(self.t.values.real(args[0])))])
        if name in LOOKS and space_of(function) == "" and len(args) == 1:
            return self.attribute(as_traced(self.t.values.real(args[0])), name)
        version = version_of(function)
        if version is None:
            raise Break(f"a call of {describe(function)}, which has no tensor version,")
        return self.computed(name, function, version, args, kwargs)

    def computed(self, name: str, function: Callable, version: Callable, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """The results of a call, as a node, or None for one that only writes."""
        slots: list[tuple[TensorVar, type, bool]] = []
        real = [self._template(v, slots, name) for v in args], {k: self._template(v, slots, name) for k, v in kwargs.items()}
        trial = Trial(function, version, real, slots)
        trial.run()
        target = NumpyCall(name.strip("_") or "call", describe(function), version, *trial.renamed, trial.fits)
        nodes = tuple(v.node for v, *_ in slots)
        made = self.t.tensors.run_fake(target, tuple(v.fake for v, *_ in slots), {})
        if made is None:
            self.t.tensors.effect_only(target, None, nodes, {})
            return self._returned(trial, slots, args)
        for x, (shape, stride) in zip(made, trial.layouts, strict=True):
            if tuple(map(hint, x.shape)) != shape or not same_places(shape, tuple(map(hint, x.stride())), stride):
                raise Break(f"a call of {describe(function)}, whose result has other strides in a graph,")
        node = self.t.tensors.add_node(target, None, nodes, {})
        node.meta["val"] = made
        results = self.t.tensors.wrap_result(node, made)
        assert isinstance(results, SeqVar), results
        tensors = map(self.t.values.real, results.items)
        return self._wrapped(trial.result, tensors)

    def _returned(self, trial: Trial, slots: list[tuple[TensorVar, type, bool]], args: list[Var]) -> Var:
        """What a call returns that makes nothing: None, or one of its arguments; of a tensor, the array over its memory."""
        if trial.returned is None:
            return self.t.values.constant(None)
        given = self.t.values.real(args[trial.returned])
        if not isinstance(given, TensorVar):
            return given
        slot = trial.template[0][trial.returned]
        return TensorArrayVar(slots[slot.index][0], numpy_types.ARRAY, None, self.t.limits.steps)

    def _wrapped(self, result: Any, tensors: Any) -> Var:
        if isinstance(result, (list, tuple)):
            return SeqVar([self._wrapped(part, tensors) for part in result], type(result))
        made = TensorArrayVar(next(tensors), type(result), None, self.t.limits.steps)
        made.read_only = type(result) is numpy_types.ARRAY and not numpy_types.is_writeable(result)
        return made

    def _template(self, v: Var, slots: list, name: str) -> Any:
        """An argument with slots for tensors. Raises: Break."""
        v = self.t.values.real(v)
        kind, read_only = None, False
        if type(v) is TensorArrayVar:
            kind, read_only, v = v.cls, v.read_only, self.tensor(v)
        elif isinstance(v, ArrayVar):
            kind, v = numpy_types.ARRAY, self.t.values.real(self.t.calls.call_python(torch.from_numpy, [v]))
        elif isinstance(v, Known) and type(v.obj) in numpy_types.NUMBERS:
            kind = type(v.obj)
            v = self.t.calls.call_python(torch.tensor, [v])
        elif isinstance(v, TensorVar) and name in OF_TENSORS:
            kind, v = numpy_types.ARRAY, self.tensor(self.of_tensor(v))
        if kind is not None:
            slots.append((v, kind, read_only))
            return Slot(len(slots) - 1)
        if isinstance(v, SeqVar) and v.cls in (list, tuple, torch.Size):
            return (list if v.cls is list else tuple)(self._template(x, slots, name) for x in v.items)
        if isinstance(v, SliceVar):
            return slice(*(self._template(x, slots, name) for x in v.parts))
        if isinstance(v, (TensorVar, DictVar)):
            raise Break(f"a call of NumPy's {name} with a {self.t.type_of(v).__name__}")
        return self.t.const(v)

    # ---- attributes -------------------------------------------------------------------------------------------------------
    def attribute(self, v: TensorArrayVar, name: str) -> Var:
        """An attribute that says what an array looks like, or is a view of it. Raises: Break."""
        x = self.tensor(v)
        if name == "shape":
            return SeqVar(self.t.iteration.iterate(self.t.attributes.getattr(x, name)), tuple)
        if name == "ndim":
            return self.t.attributes.getattr(x, name)
        if name == "size":
            return self.t.calls.call_python(torch.Tensor.numel, [x])
        if name in ("dtype", "itemsize"):
            dtype = numpy_types.OF_TORCH[x.fake.dtype]
            return self.t.values.constant(dtype if name == "dtype" else dtype.itemsize)
        if name in ("T", "real", "imag"):
            get = operator.attrgetter(name)
            return self.computed(name, get, get, [v], {})
        raise Break(f"reading the attribute {name} of a numpy array")


class Trial:
    """A call of NumPy and its version, on made-up arrays. After `run`: what NumPy gave, and what makes the version's the same."""

    def __init__(self, function: Callable, version: Callable, template: tuple[list, dict], slots: list) -> None:
        self.function, self.version, self.template = function, version, template
        self.renamed = tuple(renamed(v) for v in template[0]), {k: renamed(v) for k, v in template[1].items()}
        self.specs = [(tuple(map(hint, v.fake.shape)), tuple(map(hint, v.fake.stride())), v.fake.dtype) for v, *_ in slots]
        self.kinds = [kind for _, kind, _ in slots]
        self.read_only = [read_only for *_, read_only in slots]
        self.result: Any = None
        self.fits: tuple[Fit, ...] | None = None
        self.layouts: list[tuple] = []
        self.unset = getattr(function, "__name__", "") in UNSET
        self.returned: int | None = None  # which argument is what the call returns

    def run(self) -> None:
        """Raises: Break where the two differ."""
        what = describe(self.function)
        if sum(torch.Size(shape).numel() for shape, *_ in self.specs) > LARGEST_TRIAL:
            raise Break(f"a call of {what} with arrays too large to be tried")
        seen = 0
        factorised = space_of(self.function) == "linalg"  # LAPACK may not end for infinities
        for filling in FILLINGS[:-1] if factorised else FILLINGS:
            given = [made_up(*spec, filling, i) for i, spec in enumerate(self.specs)]
            arrays = tuple(x.numpy() if kind is numpy_types.ARRAY else x.numpy()[()] for x, kind in zip(given, self.kinds))
            for array in itertools.compress(arrays, self.read_only):
                array.setflags(write=False)
            copies = [copied(x) for x in given]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    result = self.function(*filled(self.template[0], arrays), **filled(self.template[1], arrays))
                except (ValueError, TypeError, IndexError, ArithmeticError):
                    continue  # of these values, or of all: then none is seen
                try:
                    wrapped = tuple(versions().ndarray(x) for x in copies)
                    other = self.version(*filled(self.renamed[0], wrapped), **filled(self.renamed[1], wrapped))
                except Exception as e:
                    raise Break(f"a call of {what}, whose tensor version fails ({type(e).__name__}),") from None
            if not self.agree(given, arrays, result, copies, other):
                raise Break(f"a call of {what}, whose tensor version gives another result,")
            seen += 1
        if not seen:
            raise Break(f"a call of {what} that raises")

    def agree(self, given: list, arrays: tuple, result: Any, copies: list, other: Any) -> bool:
        """Whether results and writes are the same after corrections of the tensor version's; records the corrections."""
        if not all(close(a, b) for a, b in zip(given, copies)):
            return False
        self.returned = next(
            (i for i, v in enumerate(self.template[0]) if isinstance(v, Slot) and result is arrays[v.index]), None
        )
        if result is None or self.returned is not None:
            return True
        flat, fits, layouts = leaves(result), [], []
        if flat is None:  # a dtype, say
            return False
        made = tensors_of(other)
        if len(flat) != len(made):
            return False
        for a, x in zip(flat, made):
            is_array, dtype = isinstance(a, numpy_types.ARRAY), numpy_types.OF_NUMPY.get(a.dtype)
            if dtype is None or tuple(a.shape) != tuple(x.shape):
                return False
            shared = [numpy_types.shares_memory(a, b) for b in arrays]
            shares = [x.untyped_storage()._cdata == c.untyped_storage()._cdata for c in copies]
            if any(s and not t for s, t in zip(shared, shares)):
                return False
            stride = tuple(s // a.itemsize for s in a.strides)
            fit = Fit(dtype, any(shares) and not any(shared), not any(shared) and a.flags.c_contiguous)
            x = fit(x)
            expected = torch.from_numpy(a.copy("K")) if is_array else torch.tensor(a)
            if not same_places(tuple(a.shape), x.stride(), stride) or not (self.unset or close(expected, x)):
                return False
            fits.append(fit)
            layouts.append((tuple(a.shape), stride))
        if self.fits is not None and self.fits != tuple(fits):
            return False
        self.result, self.fits, self.layouts = result, tuple(fits), layouts
        return True


def leaves(result: Any) -> list | None:
    """The arrays and numbers of NumPy's in a result; None where something else is in it."""
    if type(result) in (list, tuple):
        parts = [leaves(part) for part in result]
        return None if any(p is None for p in parts) else [x for p in parts for x in p or ()]
    return [result] if type(result) is numpy_types.ARRAY or type(result) in numpy_types.SCALARS else None


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results are the same within the rounding of a sum."""
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    bound = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float16: 4e-3}.get(a.dtype, 1e-4)
    return torch.allclose(a, b, rtol=bound, atol=bound, equal_nan=True)


def made_up(shape: tuple, stride: tuple, dtype: torch.dtype, filling: str, seed: int) -> torch.Tensor:
    """A tensor of small numbers; none of torch's random numbers is drawn."""
    if repeats(shape, stride):
        return made_up((span_of(shape, stride),), (1,), dtype, filling, seed).as_strided(shape, stride)
    low, high = {"zeros and ones": (0, 2), "ones": (1, 2)}.get(filling, (-4, 5))
    numbers = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * (high - low) + low
    if filling == "positive definite matrices" and len(shape) > 1 and shape[-1] == shape[-2]:
        numbers = numbers @ numbers.transpose(-2, -1) + 8 * torch.eye(shape[-1], dtype=torch.float64)
    if not dtype.is_floating_point and not dtype.is_complex:
        numbers = (numbers if dtype.is_signed else numbers.abs()).floor()
        numbers = numbers % 2 if dtype is torch.bool else numbers
    elif filling == "nan and infinities":
        for value, bound in ((torch.nan, -3.0), (torch.inf, -2.0), (-torch.inf, -1.0), (-0.0, 0.0)):
            numbers = torch.where((numbers > bound - 1) & (numbers <= bound), value, numbers)
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(numbers)


def repeats(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements are the same memory, as `numpy.broadcast_to` makes them: torch copies nothing into those."""
    return any(n > 1 and step == 0 for n, step in zip(shape, stride))


def copied(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps too."""
    if repeats(x.shape, x.stride()):
        return x.as_strided((span_of(x.shape, x.stride()),), (1,)).clone().as_strided(x.shape, x.stride())
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def renamed(v: Any) -> Any:
    """An argument as torch's versions take it: types of NumPy's by their names."""
    if type(v) in numpy_types.DTYPES:
        return v.name
    if isinstance(v, type) and v in numpy_types.SCALARS:
        return v.__name__
    if type(v) in (list, tuple):
        return type(v)(renamed(x) for x in v)
    return v


def space_of(function: Callable) -> str | None:
    """Returns which of NumPy's modules has a function, as a path in it; None for methods and what is not NumPy's."""
    name = getattr(function, "__name__", "")
    return next((path for path, space in numpy_types.named_namespaces() if space.get(name) is function), None)


def version_of(function: Callable) -> Callable | None:
    """torch's tensor version of a function or method of NumPy's; functions of `operator` are their own. None without one."""
    name = getattr(function, "__name__", "")
    if vars(operator).get(name) is function or function is list:
        return function
    if vars(numpy_types.ARRAY).get(name) is function:
        return tensor_version(versions().ndarray, name)
    path = space_of(function)
    if path is None:
        return None
    if not path and name in OWN:
        return OWN[name]
    return tensor_version(operator.attrgetter(path)(versions()) if path else versions(), name)
