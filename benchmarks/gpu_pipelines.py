"""A second list for `bench_gpu.py --listed`: losses, blocks and pipelines as programs have them, chosen before anything was tuned
for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from models import Built, torchvision_model
from torch import nn

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Build = Callable[[str], Built]


def over(f: Callable, dtype: torch.dtype, *shapes: tuple[int, ...]) -> Build:
    """A function of random numbers."""
    return lambda device: Built(f, tuple(torch.randn(s, device=device, dtype=dtype) for s in shapes))


def layers(make: Callable[[], nn.Module], dtype: torch.dtype, *shapes: tuple[int, ...]) -> Build:
    """A module in evaluation, of random numbers."""
    return lambda device: Built(
        make().to(device, dtype).eval(), tuple(torch.randn(s, device=device, dtype=dtype) for s in shapes)
    )


class RootMean(nn.Module):
    """Root mean square norm, gated linears, residual: the second half of a language model's layer."""

    def __init__(self, d: int = 4096, inner: int = 11008) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))
        self.gate, self.up, self.down = nn.Linear(d, inner, False), nn.Linear(d, inner, False), nn.Linear(inner, d, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.scale
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Experts(nn.Module):
    """Eight experts, two for each token, by masks and index_add."""

    def __init__(self, d: int = 1024, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(d, experts)
        self.up, self.down = (nn.Parameter(torch.randn(experts, d, d) * d**-0.5) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, index = self.router(x).softmax(-1).topk(2)
        every = torch.einsum("td,edf->etf", x, self.up)
        every = torch.einsum("etf,efd->etd", F.gelu(every), self.down)
        chosen = every.gather(0, index.t()[..., None].expand(-1, -1, x.shape[1]))
        return (chosen * weight.t()[..., None]).sum(0)


class Pixels(nn.Module):
    """A generator of images: transposed convolutions and batch norms."""

    def __init__(self, c: int = 64) -> None:
        super().__init__()
        sizes = (128, 8 * c, 4 * c, 2 * c, c)
        parts: list[nn.Module] = []
        for n, (a, b) in enumerate(zip(sizes, sizes[1:])):
            parts += [nn.ConvTranspose2d(a, b, 4, 2 if n else 1, 1 if n else 0, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.net = nn.Sequential(*parts, nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x[:, :, None, None])


class Video(nn.Module):
    """Convolutions over time and space with group norm."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv3d(a, c, 3, padding=1) for a in (3, c, c, c))
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.parts, self.norms):
            x = F.silu(norm(conv(x)))
        return x.mean((2, 3, 4))


class StateSpace(nn.Module):
    """A selective state space by a scan over chunks of time."""

    def __init__(self, d: int = 512, n: int = 16) -> None:
        super().__init__()
        self.a = nn.Parameter(-torch.rand(d, n))
        self.project, self.step = nn.Linear(d, 2 * n), nn.Linear(d, d)
        self.n = n

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c = self.project(x).split(self.n, -1)
        delta = F.softplus(self.step(x))
        decay = (delta[..., None] * self.a).cumsum(1)
        state = (torch.exp(-decay.clamp(-20, 20)) * (delta * x)[..., None] * b[:, :, None]).cumsum(1)
        return (state * torch.exp(decay.clamp(-20, 20)) * c[:, :, None]).sum(-1)


def next_word(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best 50 words, those of the smallest set with 90% of the mass, renormalised."""
    best, index = (logits / 0.8).topk(50)
    p = best.softmax(-1)
    p = torch.where(p.cumsum(-1) - p < 0.9, p, 0)
    return p / p.sum(-1, keepdim=True), index


def overlaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of all pairs of boxes; the best box of each row."""
    a, b = torch.cat((a[:, :2], a[:, :2] + a[:, 2:].abs()), 1), torch.cat((b[:, :2], b[:, :2] + b[:, 2:].abs()), 1)
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    area = [(t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1]) for t in (a, b)]
    return (both / (area[0][:, None] + area[1][None] - both)).max(1).values


def masks(x: torch.Tensor) -> torch.Tensor:
    """Class scores at a quarter of the size, resized, the best class of each pixel."""
    return F.interpolate(x, scale_factor=4, mode="bilinear", align_corners=False).argmax(1)


def word_loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Cross entropy over 32,000 words behind a linear layer."""
    target = torch.arange(x.shape[0], device=x.device) % w.shape[0]
    return F.cross_entropy((x @ w.t()).float(), target, label_smoothing=0.1)


def contrast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The contrastive loss of images and texts."""
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    scores = a @ b.t() * 14.0
    target = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.t(), target)) / 2


def chamfer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The distance of two clouds of points."""
    d = torch.cdist(a, b)
    return d.min(1).values.mean() + d.min(2).values.mean()


def augment(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Images turned, made brighter, normalised."""
    c, s, z = angle.cos(), angle.sin(), torch.zeros_like(angle)
    theta = torch.stack((torch.stack((c, -s, z), -1), torch.stack((s, c, z), -1)), 1)
    y = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
    y = (y * 1.2 + 0.1).clamp(0, 1)
    return (y - y.mean((2, 3), keepdim=True)) / (y.std((2, 3), keepdim=True) + 1e-5)


def rotary(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with rotary positions, causal."""
    n, d = q.shape[2], q.shape[3]
    angle = torch.arange(n, device=q.device)[:, None] * 10000 ** (-torch.arange(0, d, 2, device=q.device) / d)
    cos, sin = (torch.cat((f, f), -1).to(q.dtype) for f in (angle.cos(), angle.sin()))

    def placed(x: torch.Tensor) -> torch.Tensor:
        one, two = x.chunk(2, -1)
        return x * cos + torch.cat((-two, one), -1) * sin

    return F.scaled_dot_product_attention(placed(q), placed(k), v, is_causal=True)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Int8 and back, a scale a row and a column."""
    rows = x.abs().amax(1, keepdim=True) / 127
    columns = x.abs().amax(0, keepdim=True) / 127
    return (x / rows).round().clamp(-128, 127) * rows + (x / columns).round().clamp(-128, 127) * columns


def nearest(x: torch.Tensor) -> torch.Tensor:
    """Sums over the 16 nearest neighbours of each point."""
    index = torch.cdist(x, x).topk(16, largest=False).indices
    rows = torch.arange(x.shape[0], device=x.device)[:, None, None]
    return (x[rows, index] - x[:, :, None]).square().sum((2, 3)).sqrt()


def heat(x: torch.Tensor) -> torch.Tensor:
    """Ten steps of a difference equation on a grid."""
    for _ in range(10):
        near = torch.roll(x, 1, 0) + torch.roll(x, -1, 0) + torch.roll(x, 1, 1) + torch.roll(x, -1, 1)
        x = x + 0.1 * (near - 4 * x)
    return x


def waves(x: torch.Tensor) -> torch.Tensor:
    """A convolution by Fourier transforms."""
    f = torch.fft.rfft(x, n=2 * x.shape[-1])
    return torch.fft.irfft(f * f.abs().rsqrt(), n=2 * x.shape[-1])[..., : x.shape[-1]]


def transformer_layer() -> nn.Module:
    """torch's own decoder layer."""
    return nn.TransformerDecoderLayer(1024, 16, 4096, batch_first=True, norm_first=True)


LIST: dict[str, tuple[str, Build]] = {
    "swiglu": ("RMSNorm, gated linears 2048x4096 bf16", layers(RootMean, BF16, (1, 2048, 4096))),
    "experts": ("8 experts, 2 a token, 512x1024 bf16", layers(Experts, BF16, (512, 1024))),
    "generator": ("generator of images b64", layers(Pixels, F32, (64, 128))),
    "video": ("conv3d + group norm 2x3x16x112x112 f16", layers(Video, F16, (2, 3, 16, 112, 112))),
    "state_space": ("state space by running sums 4x512x512", layers(StateSpace, F32, (4, 512, 512))),
    "next_word": ("top 50, top 90% of 64x50257", over(next_word, F32, (64, 50257))),
    "overlaps": ("overlaps of 4096x2048 boxes", over(overlaps, F32, (4096, 4), (2048, 4))),
    "masks": ("resize x4 and argmax 8x21x128x128 f16", over(masks, F16, (8, 21, 128, 128))),
    "word_loss": ("linear + smoothed cross entropy 4096x32000 bf16", over(word_loss, BF16, (4096, 1024), (32000, 1024))),
    "contrast": ("contrastive loss 4096x512", over(contrast, F32, (4096, 512), (4096, 512))),
    "chamfer": ("chamfer distance 8x4096x3", over(chamfer, F32, (8, 4096, 3), (8, 4096, 3))),
    "augment": ("turn and normalise 32x3x224x224", over(augment, F32, (32, 3, 224, 224), (32,))),
    "rotary": ("rotary attention 4x16x1024x64 bf16", over(rotary, BF16, *[(4, 16, 1024, 64)] * 3)),
    "rounded": ("int8 and back by rows and columns 8192x8192", over(rounded, F32, (8192, 8192))),
    "nearest": ("16 nearest of 4x4096x32", over(nearest, F32, (4, 4096, 32))),
    "heat": ("heat equation 4096x4096, 10 steps", over(heat, F32, (4096, 4096))),
    "waves": ("convolution by FFT 64x65536", over(waves, F32, (64, 65536))),
    "decoder": ("TransformerDecoderLayer 8x256x1024 f16", layers(transformer_layer, F16, (8, 256, 1024), (8, 256, 1024))),
    "segments": ("FCN ResNet-50 b4 256", torchvision_model("segmentation.fcn_resnet50", 4, 256)),
    "shuffle": ("ShuffleNet v2 b64 224", torchvision_model("shufflenet_v2_x1_0", 64, 224)),
    "vit": ("ViT-B/16 b16 224", torchvision_model("vit_b_16", 16, 224)),
    "regnet": ("RegNetY-800MF b32 224", torchvision_model("regnet_y_800mf", 32, 224)),
}
