"""Networks and loops written out here, for `model_list.py`: diffusion, audio, graphs, tables, recurrent cells, solvers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class ResidualBlock(nn.Module):
    """Two convolutions with group norms and a shift by the time's embedding, as in diffusion networks."""

    def __init__(self, inside: int, outside: int, time: int = 128):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inside), nn.GroupNorm(8, outside)
        self.conv1, self.conv2 = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(time, outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class SpatialAttention(nn.Module):
    """Attention over all points of an image."""

    def __init__(self, channels: int, heads: int = 4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    """Down twice, attention, up twice with skips: the network of a diffusion model, small."""

    def __init__(self, c: int = 32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 128))
        self.enter, self.leave = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.down = nn.ModuleList([ResidualBlock(c, c), ResidualBlock(c, 2 * c)])
        self.middle, self.attend = ResidualBlock(2 * c, 4 * c), SpatialAttention(4 * c)
        self.up = nn.ModuleList([ResidualBlock(6 * c, 2 * c), ResidualBlock(3 * c, c)])
        self.norm = nn.GroupNorm(8, c)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angle = t[:, None] * torch.exp(-torch.arange(16, device=t.device) / 2)
        t = self.embed(torch.cat((angle.sin(), angle.cos()), 1).to(x.dtype))
        x, skips = self.enter(x), []
        for block in self.down:
            x = block(x, t)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.attend(self.middle(x, t))
        for block in self.up:
            x = block(torch.cat((F.interpolate(x, scale_factor=2, mode="bilinear"), skips.pop()), 1), t)
        return self.leave(F.silu(self.norm(x)))


class Decoder(nn.Module):
    """The decoder of an autoencoder of images: group norms, convolutions, nearest resizing."""

    def __init__(self, c: int = 64):
        super().__init__()
        self.enter = nn.Conv2d(4, c, 3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(c >> i, c >> i) for i in range(3))
        self.narrow = nn.ModuleList(nn.Conv2d(c >> i, c >> (i + 1), 3, padding=1) for i in range(3))
        self.leave = nn.Conv2d(c >> 3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block, narrow in zip(self.blocks, self.narrow):
            x = narrow(F.interpolate(block(x, t), scale_factor=2, mode="nearest"))
        return torch.tanh(self.leave(x))


class Diffusion(nn.Module):
    """A transformer block with norms scaled and shifted by the time (adaLN), four times."""

    def __init__(self, d: int = 384, heads: int = 6):
        super().__init__()
        self.heads = heads
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.Linear(d, 6 * d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)])
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        for shift, qkv, out, wide, narrow in self.blocks:
            s1, a1, g1, s2, a2, g2 = shift(F.silu(t))[:, None].chunk(6, -1)
            h = F.layer_norm(x, (d,)) * (1 + a1) + s1
            q, k, v = qkv(h).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            x = x + g1 * out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
            h = F.layer_norm(x, (d,)) * (1 + a2) + s2
            x = x + g2 * narrow(F.gelu(wide(h), approximate="tanh"))
        return x


class WaveNet(nn.Module):
    """Gated dilated convolutions over time, with skips."""

    def __init__(self, c: int = 64, layers: int = 8):
        super().__init__()
        self.enter = nn.Conv1d(1, c, 1)
        self.gates = nn.ModuleList(nn.Conv1d(c, 2 * c, 3, padding=2**i, dilation=2**i) for i in range(layers))
        self.outs = nn.ModuleList(nn.Conv1d(c, c, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, skip = self.enter(x), 0
        for gate, out in zip(self.gates, self.outs):
            a, b = gate(x).chunk(2, 1)
            h = out(torch.tanh(a) * torch.sigmoid(b))
            x, skip = x + h, skip + h
        return F.relu(skip)


class SpeechEncoder(nn.Module):
    """Convolutions over frames before torch's own encoder layers."""

    def __init__(self, d: int = 256):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(80, d, 3, padding=1), nn.Conv1d(d, d, 3, stride=2, padding=1)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 4 * d, batch_first=True), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(F.gelu(self.conv2(F.gelu(self.conv1(x)))).transpose(1, 2))


class Spectrogram(nn.Module):
    """Frames, a Fourier transform, mel bands, the logarithm, a small convolution network."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("bands", torch.rand(64, 201))
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = x.unfold(-1, 400, 160) * self.window
        power = torch.view_as_real(torch.fft.rfft(frames)).square().sum(-1)
        mel = torch.log(power @ self.bands.T + 1e-6)
        return self.net(((mel - mel.mean()) / mel.std())[:, None]).mean((2, 3))


class GraphConvolution(nn.Module):
    """Three layers of message passing by index_add, with degrees and residuals."""

    def __init__(self, d: int = 128):
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(d, d) for _ in range(3))

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ones = torch.ones_like(target, dtype=x.dtype)
        scale = x.new_zeros(len(x)).index_add(0, target, ones).clamp(min=1).rsqrt()
        weight = (scale[source] * scale[target])[:, None]
        for lin in self.lins:
            h = lin(x)
            x = x + F.relu(torch.zeros_like(h).index_add(0, target, h[source] * weight))
        return x


class GraphAttention(nn.Module):
    """Attention over the edges that meet in a node: a softmax by scatter_reduce and index_add."""

    def __init__(self, d: int = 64, heads: int = 4):
        super().__init__()
        self.heads, self.lin = heads, nn.Linear(d, d * heads)
        self.left, self.right = (nn.Parameter(torch.randn(heads, d) / d) for _ in range(2))

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        h = self.lin(x).view(len(x), self.heads, -1)
        e = F.leaky_relu((h * self.left).sum(-1)[source] + (h * self.right).sum(-1)[target], 0.2)
        index = target[:, None].expand_as(e)
        top = x.new_full((len(x), self.heads), -torch.inf).scatter_reduce(0, index, e, "amax")
        e = torch.exp(e - top[target])
        total = x.new_zeros(len(x), self.heads).index_add(0, target, e)
        return torch.zeros_like(h).index_add(0, target, h[source] * (e / total[target])[..., None]).flatten(1)


class PointNet(nn.Module):
    """The same network on every point, the maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 64, 128, 512)
        self.convs = nn.ModuleList(nn.Conv1d(a, b, 1) for a, b in zip(sizes, sizes[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) for b in sizes[1:])
        self.head = nn.Linear(512, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        return F.log_softmax(self.head(x.max(-1)[0]), -1)


class Recommender(nn.Module):
    """26 embeddings and numbers, products of all pairs of them, a small network: the shape of DLRM."""

    def __init__(self, d: int = 32):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, d, mode="sum") for _ in range(26))
        self.low = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, d), nn.ReLU())
        self.high = nn.Sequential(nn.Linear(d + 27 * 26 // 2, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(27, 27, -1))

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        low = self.low(numbers)
        z = torch.stack([low, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(z, z.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.high(torch.cat((low, products), 1)))


class Table(nn.Module):
    """A residual network over the columns of a table, with batch norms and gates."""

    def __init__(self, d: int = 192):
        super().__init__()
        self.enter, self.leave = nn.Linear(40, d), nn.Linear(d, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(d), nn.Linear(d, 2 * d), nn.GLU(), nn.Linear(d, d)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return F.softmax(self.leave(x), -1)


class CellLoop(nn.Module):
    """A GRU cell in a loop of Python's, with attention over what it saw."""

    def __init__(self, d: int = 128):
        super().__init__()
        self.cell, self.key = nn.GRUCell(d, d), nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, seen = torch.zeros_like(x[0]), []
        for step in x:
            h = self.cell(step, h)
            seen.append(h)
        states = torch.stack(seen, 1)
        return torch.einsum("bt,btd->bd", F.softmax(torch.einsum("btd,bd->bt", self.key(states), h), 1), states)


class WeightOnly(nn.Module):
    """Linear layers whose weights are int8 with a scale a row, made floats in the call."""

    def __init__(self, d: int = 512, layers: int = 4):
        super().__init__()
        for i in range(layers):
            self.register_buffer(f"w{i}", torch.randint(-127, 128, (d, d), dtype=torch.int8))
            self.register_buffer(f"s{i}", torch.rand(d) / 2000)
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(self.layers):
            x = F.silu(F.linear(x, getattr(self, f"w{i}").to(x.dtype) * getattr(self, f"s{i}")[:, None].to(x.dtype))) + x
        return x


class Generator(nn.Module):
    """Greedy tokens from a small recurrent network, until the end's token or 24 of them."""

    def __init__(self, d: int = 128, words: int = 500):
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(words, d), nn.LSTMCell(d, d), nn.Linear(d, words)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(len(token), 128, dtype=self.out.weight.dtype)
        tokens = [token]
        for _ in range(24):
            h, c = self.cell(self.embed(tokens[-1]), (h, c))
            tokens.append(self.out(h).argmax(-1))
            if bool((tokens[-1] == 0).all()):
                break
        return torch.stack(tokens, 1)


def conjugate_gradients(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Solves a x = b; leaves its loop when the rest is small, which the data decide."""
    x, r = torch.zeros_like(b), b
    p, rest = r, r @ r
    for _ in range(40):
        ap = a @ p
        step = rest / (p @ ap)
        x, r = x + step * p, r - step * ap
        new = r @ r
        if new.sqrt() < 1e-4:
            break
        p, rest = r + new / rest * p, new
    return x


def sinkhorn(cost: torch.Tensor) -> torch.Tensor:
    """Twenty rounds of a transport plan in logarithms."""
    f, g = torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0])
    for _ in range(20):
        f = -torch.logsumexp(g[None] - cost * 10, 1)
        g = -torch.logsumexp(f[:, None] - cost * 10, 0)
    return torch.exp(f[:, None] + g[None] - cost * 10)


def kmeans(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Ten rounds of means of the nearest points."""
    for _ in range(10):
        nearest = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add(0, nearest, points)
        centres = sums / torch.bincount(nearest, minlength=len(centres)).clamp(min=1)[:, None]
    return centres


class Flow(nn.Module):
    """An equation's solution by twenty Runge-Kutta steps of a small network."""

    def __init__(self, d: int = 64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 128), nn.Tanh(), nn.Linear(128, d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = 0.05
        for _ in range(20):
            k1 = self.net(x)
            k2 = self.net(x + h / 2 * k1)
            k3 = self.net(x + h / 2 * k2)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + self.net(x + h * k3))
        return x
