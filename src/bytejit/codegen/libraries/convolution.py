"""Matches convolutions in a graph, with the operations behind them that the same call can compute.

`layout.py` times the rows of `kernels/library.py` and assigns layouts. Our own convolution (`kernels/conv.py`) takes along a
scale and a shift of each channel, an addition and a relu. `normalise` writes a batch norm in evaluation as a scale and a
shift, so no frozen weights are needed for that. On a GPU `convolution_cuda.py` lets cuDNN take along an addition and a relu.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from torch import fx

from bytejit.codegen.aten.rewrite import (
    at_hints,
    aten,
    is_static,
    plain_floats,
    sole_user,
    spec_of,
    spec_or_none,
    specs_of,
)
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec, channels_last_stride

EVERY_EPILOGUE = frozenset({"affine", "relu", "add", "add_relu"})


@light_dataclass(frozen=True)
class ConvNode:
    """A convolution node and its geometry."""

    node: fx.Node
    x: fx.Node
    w: fx.Node
    b: fx.Node | None
    geometry: dict

    @property
    def attrs(self) -> str:
        """Geometry as part of a timing's key."""
        return " ".join(f"{k}={v}" for k, v in self.geometry.items())


@light_dataclass(frozen=True)
class ConvBackward:
    """A convolution's backward node: gradients of x, w and the bias, those that `mask` names, from that of its result."""

    node: fx.Node
    grad: fx.Node
    x: fx.Node
    w: fx.Node
    geometry: dict
    mask: tuple[bool, ...]

    @property
    def attrs(self) -> str:
        """Geometry and mask as part of a timing's key."""
        return " ".join(f"{k}={v}" for k, v in (self.geometry | {"mask": self.mask}).items())


@light_dataclass(frozen=True)
class After:
    """What is fused behind a convolution: a scale and a shift of each channel (a batch norm in evaluation), then `epilogue`,
    with the other addend. last: the last node that it covers."""

    last: fx.Node
    scale: fx.Node | None = None
    shift: fx.Node | None = None
    epilogue: str | None = None
    other: fx.Node | None = None


def match_conv(node: fx.Node) -> ConvNode | None:
    """A 2-d convolution, plain or transposed, that the rows serve, else None."""
    if node.op != "call_function" or node.target is not aten.convolution.default:
        return None
    x, w, b, *how = node.args
    specs = specs_of(x, w, node)
    if specs is None or not plain_floats(*specs) or not is_static(specs[1]) or len(specs[0].shape) != 4:
        return None
    if 0 in (*specs[0].shape, *specs[2].shape):
        return None
    return ConvNode(node, x, w, b, geometry_of(*how))


def geometry_of(
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> dict[str, Any]:
    """The arguments of a 2-d convolution besides its tensors, by the names of `kernels.library.Conv`."""

    def both(sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(sizes) * 2 if len(sizes) == 1 else tuple(sizes)

    return dict(
        stride=both(stride),
        padding=both(padding),
        dilation=both(dilation),
        transposed=transposed,
        output_padding=both(output_padding) if transposed else (0, 0),
        groups=groups,
    )


def match_conv_backward(node: fx.Node) -> ConvBackward | None:
    """The backward pass of a 2-d convolution, plain or transposed, of known sizes, else None. On a GPU not of a depthwise one,
    which is no library's."""
    if node.op != "call_function" or node.target is not aten.convolution_backward.default:
        return None
    grad, x, w, _, *how, mask = node.args
    specs = specs_of(grad, x, w)
    if specs is None or not plain_floats(*specs) or not all(map(is_static, specs)) or len(specs[1].shape) != 4:
        return None
    geometry = geometry_of(*how)
    if specs[0].device.type != "cpu" and geometry["groups"] == specs[1].shape[1] > 1:
        return None
    if 0 in (*specs[0].shape, *specs[1].shape) or not any(mask[:2]):
        return None
    return ConvBackward(node, grad, x, w, geometry, tuple(mask))


def match_plain_conv(node: fx.Node) -> ConvNode | None:
    """A convolution that is not transposed, else None."""
    found = match_conv(node)
    return None if found is None or found.geometry["transposed"] else found


def match_plain_backward(node: fx.Node) -> ConvBackward | None:
    """The backward pass of a convolution that is not transposed, else None."""
    found = match_conv_backward(node)
    return None if found is None or found.geometry["transposed"] else found


def convertible(spec: Spec | None) -> TypeGuard[Spec]:
    """Whether a 4-d tensor has two different layouts: with one channel or one pixel they are the same."""
    if spec is None or len(spec.shape) != 4:
        return False
    _, channels, height, width = at_hints(spec).shape
    return channels > 1 and height * width > 1


def is_nhwc(spec: Spec | None) -> TypeGuard[Spec]:
    """The channels are innermost."""
    return convertible(spec) and spec.stride == channels_last_stride(spec.shape)


def what_follows(node: fx.Node, epilogues: frozenset[str]) -> After:
    """The operations behind a convolution that can be fused into a row with these epilogues."""
    scale, shift, last = None, None, node
    if "affine" in epilogues:
        scale, last = _by_channel(last, aten.mul.Tensor)
        shift, last = _by_channel(last, aten.add.Tensor)
    user = sole_user(last)
    if user is not None and user.target is aten.relu.default and "relu" in epilogues:
        return After(user, scale, shift, "relu")
    if user is not None and user.target is aten.add.Tensor and "add" in epilogues and not user.kwargs and len(user.args) == 2:
        other = user.args[1] if user.args[0] is last else user.args[0]
        if spec_or_none(other) == spec_of(node):
            after = sole_user(user)
            if after is not None and after.target is aten.relu.default and "add_relu" in epilogues:
                return After(after, scale, shift, "add_relu", other)
            return After(user, scale, shift, "add", other)
    return After(last, scale, shift)


def _by_channel(node: fx.Node, op: Any) -> tuple[fx.Node | None, fx.Node]:
    """(a number for each channel, the node) of the call of `op` that alone reads `node`; (None, node) when there is none."""
    user, spec = sole_user(node), spec_of(node)
    if user is not None and user.target is op and not user.kwargs and len(user.args) == 2:
        other = user.args[1] if user.args[0] is node else user.args[0]
        numbers = spec_or_none(other)
        if numbers is None or (numbers.dtype, numbers.device) != (spec.dtype, spec.device) or spec_of(user).shape != spec.shape:
            return None, node
        if (
            len(numbers.shape) > 2
            and numbers.shape[-3:] == (spec.shape[1], 1, 1)
            and (numbers.shape[:-3] in ((), (1,)) and numbers.stride[-3] == 1)
        ):
            return other, user
    return None, node
