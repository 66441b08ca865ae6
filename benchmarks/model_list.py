"""The models and loops of `make bench-models`. The list was chosen before anything was tuned for it; no case leaves it."""

from __future__ import annotations

from collections.abc import Callable

import small_networks as small
import torch
from accuracy import unet_block
from compat import import_torchvision
from models import Built, Case, timm_model, torchvision_model


def transformer(name: str, inputs: Callable[[], dict], **config: object) -> Callable[[str], Built]:
    """A model of transformers with random weights, built from a configuration written here."""

    def build(device: str) -> Built:
        import_torchvision()
        import transformers

        model_type = getattr(transformers, name)
        model = model_type(model_type.config_class(**config))
        return Built(model.to(device).eval(), kwargs={k: v.to(device) if hasattr(v, "to") else v for k, v in inputs().items()})

    return build


def tokens(batch: int, length: int, **more: object) -> Callable[[], dict]:
    """Arguments of a language model."""
    return lambda: {"input_ids": torch.randint(3, 1000, (batch, length)), **more}


def own(make: Callable[[], Callable], inputs: Callable[[], tuple]) -> Callable[[str], Built]:
    """A network or function written out in small_networks."""

    def build(device: str) -> Built:
        made = make()
        return Built(made.to(device).eval() if isinstance(made, torch.nn.Module) else made, inputs())

    return build


def normal(*shapes: tuple[int, ...]) -> Callable[[], tuple]:
    """Random numbers of these shapes."""
    return lambda: tuple(torch.randn(s) for s in shapes)


def edges(nodes: int, count: int, width: int) -> Callable[[], tuple]:
    """A random graph: values of nodes, sources and targets of edges."""
    return lambda: (torch.randn(nodes, width), *torch.randint(0, nodes, (2, count)))


def dynamic_int8(device: str) -> Built:
    """Linear layers that torch quantises to int8 in the call."""
    net = torch.nn.Sequential(*(m for _ in range(4) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())))
    return Built(torch.ao.quantization.quantize_dynamic(net.eval(), {torch.nn.Linear}), (torch.randn(64, 512),))


def recurrent(kind: str) -> Callable[[str], Built]:
    """torch's own recurrent layers."""
    make = getattr(torch.nn, kind)
    return lambda device: Built(
        make(128, 256, 2, batch_first=True, bidirectional=kind == "LSTM").eval(), (torch.randn(4, 64, 128),)
    )


def wide_solve() -> tuple[torch.Tensor, torch.Tensor]:
    """A well-conditioned symmetric system."""
    a = torch.randn(256, 256)
    return a @ a.T / 256 + torch.eye(256), torch.randn(256)


def mlp_bf16(device: str) -> Built:
    """A feed-forward part of a language model in bfloat16."""
    net = torch.nn.Sequential(torch.nn.LayerNorm(512), torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    return Built(net.bfloat16().eval(), (torch.randn(64, 512, dtype=torch.bfloat16),))


LLAMA = dict(
    hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, vocab_size=1000
)
SPEECH = dict(hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024)
WHISPER = dict(d_model=256, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4)
WHISPER |= dict(encoder_ffn_dim=1024, decoder_ffn_dim=1024, vocab_size=1000, pad_token_id=0, bos_token_id=1, eos_token_id=2)
WHISPER |= dict(decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, max_source_positions=250)
TEXT = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=1000)
T5 = dict(d_model=512, d_ff=1024, num_layers=6, num_heads=8, d_kv=64, vocab_size=1000)
BART = dict(d_model=256, encoder_layers=3, decoder_layers=3, encoder_ffn_dim=1024, decoder_ffn_dim=1024, vocab_size=1000)
BART |= dict(encoder_attention_heads=4, decoder_attention_heads=4)

LIST = {
    "densenet121": ("DenseNet-121 b1 224", torchvision_model("densenet121", 1, 224)),
    "inception": ("Inception v3 b1 299", timm_model("inception_v3", 1, 299)),
    "shufflenet": ("ShuffleNet v2 b4 224", torchvision_model("shufflenet_v2_x1_0", 4, 224)),
    "squeezenet": ("SqueezeNet 1.1 b4 224", torchvision_model("squeezenet1_1", 4, 224)),
    "segmentation": ("LR-ASPP MobileNet v3 b1 320", torchvision_model("segmentation.lraspp_mobilenet_v3_large", 1, 320)),
    "efficientnet": ("EfficientNet-B0 b4 224", timm_model("efficientnet_b0", 4)),
    "mobilenet": ("MobileNet v3 b4 224", timm_model("mobilenetv3_large_100", 4)),
    "regnet": ("RegNetY-800MF b1 224", timm_model("regnety_008", 1)),
    "hrnet": ("HRNet-W18 small b1 224", timm_model("hrnet_w18_small", 1)),
    "swin": ("Swin-T b1 224", timm_model("swin_tiny_patch4_window7_224", 1)),
    "eva": ("EVA-02 tiny b1 336", timm_model("eva02_tiny_patch14_336", 1, 336)),
    "xcit": ("XCiT nano b2 224", timm_model("xcit_nano_12_p16_224", 2)),
    "mobilevit": ("MobileViT-XXS b2 256", timm_model("mobilevit_xxs", 2, 256)),
    "mixer": ("MLP-Mixer-S/16 b1 224", timm_model("mixer_s16_224", 1)),
    "resmlp": ("ResMLP-12 b1 224", timm_model("resmlp_12_224", 1)),
    "llama": ("Llama, 8 layers 512, 1x128", transformer("LlamaModel", tokens(1, 128, use_cache=False), **LLAMA)),
    "llama_token": ("Llama, one token of a batch of 4", transformer("LlamaModel", tokens(4, 1, use_cache=False), **LLAMA)),
    "t5": ("T5 encoder, 6 layers, 1x128", transformer("T5EncoderModel", tokens(1, 128), **T5)),
    "bart": ("BART, 3+3 layers, 2x64", transformer("BartModel", tokens(2, 64, use_cache=False), **BART)),
    "deberta": (
        "DeBERTa v2, 4 layers, 1x128",
        transformer("DebertaV2Model", tokens(1, 128), relative_attention=True, pos_att_type=["c2p", "p2c"], **TEXT),
    ),
    "mixtral": (
        "Mixtral, 4 layers, 8 experts, 1x64",
        transformer("MixtralModel", tokens(1, 64, use_cache=False), num_key_value_heads=2, num_local_experts=8, **TEXT),
    ),
    "mamba": (
        "Mamba, 2 layers, 1x32",
        transformer("MambaModel", tokens(1, 32, use_cache=False), hidden_size=256, num_hidden_layers=2, vocab_size=1000),
    ),
    "wav2vec2": (
        "wav2vec 2.0, 3 layers, 1 s of sound",
        transformer("Wav2Vec2Model", lambda: {"input_values": torch.randn(1, 16000)}, **SPEECH),
    ),
    "whisper": (
        "Whisper, 3+3 layers, 500 frames",
        transformer(
            "WhisperModel",
            lambda: {
                "input_features": torch.randn(1, 80, 500),
                "decoder_input_ids": torch.randint(3, 1000, (1, 16)),
                "use_cache": False,
            },
            **WHISPER,
        ),
    ),
    "unet_block": ("UNet block 2x32x64x64", lambda device: unet_block()),
    "unet": ("UNet of a diffusion model 1x3x64x64", own(small.UNet, lambda: (torch.randn(1, 3, 64, 64), torch.rand(1)))),
    "decoder": ("decoder of an autoencoder 1x4x32x32", own(small.Decoder, normal((1, 4, 32, 32), (1, 128)))),
    "diffusion": ("diffusion transformer, 4 blocks, 1x256x384", own(small.Diffusion, normal((1, 256, 384), (1, 384)))),
    "wavenet": ("gated dilated conv1d, 8 layers, 1x1x8000", own(small.WaveNet, normal((1, 1, 8000)))),
    "speech": ("conv1d + TransformerEncoder, 2x80x200", own(small.SpeechEncoder, normal((2, 80, 200)))),
    "spectrogram": ("log-mel spectrogram + CNN, 4x16000", own(small.Spectrogram, normal((4, 16000)))),
    "gcn": ("graph convolution, 5,000 nodes, 40,000 edges", own(small.GraphConvolution, edges(5000, 40000, 128))),
    "gat": ("graph attention, 2,000 nodes, 16,000 edges", own(small.GraphAttention, edges(2000, 16000, 64))),
    "pointnet": ("PointNet, 4x1024 points", own(small.PointNet, normal((4, 3, 1024)))),
    "recommender": (
        "26 embedding bags + products, 256 rows",
        own(small.Recommender, lambda: (torch.randn(256, 13), torch.randint(0, 1000, (256, 26, 3)))),
    ),
    "table": ("residual network over a table, 512 rows", own(small.Table, normal((512, 40)))),
    "lstm": ("nn.LSTM, two layers, both ways, 4x64", recurrent("LSTM")),
    "gru_loop": ("GRUCell in a loop + attention, 32 steps", own(small.CellLoop, normal((32, 8, 128)))),
    "int8_dynamic": ("dynamic int8 linears, 64x512", dynamic_int8),
    "int8_weights": ("int8 weight-only linears, 16x512", own(small.WeightOnly, normal((16, 512)))),
    "mlp_bf16": ("layer_norm + feed-forward in bf16, 64x512", mlp_bf16),
    "generate": ("greedy tokens from an LSTMCell until the end", own(small.Generator, lambda: (torch.randint(1, 500, (4,)),))),
    "gradients": ("conjugate gradients, exit by data", own(lambda: small.conjugate_gradients, wide_solve)),
    "sinkhorn": ("Sinkhorn, 20 rounds, 200x200", own(lambda: small.sinkhorn, lambda: (torch.rand(200, 200),))),
    "kmeans": ("k-means, 10 rounds, 4000x16", own(lambda: small.kmeans, normal((4000, 16), (20, 16)))),
    "flow": ("Runge-Kutta over a network, 20 steps", own(small.Flow, normal((64, 64)))),
}
NOT_IN_FLOAT64 = {"int8_dynamic", "mixtral"}  # quantised products; products of groups
CASES = {
    name: Case(name, title, build, ("eager", 1.0), kind="model", exact=name not in NOT_IN_FLOAT64)
    for name, (title, build) in LIST.items()
}
