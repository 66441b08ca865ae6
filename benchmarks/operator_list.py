"""The operators of `bench_ops.py`: each a function of a few tensors, of sizes that leave the caches of one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

MATRIX = (512, 1024)
IMAGES = (4, 32, 64, 64)
LAST = "channels last"
ROWS = torch.randint(0, 512, (2048,), generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Operator:
    """run(*tensors) of tensors with these shapes; `positive`: of numbers above zero; `last`: images with channels last."""

    run: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...] = (MATRIX,)
    positive: bool = False
    last: bool = False

    def inputs(self, dtype: torch.dtype, requires_grad: bool) -> list[torch.Tensor]:
        """New tensors, the same in each call."""
        torch.manual_seed(0)
        made = []
        for shape in self.shapes:
            x = torch.rand(shape) + 0.1 if self.positive else torch.randn(shape)
            x = x.to(dtype)
            if self.last and x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            made.append(x.requires_grad_(requires_grad))
        return made


def named(functions: str, where: object, **more: object) -> dict[str, Operator]:
    """An operator of each name, of one tensor."""
    return {name: Operator(getattr(where, name), **more) for name in functions.split()}


ONE = (
    "abs neg exp exp2 expm1 sin cos tan tanh sigmoid erf sinh cosh asinh atan floor ceil round trunc frac sign square nan_to_num "
    "relu"
)
ABOVE = "sqrt rsqrt reciprocal log log2 log10 log1p lgamma digamma"
ACTIVATIONS = (
    "gelu silu mish hardswish hardsigmoid hardtanh relu6 elu selu celu leaky_relu softplus softsign logsigmoid tanhshrink "
    "hardshrink softshrink glu"
)
TWO = (MATRIX, MATRIX)
ROW = (MATRIX, (1024,))
COLUMN = (MATRIX, (512, 1))
CHANNEL = (IMAGES, (32,), (32,))


def images(run: Callable[..., torch.Tensor], shape: tuple[int, ...] = IMAGES, *more: tuple[int, ...]) -> dict[str, Operator]:
    """The same function of images, channels first and channels last."""
    return {"": Operator(run, (shape, *more)), f", {LAST}": Operator(run, (shape, *more), last=True)}


def spread(rows: dict[str, dict[str, Operator]]) -> dict[str, Operator]:
    """Rows of `images` under their names."""
    return {name + suffix: row for name, both in rows.items() for suffix, row in both.items()}


POINTWISE = {
    **named(ONE, torch),
    **named(ABOVE, torch, positive=True),
    "threshold": Operator(lambda x: F.threshold(x, 0.1, 20.0)),
    **named(ACTIVATIONS, F),
    "gelu of tanh": Operator(lambda x: F.gelu(x, approximate="tanh")),
    "prelu": Operator(F.prelu, (MATRIX, (1,))),
    "pow of 3": Operator(lambda x: x**3),
    "pow of 1.5": Operator(lambda x: x**1.5, positive=True),
    "pow of tensors": Operator(torch.pow, TWO, positive=True),
    "clamp": Operator(lambda x: x.clamp(-0.5, 0.5)),
    "add a row": Operator(torch.add, ROW),
    "mul a column": Operator(torch.mul, COLUMN),
    "div": Operator(torch.div, TWO),
    "floor_divide": Operator(torch.floor_divide, TWO, positive=True),
    "remainder": Operator(torch.remainder, TWO, positive=True),
    "fmod": Operator(torch.fmod, TWO, positive=True),
    "atan2": Operator(torch.atan2, TWO),
    "hypot": Operator(torch.hypot, TWO),
    "maximum": Operator(torch.maximum, TWO),
    "fmin": Operator(torch.fmin, TWO),
    "lerp": Operator(lambda x, y: torch.lerp(x, y, 0.3), TWO),
    "addcmul": Operator(torch.addcmul, (MATRIX,) * 3),
    "addcdiv": Operator(torch.addcdiv, (MATRIX,) * 3, positive=True),
    "xlogy": Operator(torch.xlogy, TWO, positive=True),
    "logaddexp": Operator(torch.logaddexp, TWO),
    "where": Operator(lambda x, y: torch.where(x > 0, x, y), TWO),
    "masked_fill": Operator(lambda x: x.masked_fill(x > 0.5, -1.0)),
    "to half and back": Operator(lambda x: x.to(torch.bfloat16).to(x.dtype)),
    "to i64 and back": Operator(lambda x: (x * 8).to(torch.int64).to(x.dtype)),
    "isfinite as float": Operator(lambda x: torch.isfinite(x).to(x.dtype) * x),
}
REDUCTIONS = {
    "sum": Operator(lambda x: x.sum()),
    "sum of rows": Operator(lambda x: x.sum(1)),
    "sum of columns": Operator(lambda x: x.sum(0)),
    "mean of rows": Operator(lambda x: x.mean(1)),
    "prod of rows": Operator(lambda x: x.prod(1), positive=True),
    "prod of columns": Operator(lambda x: x.prod(0), positive=True),
    "amax of rows": Operator(lambda x: x.amax(1)),
    "max of rows": Operator(lambda x: x.max(1)[0]),
    "max of columns": Operator(lambda x: x.max(0)[0]),
    "argmax of rows": Operator(lambda x: x.argmax(1).to(x.dtype) * x[:, 0]),
    "argmin of columns": Operator(lambda x: x.argmin(0).to(x.dtype) * x[0]),
    "var of rows": Operator(lambda x: x.var(1)),
    "std of columns": Operator(lambda x: x.std(0)),
    "norm of rows": Operator(lambda x: x.norm(dim=1)),
    "norm": Operator(lambda x: x.norm()),
    "logsumexp": Operator(lambda x: x.logsumexp(1)),
    "softmax": Operator(lambda x: x.softmax(-1)),
    "softmax of columns": Operator(lambda x: x.softmax(0)),
    "log_softmax": Operator(lambda x: x.log_softmax(-1)),
    "normalize": Operator(lambda x: F.normalize(x, dim=1)),
    "cosine_similarity": Operator(lambda x, y: F.cosine_similarity(x, y), TWO),
    "cdist": Operator(torch.cdist, ((256, 64), (256, 64))),
    "any as float": Operator(lambda x: (x > 3).any(1).to(x.dtype) * x[:, 0]),
    "count": Operator(lambda x: (x > 0).sum(1).to(x.dtype) * x[:, 0]),
    "median of rows": Operator(lambda x: x.median(1)[0]),
    "aminmax": Operator(lambda x: torch.stack(x.aminmax(dim=1))),
}
SCANS = {
    "cumsum of rows": Operator(lambda x: x.cumsum(1)),
    "cumsum of columns": Operator(lambda x: x.cumsum(0)),
    "cumprod": Operator(lambda x: x.cumprod(1), positive=True),
    "cummax": Operator(lambda x: x.cummax(1)[0]),
    "logcumsumexp": Operator(lambda x: x.logcumsumexp(1)),
    "sort": Operator(lambda x: x.sort(1)[0]),
    "topk": Operator(lambda x: x.topk(8, 1)[0]),
    "diff": Operator(lambda x: x.diff(dim=1)),
}
NORMS = {
    "layer_norm": Operator(lambda x, w, b: F.layer_norm(x, (1024,), w, b), (MATRIX, (1024,), (1024,))),
    "rms_norm": Operator(lambda x, w: F.rms_norm(x, (1024,), w), ROW),
    **spread(
        {
            "group_norm": images(lambda x, w, b: F.group_norm(x, 8, w, b), *CHANNEL),
            "group_norm and silu of 320": images(lambda x: F.silu(F.group_norm(x, 32)), (2, 320, 32, 32)),
            "instance_norm": images(F.instance_norm),
            "batch_norm in training": images(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), *CHANNEL),
            "local_response_norm": images(lambda x: F.local_response_norm(x, 5)),
        }
    ),
}
IMAGE = spread(
    {
        "max_pool2d 2": images(lambda x: F.max_pool2d(x, 2)),
        "max_pool2d 3 2 1": images(lambda x: F.max_pool2d(x, 3, 2, 1)),
        "max_pool2d 3 1 1": images(lambda x: F.max_pool2d(x, 3, 1, 1)),
        "avg_pool2d 2": images(lambda x: F.avg_pool2d(x, 2)),
        "avg_pool2d 3 1 1": images(lambda x: F.avg_pool2d(x, 3, 1, 1)),
        "avg_pool2d 3 2 1": images(lambda x: F.avg_pool2d(x, 3, 2, 1)),
        "adaptive_avg_pool2d 1": images(lambda x: F.adaptive_avg_pool2d(x, 1)),
        "adaptive_avg_pool2d 7": images(lambda x: F.adaptive_avg_pool2d(x, 7)),
        "nearest": images(lambda x: F.interpolate(x, scale_factor=2)),
        "bilinear": images(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
        "bilinear, corners": images(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)),
        "bilinear to 100": images(lambda x: F.interpolate(x, (100, 100), mode="bilinear")),
        "bilinear to 32": images(lambda x: F.interpolate(x, (32, 32), mode="bilinear")),
        "bicubic": images(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
        "area": images(lambda x: F.interpolate(x, (24, 24), mode="area")),
        "pad": images(lambda x: F.pad(x, (1, 1, 1, 1))),
        "pad, reflected": images(lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect")),
        "pad, circular": images(lambda x: F.pad(x, (3, 3, 3, 3), mode="circular")),
        "pixel_shuffle": images(lambda x: F.pixel_shuffle(x, 2)),
        "pixel_unshuffle": images(lambda x: F.pixel_unshuffle(x, 2)),
        "channel_shuffle": images(lambda x: F.channel_shuffle(x, 4)),
        "mean of points": images(lambda x: x.mean((2, 3))),
        "mean of channels": images(lambda x: x.mean(1, keepdim=True)),
        "scale of channels": images(lambda x, w: x * w[:, None, None].sigmoid(), IMAGES, (32,)),
        "cat of channels": images(lambda x, y: torch.cat((x, y), 1), IMAGES, IMAGES),
        "patches": images(lambda x: x.unflatten(2, (8, 8)).unflatten(4, (8, 8)).permute(0, 2, 4, 1, 3, 5).flatten(3)),
    }
) | {
    "grid_sample": Operator(lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), (IMAGES, (4, 64, 64, 2))),
    "unfold of images": Operator(lambda x: F.unfold(x, 3, padding=1), (IMAGES,)),
    "fold": Operator(lambda x: F.fold(x, (64, 64), 4, stride=4), ((4, 512, 256),)),
    "max_pool1d": Operator(lambda x: F.max_pool1d(x, 3, 2), ((16, 64, 512),)),
    "avg_pool1d": Operator(lambda x: F.avg_pool1d(x, 5, 1, 2), ((16, 64, 512),)),
    "linear resize": Operator(lambda x: F.interpolate(x, scale_factor=2, mode="linear"), ((16, 64, 512),)),
    "max_pool3d": Operator(lambda x: F.max_pool3d(x, 2), ((2, 16, 16, 32, 32),)),
    "trilinear": Operator(lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), ((2, 16, 8, 16, 16),)),
}
MOVES = {
    "transpose": Operator(lambda x: x.t().contiguous()),
    "transpose and add": Operator(lambda x, y: x.t() * 2 + y, (MATRIX, (1024, 512))),
    "heads": Operator(lambda x: x.view(4, 128, 16, 64).transpose(1, 2).contiguous()),
    "heads, keys turned": Operator(lambda x: x.view(4, 128, 16, 64).permute(0, 2, 3, 1).contiguous()),
    "cat of rows": Operator(lambda x, y: torch.cat((x, y)), TWO),
    "cat of columns": Operator(lambda x, y: torch.cat((x, y), 1), TWO),
    "stack last": Operator(lambda x, y: torch.stack((x, y), -1), TWO),
    "interleave": Operator(lambda x: torch.repeat_interleave(x, 2, 1)),
    "repeat": Operator(lambda x: x.repeat(2, 2)),
    "roll": Operator(lambda x: x.roll(3, 1)),
    "flip": Operator(lambda x: x.flip(1)),
    "flip of rows": Operator(lambda x: x.flip(0)),
    "rot90": Operator(lambda x: x.rot90()),
    "tril": Operator(torch.tril),
    "diagonal": Operator(lambda x: x.view(64, 64, 128).diagonal(dim1=0, dim2=1).contiguous()),
    "diag_embed": Operator(torch.diag_embed, ((64, 256),)),
    "every second": Operator(lambda x: x[:, ::2] * 2),
    "rotary": Operator(lambda x: torch.cat((-x[:, 512:], x[:, :512]), 1) * 0.5 + x),
    "rotary, pairs": Operator(lambda x: torch.stack((-x[:, 1::2], x[:, ::2]), -1).flatten(1) * 0.5 + x),
    "windows": Operator(lambda x: x.unfold(1, 16, 8).sum(-1)),
    "split and multiply": Operator(lambda x: x[:, :512] * x[:, 512:].sigmoid()),
}
INDEXED = {
    "index_select": Operator(lambda x: x.index_select(0, ROWS)),
    "index of rows": Operator(lambda x: x[ROWS]),
    "index of columns": Operator(lambda x: x[:, ROWS[:512]]),
    "embedding": Operator(lambda w: F.embedding(ROWS, w)),
    "embedding_bag": Operator(lambda w: F.embedding_bag(ROWS.view(256, 8), w)),
    "gather": Operator(lambda x: x.gather(1, ROWS.view(512, 4))),
    "take_along_dim": Operator(lambda x: x.take_along_dim(ROWS[:512, None], 1)),
    "scatter_add": Operator(lambda x, y: x.scatter_add(0, ROWS[:512, None].expand(512, 1024), y), TWO),
    "index_add": Operator(lambda x, y: x.index_add(0, ROWS[:512], y), TWO),
    "index_put": Operator(lambda x: x.index_put((ROWS[:4],), x[:4] * 2)),
    "one_hot": Operator(lambda x: F.one_hot(ROWS, 512).to(x.dtype) @ x),
    "masked by lengths": Operator(lambda x: x.masked_fill(torch.arange(1024) >= ROWS[:512, None], 0.0)),
}
LOSSES = {
    "mse_loss": Operator(F.mse_loss, TWO),
    "l1_loss": Operator(F.l1_loss, TWO),
    "smooth_l1_loss": Operator(F.smooth_l1_loss, TWO),
    "huber_loss": Operator(F.huber_loss, TWO),
    "cross_entropy": Operator(lambda x: F.cross_entropy(x, ROWS[:512])),
    "cross_entropy, smoothed": Operator(lambda x: F.cross_entropy(x, ROWS[:512], label_smoothing=0.1)),
    "cross_entropy of images": Operator(lambda x: F.cross_entropy(x, ROWS[:1].expand(4, 64, 64) % 32), (IMAGES,)),
    "nll of softmax": Operator(lambda x: F.nll_loss(x.log_softmax(1), ROWS[:512])),
    "binary_cross_entropy": Operator(lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), TWO),
    "with_logits": Operator(lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), TWO),
    "kl_div": Operator(lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), TWO),
    "cosine_embedding_loss": Operator(lambda x, y: F.cosine_embedding_loss(x, y, torch.where(ROWS[:512] > 256, 1, -1)), TWO),
    "triplet_margin_loss": Operator(F.triplet_margin_loss, (MATRIX,) * 3),
    "hinge_embedding_loss": Operator(lambda x: F.hinge_embedding_loss(x, torch.where(x > 0, 1, -1))),
    "multi_margin_loss": Operator(lambda x: F.multi_margin_loss(x, ROWS[:512])),
    "gaussian_nll_loss": Operator(lambda x, y: F.gaussian_nll_loss(x, y, x.exp()), TWO),
    "poisson_nll_loss": Operator(F.poisson_nll_loss, TWO),
    "soft dice": Operator(lambda x, y: 1 - 2 * (x.sigmoid() * y).sum((2, 3)).mean() / (y.sum() + 1), (IMAGES, IMAGES)),
}


def contrastive(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross entropy of all pairs' scores, along rows and columns."""
    scores = F.normalize(x, dim=1) @ F.normalize(y, dim=1).t() / 0.07
    return F.cross_entropy(scores, torch.arange(len(x))) + F.cross_entropy(scores.t(), torch.arange(len(x)))


def dice_of_classes(x: torch.Tensor) -> torch.Tensor:
    """The classes are one-hot beside the softmax of channels."""
    p, hot = x.softmax(1), F.one_hot(CLASSES, 32).permute(0, 3, 1, 2).to(x.dtype)
    return 1 - ((2 * (p * hot).sum((0, 2, 3)) + 1) / ((p + hot).sum((0, 2, 3)) + 1)).mean()


def forces(x: torch.Tensor) -> torch.Tensor:
    """Of points on each other."""
    d = x[None] - x[:, None]
    return (d * (d.square().sum(-1, keepdim=True) + 0.01).pow(-1.5)).sum(1)


def turned_pairs(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions as complex numbers."""
    turns = torch.polar(torch.ones(512, 512), torch.arange(512)[:, None] / torch.arange(1, 513))
    return torch.view_as_real(torch.view_as_complex(x.float().unflatten(1, (-1, 2))) * turns).flatten(1).to(x.dtype)


def warped(x: torch.Tensor, g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.relu(F.grid_sample(x * 2, g.tanh(), align_corners=False) + y)


UPPER = torch.ones(1024, 1024, dtype=torch.bool).triu(1)[:512]
CLASSES = ROWS[:1].expand(4, 64, 64) % 32
PATTERNS = {
    "softmax, causal": Operator(lambda x: x.masked_fill(UPPER, -torch.inf).softmax(-1)),
    "softmax of the largest": Operator(lambda x: torch.where(x < x.topk(20)[0][:, -1:], -torch.inf, x).softmax(-1)),
    "contrastive loss": Operator(contrastive, TWO),
    "dice of classes": Operator(dice_of_classes, (IMAGES,)),
    "forces of points": Operator(forces, ((316, 3),)),
    "mean of running values": Operator(lambda x: (x * 0.03).cumsum(1).exp().mean(1), ((8192, 50),)),
    "rotary, complex": Operator(turned_pairs),
    "warped images": Operator(warped, (IMAGES, (4, 64, 64, 2), IMAGES)),
    "warped images, channels last": Operator(warped, (IMAGES, (4, 64, 64, 2), IMAGES), last=True),
    "filter by fft": Operator(
        lambda x, k: torch.fft.irfft(torch.fft.rfft(x.float(), 2048) * torch.fft.rfft(k.float(), 2048)), ROW
    ),
    "filter with its own scale": Operator(lambda x, w: F.conv2d(x, w / w.std((1, 2, 3), keepdim=True)), (IMAGES, (32, 32, 3, 3))),
    "add, 64 numbers": Operator(lambda x, y: x + y, ((64,), (64,))),
    "four operations, 64 numbers": Operator(lambda x, y: torch.relu(x * y + 1) * 2, ((64,), (64,))),
}
OPERATORS = POINTWISE | REDUCTIONS | SCANS | NORMS | IMAGE | MOVES | INDEXED | LOSSES | PATTERNS
