"""Calls that torch refuses when its kernels run, and that neither its meta kernels nor ours would: they run through torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.codegen.ops.calls import named
from bytejit.common.dtypes import INDEX_DTYPES, NARROW_DTYPES
from bytejit.common.spec import span_of
from bytejit.fake.rules.core import LaidOut
from bytejit.fake.tensor import infer, spec_of

from .mutation import CannotNormalise, overlaps
from .refused_dtypes import ON_GPU, TAKES, refused_dtype
from .refused_scalars import CONVERTED, INTEGERS, check_scalars


def _is_bool(x: Any) -> bool:
    return type(x) is bool or isinstance(x, torch.Tensor) and x.dtype is torch.bool


def _below_zero(name: str) -> Callable[[dict], bool]:
    """A number below 0, or none that a float32 holds. Of a symbolic one that it is neither is a condition."""
    return lambda given: not 0 <= given.get(name, 0) <= torch.finfo(torch.float32).max


def _subtracts_bool(given: dict) -> bool:
    return _is_bool(given.get("self")) or _is_bool(given.get("other"))


def _bools(given: dict, *names: str) -> bool:
    """Whether all of these arguments are tensors of bools."""
    return all(isinstance(given.get(n), torch.Tensor) and given[n].dtype is torch.bool for n in names)


def _divides_bools(given: dict) -> bool:
    return given.get("rounding_mode") is not None and _is_bool(given.get("self")) and _is_bool(given.get("other"))


def _divides_by_zero(given: dict) -> bool:
    """A pool whose own divisor is 0. Meta kernels before torch 2.13 let that pass in three dimensions."""
    return given.get("divisor_override") == 0


def _no_power(given: dict) -> bool:
    """A bool to the power of a bool, or integers to the power of a number below 0."""
    x, exponent = given["self"], given["exponent"]
    if not isinstance(x, torch.Tensor) or isinstance(exponent, torch.Tensor):
        return _bools(given, "self", "exponent")
    return not (x.is_floating_point() or x.is_complex()) and not isinstance(exponent, (float, complex)) and exponent < 0


def _dim_outside(given: dict) -> bool:
    dims = max(given["self"].dim(), 1)
    return not -dims <= given["dim"] < dims


def _dims_repeated(given: dict) -> bool:
    dims, span = given.get("dim"), max(given["self"].dim(), 1)
    return isinstance(dims, (list, tuple)) and len({d % span for d in dims}) < len(dims)


def _is_mask(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8)


def _too_many_indices(given: dict) -> bool:
    """Whether indices take more dims than there are: a mask takes as many as it has, None and integers one each. Or whether
    there is a 0-dim mask, which only Python accepts."""
    used = [i.dim() if _is_mask(i) else 1 for i in given["indices"]]
    return sum(used) > given["self"].dim() or 0 in used


def _badly_indexed(given: dict) -> bool:
    """More indices than dims, or values that do not broadcast to what is indexed."""
    return _too_many_indices(given) or not _fits(given["values"], indexed_shape(given["self"], given["indices"]))


def indexed_shape(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> tuple | None:
    """The shape of x[indices]; None where masks decide it, or the indices do not broadcast (which meta kernels refuse)."""
    found = {d: i for d, i in enumerate(indices) if i is not None}
    used, tensors = list(found), list(found.values())
    if any(_is_mask(i) for i in tensors):
        return None
    try:
        chosen = torch.broadcast_shapes(*(i.shape for i in tensors))
    except RuntimeError:
        return None
    rest = [n for d, n in enumerate(x.shape) if d not in used]
    first = used[0] if used and used == list(range(used[0], used[-1] + 1)) else 0
    return (*rest[:first], *chosen, *rest[first:])


def _fits(x: torch.Tensor, shape: tuple | None) -> bool:
    """Whether a tensor broadcasts to a shape."""
    if shape is None:
        return True
    return x.dim() <= len(shape) and all(n == 1 or n == m for n, m in zip(reversed(x.shape), reversed(shape)))


def _copies_badly(given: dict) -> bool:
    """Dtypes that differ, or not a row for each index. Meta kernels before torch 2.13 let the latter pass."""
    x, at, source = given["self"], given["index"], given["source"]
    if at.dtype is not torch.int64 or source.dtype is not x.dtype or source.dim() != x.dim():
        return True
    dim = given["dim"] % max(x.dim(), 1)
    return any(n != (at.numel() if d == dim else m) for d, (n, m) in enumerate(zip(source.shape, x.shape)))


def _no_window(view: Any) -> Callable[[dict], bool]:
    """Whether what is written over a view of a tensor has not its shape, or the tensor consists of windows: eager copies those
    as they lie in memory, so that a write shows in several."""
    names = [a.name for a in view._schema.arguments]

    def refused(given: dict) -> bool:
        m = given["self"].m
        if 0 not in m.stride and overlaps(spec_of(given["self"])):
            return True
        window = infer(view, (given["self"],), {n: given[n] for n in names[1:] if n in given})
        return window.dim() != given["src"].dim() or any(n != m for n, m in zip(window.shape, given["src"].shape))

    return refused


def reaches_past(base: LaidOut, offset: Any, shape: Sequence, stride: Sequence) -> bool:
    """Whether a view of memory ends after the last element of what it views: torch refuses it, also where nothing reads it,
    unless the storage of an input goes on after the input. Of symbolic sizes that it does not is a condition."""
    return 0 not in shape and not offset + span_of(shape, stride) <= span_of(base.shape, base.stride)


def _scatters_past(given: dict) -> bool:
    window = given["size"], given["stride"]
    return reaches_past(given["self"].m, given.get("storage_offset") or 0, *window) or _no_window(aten.as_strided.default)(given)


_OF_NORMS = ("weight", "bias", "running_mean", "running_var")


def _norm_mixed(given: dict) -> bool:
    """A norm's weights and statistics are of its input's dtype, or float32 for an input of few digits."""
    x = given["input"]
    found = {p.dtype for name in _OF_NORMS if isinstance(p := given.get(name), torch.Tensor)}
    few = x.dtype in NARROW_DTYPES
    return bool(found) and found != {x.dtype} and not (few and found == {torch.float32})


def _weighs_badly(given: dict) -> bool:
    """A loss's weights are one for each class, in the dtype of its input."""
    x, weight = given["self"], given.get("weight")
    return weight is not None and (
        weight.dtype != x.dtype or weight.dim() != 1 or weight.shape[0] != x.shape[min(x.dim(), 2) - 1]
    )


def _sampled_mixed(given: dict) -> bool:
    return given["input"].dtype != given["grid"].dtype


aten = torch.ops.aten
# operation -> whether torch refuses a call, by its arguments
REFUSES: dict[str, Callable[[dict], bool]] = {
    "clamp": lambda given: given.get("min") is None and given.get("max") is None or _bools(given, "self", "min", "max"),
    "pow": _no_power,
    "linspace": lambda given: given.get("dtype") is torch.bool,
    "arange": lambda given: given.get("dtype") is torch.bool,
    "bucketize": lambda given: isinstance(given["boundaries"], torch.Tensor) and given["boundaries"].dim() != 1,
    "searchsorted": lambda given: given.get("side") not in (None, "left", "right"),
    "div": lambda given: given.get("rounding_mode") not in (None, "trunc", "floor") or _divides_bools(given),
    "sub": _subtracts_bool,
    "rsub": _subtracts_bool,
    "gather": _dim_outside,
    "avg_pool2d": _divides_by_zero,
    "avg_pool3d": _divides_by_zero,
    "cumsum": lambda given: given.get("dtype") is torch.bool,
    "cumprod": lambda given: given.get("dtype") is torch.bool,
    "smooth_l1_loss": _below_zero("beta"),
    "softshrink": _below_zero("lambd"),
    "heaviside": lambda given: given["self"].dtype is not given["values"].dtype,
    "native_layer_norm": _norm_mixed,
    "native_group_norm": _norm_mixed,
    "native_batch_norm": _norm_mixed,
    "cudnn_batch_norm": _norm_mixed,
    "_native_batch_norm_legit": _norm_mixed,
    "_native_batch_norm_legit_no_training": _norm_mixed,
    "nll_loss_forward": _weighs_badly,
    "nll_loss2d_forward": _weighs_badly,
    "grid_sampler_2d": _sampled_mixed,
    "grid_sampler_3d": _sampled_mixed,
    "any": _dims_repeated,
    "all": _dims_repeated,
    "squeeze": _dims_repeated,
    "select_scatter": _no_window(aten.select.int),
    "slice_scatter": _no_window(aten.slice.Tensor),
    "diagonal_scatter": _no_window(aten.diagonal.default),
    "as_strided": lambda given: any(s < 0 for s in given["stride"]),  # meta kernels before torch 2.13 let it pass
    "as_strided_scatter": _scatters_past,
    "index_fill": lambda given: given["index"].dtype is not torch.int64,
    "index_copy": _copies_badly,
    "index_select": lambda given: given["index"].dim() > 1 or given["index"].dtype not in INDEX_DTYPES,
    "index_put": _badly_indexed,
    "_unsafe_index_put": _badly_indexed,
}
DTYPED = TAKES.keys() | ON_GPU.keys()
LOOKED_AT = REFUSES.keys() | DTYPED | CONVERTED.keys() | INTEGERS.keys()


def check_call(func: Any, args: tuple, kwargs: dict) -> None:
    """Raises: CannotNormalise for a call that torch refuses."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name not in LOOKED_AT:
        return
    given = named(func, args, kwargs)
    if name in REFUSES and REFUSES[name](given):
        raise CannotNormalise(f"{func}: arguments that torch refuses")
    if name in DTYPED and refused_dtype(name, given):
        raise CannotNormalise(f"{func}: a dtype that torch refuses")
    check_scalars(name, given)
