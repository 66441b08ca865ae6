"""The library calls that compete for matmul, convolution and attention: a row each, and the arguments of each family. Three
rows of convolutions serve GPUs too (`GPU`); products there: `codegen/libraries/linear_cuda.py`.

A row names a torch operator and maps the family's arguments to its own. Rows work on tensors and on FX nodes, so a chosen row
becomes one plain operator call in the graph: no Python wrapper runs in a call. Operators are torch's own (MKL through aten,
oneDNN through mkldnn), present in torch 2.11 to 2.15, or our own (`gemm.py`, `conv.py`, `attention.py`); `available()` says
which are here.

Numerics: float32 sums are in float32 everywhere, only their order differs (largest difference seen between rows:
2e-6 relative to the largest output). A fused `gelu` of oneDNN is the erf form at 1e-6 absolute ("none") or the tanh
form ("tanh").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from bytejit.common.light_dataclass import light_dataclass

from . import attention, conv, conv_grad, gemm

aten = torch.ops.aten
Operand: TypeAlias = torch.Tensor | torch.fx.Node  # rows work on both


@light_dataclass(frozen=True)
class Linear:
    """x [..., K], w [N, K] (any strides), b [N] or None, other (for "add"), n = N -> [..., N], contiguous."""

    x: Operand
    w: Operand
    b: Operand | None = None
    epilogue: str | None = None
    other: Operand | None = None
    n: int | None = None


@light_dataclass(frozen=True)
class Conv:
    """x [B, C, *], w [O, C/groups, *] (transposed: [C, O/groups, *]), b [O] or None, n = O. "affine" among the epilogues: scale,
    shift (O elements each, or None) are applied before the others. The result has the layout of the row: channels innermost for
    "nhwc", row-major for "nchw"."""

    x: Operand
    w: Operand
    b: Operand | None = None
    stride: Sequence[int] = (1, 1)
    padding: Sequence[int] = (0, 0)
    dilation: Sequence[int] = (1, 1)
    transposed: bool = False
    output_padding: Sequence[int] = (0, 0)
    groups: int = 1
    epilogue: str | None = None
    other: Operand | None = None
    n: int | None = None
    scale: Operand | None = None
    shift: Operand | None = None


@light_dataclass(frozen=True)
class Attention:
    """q [B, H, L, D], k [B, G, S, D], v [B, G, S, E], mask or None. aside: the result has its heads innermost but one. strict:
    a row whose scores are all -inf is NaN, else 0 (which torch's own gives)."""

    q: Operand
    k: Operand
    v: Operand
    mask: Operand | None = None
    causal: bool = False
    scale: Any = 1.0
    aside: bool = True
    strict: bool = False


FAMILIES: dict[str, type] = {"linear": Linear, "conv": Conv, "attention": Attention}


@light_dataclass(frozen=True)
class LibraryCall:
    """One library call. family: "linear", "conv", "attention". epilogues: what it can apply to its result on the way out.

    call(the family's arguments) -> (operator, args). pack: None, or (weight, **arguments) -> the weight in the library's own
    layout, good for this row only. layout: of input and result, "any", "nchw" or
    "nhwc". any_layout: it reads its input in any layout as fast. fits(shape of the weight, **geometry): whether the row
    serves such an operation, or is worth trying.
    """

    name: str
    family: str
    call: Callable[[Any], tuple]
    epilogues: frozenset[str] = frozenset()
    pack: Callable[..., torch.Tensor] | None = None
    layout: str = "any"
    any_layout: bool = False
    fits: Callable[..., bool] = lambda shape, **geometry: True

    def __repr__(self) -> str:
        return f"library call {self.name} ({self.family}, {self.layout}{', packed' if self.pack else ''})"

    def build(self, **arguments: Any) -> tuple:
        """(operator, args), of the family's arguments by name."""
        return self.call(FAMILIES[self.family](**arguments))

    def __call__(self, **arguments: Any) -> torch.Tensor:
        """Run the row on tensors."""
        target, args = self.build(**arguments)
        return target(*args)


def available() -> frozenset[str]:
    """Names of the rows that can run: this torch build has oneDNN; `OwnLibrary.register` has been called for our own."""
    onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    own = {"linear_own": gemm.OWN, "conv_own": conv.OWN, "attention_own": attention.OWN}
    missing = [name for name, library in own.items() if not library.built] + ([] if onednn else ["linear_onednn", "conv_onednn"])
    return frozenset(n for n in ROWS if not n.startswith(tuple(missing)))


def weight_grad() -> Any:
    """Our own gradient of a convolution's weight (`conv_grad.py`); None where it is not built."""
    return torch.ops.bytejit.conv_weight_grad.default if conv_grad.OWN.built else None


# ---- linear -------------------------------------------------------------------------------------------------------------


def _linear_torch(a: Linear) -> tuple:
    return aten.linear.default, (a.x, a.w, a.b)


def _linear_onednn(a: Linear) -> tuple:
    ops = torch.ops.mkldnn
    if a.epilogue == "add":
        return ops._linear_pointwise.binary, (a.x, a.other, a.w, a.b, "add")
    name, algorithm = _epilogue(a.epilogue)
    return ops._linear_pointwise.default, (a.x, a.w, a.b, name, [], algorithm)


def _pack_linear(w: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(w.detach(), rows)


def _linear_own(a: Linear) -> tuple:
    return torch.ops.bytejit.linear.default, (a.x, a.w, a.b, gemm.EPILOGUES[a.epilogue])


def _linear_own_packed(a: Linear) -> tuple:
    return torch.ops.bytejit.linear_packed.default, (a.x, a.w, a.n, a.b, gemm.EPILOGUES[a.epilogue])


def _pack_own(w: torch.Tensor, rows: int) -> torch.Tensor:
    return gemm.OWN.built["pack"](w.detach())


def _epilogue(epilogue: str | None) -> tuple[str, str]:
    return {None: ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}[epilogue]


def after(epilogue: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """An epilogue as a pass over a result, which takes what a kernel of ours takes: for timing."""
    own = gemm.OWN.built.get("finish")

    def finish(y: torch.Tensor) -> torch.Tensor:
        if own is not None and y.dtype is torch.float32 and y.is_contiguous():
            return own(y, gemm.EPILOGUES[epilogue])
        return _EAGER[epilogue](y)

    return finish


_EAGER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
}


# ---- conv ---------------------------------------------------------------------------------------------------------------


def _conv_aten(a: Conv) -> tuple:
    geometry = (list(a.stride), list(a.padding), list(a.dilation), a.transposed, list(a.output_padding), a.groups)
    return aten.convolution.default, (a.x, a.w, a.b, *geometry)


def _conv_onednn(a: Conv) -> tuple:
    ops = torch.ops.mkldnn
    geometry = (list(a.padding), list(a.stride), list(a.dilation), a.groups)
    if a.epilogue in ("add", "add_relu"):
        relu = "relu" if a.epilogue == "add_relu" else None
        return ops._convolution_pointwise.binary, (a.x, a.other, a.w, a.b, *geometry, "add", 1.0, relu, [], "")
    name, algorithm = _epilogue(a.epilogue)
    return ops._convolution_pointwise.default, (a.x, a.w, a.b, *geometry, name, [], algorithm)


def _pack_conv(
    w: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    shape: Sequence[int],
    **geometry: Any,
) -> torch.Tensor:
    how = (list(padding), list(stride), list(dilation), groups)
    return torch.ops.mkldnn._reorder_convolution_weight(w.detach(), *how, list(shape))


def _pack_channels_last(w: torch.Tensor, **geometry: Any) -> torch.Tensor:
    return w.detach().contiguous(memory_format=torch.channels_last)


def _conv_own(a: Conv, winograd: bool = False) -> tuple:
    return torch.ops.bytejit.conv.default, (a.x, a.w, *_own_arguments(a, winograd))


def _conv_own_packed(a: Conv, winograd: bool = False) -> tuple:
    return torch.ops.bytejit.conv_packed.default, (a.x, a.w, a.n, *_own_arguments(a, winograd))


def _own_arguments(a: Conv, winograd: bool) -> tuple:
    """Returns the arguments in the order of `conv.AFTER`."""
    geometry = (list(a.stride), list(a.padding), list(a.dilation), a.groups)
    return a.b, *geometry, a.scale, a.shift, a.other, a.epilogue in ("relu", "add_relu"), winograd


def _pack_conv_own(w: torch.Tensor, groups: int, **geometry: Any) -> torch.Tensor:
    return conv.OWN.built["conv_pack"](w.detach(), groups)


def _pack_windows(w: torch.Tensor, **geometry: Any) -> torch.Tensor:
    return conv.OWN.built["conv_pack"](w.detach(), 1, True)


def _fits_plain(shape: Sequence[int], transposed: bool, **geometry: Any) -> bool:
    """Transposed convolutions are torch's own call."""
    return not transposed


def _fits_own(shape: Sequence[int], transposed: bool, groups: int, **geometry: Any) -> bool:
    """Not depthwise: its panels would be almost empty."""
    return not transposed and (groups == 1 or shape[0] // groups >= 8)


def _fits_winograd(
    shape: Sequence[int], stride: Sequence[int], dilation: Sequence[int], transposed: bool, groups: int, **geometry: Any
) -> bool:
    """3 by 3, stride 1; a few channels are not worth the sums around the products."""
    square = tuple(shape[2:]) == (3, 3) and {*stride, *dilation, groups} == {1}
    return square and not transposed and shape[0] >= 8 and shape[1] >= 8


# ---- attention ----------------------------------------------------------------------------------------------------------


def _attention_torch(a: Attention) -> tuple:
    return _flash, (a.q, a.k, a.v, a.mask, a.causal, a.scale)


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: Any
) -> torch.Tensor:
    """torch's own; the graph keeps the node that it has."""
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _attention_own(a: Attention) -> tuple:
    return torch.ops.bytejit.attention.default, (a.q, a.k, a.v, a.mask, a.causal, a.scale, a.aside, a.strict)


_UNARY = frozenset({"relu", "gelu", "gelu_tanh"})
_WITH_ADD = _UNARY | {"add", "add_relu"}
_AFTER = frozenset({"affine", "relu", "add", "add_relu"})

ROWS: dict[str, LibraryCall] = {
    row.name: row
    for row in (
        LibraryCall("linear_torch", "linear", _linear_torch),
        LibraryCall("linear_onednn", "linear", _linear_onednn, _UNARY | {"add"}),
        LibraryCall("linear_onednn_packed", "linear", _linear_onednn, _UNARY | {"add"}, _pack_linear),
        LibraryCall("linear_own", "linear", _linear_own, _UNARY),
        LibraryCall("linear_own_packed", "linear", _linear_own_packed, _UNARY, _pack_own),
        LibraryCall("attention_torch", "attention", _attention_torch),
        LibraryCall("attention_own", "attention", _attention_own),
        LibraryCall("conv_nchw", "conv", _conv_aten, layout="nchw"),
        LibraryCall("conv_nhwc", "conv", _conv_aten, layout="nhwc"),
        LibraryCall("conv_nhwc_packed", "conv", _conv_aten, pack=_pack_channels_last, layout="nhwc"),
        LibraryCall("conv_onednn_nhwc", "conv", _conv_onednn, _WITH_ADD, layout="nhwc", fits=_fits_plain),
        LibraryCall("conv_onednn_packed", "conv", _conv_onednn, _WITH_ADD, _pack_conv, "nhwc", fits=_fits_plain),
        LibraryCall("conv_own", "conv", _conv_own, _AFTER, None, "nhwc", True, _fits_own),
        LibraryCall("conv_own_packed", "conv", _conv_own_packed, _AFTER, _pack_conv_own, "nhwc", True, _fits_own),
        LibraryCall("conv_own_winograd", "conv", partial(_conv_own, winograd=True), _AFTER, None, "nhwc", False, _fits_winograd),
        LibraryCall(
            "conv_own_winograd_packed",
            "conv",
            partial(_conv_own_packed, winograd=True),
            _AFTER,
            _pack_windows,
            "nhwc",
            False,
            _fits_winograd,
        ),
    )
}


GPU = frozenset({"conv_nchw", "conv_nhwc", "conv_nhwc_packed"})  # cuDNN through torch; on the CPU the others and these


def rows(family: str, packed: bool = False, device: str = "cpu") -> tuple[LibraryCall, ...]:
    """The rows of a family that this build can run on a device, the default first; prepacked ones only when `packed`."""
    here = available() - {"conv_nhwc_packed"} if device == "cpu" else GPU
    return tuple(r for r in ROWS.values() if r.family == family and r.name in here and (packed or r.pack is None))
