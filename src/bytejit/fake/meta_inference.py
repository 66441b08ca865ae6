"""Inference by torch's meta kernels: the op is run on meta tensors, and fakes are made of what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.text import first_line
from bytejit.fake.rules.core import FakeStorage, HasMeta, Meta, device_given
from bytejit.fake.rules.elementwise import eager_stride

from .rules.errors import DataDependent, NoFake


@light_dataclass(frozen=True)
class Ways:
    """What `fake/tensor.py` passes in: the class of fakes, how to make one, the fake of a tensor, a mode that infers
    everything."""

    kind: type[torch.Tensor]
    make: Callable[[Meta], Any]
    like: Callable[[torch.Tensor], Any]
    mode: Callable[[], Any]


def common_device(fakes: list[HasMeta]) -> torch.device:
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


class MetaArgs:
    """Converts the fakes among one call's arguments to meta tensors and back."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self.fakes: list[HasMeta] = []
        self.metas: list[torch.Tensor] = []

    def to_meta(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            fake = self.ways.like(x)
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

    def fake_of(self, meta: Any) -> HasMeta | None:
        """The fake that `meta` was made for, or None when it is a new tensor."""
        for fake, known in zip(self.fakes, self.metas):
            if known is meta:
                return fake
        return None

    def write_back(self) -> None:
        """Give fakes the shape and strides that an in-place or out= op gave their meta tensors."""
        for fake, meta in zip(self.fakes, self.metas):
            m = fake.m
            shape, stride = tuple(meta.shape), meta.stride()
            if m.shape != shape or m.stride != stride:
                reshape_in_place(fake, shape, stride, m.offset + meta.storage_offset())


def reshape_in_place(fake: torch.Tensor, shape: tuple, stride: tuple, offset: int) -> None:
    """Change what a fake looks like, as `t_` or a resized `out=` do."""
    m = fake.m
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride)) if 0 not in shape else offset - 1
    m.store.nbytes = max(m.store.nbytes, (last + 1) * m.dtype.itemsize)
    with torch._C._DisableTorchDispatch():
        if fake.untyped_storage().nbytes() < m.store.nbytes:
            if any(isinstance(n, torch.SymInt) for n in (*m.shape, *m.stride, m.offset)):
                raise NoFake("resize_", "a tensor whose sizes are symbols gets more memory")
            torch.ops.aten.resize_(fake, [m.store.nbytes // m.dtype.itemsize])
        torch.ops.aten.as_strided_(fake, shape, stride, offset)
    fake.m = Meta(shape, stride, offset, m.dtype, m.device, m.store)


def _check_indices(func: torch._ops.OpOverload, args: tuple) -> None:
    """A bool index selects as many rows as it holds True, which is not known."""
    if len(args) > 1 and isinstance(args[1], (list, tuple)):
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                if func.name() == "aten::index.Tensor":
                    raise DataDependent("index with a bool mask")


def check_known_count(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    """Raises: DataDependent for the two ops whose result's size may depend on data."""
    _check_indices(func, args)
    if func.name() != "aten::index.Tensor" and kwargs.get("output_size") is None:
        raise DataDependent("repeat_interleave")


def through_kernel(func: torch._ops.OpOverload, args: tuple, kwargs: dict, ways: Ways) -> Any:
    """Infer by running the op on meta tensors of known sizes."""
    if func.name() in ("aten::index.Tensor", "aten::repeat_interleave.Tensor"):
        check_known_count(func, args, kwargs)
    metas = MetaArgs(ways)
    meta_args = metas.to_meta(args)
    meta_kwargs = {k: metas.to_meta(v) for k, v in kwargs.items() if k not in ("generator", "pin_memory")}
    device = kwargs.get("device")
    if "device" in kwargs:
        meta_kwargs["device"] = "meta" if device is not None or not metas.fakes else None
    elif not metas.fakes and any(a.name == "device" for a in func._schema.arguments):
        meta_kwargs["device"] = "meta"
    device = device_given(device, None) if device is not None else common_device(metas.fakes)
    try:
        result = func(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        decomposed = func.decompose(*args, **kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        raise NoFake(func.name(), first_line(error).removeprefix(f"{func.name()}: ").partition(". ")[0]) from error
    metas.write_back()
    return _wrap(func, result, metas, args, device, kwargs.get("memory_format") is not None)


def _viewed_store(func: torch._ops.OpOverload, position: int, args: tuple, ways: Ways) -> Meta | None:
    """The meta of the argument that return number `position` is a view of, by the op's schema."""
    returns = func._schema.returns
    if not returns:
        return None
    info = returns[min(position, len(returns) - 1)].alias_info
    if info is None or info.is_write:
        return None
    for argument, value in zip(func._schema.arguments, args):
        if argument.alias_info is not None and isinstance(value, torch.Tensor):
            return ways.like(value).m
    return None


def _wrap(
    func: torch._ops.OpOverload,
    result: Any,
    metas: MetaArgs,
    args: tuple,
    device: torch.device,
    laid_out: bool,
    position: int = 0,
) -> Any:
    """Fakes for the metas that a meta kernel returned; other values pass. laid_out: the call says how results lie in memory."""
    if isinstance(result, torch.Tensor):
        known = metas.fake_of(result)
        if known is not None:
            return known
        base = _viewed_store(func, position, args, metas.ways)
        shape, stride, offset = tuple(result.shape), result.stride(), result.storage_offset()
        if base is None:
            store = FakeStorage(result.untyped_storage().nbytes())
            if not laid_out:
                stride = eager_stride(func, args, shape, result.dtype) or stride
        else:
            store, width = base.store, result.dtype.itemsize  # an offset counts elements, also where a view has others
            begin = base.offset if width == base.dtype.itemsize else base.offset * base.dtype.itemsize // width
            offset = offset + begin
        return metas.ways.make(Meta(shape, stride, offset, result.dtype, device, store))
    if isinstance(result, (list, tuple)):
        many = len(func._schema.returns) > 1
        return type(result)(_wrap(func, r, metas, args, device, laid_out, i if many else 0) for i, r in enumerate(result))
    return result
