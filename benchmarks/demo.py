"""The main job: compiles ResNet-18 and BERT-base with random weights and shows speed and errors beside eager."""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from models import CASES, tensors
from timing import in_turn, speedup

import bytejit


@contextmanager
def progress(text: str) -> Iterator[None]:
    """A line that counts seconds while a block runs."""
    done, start = threading.Event(), time.perf_counter()

    def show() -> None:
        while not done.wait(0.2):
            if sys.stderr.isatty():
                print(f"\r{text} … {time.perf_counter() - start:.0f} s", end="", file=sys.stderr, flush=True)

    print(f"{text} …", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if sys.stderr.isatty():
            print("\r" + " " * (len(text) + 12) + "\r", end="", file=sys.stderr, flush=True)


def measure(name: str, seconds: float, device: str, backend: str) -> dict[str, object]:
    """Compile one case, compare it with eager, time both in turn."""
    case = CASES[name]
    with progress(f"building {case.title}"):
        torch.manual_seed(0)
        built = case.build(device)
    call: Callable = lambda f: f(*built.args, **built.kwargs)
    with torch.no_grad():
        want = tensors(call(built.target))
        compiled = bytejit.compile(built.target, backend=backend, options=dict(case.options))
        with progress(f"compiling {case.title}"):
            start = time.perf_counter()
            got = tensors(call(compiled))
            compile_s = time.perf_counter() - start
        error = max((a - b).abs().max().item() for a, b in zip(got, want, strict=True))
        with progress(f"timing {case.title}"):
            times = in_turn({"eager": lambda: call(built.target), "bytejit": lambda: call(compiled)}, seconds, device=device)
    return {
        "model": case.title,
        "eager ms": statistics.median(times["eager"]) * 1e3,
        "bytejit ms": statistics.median(times["bytejit"]) * 1e3,
        "speedup": speedup(times["eager"], times["bytejit"]),
        "compile s": compile_s,
        "largest error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--seconds", type=float, default=10, help="timing, a model")
    parser.add_argument("cases", nargs="*", default=["resnet18_b1", "bert"], metavar="case", help=", ".join(CASES))
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, random weights, no_grad; medians, for speedup of pairs")
    form = {
        "model": "{:<24}",
        "eager ms": "{:>9.2f}",
        "bytejit ms": "{:>11.2f}",
        "speedup": "{:>8.2f}",
        "compile s": "{:>10.2f}",
        "largest error": "{:>14.2g}",
    }
    print("".join(f"{h:<24}" if h == "model" else h.rjust(len(form[h].format(0.0))) for h in form))
    for name in args.cases:
        row = measure(name, args.seconds, args.device, args.backend)
        print("".join(form[k].format(v) for k, v in row.items()), flush=True)
    for group in ("breaks", "fallbacks", "faults"):
        for what, n in bytejit.counters[group].most_common():
            print(f"{group}: {n} x {what}")


if __name__ == "__main__":
    main()
