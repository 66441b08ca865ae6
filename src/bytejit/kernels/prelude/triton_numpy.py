"""The functions of CUDA's device library that `triton_math` uses, in numpy, for kernels under TRITON_INTERPRET=1.

Triton's interpreter holds a tile as a numpy array (`x.handle.data`); functions numpy lacks are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle


def _tile(data: Any, like: Any) -> Any:
    """An array as a tile with the element type of `like`."""
    data = np.atleast_1d(np.asarray(data).astype(like.handle.data.dtype))
    shaped = len(like.type.shape) if like.type.is_block() else 0
    kind = tl.block_type(like.dtype, list(data.shape)) if shaped else like.dtype
    return tl.tensor(TensorHandle(data, like.dtype), kind)


def _of(fn: Callable) -> Callable:
    """A function of arrays as one of tiles (and Python numbers)."""

    def call(*args: Any) -> Any:
        tiles = [a for a in args if hasattr(a, "handle")]
        like = max(tiles, key=lambda a: a.handle.data.size)
        with np.errstate(all="ignore"):
            return _tile(fn(*(a.handle.data if hasattr(a, "handle") else a for a in args)), like)

    return call


def _torch(fn: Callable) -> Callable:
    """A function of torch's as one of tiles."""

    def call(x: Any, *rest: Any) -> Any:
        return fn(torch.from_numpy(np.ascontiguousarray(x)), *rest).numpy()

    return _of(call)


#: what numpy calls otherwise
NUMPY = {"nearbyint": "rint", "pow": "power"} | {f"a{n}": f"arc{n}" for n in "sin cos tan sinh cosh tanh tan2".split()}


def __getattr__(name: str) -> Callable:
    """A function of the device library: numpy's, else torch's."""
    found = getattr(np, NUMPY.get(name, name), None)
    if found is None and not hasattr(torch, name):
        raise AttributeError(name)
    globals()[name] = _of(found) if found is not None else _torch(getattr(torch, name))
    return globals()[name]


def _reduce(fn: Callable) -> Callable:
    """A reduction along an axis; the first axis of a row returns a scalar."""

    def call(x: Any, axis: Any) -> Any:
        axis = int(getattr(axis, "value", axis))
        data = np.asarray(fn(x.handle.data, axis=axis, keepdims=axis == 1), dtype=x.handle.data.dtype)
        kind = tl.block_type(x.dtype, list(data.shape)) if data.ndim else x.dtype
        return tl.tensor(TensorHandle(np.atleast_1d(data), x.dtype), kind)

    return call


reduce_prod, reduce_amax, reduce_amin = _reduce(np.prod), _reduce(np.amax), _reduce(np.amin)


def _scan(fn: np.ufunc) -> Callable:
    """Running results along an axis."""

    def call(x: Any, axis: Any) -> Any:
        return _tile(fn.accumulate(x.handle.data, axis=int(getattr(axis, "value", axis))), x)

    return call


scan_amax, scan_amin, scan_logsum = _scan(np.maximum), _scan(np.minimum), _scan(np.logaddexp)
reduce_logsum = _reduce(np.logaddexp.reduce)


def _arg(greatest: bool) -> Callable:
    """The best element along an axis and the index that goes with it; nan is best, the least index wins."""

    def call(x: Any, at: Any, axis: Any) -> Any:
        axis = int(getattr(axis, "value", axis))
        data = x.handle.data if greatest or x.handle.data.dtype.kind != "f" else -x.handle.data
        best = (np.amax if greatest or data.dtype.kind == "f" else np.amin)(data, axis=axis, keepdims=True)
        hit = (data == best) | ((data != data) & (best != best))
        index = np.where(hit, at.handle.data, np.iinfo(np.int64).max)
        value = lambda t, axis, keepdims: np.amax(np.where(hit, t, -np.inf), axis=axis, keepdims=keepdims)  # noqa: E731
        least = TensorHandle(index, at.dtype)
        return _reduce(value)(x, axis), _reduce(np.amin)(tl.tensor(least, tl.block_type(at.dtype, list(index.shape))), axis)

    return call


reduce_argmax, reduce_argmin = _arg(True), _arg(False)


def _loops_over_sizes() -> None:
    """numpy 2.4 refuses int() of an array with one element, by which the interpreter represents a number. Without this, a loop
    up to a size that is an argument fails."""
    before = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        before(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _masks_of_bools() -> None:
    """`a & b` of masks, one of which is a number's comparison, holds integers, which loads of triton 3.9 refuse."""
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def bools(mask: Any) -> Any:
        return mask if mask.data.dtype == np.bool_ else TensorHandle(mask.data.astype(np.bool_), tl.int1)

    builder.create_masked_load = lambda self, at, mask, *rest: load(self, at, bools(mask), *rest)
    builder.create_masked_store = lambda self, at, value, mask, *rest: store(self, at, value, bools(mask), *rest)


def _rounded_bf16() -> None:
    """The interpreter cuts a f32 to a bf16; the device rounds, and so does this."""
    before = interpreter.InterpreterBuilder.cast_impl

    def cast(self: Any, src: Any, dst: Any) -> Any:
        if src.dtype.scalar == tl.float32 and dst.scalar == tl.bfloat16:
            whole = torch.from_numpy(np.ascontiguousarray(src.data)).to(torch.bfloat16).view(torch.int16)
            return TensorHandle(whole.numpy().view(np.uint16).reshape(src.data.shape), tl.bfloat16)
        return before(self, src, dst)

    interpreter.InterpreterBuilder.cast_impl = cast


def _sizes_of_64_bits() -> None:
    """Sizes are i64 in a kernel's signature; the interpreter takes the least type that holds a number."""
    before = interpreter._implicit_cvt

    def convert(arg: Any) -> Any:
        if isinstance(arg, int):
            return tl.tensor(TensorHandle(np.array([arg], dtype=np.int64), tl.int64), tl.int64)
        return before(arg)

    interpreter._implicit_cvt = convert


_loops_over_sizes()
_sizes_of_64_bits()
_rounded_bf16()
_masks_of_bools()
