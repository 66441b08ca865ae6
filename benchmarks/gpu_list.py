"""The models, loops and ops of `bench_gpu.py --listed`, chosen before anything was tuned for them."""

from __future__ import annotations

from collections.abc import Callable

import gpu_pipelines
import small_networks as small
import torch
import torch.nn.functional as F
from compat import import_torchvision
from models import Built, Case, timm_model, torchvision_model
from torch import nn

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def network(make: Callable[[], Callable], dtype: torch.dtype, *shapes: tuple[int, ...]) -> Callable[[str], Built]:
    """A network or function written out here, on random numbers."""

    def build(device: str) -> Built:
        made = make()
        made = made.to(device, dtype).eval() if isinstance(made, nn.Module) else made
        return Built(made, tuple(torch.randn(s, device=device, dtype=dtype) for s in shapes))

    return build


def narrow(build: Callable[[str], Built], dtype: torch.dtype) -> Callable[[str], Built]:
    """The case with its model and its floats in another dtype."""

    def converted(device: str) -> Built:
        built = build(device)
        args = tuple(a.to(dtype) if a.is_floating_point() else a for a in built.args)
        return Built(built.target.to(dtype), args, built.kwargs)

    return converted


def transformer(name: str, dtype: torch.dtype, inputs: Callable[[], dict], **config: object) -> Callable[[str], Built]:
    """A model of transformers with random weights."""

    def build(device: str) -> Built:
        import_torchvision()
        import transformers

        model_type = getattr(transformers, name)
        model = model_type(model_type.config_class(**config))
        given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs().items()}
        given = {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in given.items()}
        return Built(model.to(device, dtype).eval(), kwargs=given)

    return build


def tokens(batch: int, length: int, **more: object) -> Callable[[], dict]:
    """Arguments of a language model."""
    return lambda: {"input_ids": torch.randint(3, 1000, (batch, length)), **more}


LLAMA = dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8)
LLAMA |= dict(vocab_size=32000, max_position_embeddings=2048)


def decode_step(name: str, position: int, length: int, **config: object) -> Callable[[str], Built]:
    """One token of a language model whose keys and values lie in a static cache. bf16, batch 1."""

    def build(device: str) -> Built:
        import_torchvision()
        import transformers

        model_type = getattr(transformers, name)
        with torch.device(device):
            model = model_type(model_type.config_class(**config)).to(BF16).eval()
        cache = transformers.StaticCache(config=model.config, max_cache_len=length)
        with torch.no_grad():
            prompt = torch.randint(3, 1000, (1, position), device=device)
            model(prompt, past_key_values=cache, use_cache=True)
        lengths = [layer.cumulative_length.clone() for layer in cache.layers if hasattr(layer, "cumulative_length")]

        def step(token: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
            for layer, n in zip(cache.layers, lengths):
                layer.cumulative_length.copy_(n)
            return model(token, past_key_values=cache, position_ids=where, use_cache=True).logits

        return Built(step, (torch.randint(3, 1000, (1, 1), device=device), torch.full((1, 1), position, device=device)))

    return build


def on_graph(make: Callable[[], nn.Module], nodes: int, count: int, width: int) -> Callable[[str], Built]:
    """A graph network: values of nodes, sources and targets of edges."""
    return lambda device: Built(
        make().to(device).eval(),
        (torch.randn(nodes, width, device=device), *torch.randint(0, nodes, (2, count), device=device)),
    )


def recommender(device: str) -> Built:
    """Embedding bags of 4096 rows."""
    ids = torch.randint(0, 1000, (4096, 26, 3), device=device)
    return Built(small.Recommender().to(device).eval(), (torch.randn(4096, 13, device=device), ids))


def recurrent(device: str) -> Built:
    """torch's LSTM, two layers."""
    return Built(nn.LSTM(512, 512, 2, batch_first=True).to(device).eval(), (torch.randn(32, 128, 512, device=device),))


def int8_weights(device: str) -> Built:
    """Int8 weight-only linears of 4096 columns, one row, bf16."""
    return Built(small.WeightOnly(4096).to(device).eval(), (torch.randn(1, 4096, device=device, dtype=BF16),))


def gathered(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows by index and elements by index of each row."""
    return x[index[:, 0]] * 2, x.gather(1, index % x.shape[1])


def gathers(device: str) -> Built:
    """Gathers of 32768 rows."""
    return Built(gathered, (torch.randn(32768, 512, device=device), torch.randint(0, 32768, (32768, 64), device=device)))


def biased_attention(device: str) -> Built:
    """FlexAttention with a causal mask and a bias by distance."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def mask(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q >= k

    def bias(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return score - (q - k) * torch.exp2(-(h + 1) * 0.5)

    block = create_block_mask(mask, None, None, 2048, 2048, device=device)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=bias, block_mask=block)

    return Built(attend, tuple(torch.randn(2, 16, 2048, 64, device=device, dtype=BF16) for _ in range(3)))


class Radiance(nn.Module):
    """Points as sines and cosines, then linears: the network of a radiance field."""

    def __init__(self, d: int = 256):
        super().__init__()
        sizes = (63, *(d,) * 6, 4)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.register_buffer("octaves", 2.0 ** torch.arange(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angle = (x[..., None] * self.octaves).flatten(1)
        x = torch.cat((x, angle.sin(), angle.cos()), 1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        out = self.layers[-1](x)
        return torch.cat((torch.sigmoid(out[:, :3]), F.softplus(out[:, 3:])), 1)


def random_features(x: torch.Tensor) -> torch.Tensor:
    """Distances of all pairs, a kernel, rows that sum to one."""
    d = torch.cdist(x, x)
    k = torch.exp(-d.square() / (2 * d.median() ** 2))
    return k / k.sum(1, keepdim=True)


AUDIO = dict(d_model=768, encoder_layers=6, decoder_layers=1, encoder_attention_heads=12, encoder_ffn_dim=3072)
T5 = dict(d_model=768, d_ff=2048, num_layers=6, num_heads=12)
TEXT = dict(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072, vocab_size=30000)


def whisper_encoder(device: str) -> Built:
    """The encoder of Whisper on 30 s of sound."""
    import_torchvision()
    import transformers

    model = transformers.WhisperModel(transformers.WhisperConfig(**AUDIO)).encoder
    return Built(model.to(device, F16).eval(), (torch.randn(4, 80, 3000, device=device, dtype=F16),))


LIST = {
    "decode": ("Llama 1.0B, a token, static cache", decode_step("LlamaForCausalLM", 128, 512, **LLAMA)),
    "prefill": (
        "Llama 1.0B, prompt of 512, bf16",
        transformer("LlamaForCausalLM", BF16, tokens(1, 512, use_cache=False), **LLAMA),
    ),
    "swin": ("Swin-T b16", timm_model("swin_tiny_patch4_window7_224", 16)),
    "swin_hf": (
        "Swin of transformers b8 f16",
        transformer("SwinModel", F16, lambda: {"pixel_values": torch.randn(8, 3, 224, 224)}),
    ),
    "log_softmax": ("log_softmax 4096x50257 bf16", network(lambda: lambda x: F.log_softmax(x, -1), BF16, (4096, 50257))),
    "cumsum": ("cumsum of 20000x256", network(lambda: lambda x: x.cumsum(0) * 2, F32, (20000, 256))),
    "cumsum_rows": ("cumsum over rows 4096x8192", network(lambda: lambda x: (x * 2).cumsum(1), F32, (4096, 8192))),
    "gathers": ("gathers of 32768x64", gathers),
    "argmax": ("argmax over rows 8192x8192", network(lambda: lambda x: (x * 2).argmax(1), F32, (8192, 8192))),
    "mixer": ("MLP-Mixer-B/16 b16 f16", narrow(timm_model("mixer_b16_224", 16), F16)),
    "speech": ("conv1d + TransformerEncoder 8x80x1000", network(small.SpeechEncoder, F32, (8, 80, 1000))),
    "convnext": ("ConvNeXt-T b16", timm_model("convnext_tiny", 16)),
    "efficientnet": ("EfficientNet-B0 b32", timm_model("efficientnet_b0", 32)),
    "mobilenet": ("MobileNet v3 b32 f16", narrow(timm_model("mobilenetv3_large_100", 32), F16)),
    "densenet": ("DenseNet-121 b16", torchvision_model("densenet121", 16, 224)),
    "whisper": ("Whisper's encoder b4 f16", whisper_encoder),
    "t5": (
        "T5 encoder 8x256 bf16",
        transformer("T5EncoderModel", BF16, tokens(8, 256), **T5),
    ),
    "deberta": (
        "DeBERTa v2 6 layers 8x256 f16",
        transformer("DebertaV2Model", F16, tokens(8, 256), relative_attention=True, pos_att_type=["c2p", "p2c"], **TEXT),
    ),
    "unet": ("UNet of a diffusion model 8x3x64x64 f16", network(lambda: small.UNet(128), F16, (8, 3, 64, 64), (8,))),
    "diffusion": (
        "diffusion transformer 4x1024x1024 bf16",
        network(lambda: small.Diffusion(1024, 16), BF16, (4, 1024, 1024), (4, 1024)),
    ),
    "radiance": ("radiance field, 65536 points", network(Radiance, F32, (65536, 3))),
    "lstm": ("nn.LSTM, two layers, 32x128x512", recurrent),
    "gcn": ("graph convolution, 50,000 nodes, 800,000 edges", on_graph(small.GraphConvolution, 50000, 800000, 128)),
    "recommender": ("26 embedding bags + products, 4096 rows", recommender),
    "int8_weights": ("int8 weight-only linears, 1x4096 bf16", int8_weights),
    "flex": ("flex_attention, causal with a bias, bf16", biased_attention),
    "kernel": ("kernel matrix of 4096 points", network(lambda: random_features, F32, (4096, 32))),
    "sinkhorn": ("Sinkhorn, 20 rounds, 2000x2000", network(lambda: small.sinkhorn, F32, (2000, 2000))),
}


CASES = {
    name: Case(name, title, build, ("peer", 1.1), kind="model", exact=False, devices=("cuda",))
    for name, (title, build) in (LIST | gpu_pipelines.LIST).items()
}
