"""Models with random weights, small unless marked: torchvision, timm, transformers. Nothing is downloaded."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Model:
    """build() -> (module in eval mode, args, kwargs)."""

    name: str
    build: Callable
    slow: bool = False
    needs: str = "torch"

    def __repr__(self):
        return self.name


def torchvision():
    """torchvision, also where its extension does not load: the operators it asks for are declared."""
    for _ in range(40):
        try:
            import torchvision as tv

            return tv
        except RuntimeError as e:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(e))
            if not missing:
                raise
            _declare(missing.group(1))
            for k in [k for k in sys.modules if k.startswith("torchvision")]:
                del sys.modules[k]
    raise RuntimeError("torchvision does not import")


_library: list = []


def _declare(op: str) -> None:
    if not _library:
        _library.append(torch.library.Library("torchvision", "DEF"))
    _library[0].define(
        f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" if op == "nms" else f"{op}(Tensor x) -> Tensor"
    )


def _images(n, size):
    return (torch.randn(n, 3, size, size),), {}


def tv(name, size=64, slow=False):
    def build():
        models = torchvision().models
        return (getattr(models, name)(weights=None, num_classes=10), *_images(2, size))

    return Model(f"tv_{name}" + ("_full" if slow else ""), build, slow, "torchvision")


def timm(name, size=64, slow=False, **options):
    def build():
        torchvision()
        import timm as t

        return (t.create_model(name, pretrained=False, num_classes=10, **options), *_images(2, size))

    return Model(f"timm_{name}" + ("_full" if slow else ""), build, slow, "timm")


SMALL = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=100, max_position_embeddings=64
)


def hf(kind, slow=False, **options):
    """A transformers model of class `kind`Model and config `kind`Config."""

    def build():
        torchvision()  # transformers imports it, and fails where its compiled part does not load
        import transformers as t

        config = getattr(t, kind + "Config")(**options)
        vocab = min(config.vocab_size, 100)
        return getattr(t, kind + "Model")(config), (), {"input_ids": torch.randint(3, vocab, (2, 12))}

    return Model(f"hf_{kind}" + ("_full" if slow else ""), build, slow, "transformers")


GPT2 = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64)
LLAMA = SMALL | dict(num_key_value_heads=2)

MODELS = (
    tv("resnet18"),
    tv("mobilenet_v3_small"),
    tv("vgg11"),
    tv("squeezenet1_1"),
    tv("shufflenet_v2_x0_5"),
    tv("efficientnet_b0"),
    tv("mnasnet0_5"),
    timm("vit_tiny_patch16_224", img_size=64, depth=2),
    timm("convnext_atto"),
    timm("mixer_s16_224", img_size=64),
    timm("regnety_002"),
    timm("swin_tiny_patch4_window7_224", img_size=56, size=56, depths=(1, 1, 1, 1)),
    timm("resnext26ts"),
    timm("ghostnet_050"),
    hf("Bert", **SMALL),
    hf("GPT2", **GPT2),
    hf("Roberta", **SMALL),
    hf("Electra", embedding_size=16, **SMALL),
    hf("Llama", **LLAMA),
    hf("Mistral", **LLAMA),
    hf("Qwen2", **LLAMA),
    hf("GPTNeoX", **SMALL),
    hf("Gemma", head_dim=8, **LLAMA),
    hf(
        "OPT",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        vocab_size=100,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    ),
    hf("Bloom", hidden_size=32, n_layer=2, n_head=4, vocab_size=100),
    hf("Phi", **SMALL),
    hf("Albert", embedding_size=16, **SMALL),
    hf("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=100),
    tv("resnet18", 128, slow=True),
    tv("resnet50", 128, slow=True),
    timm("resnext101_32x8d", 128, slow=True),
    timm("vit_small_patch16_224", 224, slow=True),
    timm("convnext_tiny", 128, slow=True),
    hf("Bert", slow=True),
    hf("GPT2", slow=True),
)


def build(model: Model):
    """The model in eval mode, with constant parameters redrawn so that a fault in any branch shows in the output."""
    torch.manual_seed(0)
    net, args, kwargs = model.build()
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in net.parameters():
            if p.is_floating_point() and p.numel() > 1 and p.min() == p.max():
                p.add_(torch.randn(p.shape, generator=g) * 0.05)
    return net.eval(), args, kwargs
