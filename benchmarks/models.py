"""The cases that the benchmarks measure: what each is, how it is built, what it has to reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import torch
from compat import import_timm, import_torchvision, import_transformers


@dataclass(frozen=True)
class Built:
    """A case ready to run: a function or module and its arguments, on one device."""

    target: Callable
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One row of the tables. goal: (against, factor): at least `factor` times as fast as "eager" or "peer"."""

    name: str
    title: str
    build: Callable[[str], Built]
    goal: tuple[str, float]
    options: tuple[tuple[str, object], ...] = ()  # for bytejit; the peer gets its own counterpart
    kind: str = "ops"  # "ops" or "model"
    exact: bool = True  # it can be run in float64; else eager's result is what errors are measured from
    devices: tuple[str, ...] = ("cpu",)


def foo(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """sin and cos, the first program of the TorchDynamo documents."""
    a = torch.sin(x)
    b = torch.cos(y)
    return a + b


def trig(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The larger pointwise program of the documents."""
    return torch.sin(torch.cos(x)) + torch.sin(y)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """A scaled softmax over the last axis."""
    return torch.softmax(x * 0.5, -1)


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Ten pointwise ops."""
    a = torch.sigmoid(x * 2 + y)
    b = torch.tanh(a - y) * x
    return torch.relu(b + 0.5) * a - y


def _pointwise(f: Callable, *shape: int, inputs: int = 2) -> Callable[[str], Built]:
    return lambda device: Built(f, tuple(torch.randn(*shape, device=device) for _ in range(inputs)))


def _norm_gelu(rows: int) -> Callable[[str], Built]:
    def build(device: str) -> Built:
        model = torch.nn.Sequential(torch.nn.LayerNorm(1024), torch.nn.GELU()).to(device).eval()
        return Built(model, (torch.randn(rows, 1024, device=device),))

    return build


def torchvision_model(name: str, batch: int, size: int) -> Callable[[str], Built]:
    """A model of torchvision with random weights; the name may hold a package's."""

    def build(device: str) -> Built:
        options = {"weights_backbone": None} if "." in name else {}
        model = attrgetter(name)(import_torchvision().models)(weights=None, **options)
        return Built(model.to(device).eval(), (torch.randn(batch, 3, size, size, device=device),))

    return build


def timm_model(name: str, batch: int, size: int = 224) -> Callable[[str], Built]:
    """A model of timm with random weights."""

    def build(device: str) -> Built:
        model = import_timm().create_model(name).to(device).eval()
        return Built(model, (torch.randn(batch, 3, size, size, device=device),))

    return build


def _language(name: str, batch: int, dtype: torch.dtype = torch.float32) -> Callable[[str], Built]:
    def build(device: str) -> Built:
        transformers = import_transformers()
        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")())
        kwargs = {"use_cache": False} if name == "GPT2" else {}
        return Built(model.to(device, dtype).eval(), (torch.randint(0, 30000, (batch, 128), device=device),), kwargs)

    return build


BOTH, CPU, CUDA, FREEZE = ("cpu", "cuda"), ("cpu",), ("cuda",), (("freeze", True),)
CASES = {
    case.name: case
    for case in (
        Case("foo_8", "sin+cos, 8 elements", _pointwise(foo, 8), ("eager", 1.0)),
        Case("foo_10000", "sin+cos, 10,000 elements", _pointwise(foo, 10000), ("eager", 1 / 0.6), devices=BOTH),
        Case("softmax", "softmax 2048x1024", _pointwise(softmax, 2048, 1024, inputs=1), ("peer", 1.0)),
        Case("ln_gelu", "layer_norm+gelu 2048x1024", _norm_gelu(2048), ("peer", 1.0)),
        Case("chain", "10 pointwise ops 2048x1024", _pointwise(chain, 2048, 1024), ("peer", 1.0)),
        Case("bert", "BERT-base 1x128", _language("Bert", 1), ("eager", 1.5), kind="model", devices=BOTH),
        Case("gpt2", "GPT-2 1x128", _language("GPT2", 1), ("eager", 1.5), kind="model", devices=BOTH),
        Case("vit_s", "ViT-S/16 b1", timm_model("vit_small_patch16_224", 1), ("eager", 1.5), kind="model"),
        Case("resnet18_b1", "ResNet-18 b1 128x128", torchvision_model("resnet18", 1, 128), ("eager", 1.2), kind="model"),
        Case(
            "resnet18_b16",
            "ResNet-18 b16 128x128",
            torchvision_model("resnet18", 16, 128),
            ("eager", 1.6),
            kind="model",
            devices=BOTH,
        ),
        Case(
            "resnet18_b1_freeze", "ResNet-18 b1, frozen", torchvision_model("resnet18", 1, 128), ("eager", 1.8), FREEZE, "model"
        ),
        Case(
            "resnet18_b16_freeze",
            "ResNet-18 b16, frozen",
            torchvision_model("resnet18", 16, 128),
            ("eager", 2.0),
            FREEZE,
            "model",
        ),
        Case("resnet50", "ResNet-50 b1 224x224", torchvision_model("resnet50", 1, 224), ("eager", 1.0), kind="model"),
        Case("resnext101", "resnext101_32x8d b1 224x224", timm_model("resnext101_32x8d", 1), ("eager", 1.0), kind="model"),
        Case("convnext_tiny", "convnext_tiny b1 224x224", timm_model("convnext_tiny", 1), ("eager", 1.0), kind="model"),
        Case("trig_64m", "sin(cos)+sin, 64M elements", _pointwise(trig, 1 << 26), ("peer", 1.05), devices=CUDA),
        Case("ln_gelu_16k", "layer_norm+gelu 16384x1024", _norm_gelu(16384), ("peer", 1.05), devices=CUDA),
        Case(
            "softmax_16k",
            "softmax 16384x2048",
            _pointwise(softmax, 16384, 2048, inputs=1),
            ("peer", 1.05),
            devices=CUDA,
        ),
        Case(
            "resnext101_b16",
            "resnext101_32x8d b16 224x224",
            timm_model("resnext101_32x8d", 16),
            ("peer", 1.05),
            kind="model",
            devices=CUDA,
        ),
        Case(
            "bert_b16_fp16",
            "BERT-base 16x128 fp16",
            _language("Bert", 16, torch.float16),
            ("peer", 1.05),
            kind="model",
            devices=CUDA,
        ),
    )
}


def tensors(result: object) -> list[torch.Tensor]:
    """All tensors in what a model returned, in order: tensors, sequences, dicts and ModelOutputs."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    return [t for part in result for t in tensors(part)] if isinstance(result, (list, tuple)) else []
