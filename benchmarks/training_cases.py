"""The models of `bench_training.py`: what is trained, by which optimizer, with autocast or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from compat import import_torchvision, import_transformers
from torch import nn

Built = tuple[nn.Module, tuple, Callable]  # a model, its arguments, the loss of its result


class Block(nn.Module):
    """The basic block of a residual network."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        plain = before == after and stride == 1
        self.down = None if plain else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + (x if self.down is None else self.down(x)))


def resnet18() -> nn.Module:
    """ResNet-18 for images of 224 x 224 pixels."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(before, after, stride), Block(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mlp(device: str) -> Built:
    """Six layers of 512, a batch of 64."""
    layers = [part for _ in range(6) for part in (nn.Linear(512, 512), nn.ReLU())]
    target = torch.randn(64, 512, device=device)
    return nn.Sequential(*layers), (torch.randn(64, 512, device=device),), lambda y: nn.functional.mse_loss(y, target)


def resnet(device: str) -> Built:
    """ResNet-18, a batch of 16."""
    target = torch.randint(0, 1000, (16,), device=device)
    return resnet18(), (torch.randn(16, 3, 224, 224, device=device),), lambda y: nn.functional.cross_entropy(y, target)


def bert(device: str) -> Built:
    """BERT with 4 layers, 4 sequences of 64."""
    transformers = import_transformers()
    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=4))
    return model, (torch.randint(0, 30000, (4, 64), device=device),), lambda y: y.last_hidden_state.square().mean()


def gpt2(device: str) -> Built:
    """GPT-2 with 3 layers, 2 sequences of 64."""
    transformers = import_transformers()
    ids = torch.randint(0, 50000, (2, 64), device=device)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=3, use_cache=False))
    return model, (ids,), lambda y: nn.functional.cross_entropy(y.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def gru(device: str) -> Built:
    """A language model of two GRU layers of 256, 16 sequences of 32."""
    ids = torch.randint(0, 2000, (16, 33), device=device)
    return Recurrent(nn.GRU), (ids[:, :-1],), lambda y: nn.functional.cross_entropy(y.flatten(0, 1), ids[:, 1:].flatten())


def lstm(device: str) -> Built:
    """The same of two LSTM layers."""
    ids = torch.randint(0, 2000, (16, 33), device=device)
    return Recurrent(nn.LSTM), (ids[:, :-1],), lambda y: nn.functional.cross_entropy(y.flatten(0, 1), ids[:, 1:].flatten())


class Recurrent(nn.Module):
    """Embedding, two recurrent layers, a linear layer to the words."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(2000, 256), kind(256, 256, 2, batch_first=True), nn.Linear(256, 2000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def vit(device: str) -> Built:
    """A vision transformer: 6 layers of 192, 8 images of 96 x 96 pixels in patches of 8."""
    transformers = import_transformers()
    sizes = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, image_size=96, patch_size=8, num_labels=100))
    target = torch.randint(0, 100, (8,), device=device)
    return model, (torch.randn(8, 3, 96, 96, device=device),), lambda y: nn.functional.cross_entropy(y.logits, target)


class Twice(nn.Sequential):
    """Two convolutions with group norm."""

    def __init__(self, before: int, after: int) -> None:
        convs = [part for n in (before, after) for part in (nn.Conv2d(n, after, 3, 1, 1), nn.GroupNorm(8, after), nn.SiLU())]
        super().__init__(*convs)


class UNet(nn.Module):
    """Convolutions down to a quarter of the size and up again, with what went down beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = Twice(3, 32), Twice(32, 64), Twice(64, 128)
        self.up2, self.up1, self.out = Twice(192, 64), Twice(96, 32), nn.Conv2d(32, 3, 1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(nn.functional.max_pool2d(one, 2))
        three = self.middle(nn.functional.avg_pool2d(two, 2))
        two = self.up2(torch.cat([self.up(three), two], 1))
        return self.out(self.up1(torch.cat([self.up(two), one], 1)))


def unet(device: str) -> Built:
    """A U-Net of three levels, 4 images of 64 x 64 pixels."""
    target = torch.randn(4, 3, 64, 64, device=device)
    return UNet(), (torch.randn(4, 3, 64, 64, device=device),), lambda y: nn.functional.mse_loss(y, target)


# ---- for a GPU: those that the figures of torch.compile are known of ---------------------------------------------------------
def images(device: str, name: str, batch: int) -> Built:
    """A network of torchvision, images of 224 x 224 pixels."""
    target = torch.randint(0, 1000, (batch,), device=device)
    model = getattr(import_torchvision().models, name)()
    return model, (torch.randn(batch, 3, 224, 224, device=device),), partial(class_loss, target)


def class_loss(target: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross entropy with classes."""
    return nn.functional.cross_entropy(y, target)


def words(device: str, name: str, batch: int, length: int, **config: object) -> Built:
    """A language model of transformers that predicts the next word."""
    model_type = getattr(import_transformers(), name)
    model = model_type(model_type.config_class(use_cache=False, **config))
    ids = torch.randint(0, 1000, (batch, length), device=device)
    return model, (ids,), partial(next_word_loss, ids)


def next_word_loss(ids: torch.Tensor, y: object) -> torch.Tensor:
    """Cross entropy with the words shifted by one."""
    return nn.functional.cross_entropy(y.logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def encoder(device: str) -> Built:
    """BERT-base, 16 sequences of 128."""
    transformers = import_transformers()
    ids = torch.randint(0, 30000, (16, 128), device=device)
    return transformers.BertModel(transformers.BertConfig()), (ids,), lambda y: y.last_hidden_state.float().square().mean()


@dataclass(frozen=True)
class Training:
    """A case. build(device); optimizer(parameters); amp: forward and loss under autocast to bfloat16."""

    build: Callable[[str], Built]
    optimizer: Callable = partial(torch.optim.Adam, lr=1e-5)
    amp: bool = False


SGD = partial(torch.optim.SGD, lr=1e-4, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=1e-5)
LLAMA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 8000,
}
CPU = {f.__name__: Training(f) for f in (mlp, resnet, bert, gpt2, gru, lstm, vit, unet)}
GPU = {
    "resnet18_b16": Training(partial(images, name="resnet18", batch=16), SGD),
    "resnet50_b32_amp": Training(partial(images, name="resnet50", batch=32), SGD, True),
    "convnext_b32_amp": Training(partial(images, name="convnext_tiny", batch=32), ADAMW, True),
    "vit_b64_amp": Training(partial(images, name="vit_b_32", batch=64), ADAMW, True),
    "bert_16x128_amp": Training(encoder, ADAMW, True),
    "gpt2_8x512_amp": Training(partial(words, name="GPT2LMHeadModel", batch=8, length=512), ADAMW, True),
    "llama_4x512_amp": Training(partial(words, name="LlamaForCausalLM", batch=4, length=512, **LLAMA), ADAMW, True),
}
CASES = CPU | GPU
