"""Calls for the rows of codegen/onnx/table.py: each row has one at least. Written as (operator, arguments, settings)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Some numbers of both signs, none special."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = numbers(5, 13), numbers(5, 13, seed=1)
SPECIAL = torch.cat([torch.tensor([NAN, INF, -INF, 0.0, -0.0, 0.5, 1.5, 2.5, -1.5, 3.0, -3.0, 6.0, 25.0]), numbers(52) * 3]).view(
    5, 13
)
INTS, MORE = torch.arange(-30, 35).view(5, 13), torch.arange(65).view(5, 13) % 7
BOOLS, OTHERS = X > 0, Y > 0
SHARE = torch.rand(5, 13, generator=torch.Generator().manual_seed(2)) * 0.9 + 0.05
IMAGE, WEIGHT = numbers(2, 4, 9, 8), numbers(6, 4, 3, 3)
CUBE = numbers(2, 3, 5, 4)

Case = tuple[Any, tuple, dict]


def case(op: Any, *args: Any, **settings: Any) -> Case:
    return op, args, settings


def pointwise() -> list[Case]:
    """Of one input, of two, comparisons, logic."""
    found = []
    for name in "exp sqrt rsqrt reciprocal sin cos tan atan sinh cosh tanh asinh erf sigmoid log".split():
        found += [case(getattr(aten, name).default, x) for x in ((X, SHARE, INTS) if name != "log" else (SHARE, INTS.abs() + 1))]
    for name in "asin acos atanh log2".split():
        found.append(case(getattr(aten, name).default, SHARE))
    found.append(case(aten.acosh.default, SHARE + 1))
    for name in "neg abs floor ceil round sign trunc isnan isinf relu exp sigmoid square".split():
        found.append(case(getattr(aten, name).default, SPECIAL))
    found += [case(aten.neg.default, INTS), case(aten.abs.default, INTS.int()), case(aten.square.default, INTS)]
    for name in "eq ne lt le gt ge".split():
        op = getattr(aten, name)
        found += [case(op.Tensor, SPECIAL, Y), case(op.Tensor, INTS, X), case(op.Scalar, INTS, 2.5), case(op.Scalar, X, 1)]
        found += [case(op.Tensor, BOOLS, OTHERS), case(op.Tensor, X[:1], Y[:, :1])]
    for name in "add sub mul div".split():
        op = getattr(aten, name)
        found += [case(op.Tensor, X, Y), case(op.Tensor, X, INTS), case(op.Tensor, X[0], 2.5), case(op.Tensor, INTS, 3)]
        found += [case(op.Tensor, INTS, 2.5), case(op.Tensor, X[:1], Y[:, :1]), case(op.Tensor, X.double(), Y)]
        found += [case(op.Scalar, X, 3)]
    found += [
        case(aten.add.Tensor, X, Y, alpha=2),
        case(aten.sub.Tensor, INTS, MORE, alpha=3),
        case(aten.mul.Tensor, BOOLS, OTHERS),
    ]
    found += [case(aten.rsub.Scalar, INTS, 2), case(aten.rsub.Tensor, INTS, MORE, alpha=2)]
    for mode in ("floor", "trunc"):
        found += [case(aten.div.Tensor_mode, INTS, d, rounding_mode=mode) for d in (3, -4)]
        found += [case(aten.div.Scalar_mode, INTS, 3, rounding_mode=mode)]
    found += [case(aten.div.Tensor_mode, X, Y, rounding_mode=None), case(aten.floor_divide.default, INTS, -4)]
    found += [case(aten.remainder.Scalar, INTS, d) for d in (3, -4)]
    found += [case(aten.pow.Tensor_Scalar, SHARE, p) for p in (2, 3, 0.5, -0.5, -1, 1.7, 4)]
    found += [case(aten.pow.Tensor_Tensor, SHARE, Y)]
    found += [
        case(aten.maximum.default, SPECIAL, Y),
        case(aten.maximum.default, Y, SPECIAL),
        case(aten.minimum.default, INTS, MORE),
    ]
    found += [case(aten.minimum.default, SPECIAL, Y), case(aten.maximum.default, INTS, MORE)]
    found += [case(aten.clamp.default, x, -1, 1) for x in (SPECIAL, INTS)] + [case(aten.clamp.default, X, None, 0.3)]
    found += [case(aten.clamp_min.default, SPECIAL, 0.1), case(aten.clamp_max.default, SPECIAL, 0.1)]
    found += [case(aten.logical_not.default, x) for x in (SPECIAL, INTS, BOOLS)] + [case(aten.bitwise_not.default, BOOLS)]
    for name in ("and", "or", "xor"):
        found += [case(getattr(aten, f"logical_{name}").default, INTS, BOOLS)]
        found += [
            case(getattr(aten, f"bitwise_{name}").Tensor, BOOLS, OTHERS),
            case(getattr(aten, f"bitwise_{name}").Scalar, BOOLS, True),
        ]
    return found


def choices() -> list[Case]:
    """Where, fill, dtypes, activations, tensors made of nothing."""
    found = [
        case(aten.where.self, BOOLS, X, Y),
        case(aten.where.ScalarSelf, BOOLS, 1.5, Y),
        case(aten.where.ScalarOther, BOOLS, X, -2.0),
    ]
    found += [case(aten.where.Scalar, BOOLS, 1.0, 2.0), case(aten.masked_fill.Scalar, X, BOOLS, -INF)]
    found += [case(aten.masked_fill.Tensor, X, BOOLS, torch.tensor(3.0)), case(aten.where.self, BOOLS[:1], X, Y)]
    for dtype in (torch.float64, torch.int64, torch.int32, torch.bool, torch.float16, torch.bfloat16):
        found += [case(aten._to_copy.default, t, dtype=dtype) for t in (X * 10, INTS, BOOLS)]
    found += [case(aten.clone.default, X), case(aten.clone.default, IMAGE, memory_format=torch.channels_last)]
    found += [case(aten.clone.default, X.t()), case(aten.lift_fresh_copy.default, X)]
    for approximate in ("none", "tanh"):
        found.append(case(aten.gelu.default, X, approximate=approximate))
    for name in "silu leaky_relu elu hardtanh hardsigmoid hardswish softplus".split():
        found.append(case(getattr(aten, name).default, X * 4))
    found += [
        case(aten.leaky_relu.default, X, 0.2),
        case(aten.elu.default, X, 1.5, 1.1),
        case(aten.softplus.default, X * 8, 2, 5),
    ]
    found += [case(aten.threshold_backward.default, X, Y, 0), case(aten.hardtanh.default, SPECIAL, 0.0, 6.0)]
    found += [case(aten.full.default, [2, 3], 1.5), case(aten.full_like.default, INTS, 4), case(aten.new_full.default, X, [3], 2)]
    for name in ("zeros", "ones"):
        found += [case(getattr(aten, name).default, [2, 3], dtype=torch.int64), case(getattr(aten, f"{name}_like").default, X)]
        found += [case(getattr(aten, f"new_{name}").default, X, [4])]
    found += [case(aten.scalar_tensor.default, 2.5), case(aten.arange.default, 7), case(aten.arange.start, 2, 7)]
    found += [case(aten.arange.start_step, 2, 20, 3)]
    return found


def moves() -> list[Case]:
    """Views, joins, pads, gathers."""
    found = [
        case(aten.view.default, X, [13, -1]),
        case(aten.reshape.default, X.t(), [65]),
    ]
    found += [case(aten.unsqueeze.default, X, 1), case(aten.squeeze.default, X[:1]), case(aten.squeeze.dim, X[:1], 0)]
    found += [case(aten.squeeze.dims, X[:1, :1], [0, 1]), case(aten.permute.default, CUBE, [2, 0, -1, 1])]
    found += [case(aten.transpose.int, CUBE, 1, -1), case(aten.t.default, X), case(aten.expand.default, X[:1], [4, 5, -1])]
    found += [case(aten.narrow.default, X, 1, 3, 5)]
    found += [case(aten.slice.Tensor, X, 1, 2, 9, 3), case(aten.slice.Tensor, X, 0, -2), case(aten.select.int, CUBE, 2, -1)]
    found += [case(aten.split.Tensor, X, 4, 1), case(aten.split_with_sizes.default, X, [2, 3], 0), case(aten.unbind.int, CUBE, 1)]
    found += [case(aten.chunk.default, X, 2)]
    found += [
        case(aten.cat.default, [X, Y, INTS], 1),
        case(aten.stack.default, [X, Y], -1),
        case(aten.repeat.default, X, [2, 1, 3]),
    ]
    found += [case(aten.flip.default, CUBE, [0, -1]), case(aten.constant_pad_nd.default, X, [1, 2, 0, 3], 1.5)]
    found += [case(aten.reflection_pad1d.default, X, [2, 3])]
    found += [case(aten.reflection_pad2d.default, IMAGE, [1, 2, 3, 0]), case(aten.replication_pad1d.default, X, [2, 3])]
    found += [case(aten.replication_pad2d.default, IMAGE, [1, 2, 3, 0]), case(aten.replication_pad3d.default, IMAGE, [1] * 6)]
    found += [case(aten.reflection_pad3d.default, IMAGE, [1] * 6)]
    for name in ("tril", "triu"):
        found += [case(getattr(aten, name).default, t, d) for t in (X, INTS) for d in (0, -1, 2)]
    found += [
        case(aten.embedding.default, X, torch.tensor([[0, 4], [2, 2]])),
        case(aten.index_select.default, X, 1, torch.tensor([3, 0])),
    ]
    found += [
        case(aten.gather.default, X, 1, torch.tensor([[3, 0], [1, 1]])),
        case(aten.index.Tensor, X, [None, torch.tensor([[3, -1]])]),
    ]
    return found


def reductions() -> list[Case]:
    """Sums, means, extremes, spread, softmax."""
    found = [case(aten.sum.default, X), case(aten.sum.default, INTS), case(aten.sum.default, BOOLS), case(aten.mean.default, X)]
    for dim, keep in (([1], False), ([0, -1], True), ([], False)):
        found += [case(aten.sum.dim_IntList, x, dim, keep) for x in (CUBE, INTS)] + [case(aten.mean.dim, CUBE, dim, keep)]
        found += [case(getattr(aten, name).default, x, dim, keep) for name in ("amax", "amin") for x in (CUBE, SPECIAL, INTS)]
    found += [
        case(aten.sum.dim_IntList, INTS, [0], dtype=torch.float32),
        case(aten.prod.default, X[:2]),
        case(aten.prod.dim_int, X, 1),
    ]
    found += [case(getattr(aten, name).default, x) for name in ("max", "min") for x in (X, SPECIAL, INTS)]
    found += [case(getattr(aten, name).default, x, d) for name in ("argmax", "argmin") for x in (MORE,) for d in (None, 1)]
    for name in ("any", "all"):
        op = getattr(aten, name)
        found += [case(op.default, BOOLS), case(op.dim, INTS, 1), case(op.dim, SPECIAL, 1, True)]
        found += [case(op.dims, BOOLS, dims) for dims in ([0, 1], [])]
    for name in ("var", "std", "var_mean"):
        op = getattr(aten, name).correction
        found += [case(op, X), case(op, CUBE, [1, 2], correction=0, keepdim=True), case(op, CUBE, [-1], correction=1)]
    found += [case(aten.linalg_vector_norm.default, CUBE, p, d) for p in (1, 2) for d in (None, [1])]
    for name in ("_softmax", "_log_softmax"):
        found += [case(getattr(aten, name).default, CUBE, d, False) for d in (1, -1)]
    found += [case(aten.softmax.int, X, 0), case(aten.log_softmax.int, X, 0)]
    found += [case(aten.logsumexp.default, x, d) for x in (X * 50, torch.full((3, 3), -INF)) for d in ([0], [0, 1])]
    found += [case(aten.cumsum.default, x, d) for x in (X, INTS, BOOLS) for d in (0, -1)]
    return found


def products() -> list[Case]:
    """Matrix products and attention."""
    a, b, batch = numbers(4, 6), numbers(6, 5), numbers(3, 4, 6)
    q, k, v = numbers(2, 3, 5, 8), numbers(2, 3, 7, 8, seed=1), numbers(2, 3, 7, 8, seed=2)
    found = [case(aten.mm.default, a, b), case(aten.bmm.default, batch, batch.mT), case(aten.matmul.default, batch, b)]
    found += [
        case(aten.mv.default, a, b[:, 0]),
        case(aten.dot.default, a[0], b[:, 1]),
        case(aten.mm.default, a.double(), b.double()),
    ]
    found += [case(aten.addmm.default, a[0, :5], a, b), case(aten.addmm.default, a[:, :5], a, b, beta=0.5, alpha=2)]
    found += [
        case(aten.addmm.default, torch.full((5,), NAN), a, b, beta=0),
        case(aten.baddbmm.default, batch[:, :, :4], batch, batch.mT),
    ]
    found += [case(aten.baddbmm.default, batch[:, :, :4], batch, batch.mT, beta=2, alpha=0.5)]
    found += [case(F.linear, x, b.t().contiguous(), bias) for x in (a, batch, a[0]) for bias in (None, numbers(5))]
    op = F.scaled_dot_product_attention
    found += [case(aten._safe_softmax.default, torch.tensor([[-INF, -INF], [0.0, -INF]]), -1)]
    mask = numbers(5, 7) > 0
    mask[2] = False
    found += [case(op, q, k, v), case(op, q, k, v, is_causal=True), case(op, q, k, v, mask), case(op, q, k, v, numbers(5, 7))]
    found += [case(op, q[0], k[0], v[0], scale=0.3), case(op, q, k, v, numbers(2, 1, 1, 7))]
    return found


def networks() -> list[Case]:
    """Convolutions, norms, pools, resizing."""
    conv, norm = aten.convolution.default, aten.native_layer_norm.default
    found = [case(conv, IMAGE, WEIGHT, numbers(6), [2, 1], [1, 0], [1, 2], False, [0, 0], 1)]
    found += [case(conv, IMAGE, WEIGHT[:4, :1], None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4)]
    found += [case(conv, IMAGE, WEIGHT[:4], numbers(4), [2, 2], [1, 1], [1, 1], True, [1, 0], 1)]
    found += [case(conv, IMAGE.to(memory_format=torch.channels_last), WEIGHT, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)]
    found += [case(conv, IMAGE[0].mT[:, :4], WEIGHT[:, :, 0], None, [1], [2], [1], False, [0], 1)]
    found += [case(norm, CUBE, [4], numbers(4), numbers(4, seed=1), 1e-5), case(norm, CUBE, [5, 4], None, None, 1e-5)]
    found += [case(aten.native_group_norm.default, IMAGE, w, w, 2, 4, 72, 2, 1e-5) for w in (None, numbers(4))]
    pool = aten.max_pool2d_with_indices.default
    found += [
        case(pool, IMAGE, [3, 2], [2, 2], [1, 1]),
        case(pool, IMAGE, [2, 2]),
        case(pool, IMAGE, [3, 3], [1, 1], [0, 0], [2, 2]),
    ]
    found += [case(aten.max_pool2d.default, IMAGE, [2, 2])]
    found += [case(aten.avg_pool2d.default, IMAGE, [3, 2], [2, 2], [1, 1], False, pad) for pad in (True, False)]
    found += [case(aten._adaptive_avg_pool2d.default, IMAGE, [3, 4]), case(aten.adaptive_avg_pool2d.default, IMAGE, [3, 2])]
    found += [case(aten.upsample_nearest2d.default, IMAGE, [13, 5]), case(aten.upsample_nearest2d.vec, IMAGE, None, [2.0, 2.0])]
    for corners in (True, False):
        found += [case(aten.upsample_bilinear2d.default, IMAGE, [13, 5], corners)]
        found += [case(aten.upsample_bilinear2d.vec, IMAGE, None, corners, [2.0, 2.0])]
    return found


FAMILIES = (pointwise, choices, moves, reductions, products, networks)
