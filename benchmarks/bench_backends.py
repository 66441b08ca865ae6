"""Backends in turn beside eager: ResNet-18 and a BERT of 4 layers, batch 1, with and without frozen weights.

    python benchmarks/bench_backends.py [BACKEND ...] [--threads 1 2] [--seconds 20] [--models resnet18 bert4]

Prints a table: milliseconds a call, how many times as fast as eager (the median over rounds), the largest difference from
eager, and seconds of the first call, which compiles. Needs the packages of the backends.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from compat import import_torchvision
from timing import in_turn, seconds_text, speedup

import bytejit


def resnet18() -> tuple[torch.nn.Module, torch.Tensor]:
    """One image of 128x128."""
    return import_torchvision().models.resnet18().eval(), torch.randn(1, 3, 128, 128)


def bert4() -> tuple[torch.nn.Module, torch.Tensor]:
    """BERT-base's width with 4 layers, 128 tokens."""
    import_torchvision()
    import transformers

    return transformers.BertModel(transformers.BertConfig(num_hidden_layers=4)).eval(), torch.randint(0, 30000, (1, 128))


MODELS = {"resnet18": resnet18, "bert4": bert4}


def variants(model: torch.nn.Module, backends: list[str]) -> dict[str, Callable]:
    """Eager, and each backend with weights as inputs and with frozen ones."""
    found: dict[str, Callable] = {"eager": model}
    for name in backends:
        for label, options in ((name, {}), (f"{name}, frozen", {"freeze": True})):
            found[label] = bytejit.compile(copy.deepcopy(model), backend=name, options=options)
    return found


def measured(name: str, backends: list[str], seconds: float) -> dict[str, tuple[float, float, float, float]]:
    """Of each variant: seconds a call, times as fast as eager, the largest difference from eager, seconds of the first call."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    calls, errors, first = {}, {}, {}
    with torch.no_grad():
        want = next(iter(model(x).values())) if name == "bert4" else model(x)
        for label, call in variants(model, backends).items():
            start = time.perf_counter()
            got = call(x)
            first[label] = time.perf_counter() - start
            errors[label] = ((got[0] if name == "bert4" else got) - want).abs().max().item()
            calls[label] = (lambda call: lambda: call(x))(call)
        times = in_turn(calls, seconds)
    return {k: (statistics.median(t), speedup(times["eager"], t), errors[k], first[k]) for k, t in times.items()}


def main() -> None:
    """Print a table for each model and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=["inductor", "onnxrt", "openvino"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    for name in args.models:
        for threads in args.threads:
            torch.set_num_threads(threads)
            bytejit.reset()
            print(f"\n{name}, threads: {threads}, {torch.backends.cpu.get_cpu_capability()}")
            for label, (seconds, times, error, first) in measured(name, args.backends, args.seconds).items():
                text = f"{seconds_text(seconds):>8}  {times:5.2f} x eager  error {error:.1e}  first call {first:4.1f} s"
                print(f"  {label:<18} {text}", flush=True)


if __name__ == "__main__":
    main()
