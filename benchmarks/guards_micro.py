"""What guards cost: a table of measured times for single checks and for whole entries on hand-built module trees.

    python benchmarks/guards_micro.py [--profile]

Units: microseconds a call for entries, nanoseconds for single checks; minimum over repeats, the empty loop taken off.
Guards are those that following nn.Module.__call__ as Python adds: identity, type, hooks, training, plain attributes,
parameters.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bytejit.common.options import Options
from bytejit.guards import native_checker
from bytejit.guards.generated import Work, compile_entry
from bytejit.guards.guard_set import GuardSet
from bytejit.guards.item_sources import DictItem
from bytejit.guards.kinds import BOOL, DICT_ABSENT, EQUALS, FUNCTION, ID_IS, TENSOR, TYPE_IS
from bytejit.guards.module_sources import ModuleBuffer, ModuleParam, SubModule
from bytejit.guards.source import params_of
from bytejit.guards.sources import Attr, InstanceDict, Local, Source, Type
from bytejit.guards.tensor_checks import TensorCheck
from bytejit.kernels.build_cpp import build

MISS = object()
HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
READ = {  # plain attributes that a forward reads
    nn.Conv2d: ("stride", "padding", "dilation", "groups", "padding_mode"),
    nn.BatchNorm2d: ("momentum", "eps", "track_running_stats"),
    nn.ReLU: ("inplace",),
    nn.LayerNorm: ("eps", "normalized_shape"),
    nn.Dropout: ("p", "inplace"),
    nn.Embedding: ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
    nn.GELU: ("approximate",),
}
USES_TRAINING = (nn.BatchNorm2d, nn.Dropout)


class Block(nn.Module):
    """A residual block with the attributes of torchvision's BasicBlock."""

    def __init__(self, cin: int, cout: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))


class ResNet18(nn.Module):
    """The module tree of ResNet-18 (62 parameters, 40 buffers that an eval forward reads)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        sizes = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        for i, (cin, cout, stride) in enumerate(sizes, 1):
            setattr(self, f"layer{i}", nn.Sequential(Block(cin, cout, stride), Block(cout, cout, 1)))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, 1000)


class BertLayer(nn.Module):
    """A transformer layer shaped as in BERT-base (16 parameters)."""

    def __init__(self, d: int = 768):
        super().__init__()
        self.attention = nn.ModuleDict(
            {
                "q": nn.Linear(d, d),
                "k": nn.Linear(d, d),
                "v": nn.Linear(d, d),
                "drop": nn.Dropout(0.1),
                "out": nn.Linear(d, d),
                "norm": nn.LayerNorm(d),
            }
        )
        self.up, self.act, self.down = nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)
        self.norm, self.drop = nn.LayerNorm(d), nn.Dropout(0.1)


class Bert(nn.Module):
    """A module tree like BERT-base's: 12 layers, embeddings, pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(1000, 768), nn.Embedding(512, 768), nn.Embedding(2, 768)
        self.norm, self.drop = nn.LayerNorm(768), nn.Dropout(0.1)
        self.layers = nn.ModuleList([BertLayer() for _ in range(12)])
        self.pooler = nn.Linear(768, 768)


def guard_module(guards: GuardSet, source: Source, module: nn.Module, inputs: list[Source], grad: bool) -> None:
    """Add the guards of a module and all below it, and its tensors as inputs, in the order of a forward."""
    own = InstanceDict(source)
    guards.add(TYPE_IS, source, type(module))
    guards.add(ID_IS, source, module)
    for name in ("forward", "_call_impl"):
        guards.add(DICT_ABSENT, own, name)
    guards.add(FUNCTION, Attr(Type(source), "forward"), type(module).forward)
    for hooks in HOOKS:
        guards.add(BOOL, DictItem(own, hooks), False)
    if isinstance(module, USES_TRAINING):
        guards.add(EQUALS, DictItem(own, "training"), module.training)
    for name in READ.get(type(module), ()):
        guards.add(EQUALS, DictItem(own, name), module.__dict__[name])
    for table, kind in ((module._parameters, ModuleParam), (module._buffers, ModuleBuffer)):
        for name, tensor in table.items():
            entry = kind(source, name)
            if tensor is None:
                guards.add(ID_IS, entry, None)
            elif name != "num_batches_tracked":
                guards.add(TENSOR, entry, TensorCheck.of(tensor, requires_grad=grad))
                inputs.append(entry)
    for name, child in module._modules.items():
        if child is None:
            guards.add(ID_IS, SubModule(source, name), None)
        else:
            guard_module(guards, SubModule(source, name), child, inputs, grad)


def module_entry(module: nn.Module, x: torch.Tensor, grad: bool) -> Callable[..., Any]:
    """An entry for `module.forward(x)` whose graph does nothing."""
    guards, inputs = GuardSet(), [Local("x")]
    guards.add(TENSOR, Local("x"), TensorCheck.of(x, requires_grad=grad))
    guards.add_state()
    guard_module(guards, Local("self"), module, inputs, grad)
    env = {"MISS": MISS, "graph": lambda *args: (None,), "own_exit": None}
    return compile_entry(params_of(0, ("self", "x"), ()), guards, Work(inputs, "return (o0, None)", env, 1))


def function_entry(x: torch.Tensor, y: torch.Tensor, states: tuple[str, ...] = ()) -> Callable[..., Any]:
    """An entry for a function of two tensors."""
    guards = GuardSet()
    for name, value in (("x", x), ("y", y)):
        guards.add(TENSOR, Local(name), TensorCheck.of(value))
    if states != ("none",):
        guards.add_state(*states)
    env = {"MISS": MISS, "graph": lambda x, y: (None,), "own_exit": None}
    return compile_entry(["L_x", "L_y"], guards, Work([Local("x"), Local("y")], "return (o0, None)", env, 1))


def best(fn: Callable[[], Any], number: int, repeat: int = 40) -> float:
    """Seconds a call: the minimum over repeats."""
    return min(timeit.repeat(fn, number=number, repeat=repeat)) / number


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--profile", action="store_true", help="also print the entry of ResNet-18")
    args.add_argument("--python", action="store_true", help="check tensors from Python, without the compiled check")
    args.add_argument("--repeat", type=int, default=40)
    options = args.parse_args()
    torch.set_num_threads(1)
    if not options.python:
        native_checker.CHECKER.install(lambda text: build([text], Options()).calls[0])
    x, y = torch.randn(8), torch.randn(8)
    image = torch.randn(1, 3, 16, 16)
    resnet, bert = ResNet18().eval(), Bert().eval()
    ids = torch.zeros(1, 8, dtype=torch.int64)
    rows = [
        ("two plain tensors, no global state", function_entry(x, y, ("none",)), (x, y)),
        ("two plain tensors and global state", function_entry(x, y), (x, y)),
        ("ResNet-18 eval, grad mode off", module_entry(resnet, image, False), (resnet, image)),
        ("ResNet-18 eval, grad mode on", module_entry(resnet, image, True), (resnet, image)),
        ("BERT-base eval, grad mode off", module_entry(bert, ids, False), (bert, ids)),
    ]
    empty = best(lambda: None, 20000)
    yard = best(lambda: type(x) is torch.Tensor, 20000) - empty
    print(f"{'entry (graph does nothing)':44s} {'guards':>7s} {'us':>8s}   yardstick: one type check {yard * 1e9:.0f} ns")
    for label, entry, call in rows:
        if entry(*call) is MISS:
            raise SystemExit(f"{label}: the entry misses: {entry.explain_failure(call)}")
        number = 5000 if len(entry.guards) < 50 else 200
        cost = best(lambda: entry(*call), number, options.repeat) - empty
        print(f"{label:44s} {len(entry.guards):7d} {cost * 1e6:8.2f}")
    if options.profile:
        print(rows[2][1].text)


if __name__ == "__main__":
    main()
