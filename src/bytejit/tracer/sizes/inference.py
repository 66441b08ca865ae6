"""Operations on tensors of symbolic sizes: inferred with symbols, or with constants for those that the operation refuses."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from bytejit.common import special_cases
from bytejit.common.autocast import cast_resized
from bytejit.common.warned import silently, warnings_to
from bytejit.fake import plain_numbers, recurrent  # noqa: F401  # register how functions are composed
from bytejit.fake.composites import composite_of
from bytejit.fake.sized import infer_sized
from bytejit.fake.tensor import DataDependent, Fake, NoFake
from bytejit.shapes.symbols import Manner, is_symbolic
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import Break, Specialise
from bytejit.tracer.sizes.numbers import numbers_in

from .copies import MAY_COPY

# functions that eager refuses where a size is 0, and references in Python do not: a size that may be 0 is asked
_F = torch.nn.functional
REFUSE_EMPTY = ("interpolate", "upsample", "pool", "pad", "fold", "fft")
# functions whose result is no view of an argument: whether memory is contiguous decides nothing that a program can see
NEW_RESULTS = frozenset(
    {
        operator.matmul,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.bmm,
        torch.Tensor.bmm,
        torch.mm,
        torch.Tensor.mm,
        torch.addmm,
        torch.baddbmm,
        _F.linear,
        _F.scaled_dot_product_attention,
        _F.layer_norm,
        _F.rms_norm,
        _F.group_norm,
        _F.softmax,
        _F.log_softmax,
        torch.softmax,
        torch.Tensor.softmax,
        _F.embedding,
        _F.cross_entropy,
        _F.conv1d,
        _F.conv2d,
        _F.conv3d,
        torch.cat,
        torch.stack,
        torch.cumsum,
        torch.Tensor.cumsum,
    }
)
# functions whose floats decide more than values: sizes, or whether one bound is above another
RESIZED = ("interpolate", "upsample")
RESIZING = (*RESIZED, "arange", "range", "pool")
STRUCTURAL = frozenset("matrix_norm rrelu".split())
# functions whose formula depends on whether an exponent is 2, or above
OF_EXPONENTS = frozenset(
    "norm _foreach_norm vector_norm normalize dist cdist pdist pairwise_distance renorm triplet_margin_loss".split()
)
# methods that give a tensor another shape in place
RESHAPES = frozenset("""unsqueeze_ squeeze_ transpose_ swapaxes_ swapdims_ t_ resize_ as_strided_ resize_as_ set_""".split())


class SymbolicInference(Component):
    """The part of the tracer that infers operations under symbols."""

    def refuse_symbols(self, args: Any, where: Any = None) -> None:
        """Something failed on these arguments: if sizes among them are symbolic, trace again with those static. where: the
        user's line, if not the one being traced.

        Raises: Specialise.
        """
        found: set = set()
        for x in numbers_in(args):
            if is_symbolic(x):
                e = x.node.public
                found |= getattr(e, "free_symbols", set())
        if found - self.t.measures.measured.keys():
            raise Specialise(
                frozenset(self.t.sizes.sources[s] for s in found - self.t.measures.measured.keys()),
                where or self.t.tensors.where(),
            )

    def run_symbolic(self, fn: Callable, args: Any, kwargs: dict) -> Any:
        """Calls `fn(*args, **kwargs)` on fakes with symbolic sizes. Raises: Break, where eager may refuse what is empty."""
        if fn is torch.lstm and torch.is_autocast_enabled("cpu"):  # eager has oneDNN's, which autocast casts; it takes no symbols
            self.refuse_symbols((args, kwargs))
        with self.t.sizes.environment().rely():
            result = self.infer_symbolic(fn, args, kwargs)
        name = getattr(fn, "__name__", "")
        if any(word in name for word in REFUSE_EMPTY) and any(n == 0 for n in sizes_in((args, kwargs, result))):
            raise Break(f"{name} of a tensor without elements")
        return result

    def infer_symbolic(self, fn: Callable, args: Any, kwargs: dict) -> Any:
        """fn(*args, **kwargs) on fakes with symbolic sizes. Where torch's C++ made a size constant, or refused, the call
        is made again with torch's Python decompositions of composite ops, which keep more sizes symbolic."""
        env = self.t.sizes.environment()
        with self.t.fake_mode:
            said = infer_sized(fn, args, kwargs)
        if said is not None:
            return said[1]
        composed = composite_of(fn, args, kwargs)
        numbers, fn = keeps_numbers(fn, args, kwargs, composed is not None), composed or fn
        single = once(fn, args, kwargs)
        before, fixed, error, result = env.save(), env.fixed, None, None
        outs = [(x, x.m) for x in tree_leaves(kwargs.get("out")) if type(x) is Fake]
        may_copy = fn in MAY_COPY
        plain = Manner(env, relaxed=may_copy or fn in NEW_RESULTS, numbers=numbers)
        self.t.sizes.manner = plain if plain.relaxed or plain.numbers else None
        env.waived.clear()
        try:
            with plain(), self.t.fake_mode:
                result = fn(*args, **kwargs)
            if may_copy:
                self.t.copying.note_copy(args, result, [*env.waived])
            if env.fixed == fixed or single or any(x.m is not m for x, m in outs):
                return result
        except (DataDependent, NoFake):
            env.restore(before)  # the call is not part of the graph, nor is what it asked of sizes
            raise
        except Exception as e:
            # judged below, when the other way has been tried
            if single or any(x.m is not m for x, m in outs):
                raise
            error = e
        after, made, decomposed = env.save(), env.fixed, replace(plain, decompose=True)
        env.restore(before)
        try:
            with decomposed(), self.t.fake_mode, warnings_to(silently):
                given, named = cast_resized(fn, args, kwargs)
                again = fn(*given, **named)
            if error is not None or env.fixed < made:
                self.t.sizes.manner = decomposed
                if may_copy:
                    self.t.copying.note_copy(args, again, [*env.waived])
                return again
        except Exception as e:
            if error is not None and isinstance(e, (DataDependent, NoFake)):
                env.restore(before)
                raise
        env.restore(after)
        if error is not None:
            raise error
        return result


def keeps_numbers(fn: Any, args: Any, kwargs: dict, composed: bool = False) -> bool:
    """Whether symbolic floats among the arguments may stay open where torch's C++ takes plain numbers. What a program's own
    operator does with one is not known. composed: sizes are computed here."""
    if not any(isinstance(x, torch.SymFloat) or composed and is_symbolic(x) for x in numbers_in((args, kwargs))):
        return False
    name = getattr(fn, "__name__", "").removeprefix("linalg_").removesuffix("_")
    if name in STRUCTURAL or not composed and any(word in name for word in RESIZING):
        return False
    if name in OF_EXPONENTS and not all(map(is_beside_two, numbers_in((args, kwargs)))):
        return False
    if name == "uniform" and not ordered(*args[1:], **kwargs):
        return False
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(fn).startswith("aten.")
    return not isinstance(fn, FunctionType) or special_cases.TORCH_FUNCTIONS.made(fn)


def is_beside_two(number: Any) -> bool:
    """Whether a number is no symbolic float of 2; that one stays above 2, or below, is guarded."""
    return not isinstance(number, torch.SymFloat) or bool(number > 2.0) or bool(number < 2.0)


def ordered(low: Any = 0, high: Any = 1, generator: Any = None, **bounds: Any) -> bool:
    """Whether the bounds of uniform numbers are in order, guarded: torch refuses others."""
    return bool(bounds.get("from", low) <= bounds.get("to", high))


def sizes_in(x: Any) -> Any:
    """The sizes of all fakes in a nest."""
    if type(x) is Fake:
        yield from x.m.shape
    elif isinstance(x, dict):
        yield from sizes_in(tuple(x.values()))
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from sizes_in(part)


def once(fn: Callable, args: Any, kwargs: dict) -> bool:
    """Whether a call is made once only. One that gives a tensor another shape in place returns that very tensor."""
    return getattr(fn, "__name__", "") in RESHAPES or resized_by_kernel(fn, args, kwargs)


def resized_by_kernel(fn: Callable, args: Any, kwargs: dict) -> bool:
    """Whether torch's Python decomposition of a resizing differs from its kernel: it rounds other bytes, and the kernel does
    not scale where the size stays (a size of 5 by 1.1). Of a symbolic size that it does not stay is a condition."""
    name = getattr(fn, "__name__", "")
    if not any(word in name for word in RESIZED):
        return False
    given = [x for x in (*args, *kwargs.values()) if type(x) is Fake]
    scales = [x for x in numbers_in((args, kwargs)) if type(x) is float]
    stays = (torch.sym_int(n * s) == n for x in given for n in x.m.shape[2:] for s in scales if s > 1 and s != int(s))
    return any(x.dtype == torch.uint8 for x in given) or any(stays)
