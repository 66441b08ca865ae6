"""torch.istft by operations of a graph. torch's own reads whether the windows overlap everywhere, which is the graph's to assert.

Source: docs of torch.istft. Where they do not overlap, the graph raises, and the original code runs and raises torch's error.
Arguments that torch refuses or warns of go to torch's own, which breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.tracer.core.models import models
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, TensorVar, Var

from .tensors import NONE_OVERRIDES

LEAST = 1e-11  # of the sum of squared windows at each point: torch refuses less
NAMES = ("input", "n_fft", "hop_length", "win_length", "window")


def _istft(function: Callable) -> None:
    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        made = t.values.real(t.calls.call_python(overlapped, args, kwargs)) if is_plain(t, args, kwargs) else NONE
        return made if isinstance(made, TensorVar) else t.tensors.call_tensor_op(function, args, kwargs)


for _function in (torch.istft, torch.Tensor.istft):
    _istft(_function)


def is_plain(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> bool:
    """Whether signal and window are tensors of the kinds that torch takes, of which nobody else is asked."""
    given = dict(zip(NAMES, args)) | {k: v for k, v in kwargs.items() if k in NAMES}
    x, window = given.get("input"), given.get("window")
    return (
        isinstance(x, TensorVar)
        and isinstance(window, TensorVar)
        and all(v.cls in NONE_OVERRIDES and v.fake.device.type == "cpu" for v in (x, window))
        and not t.overrides.modes
        and x.fake.is_complex()
        and window.fake.is_floating_point()
        and x.fake.dim() in (2, 3)
        and window.fake.dim() == 1
    )


def overlapped(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor | None:
    """torch.istft; None for arguments that torch refuses, or warns of. Shapes: input (..., bins, frames), at most three dims;
    returns (..., time)."""
    assert window is not None
    hop, win = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    bins, frames = input.shape[-2:]
    half = bins != n_fft if onesided is None else onesided
    if not 0 < hop <= win or not win <= n_fft or window.shape[0] != win or input.numel() == 0 or half and return_complex:
        return None
    total, start = n_fft + hop * (frames - 1), n_fft // 2 if center else 0
    end = total - start if length is None else start + length
    if bins != (n_fft // 2 + 1 if half else n_fft) or not start < end <= total:
        return None
    if (missing := n_fft - window.shape[0]) > 0:
        window = torch.nn.functional.pad(window, (missing // 2, missing - missing // 2))
    spectra, norm = (input if input.dim() == 3 else input.unsqueeze(0)).transpose(1, 2), "ortho" if normalized else "backward"
    if return_complex:
        pieces = torch.fft.ifft(spectra, dim=-1, norm=norm)
    else:
        pieces = torch.fft.irfft(spectra[..., : n_fft // 2 + 1], n=n_fft, dim=-1, norm=norm)
    pieces = pieces * window.view(1, 1, n_fft)
    y = torch.ops.aten.unfold_backward(pieces, [pieces.shape[0], total], 1, n_fft, hop)
    squares = window.pow(2).expand(1, frames, n_fft)
    overlap = torch.ops.aten.unfold_backward(squares, [1, total], 1, n_fft, hop)[:, start:end]
    torch._assert_async(overlap.detach().abs().min() >= LEAST)
    y = y[:, start:end] / overlap
    return y if input.dim() == 3 else y.squeeze(0)
