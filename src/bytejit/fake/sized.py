"""Shape rules of functions of torch whose C++ takes plain ints only, where a size may be a symbol.

In `linspace(0, 1, n)` torch's binding would turn n into a constant. A row says shape, dtype and device of the
result; the graph holds the call itself, which runs with plain ints. `overload` picks the ATen op that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from bytejit.common.autocast import casts
from bytejit.common.light_dataclass import light_dataclass
from bytejit.fake.rules.core import device_given, new
from bytejit.fake.rules.recurrent import by_steps
from bytejit.shapes.symbols import any_symbolic, is_symbolic

from .tensor import DataDependent, Fake, NoFake, make

aten = torch.ops.aten
_FACTORY = frozenset(("dtype", "layout", "device", "pin_memory", "requires_grad"))


@light_dataclass(frozen=True)
class Sized:
    """`infer(*args, **kwargs)` on fakes: a fake, or None where the row does not say. `overload(*args)`: the ATen op."""

    infer: Callable[..., Any]
    overload: Callable[..., Any]
    always: bool = False  # also for plain ints


SIZED: dict[Any, Sized] = {}


def sized(op: Any, *functions: Callable, overload: Callable | None = None, always: bool = False) -> Callable:
    """Register a row for functions that are the ATen op `op`."""

    def register(infer: Callable) -> Callable:
        for function in functions:
            SIZED[function] = Sized(infer, overload or (lambda *args: op), always)
        return infer

    return register


def infer_sized(function: Any, args: tuple, kwargs: dict) -> tuple[Any, Fake] | None:
    """(ATen op, its result) of a call with symbolic numbers among its arguments; None where no row says."""
    try:
        row = SIZED.get(function)
    except TypeError:
        return None
    if row is None or kwargs.get("out") is not None:
        return None
    if not row.always and not any(map(has_symbols, (*args, *kwargs.values()))):
        return None
    try:
        made = row.infer(*args, **kwargs)
    except TypeError:  # arguments that the row does not know
        return None
    return None if made is None else (row.overload(*args), made)


def has_symbols(x: Any) -> bool:
    """Whether an argument is a symbol, or has symbolic sizes, or an item of it."""
    if type(x) is Fake:
        return any_symbolic(x.m.shape)
    return any(map(has_symbols, x)) if isinstance(x, (list, tuple)) else is_symbolic(x)


def _factory(shape: tuple, dtype: torch.dtype | None, options: dict) -> Fake | None:
    if options.keys() - _FACTORY or options.get("requires_grad") or options.get("layout") not in (None, torch.strided):
        return None
    return make(new(shape, None, dtype, device_given(options.get("device"), torch.get_default_device())))


def _plain(*numbers: Any) -> bool:
    return all(isinstance(n, (int, float, torch.SymInt, torch.SymFloat)) for n in numbers)


@sized(aten.linspace.default, torch.linspace)
def _linspace(
    start: Any, end: Any, steps: Any, *, out: Any = None, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor | None:
    return _factory((steps,), dtype or torch.get_default_dtype(), options) if _plain(start, end) else None


@sized(aten.logspace.default, torch.logspace)
def _logspace(
    start: Any, end: Any, steps: Any, base: Any = 10.0, *, out: Any = None, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor | None:
    return _factory((steps,), dtype or torch.get_default_dtype(), options) if _plain(start, end) else None


def _windows(name: str, most: int) -> None:
    overloads = [
        getattr(aten, name).default,
        getattr(aten, name).periodic,
        *(
            getattr(getattr(aten, name), o)
            for o in ("periodic_alpha", "periodic_alpha_beta", "beta")
            if hasattr(getattr(aten, name), o)
        ),
    ]

    def overload(*args: Any) -> Any:
        return overloads[min(len(args) - 1, most)]

    @sized(None, getattr(torch, name), overload=overload)
    def _window(
        length: Any, *rest: Any, out: Any = None, dtype: torch.dtype | None = None, **options: Any
    ) -> torch.Tensor | None:
        if len(rest) > most or "periodic" in options:
            return None
        return _factory((length,), dtype or torch.get_default_dtype(), options)


for _name in ("hann_window", "hamming_window", "bartlett_window", "blackman_window"):
    _windows(_name, 1)


def _below_diagonal(rows: Any, columns: Any, offset: int) -> Any:
    """Elements of a matrix on and below a diagonal, counted as torch counts them."""
    if rows == 0 or columns == 0:
        return 0
    least, most = torch.sym_min, torch.sym_max
    first = least(columns, 1 + offset) if offset > 0 else int(rows + offset > 0)
    last = most(0, least(columns, rows + offset))
    every = most(0, least(rows, rows + offset))
    slanted = last - first + 1
    return (first + last) * slanted // 2 + most(0, every - slanted) * columns


@sized(aten.tril_indices.default, torch.tril_indices)
def _tril_indices(
    row: Any, col: Any, offset: Any = 0, *, dtype: torch.dtype | None = torch.int64, **options: Any
) -> torch.Tensor | None:
    return _factory((2, _below_diagonal(row, col, offset)), dtype, options) if isinstance(offset, int) else None


@sized(aten.triu_indices.default, torch.triu_indices)
def _triu_indices(
    row: Any, col: Any, offset: Any = 0, *, dtype: torch.dtype | None = torch.int64, **options: Any
) -> torch.Tensor | None:
    if not isinstance(offset, int):
        return None
    return _factory((2, row * col - _below_diagonal(row, col, offset - 1)), dtype, options)


@sized(aten.one_hot.default, torch.nn.functional.one_hot, always=True)
def _one_hot(tensor: Any, num_classes: int = -1) -> torch.Tensor | None:
    """Whole, as torch checks its classes: traced through it would be a comparison, without checks and laid out as the input."""
    x = tensor
    if type(num_classes) is int and num_classes == 0 or isinstance(x, Fake) and x.m.dtype is not torch.int64:
        raise DataDependent("one_hot")  # an error in eager, whatever is in the tensor
    if not isinstance(x, Fake) or any(n == 0 for n in x.m.shape):
        return None
    if not is_symbolic(num_classes) and (type(num_classes) is not int or num_classes < 1):
        return None
    return make(new((*x.m.shape, num_classes), None, torch.int64, x.m.device))


@sized(aten.histc.default, torch.histc, torch.Tensor.histc)
def _histc(x: Any, bins: Any = 100, min: Any = 0, max: Any = 0) -> torch.Tensor | None:
    return make(new((bins,), None, x.m.dtype, x.m.device)) if bins > 0 and _plain(min, max) else None


@sized(aten.affine_grid_generator.default, torch.affine_grid_generator)
def _affine_grid(theta: Any, size: Any, align_corners: bool) -> torch.Tensor | None:
    if len(size) != 4 or theta.requires_grad or casts(theta.m.device.type):
        return None
    return make(new((size[0], size[2], size[3], 2), None, theta.m.dtype, theta.m.device))


@sized(aten.fft_fftfreq.default, torch.fft.fftfreq)
def _fftfreq(n: Any, d: Any = 1.0, *, out: Any = None, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor | None:
    return _factory((n,), dtype or torch.get_default_dtype(), options)


@sized(aten.fft_rfftfreq.default, torch.fft.rfftfreq)
def _rfftfreq(n: Any, d: Any = 1.0, *, out: Any = None, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor | None:
    return _factory((n // 2 + 1,), dtype or torch.get_default_dtype(), options)


# ---- recurrent layers -------------------------------------------------------------------------------------------------
# A layer is one call of a library where its weights lie together in memory. torch finds that out from their addresses; fakes have
# none.
ONE_CALL = frozenset({"cuda"})


def learns(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether autograd follows what is computed from tensors."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _layers(
    x: Any, states: Any, weights: Any, dropout: float, training: bool, bidirectional: bool, batch_first: bool
) -> tuple[Fake, ...] | None:
    """(result, final states) of a layer in one call. None: its parts are traced instead. Raises: NoFake if torch's choice
    of a kernel depends on something that a fake does not have."""
    if x.m.device.type not in ONE_CALL:
        return None
    if training and dropout and torch.backends.cudnn.enabled:
        raise NoFake("a recurrent layer with dropout", "cuDNN draws the random numbers from a state of its own")
    if learns((x, *states, *weights)) or training and dropout or torch.is_autocast_enabled(x.m.device.type):
        return None
    features = states[0].m.shape[-1] * (1 + bidirectional)
    made = by_steps(x, features, batch_first)
    return tuple(map(make, (made, *(new(s.m.shape, None, s.m.dtype, s.m.device) for s in states))))


def _packed(args: tuple) -> bool:
    """Whether a call takes packed sequences: a tensor of lengths stands before the weights."""
    return isinstance(args[1], torch.Tensor) and isinstance(args[2], torch.Tensor)


@sized(aten.lstm.input, torch.lstm, always=True)
def _lstm(*args: Any) -> tuple[Fake, ...] | None:
    if isinstance(args[1], torch.Tensor):
        return None
    x, states, weights, _, _, dropout, training, bidirectional, batch_first = args
    return _layers(x, states, weights, dropout, training, bidirectional, batch_first)


def _gated(name: str) -> None:
    @sized(getattr(aten, name).input, getattr(torch, name), always=True)
    def _recurrent(*args: Any) -> tuple[Fake, ...] | None:
        if _packed(args):
            return None
        x, state, weights, _, _, dropout, training, bidirectional, batch_first = args
        return _layers(x, (state,), weights, dropout, training, bidirectional, batch_first)


for _name in ("gru", "rnn_tanh", "rnn_relu"):
    _gated(_name)
