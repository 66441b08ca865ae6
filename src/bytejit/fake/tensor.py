"""Tensors without data: every result has the shape, strides, dtype, device, autograd and aliasing of eager's, and no memory.

`Fake` is a wrapper subclass. Frequent ops are inferred by rows (`fake/rules/core.py`), the rest by torch's meta kernels.
An op
whose result depends on data raises `DataDependent`. Views share the storage identity of what they view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import TorchDispatchMode

from bytejit.common.spec import Spec
from bytejit.fake.rules.core import ROWS, FakeStorage, Meta, NeedsMeta, Size, is_inference_mode_enabled

from . import foreach, refusals
from .meta import keep_plain
from .meta_inference import Ways, check_known_count, reshape_in_place, through_kernel
from .redirected import as_made, left_to_class, not_waited_for
from .rules import backward, factories, linalg, networks, pointwise, products, quantized, rearranged, recurrent, reductions, views
from .rules.errors import DataDependent, NoFake

_STRIDED = torch.strided
ROW_FILES = (
    backward,
    factories,
    linalg,
    networks,
    pointwise,
    products,
    quantized,
    rearranged,
    recurrent,
    reductions,
    views,
)  # they fill ROWS


class Fake(torch.Tensor):
    """A tensor without data. `m` is its `Meta`, which rows read: a tensor's own properties cost ten times as much."""

    m: Meta
    viewed = False  # whether autograd knows views of it (in a graph that is recorded with gradients)
    conjugated = False  # whether an operation gave it as a view that is conjugated when it is read
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return infer(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Fake({spec_of(self)!r}{', requires_grad' if self.requires_grad else ''})"

    def __bool__(self) -> NoReturn:
        raise DataDependent("bool")

    def __int__(self) -> NoReturn:
        raise DataDependent("int")

    def __float__(self) -> NoReturn:
        raise DataDependent("float")

    def __complex__(self) -> NoReturn:
        raise DataDependent("complex")

    def __index__(self) -> NoReturn:
        raise DataDependent("index")

    def tolist(self) -> NoReturn:
        raise DataDependent("tolist")

    def numpy(self, *, force: bool = False) -> NoReturn:
        raise DataDependent("numpy")

    def __array__(self, dtype: Any = None) -> NoReturn:
        raise DataDependent("numpy")

    def data_ptr(self) -> NoReturn:
        raise DataDependent("data_ptr")


def make(m: Meta, requires_grad: bool = False) -> Fake:
    """A new fake that looks like `m`. Cost: 3 us."""
    if m.store.inference != is_inference_mode_enabled():  # a view of what was made before the mode, or behind it
        with torch._C._InferenceMode(m.store.inference):
            return _wrapped(m, requires_grad)
    return _wrapped(m, requires_grad)


def _wrapped(m: Meta, requires_grad: bool = False) -> Fake:
    fake = torch.Tensor._make_wrapper_subclass(
        Fake,
        m.shape,
        strides=m.stride,
        storage_offset=m.offset,
        dtype=m.dtype,
        device=m.device,
        requires_grad=requires_grad,
        storage_size=m.store.nbytes,
    )
    fake.m = m
    return fake


class _NonLeaf(torch.autograd.Function):
    """Gives a fake a grad_fn, for inputs that are results of earlier autograd ops."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Fake) -> Fake:
        return make(x.m)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        return grad


def fake_like(
    real: torch.Tensor, stores: dict[int, FakeStorage] | None = None, shape: tuple | None = None, stride: tuple | None = None
) -> Fake:
    """The fake of a real tensor: same shape, strides, offset, dtype, device, requires_grad, is_leaf.

    `stores` (data pointer of a storage -> FakeStorage) lets several inputs that share one storage share its identity.
    `shape` and `stride`: with symbols in place of some sizes.
    Raises: NoFake on sparse, nested, quantised and lazily conjugated tensors.
    """
    if type(real) is Fake:
        return real
    if real.is_inference() != is_inference_mode_enabled():  # one kind autograd may follow later, the other it refuses to write
        with torch._C._InferenceMode(real.is_inference()):
            return fake_like(real, stores, shape, stride)
    if real.layout is not _STRIDED or real.is_nested or real.is_quantized:
        raise NoFake("fake_like", f"layout {real.layout}" if real.layout is not _STRIDED else "nested or quantised")
    if real.is_conj() or real.is_neg():
        raise NoFake("fake_like", "lazily conjugated or negated")
    storage = real.untyped_storage()
    if stores is None:
        store = FakeStorage(storage.nbytes())
    else:
        key = storage._cdata
        store = stores.get(key) or stores.setdefault(key, FakeStorage(storage.nbytes()))
        store.inference = real.is_inference()
    if shape is not None and stride is not None:
        store.nbytes = (real.storage_offset() + extent_of(shape, stride)) * real.dtype.itemsize
    m = Meta(shape or tuple(real.shape), stride or real.stride(), real.storage_offset(), real.dtype, real.device, store)
    requires_grad = real.requires_grad
    fake = make(m, requires_grad)
    return with_history(fake) if requires_grad and not real.is_leaf else fake


def with_history(fake: Fake) -> Fake:
    """A fake that requires gradients, as the result of an operation that is not known."""
    with torch.enable_grad():
        return _NonLeaf.apply(fake)


def fake_of_spec(spec: Spec, requires_grad: bool = False) -> Fake:
    """A fake that looks like `spec`, with a storage of its own just large enough."""
    extent = extent_of(spec.shape, spec.stride)
    device = torch.device(spec.device)
    if requires_grad and device.type == "cuda" and not torch.cuda.is_available():
        raise NoFake("fake_of_spec", "autograd of this torch build knows no cuda device")
    store = FakeStorage(extent * spec.dtype.itemsize)
    return make(Meta(tuple(spec.shape), tuple(spec.stride), 0, spec.dtype, device, store), requires_grad)


def extent_of(shape: tuple, stride: tuple) -> Size:
    """The distance from a tensor's first element to its last, plus one. Units: elements."""
    extent: Size = 1
    for size, step in zip(shape, stride):
        extent = extent + (size - 1) * step if size != 0 else 0
    return extent


def spec_of(fake: Fake) -> Spec:
    """The spec of a fake."""
    m = fake.m
    return Spec(m.shape, m.stride, m.dtype, m.device)


# --- inference ------------------------------------------------------------------------------------

_PLAN: dict[object, Callable] = {}


def infer(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """The result of an ATen op on fakes. Raises: DataDependent, NoFake, and what eager raises on bad arguments."""
    plan = _PLAN.get(func)
    if plan is None:
        plan = _PLAN[func] = _plan(func)
        _WRITES[func] = _written_arguments(func)
    for place in _WRITES[func]:
        note_write(args[place] if type(place) is int and place < len(args) else kwargs.get(place), args)
    return plan(func, args, kwargs)


# op -> the arguments that it writes: positions, and names for those given by name
_WRITES: dict[object, tuple] = {}


def _written_arguments(func: torch._ops.OpOverload) -> tuple:
    written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return tuple(x for i in written for x in (i, func._schema.arguments[i].name))


def note_write(x: object, args: tuple) -> None:
    """Mark the storages of the fakes in a written argument. Raises: RuntimeError, as eager does, when another argument
    covers a part of the memory that is written."""
    if isinstance(x, Fake):
        x.m.store.written += 1
        for other in args:
            if isinstance(other, Fake) and other is not x and other.m.store is x.m.store and _partly_the_same(x, other):
                raise RuntimeError(
                    "unsupported operation: some elements of the input tensor and the written-to tensor "
                    "refer to a single memory location. Please clone() the tensor before performing the "
                    "operation."
                )
    elif isinstance(x, (list, tuple)):
        for part in x:
            note_write(part, ())


def _partly_the_same(a: Fake, b: Fake) -> bool:
    """Whether two dense tensors of one storage share some of their memory but not all of it, element by element."""
    if a.m.offset == b.m.offset and a.m.shape == b.m.shape and a.m.stride == b.m.stride:
        return False
    spans = []
    for m in (a.m, b.m):
        numel, last = 1, 0
        for size, step in zip(m.shape, m.stride):
            numel, last = numel * size, last + (size - 1) * step
        if not numel or last + 1 != numel:  # empty, or with gaps: eager does not look further either
            return False
        width = m.dtype.itemsize
        spans.append((m.offset * width, (m.offset + numel) * width))
    return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]


def was_written(fake: Fake) -> bool:
    """Whether an op wrote into the storage of this fake since it was made."""
    return fake.m.store.written > 0


def _plan(func: torch._ops.OpOverload) -> Callable:
    """Returns how to infer one op: by its row, as an in-place or data-dependent op, or by its meta kernel."""
    row = ROWS.get(func.name())
    if row is not None:
        return _row_plan(row, func)
    if func.name().startswith(foreach.PREFIX):
        return _tensor_by_tensor
    tags = func.tags
    name = func.name().partition("::")[2].partition(".")[0]
    if name == "_local_scalar_dense":
        name = "item"
    if torch.Tag.data_dependent_output in tags:
        return _data_dependent(name)
    if torch.Tag.dynamic_output_shape in tags and name not in ("index", "repeat_interleave"):
        return _data_dependent(name)
    if name == "_conj":
        return _read_conjugated
    if name == "_wrap_tensor_autograd":
        return not_waited_for
    if name.startswith("_fused_") and func._schema.is_mutable and not func._schema.returns:
        return _writes_only  # optimizers, of which torch has no meta kernel for some
    return through_meta


def _read_conjugated(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Fake:
    made = make(args[0].m)
    made.conjugated = not args[0].conjugated
    return made


def _tensor_by_tensor(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> object:
    """An op on lists of tensors, each by its own op; through torch's meta kernel for what that may refuse."""
    schema = func._schema
    if not schema.returns:
        _written_each(func, args, kwargs)
        return None
    calls = foreach.calls_of(func, args, kwargs)
    return through_meta(func, args, kwargs) if calls is None else [infer(*call) for call in calls]


def _written_each(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    calls = foreach.calls_of(func, args, kwargs)
    made = [infer(*call) for call in calls] if calls is not None else []
    if not made or any(new.m.shape != x.m.shape or not torch.can_cast(new.m.dtype, x.m.dtype) for x, new in zip(args[0], made)):
        through_meta(func, args, kwargs)
    count_writes(args[0])


def count_writes(written: Iterable[Fake]) -> None:
    """What kernels of torch for lists of tensors do: each version counts one write more."""
    torch.autograd.graph.increment_version([x for x in written if not x.m.store.inference])


def _writes_only(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    """An op that writes into its arguments and returns nothing."""


def _data_dependent(name: str) -> Callable:
    def refuse(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> NoReturn:
        raise DataDependent(name)

    return refuse


def _row_plan(row: Callable, func: torch._ops.OpOverload) -> Callable:
    schema = func._schema
    inplace = schema.is_mutable and schema.name.endswith("_") and not schema.name.endswith("__")
    detaches = func is torch.ops.aten.detach.default

    def run(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        try:
            m = row(*args, **kwargs)
        except NeedsMeta:
            return through_meta(func, args, kwargs)
        except AttributeError as error:
            if error.name != "m" or type(error.obj) is Fake or not isinstance(error.obj, torch.Tensor):
                raise
            return run(func, _faked(args), {k: _faked_one(v) for k, v in kwargs.items()})
        if detaches and m.store.inference:
            return _wrapped(m)  # outside of inference mode it counts writes, unlike what it is made of, and may be written
        if type(m) is Meta:
            return args[0] if inplace else make(m)
        return [make(x) for x in m] if type(m) is list else tuple(x and make(x) for x in m)

    return run


def _faked_one(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return fake_like(x)
    if isinstance(x, (list, tuple)):
        return type(x)(_faked_one(y) for y in x)
    return x


def _faked(args: tuple) -> tuple:
    """Real tensors among fakes become fakes: a constant that the traced program closed over."""
    return tuple(_faked_one(x) for x in args)


def through_meta(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """Infer by torch's meta kernel. Cost: 100 to 400 us."""
    keep_plain()
    refusals.check(func, args, kwargs)
    if torch.SymInt in map(type, _numbers((args, kwargs))):
        from .symbolic import through_reference  # on first use: few programs have symbols

        if func.name() in ("aten::index.Tensor", "aten::repeat_interleave.Tensor"):
            check_known_count(func, args, kwargs)
        if func is torch.ops.aten.as_strided_.default:
            x, size, stride, *offset = (*args, *kwargs.values())
            reshape_in_place(x, tuple(size), tuple(stride), x.m.offset if not offset or offset[0] is None else offset[0])
            return x
        return through_reference(func, args, kwargs, WAYS)
    return through_kernel(func, args, kwargs, WAYS)


def _numbers(x: object) -> Iterator:
    """All sizes, strides and plain arguments of an op."""
    if type(x) is Fake:
        yield from (*x.m.shape, *x.m.stride, x.m.offset)
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from _numbers(part)
    elif isinstance(x, dict):
        yield from _numbers(tuple(x.values()))
    else:
        yield x


class FakeMode(TorchDispatchMode):
    """Inside, factory calls return fakes, and every op on a real tensor is inferred, never run."""

    def __torch_dispatch__(self, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return infer(func, args, kwargs or {})


def _dispatch(self: FakeMode, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    if any(t is not Fake for t in types) and left_to_class(func, types):
        return NotImplemented
    return infer(*as_made(func, args, kwargs or {}))


# Assigned here, because TorchDispatchMode wraps a method in the class body with code that imports torch._dynamo.
setattr(FakeMode, "__torch_dispatch__", _dispatch)
Fake.__name__ = "Tensor"  # torch's and Python's messages name what they refuse by it
WAYS = Ways(Fake, make, fake_like, FakeMode)


def fakes_in(value: object) -> list[Fake]:
    """The fakes among a node's results."""
    if isinstance(value, (list, tuple)):
        return [f for v in value for f in fakes_in(v)]
    return [value] if isinstance(value, Fake) else []
