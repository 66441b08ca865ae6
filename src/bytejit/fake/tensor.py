"""Tensors without data: the right shape, strides, dtype, device, autograd and aliasing of every result, and no
memory.

`Fake` is a wrapper subclass. Frequent ops are inferred by rows (`fake/rules/core.py`), the rest by torch's meta kernels.
An op
whose result depends on data raises `DataDependent`. Views share the storage identity of what they view.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bytejit.common.spec import Spec
from bytejit.fake.rules.core import ROWS, Meta, NeedsMeta, Store, device_given, is_inference_mode_enabled

from .meta import keep_plain
from .rules import compute, linalg, views

_STRIDED = torch.strided
ROW_FILES = (views, compute, linalg)  # importing them fills ROWS


class DataDependent(Exception):
    """An op asked for data that a fake tensor does not have. `op` is its short name, as `item` or `nonzero`."""

    def __init__(self, op: str) -> None:
        super().__init__(f"{op}: the result depends on a tensor's data")
        self.op = op


class NoFake(NotImplementedError):
    """An op that neither a row nor a meta kernel of torch can infer. `op` is its qualified name."""

    def __init__(self, op: str, reason: str = "") -> None:
        super().__init__(f"{op}: no way to infer its result without data{': ' + reason if reason else ''}")
        self.op = op


class Fake(torch.Tensor):
    """A tensor without data. `m` is its `Meta`: what rows read, since a tensor's own properties cost ten
    times more.
    """

    m: Meta
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return infer(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"Fake({spec_of(self)!r}{', requires_grad' if self.requires_grad else ''})"

    def __bool__(self):
        raise DataDependent("bool")

    def __int__(self):
        raise DataDependent("int")

    def __float__(self):
        raise DataDependent("float")

    def __complex__(self):
        raise DataDependent("complex")

    def __index__(self):
        raise DataDependent("index")

    def tolist(self):
        raise DataDependent("tolist")

    def numpy(self, *, force=False):
        raise DataDependent("numpy")

    def __array__(self, dtype=None):
        raise DataDependent("numpy")

    def data_ptr(self):
        raise DataDependent("data_ptr")


def make(m: Meta, requires_grad: bool = False) -> Fake:
    """A new fake that looks like `m`. Cost: 3 us."""
    if not m.store.inference and is_inference_mode_enabled():       # a view of what was made before the mode
        with torch._C._InferenceMode(False):
            return make(m, requires_grad)
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
    def forward(ctx, x):
        return make(x.m)

    @staticmethod
    def backward(ctx, grad):
        return grad


def fake_like(real: torch.Tensor, stores: dict[int, Store] | None = None, shape: tuple | None = None,
              stride: tuple | None = None) -> Fake:
    """The fake of a real tensor: same shape, strides, offset, dtype, device, requires_grad, is_leaf.

    `stores` (data pointer of a storage -> Store) lets several inputs that share one storage share its identity.
    `shape` and `stride`: with symbols in place of some sizes.
    Raises: NoFake on sparse, nested, quantised and lazily conjugated tensors.
    """
    if type(real) is Fake:
        return real
    if is_inference_mode_enabled() and not real.is_inference():         # made before: autograd may follow it later
        with torch._C._InferenceMode(False):
            return fake_like(real, stores, shape, stride)
    if real.layout is not _STRIDED or real.is_nested or real.is_quantized:
        raise NoFake("fake_like", f"layout {real.layout}" if real.layout is not _STRIDED else "nested or quantised")
    if real.is_conj() or real.is_neg():
        raise NoFake("fake_like", "lazily conjugated or negated")
    storage = real.untyped_storage()
    if stores is None:
        store = Store(storage.nbytes())
    else:
        key = storage._cdata
        store = stores.get(key) or stores.setdefault(key, Store(storage.nbytes()))
        store.inference = real.is_inference()
    if shape is not None:
        store.nbytes = (real.storage_offset() + extent_of(shape, stride)) * real.dtype.itemsize
    m = Meta(shape or tuple(real.shape), stride or real.stride(), real.storage_offset(), real.dtype, real.device, store)
    requires_grad = real.requires_grad
    fake = make(m, requires_grad)
    if requires_grad and not real.is_leaf:
        with torch.enable_grad():
            fake = _NonLeaf.apply(fake)
    return fake


def fake_of_spec(spec: Spec, requires_grad: bool = False) -> Fake:
    """A fake that looks like `spec`, with a storage of its own just large enough."""
    extent = extent_of(spec.shape, spec.stride)
    device = torch.device(spec.device)
    if requires_grad and device.type == "cuda" and not torch.cuda.is_available():
        raise NoFake("fake_of_spec", "autograd of this torch build knows no cuda device")
    store = Store(extent * spec.dtype.itemsize)
    return make(Meta(tuple(spec.shape), tuple(spec.stride), 0, spec.dtype, device, store), requires_grad)


def extent_of(shape: tuple, stride: tuple):
    """How far a tensor's last element lies from its first, and one. Units: elements."""
    extent = 1
    for size, step in zip(shape, stride):
        extent = extent + (size - 1) * step if size != 0 else 0
    return extent


def is_fake(x: object) -> bool:
    """Whether `x` is a fake tensor."""
    return type(x) is Fake


def spec_of(fake: Fake) -> Spec:
    """The spec of a fake."""
    m = fake.m
    return Spec(m.shape, m.stride, m.dtype, m.device)


def storage_id(fake: Fake) -> int:
    """Equal for two fakes exactly when one is a view of the other or both of a third."""
    return fake.m.store.id


# --- inference ------------------------------------------------------------------------------------

_PLAN: dict[object, Callable] = {}


def infer(func, args: tuple, kwargs: dict):
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


def _written_arguments(func) -> tuple:
    written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return tuple(x for i in written for x in (i, func._schema.arguments[i].name))


def note_write(x: object, args: tuple) -> None:
    """Mark the storages of the fakes in a written argument. Raises: RuntimeError, as eager does, when another argument
    covers a part of the memory that is written."""
    if isinstance(x, Fake):
        x.m.store.written = True
        for other in args:
            if isinstance(other, Fake) and other is not x and other.m.store is x.m.store and _partly_the_same(x, other):
                raise RuntimeError("unsupported operation: some elements of the input tensor and the written-to tensor "
                                   "refer to a single memory location. Please clone() the tensor before performing the "
                                   "operation.")
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
        if not numel or last + 1 != numel:      # empty, or with gaps: eager does not look further either
            return False
        width = m.dtype.itemsize
        spans.append((m.offset * width, (m.offset + numel) * width))
    return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]


def was_written(fake: Fake) -> bool:
    """Whether an op wrote into the storage of this fake since it was made."""
    return fake.m.store.written


def _plan(func) -> Callable:
    """How to run one op: by its row, as an in-place or data dependent op, or through its meta kernel."""
    row = ROWS.get(func.name())
    if row is not None:
        return _row_plan(row, func)
    tags = func.tags
    name = func.name().partition("::")[2].partition(".")[0]
    if name == "_local_scalar_dense":
        name = "item"
    if torch.Tag.data_dependent_output in tags:
        return _data_dependent(name)
    if torch.Tag.dynamic_output_shape in tags and name not in ("index", "repeat_interleave"):
        return _data_dependent(name)
    return through_meta


def _data_dependent(name: str) -> Callable:
    def refuse(func, args, kwargs):
        raise DataDependent(name)

    return refuse


def _row_plan(row: Callable, func) -> Callable:
    schema = func._schema
    inplace = schema.is_mutable and schema.name.endswith("_") and not schema.name.endswith("__")

    def run(func, args, kwargs):
        try:
            m = row(*args, **kwargs)
        except NeedsMeta:
            return through_meta(func, args, kwargs)
        except AttributeError as error:
            if error.name != "m" or type(error.obj) is Fake or not isinstance(error.obj, torch.Tensor):
                raise
            return run(func, _faked(args), {k: _faked_one(v) for k, v in kwargs.items()})
        if type(m) is Meta:
            return args[0] if inplace else make(m)
        return [make(x) for x in m] if type(m) is list else tuple(make(x) for x in m)

    return run


def _faked_one(x):
    if isinstance(x, torch.Tensor):
        return fake_like(x)
    if isinstance(x, (list, tuple)):
        return type(x)(_faked_one(y) for y in x)
    return x


def _faked(args: tuple) -> tuple:
    """Real tensors among fakes become fakes: a constant that the traced program closed over."""
    return tuple(_faked_one(x) for x in args)


# --- torch's meta kernels -------------------------------------------------------------------------


def _common_device(fakes: list[Fake]) -> torch.device:
    """Where a result goes: the device of the first tensor that is no CPU scalar. Raises RuntimeError as
    eager does.
    """
    device = None
    for fake in fakes:
        m = fake.m
        if device is None or (device.type == "cpu" and m.device.type != "cpu"):
            if device is not None and any(f.m.device.type == "cpu" and f.m.shape for f in fakes):
                raise RuntimeError(_two_devices(m.device, device))
            device = m.device
        elif m.device != device and (m.shape or m.device.type != "cpu"):
            raise RuntimeError(_two_devices(device, m.device))
    return device if device is not None else torch.get_default_device()


def _two_devices(a: torch.device, b: torch.device) -> str:
    return f"Expected all tensors to be on the same device, but found at least two devices, {a} and {b}!"


class _Metas:
    """The meta twins of one call's fakes, and the way back."""

    def __init__(self) -> None:
        self.fakes: list[Fake] = []
        self.metas: list[torch.Tensor] = []

    def to_meta(self, x):
        if isinstance(x, torch.Tensor):
            fake = fake_like(x)
            for known, meta in zip(self.fakes, self.metas):
                if known is fake:
                    return meta
            m = fake.m
            meta = torch.empty_strided(m.shape, m.stride, dtype=m.dtype, device="meta")
            if fake.is_conj():
                meta = meta.conj()
            self.fakes.append(fake)
            self.metas.append(meta)
            return meta
        if isinstance(x, (list, tuple)):
            return type(x)(self.to_meta(y) for y in x)
        return x

    def fake_of(self, meta) -> Fake | None:
        """The fake whose twin `meta` is, or None when it is a new tensor."""
        for fake, known in zip(self.fakes, self.metas):
            if known is meta:
                return fake
        return None

    def write_back(self) -> None:
        """Give fakes the shape and strides that an in-place or out= op gave their twins."""
        for fake, meta in zip(self.fakes, self.metas):
            m = fake.m
            shape, stride = tuple(meta.shape), meta.stride()
            if m.shape != shape or m.stride != stride:
                reshape_in_place(fake, shape, stride, m.offset + meta.storage_offset())


def reshape_in_place(fake: Fake, shape: tuple, stride: tuple, offset: int) -> None:
    """Change what a fake looks like, as `t_` or a resized `out=` do."""
    m = fake.m
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride)) if 0 not in shape else offset - 1
    m.store.nbytes = max(m.store.nbytes, (last + 1) * m.dtype.itemsize)
    with torch._C._DisableTorchDispatch():
        if fake.untyped_storage().nbytes() < m.store.nbytes:
            torch.ops.aten.resize_(fake, [m.store.nbytes // m.dtype.itemsize])
        torch.ops.aten.as_strided_(fake, shape, stride, offset)
    fake.m = Meta(shape, stride, offset, m.dtype, m.device, m.store)


def _check_indices(func, args: tuple) -> None:
    """A bool index selects as many rows as it holds True: that many is not known."""
    if len(args) > 1 and isinstance(args[1], (list, tuple)):
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                if func.name() == "aten::index.Tensor":
                    raise DataDependent("index with a bool mask")


def through_meta(func, args: tuple, kwargs: dict):
    """Infer by torch's meta kernel. Cost: 100 to 400 us."""
    keep_plain()
    if torch.SymInt in map(type, _numbers((args, kwargs))):
        from .symbolic import Ways, through_reference  # on first use: few programs have symbols

        if func.name() in ("aten::index.Tensor", "aten::repeat_interleave.Tensor"):
            check_known_count(func, args, kwargs)
        if func is torch.ops.aten.as_strided_.default:
            x, size, stride, *offset = (*args, *kwargs.values())
            reshape_in_place(x, tuple(size), tuple(stride), x.m.offset if not offset or offset[0] is None else offset[0])
            return x
        ways = Ways(Fake, make, FakeMode, through_kernel, (DataDependent, NoFake))
        return through_reference(func, args, kwargs, ways)
    return through_kernel(func, args, kwargs)


def _numbers(x: object):
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


def check_known_count(func, args: tuple, kwargs: dict) -> None:
    """Raises: DataDependent for the two ops whose result's size may depend on data."""
    _check_indices(func, args)
    if func.name() != "aten::index.Tensor" and kwargs.get("output_size") is None:
        raise DataDependent("repeat_interleave")


def through_kernel(func, args: tuple, kwargs: dict):
    """Infer by running the op on meta tensors of known sizes."""
    if func.name() in ("aten::index.Tensor", "aten::repeat_interleave.Tensor"):
        check_known_count(func, args, kwargs)
    twins = _Metas()
    meta_args = twins.to_meta(args)
    meta_kwargs = {k: twins.to_meta(v) for k, v in kwargs.items() if k not in ("generator", "pin_memory")}
    device = kwargs.get("device")
    if "device" in kwargs:
        meta_kwargs["device"] = "meta" if device is not None or not twins.fakes else None
    elif not twins.fakes and any(a.name == "device" for a in func._schema.arguments):
        meta_kwargs["device"] = "meta"
    device = device_given(device, None) if device is not None else _common_device(twins.fakes)
    try:
        result = func(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        decomposed = func.decompose(*args, **kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        raise NoFake(func.name(), str(error).partition("\n")[0]) from error
    twins.write_back()
    return _wrap(func, result, twins, args, device)


def _viewed_store(func, position: int, args: tuple) -> Meta | None:
    """The meta of the argument that return number `position` is a view of, by the op's schema."""
    returns = func._schema.returns
    if not returns:
        return None
    info = returns[min(position, len(returns) - 1)].alias_info
    if info is None or info.is_write:
        return None
    for argument, value in zip(func._schema.arguments, args):
        if argument.alias_info is not None and isinstance(value, torch.Tensor):
            return fake_like(value).m
    return None


def _wrap(func, result, twins: _Metas, args: tuple, device: torch.device, position: int = 0):
    """Fakes for the metas that a meta kernel returned; other values pass."""
    if isinstance(result, torch.Tensor):
        known = twins.fake_of(result)
        if known is not None:
            return known
        base = _viewed_store(func, position, args)
        shape, stride, offset = tuple(result.shape), result.stride(), result.storage_offset()
        if base is None:
            store = Store(result.untyped_storage().nbytes())
        else:
            store, offset = base.store, offset + base.offset
        return make(Meta(shape, stride, offset, result.dtype, device, store))
    if isinstance(result, (list, tuple)):
        many = len(func._schema.returns) > 1
        return type(result)(_wrap(func, r, twins, args, device, i if many else 0) for i, r in enumerate(result))
    return result


class FakeMode(TorchDispatchMode):
    """Inside, factory calls give fakes too, and every op on a real tensor is inferred, never run."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return infer(func, args, kwargs or {})


def _dispatch(self, func, types, args=(), kwargs=None):
    return infer(*as_made(func, args, kwargs or {}))


def as_made(func, args: tuple, kwargs: dict) -> tuple:
    """The call to make for one that a function transform's rules ask for: a number that they cast as if it were a tensor
    becomes one, and zeros without memory get theirs."""
    if func is torch.ops.aten._efficientzerotensor.default:
        return torch.ops.aten.zeros.default, args, kwargs
    if func is torch.ops.aten._to_copy.default and type(args[0]) in (int, float, bool, complex):
        return torch.ops.aten.scalar_tensor.default, args, {k: v for k, v in kwargs.items() if k in ("dtype", "device")}
    return func, args, kwargs


# Assigned here since TorchDispatchMode wraps a method found in the class body by what imports torch._dynamo.
FakeMode.__torch_dispatch__ = _dispatch
