"""Torch functions that stay one node of the graph: calls that a library runs faster than their parts, and a pad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bytejit.common import attention_choice
from bytejit.common.autocast import casts
from bytejit.common.spec import Spec, contiguous_stride
from bytejit.fake.rules.core import FakeStorage, Meta
from bytejit.fake.tensor import Fake, FakeMode, fake_of_spec, make, spec_of

from .graph_writer import GraphWriter

aten = torch.ops.aten

# torch functions that stay one node: a library runs them faster than their parts.
WHOLE = {
    torch.nn.functional.scaled_dot_product_attention: aten.scaled_dot_product_attention.default,
    torch.nn.functional.linear: aten.linear.default,
}


# torch functions of which one form stays one node, where torch would write memory piece by piece
PADS = frozenset((torch.nn.functional.pad, torch._C._nn.pad))


def stays_whole(function: Any, args: tuple, kwargs: dict, attention: tuple) -> Any:
    """The op as which a call is recorded; None: its parts are recorded. The parts of an attention are those of the kernel
    that torch would take: they are recorded where the graph itself chooses the kernel, and on the CPU where the program has
    restricted the choice."""
    op = WHOLE.get(function)
    if op is None or differentiates(args, kwargs):
        return None
    if function is torch.nn.functional.scaled_dot_product_attention:
        on_cpu = any(isinstance(x, Fake) and x.m.device.type == "cpu" for x in (*args, *kwargs.values()))
        if attention_choice.read() != attention or on_cpu and not attention_choice.free_on_cpu():
            return None
    return op


def whole(rec: GraphWriter, function: Callable, op: Any, args: tuple, kwargs: dict) -> Fake:
    """Record a torch function as one op, with the casts of autocast."""
    names = [a.name for a in op._schema.arguments]
    given = rec.fake(tuple(args))
    named = {k: rec.fake(v) for k, v in kwargs.items()}
    for name in [n for n in names[len(given) :] if n in named and not _keyword_only(op, n)]:
        if names[len(given)] != name:
            break
        given += (named.pop(name),)
    device = next(x.m.device.type for x in given if isinstance(x, Fake))
    if casts(device):
        dtype = torch.get_autocast_dtype(device)
        given = tuple(_cast(x, dtype) for x in given)
        named = {k: _cast(v, dtype) for k, v in named.items()}
    expected = linear_spec(*given) if op is aten.linear.default and not named else None
    if expected is None:
        expected = _expected(function, given, named, device)
    made = rec.new(op, given, named, fake_of_spec(expected))
    mask = given[3] if len(given) > 3 else named.get("attn_mask")
    numbers = _as_numbers(mask, given[0])
    if device != "cpu" and op is aten.scaled_dot_product_attention.default and numbers is not mask:
        rest = {k: v for k, v in named.items() if k != "attn_mask"}
        later = _expected(function, (*given[:3], numbers, *given[4:]), rest, device)
        if later.stride != expected.stride and all(type(n) is int for n in (*later.shape, *later.stride)):
            made.bound.root.node.meta["returns"] = later.stride
    return made


def pad(rec: GraphWriter, input: Fake, pad: Sequence, mode: str = "constant", value: float | None = None) -> Fake:
    """torch's pad; a circular one as one op."""
    x = rec.fake(input)
    sides = list(zip(pad[::2], pad[1::2], reversed(x.shape)))
    if (
        mode != "circular"
        or len(x.shape) not in (len(sides) + 1, len(sides) + 2)
        or not all(0 <= low <= n and 0 <= high <= n for low, high, n in sides)
    ):
        return torch._C._nn.pad(input, pad, mode, value)
    shape = (*x.shape[: -len(sides)], *(n + low + high for low, high, n in reversed(sides)))
    made = fake_of_spec(Spec(shape, contiguous_stride(shape), x.dtype, x.device))
    return rec.new(aten._pad_circular.default, (x, list(pad)), {}, made)


def differentiates(args: tuple, kwargs: dict) -> bool:
    """Whether autograd follows a call: the op that is recorded instead of torch's parts has no gradient."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in pytree.tree_leaves((args, kwargs)))


def linear_spec(x: Any, weight: Any, bias: Any = None) -> Spec | None:
    """What linear returns for a matrix of weights; None where eager may refuse. torch 2.11's own code takes no symbols where the
    input is permuted."""
    tensors = [t.m for t in (x, weight, bias) if t is not None]
    if len(tensors[1].shape) != 2 or not tensors[0].shape or len({(t.dtype, t.device) for t in tensors}) > 1:
        return None
    features, inner = tensors[1].shape
    if tensors[0].shape[-1] != inner or bias is not None and tuple(bias.m.shape) != (features,):
        return None
    shape = (*tensors[0].shape[:-1], features)
    return Spec(shape, contiguous_stride(shape), x.m.dtype, x.m.device)


def _expected(function: Callable, given: tuple, named: dict, device: str) -> Spec:
    """Infers what a torch function returns for tensors like these fakes, without autocast."""

    def plain(x: object) -> object:
        return fake_of_spec(spec_of(x)) if isinstance(x, Fake) else x

    off = torch.autocast(device, enabled=False) if casts(device) else nullcontext()
    with torch.utils._python_dispatch._disable_current_modes(), FakeMode(), off:
        return spec_of(function(*map(plain, given), **{k: plain(v) for k, v in named.items()}))


def _as_numbers(x: object, query: Fake) -> object:
    """A mask of attention as `lower` hands it over on a GPU: numbers side by side."""
    if not isinstance(x, Fake) or x.m.dtype is not torch.bool and x.m.stride[-1:] == (1,):
        return x
    return make(Meta(x.m.shape, contiguous_stride(x.m.shape), 0, query.m.dtype, x.m.device, FakeStorage(0)))


def _keyword_only(op: Any, name: str) -> bool:
    return next(a.kwarg_only for a in op._schema.arguments if a.name == name)


def _cast(x: object, dtype: torch.dtype) -> object:
    if isinstance(x, Fake) and x.m.dtype.is_floating_point and x.m.dtype not in (dtype, torch.float64):
        return x.to(dtype)
    return x
