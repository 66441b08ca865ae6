"""What eager refuses by its arguments' sizes, and torch's meta kernels or Python references do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from bytejit.common.warned import silently, warnings_to
from bytejit.fake.rules.core import FakeStorage, Meta, numel
from bytejit.shapes.symbols import hint, is_symbolic

from .meta_inference import Ways, through_kernel
from .rules.errors import DataDependent, NoFake


def check(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    """Check what torch's meta kernel does not. Sizes that decide become conditions. Raises: what eager raises."""
    takes = _TAKES.get(func.name())
    if takes is not None and not takes(*args, **kwargs):
        func(*tree_map(_zeros, args), **tree_map(_zeros, kwargs))


def _zeros(x: Any) -> Any:
    """A tensor of zeros like a fake."""
    m = getattr(x, "m", None)
    return hint(x) if m is None else torch.zeros(tuple(map(hint, m.shape)), dtype=m.dtype, device="cpu")


def _has_elements(x: Any, *rest: Any, **options: Any) -> bool:
    return 0 not in x.m.shape


def _adds_slices(x: Any, dim: int, index: Any, source: Any, **options: Any) -> bool:
    """Whether `index_add` is given one slice for each index, as wide as those of `x`."""
    mine, given = x.m.shape, source.m.shape
    if len(mine) != len(given) or not -len(mine) <= dim < max(len(mine), 1):
        return False
    if not mine:
        return True
    dim %= len(mine)
    return given[dim] == numel(index.m.shape) and all(a == b for d, (a, b) in enumerate(zip(mine, given)) if d != dim)


def _mirrors_less(*args: Any) -> bool:
    """Whether each border that mirrors a tensor is narrower than the tensor."""
    shape, pad = args[-2].m.shape, args[-1]
    return all(max(low, high) < n for low, high, n in zip(pad[::2], pad[1::2], reversed(shape)))


def _resizes(x: Any, size: Any, *rest: Any) -> bool:
    """Whether images that are resized have elements, before and after. There may be none of them."""
    return 0 not in x.m.shape[1:] and (size is None or 0 not in size)


_RESIZED = [f"upsample_{kind}" for kind in "linear1d bilinear2d bicubic2d trilinear3d nearest1d nearest2d nearest3d".split()]
_RESIZED += [f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)] + ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]

# op -> whether it takes its arguments
_TAKES: dict[str, Callable] = {
    f"aten::{name}": _has_elements
    for name in "max max.dim min min.dim mode median.dim nanmedian.dim kthvalue aminmax amax amin".split()
}
_TAKES |= {f"aten::index_add{way}": _adds_slices for way in ("", "_")}
_TAKES |= {f"aten::{name}{way}": _resizes for name in _RESIZED for way in ("", ".vec")}
_TAKES |= {f"aten::reflection_pad{n}d{way}": _mirrors_less for n in (1, 2, 3) for way in ("", "_backward")}


def refused_at_hand(func: torch._ops.OpOverload, args: tuple, kwargs: dict, ways: Ways) -> bool:
    """Whether torch's meta kernel refuses the arguments at the sizes at hand, which a reference in Python may take."""
    if any(a.is_out for a in func._schema.arguments):
        return False
    known: list[tuple[Any, Any]] = []

    def at_hand(x: Any) -> Any:
        if type(x) is not ways.kind:
            return hint(x) if is_symbolic(x) else x
        found = next((constant for mine, constant in known if mine is x), None)
        if found is None:
            m = x.m
            shape, stride, store = tuple(map(hint, m.shape)), tuple(map(hint, m.stride)), FakeStorage(hint(m.store.nbytes))
            found = ways.make(Meta(shape, stride, hint(m.offset), m.dtype, m.device, store))
            known.append((x, found))
        return found

    try:
        with warnings_to(silently):
            through_kernel(func, tree_map(at_hand, args), tree_map(at_hand, kwargs), ways)
    except (DataDependent, NoFake, NotImplementedError):
        return False
    except Exception:
        return True
    return False
