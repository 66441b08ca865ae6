"""Training steps: forward, loss, backward, Adam. Eager and compiled in turn.

Forms: `model`: the model compiled, the loop as it is; `optimizer`: the optimizer's step compiled too; `step`: one function with
all of it compiled. Each way has a process of its own. The ways take blocks of steps in turn, so that a machine whose speed
drifts is the same for all of them. Printed: seconds a step, how many times as fast as eager (by the fastest block, and the
median over rounds), seconds of the first step.

    python benchmarks/bench_training.py [mlp resnet bert ...] [--forms model step] [--peer] [--recorded] [--device cuda]
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from timing import block_seconds, seconds_text, speedup
from training_cases import CASES, CPU, GPU

import bytejit

BLOCK = 0.3  # seconds of a block of steps


FORMS = ("model", "optimizer", "step")
RECORDED = "reduce-overhead"
COMPILERS = {
    "eager": lambda f: f,
    "bytejit": bytejit.compile,
    "bytejit+ro": lambda f: bytejit.compile(f, mode=RECORDED),
    "peer": lambda f: torch.compile(f),
    "peer+ro": lambda f: torch.compile(f, mode=RECORDED),
}


def step_of(case: str, way: str, device: str) -> Callable[[], torch.Tensor]:
    """A training step that returns the loss. way: `eager`, or a compiler and a form: `bytejit.model`."""
    who, _, form = way.partition(".")
    compiled = COMPILERS[who]
    torch.manual_seed(0)
    chosen = CASES[case]
    model, args, loss_of = chosen.build(device)
    model = model.to(device).train()
    call = model if form == "step" else compiled(model)
    opt = chosen.optimizer(model.parameters())
    update = compiled(opt.step) if form == "optimizer" else opt.step

    def step() -> torch.Tensor:
        opt.zero_grad()
        with torch.autocast(device, torch.bfloat16, chosen.amp):
            loss = loss_of(call(*args))
        loss.backward()
        update()
        return loss.detach()

    return compiled(step) if form == "step" else step


def worker(case: str, way: str, device: str) -> None:
    """Run steps as the lines of stdin say: a number of steps -> seconds a step, `loss` -> the loss of one more, `peak` -> the
    most memory of the GPU in tensors during a step, `held` -> what the process held for them by then, the memory of recordings
    too, whose tensors are not counted as such. Units: GB."""
    step = step_of(case, way, device)
    for line in sys.stdin:
        if line.strip() == "loss":
            print(float(step()), flush=True)
        elif line.strip() in ("peak", "held"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            step()
            most = torch.cuda.max_memory_allocated if line.strip() == "peak" else torch.cuda.max_memory_reserved
            print(most() / 1e9, flush=True)
        else:
            print(block_seconds(step, int(line), device), flush=True)


def tell(process: subprocess.Popen, line: str) -> None:
    """Let a worker do something."""
    process.stdin.write(line + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen) -> float:
    """What it answers; nan where it has failed."""
    line = process.stdout.readline()
    return float(line) if line else float("nan")


def ask(process: subprocess.Popen, line: str) -> float:
    """A worker's answer; nan where it has failed."""
    try:
        tell(process, line)
    except BrokenPipeError:
        return float("nan")
    return answer(process)


def measure(case: str, ways: list[str], device: str, seconds: float, together: bool = False) -> None:
    """One row of the table. together: all ways take their first step at once."""
    command = [sys.executable, __file__, case, "--device", device, "--worker"]
    workers = {w: subprocess.Popen([*command, w], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for w in ways}
    try:
        first, calls, found = {}, {}, {w: [] for w in ways}
        for group in [workers] if together else [{w: p} for w, p in workers.items()]:
            for p in group.values():
                tell(p, "1")
            first |= {w: answer(p) for w, p in group.items()}
        for w, p in list(workers.items()):
            once = min(ask(p, "1") for _ in range(4)) if not math.isnan(first[w]) else first[w]
            if math.isnan(once):
                print(f"{case:16} {w:18} failed", flush=True)
                workers.pop(w).kill()
            else:
                calls[w] = str(max(1, round(BLOCK / once)))
        ways = list(workers)
        end, rounds = time.perf_counter() + seconds, 0
        while rounds < 5 or time.perf_counter() < end:
            for w in ways if rounds % 2 == 0 else ways[::-1]:
                found[w].append(ask(workers[w], calls[w]))
            rounds += 1
        for w in ways:
            best, ratio, loss = min(found["eager"]) / min(found[w]), speedup(found["eager"], found[w]), ask(workers[w], "loss")
            times = f"{seconds_text(min(found[w])):>9} {best:5.2f} x  median {ratio:5.2f} x   first {first[w]:6.2f} s"
            peak = f"   peak {ask(workers[w], 'peak'):5.2f}, held {ask(workers[w], 'held'):5.2f} GB" if device == "cuda" else ""
            print(f"{case:16} {w:18} {times}   loss {loss:.4f}{peak}", flush=True)
    finally:
        for p in workers.values():
            p.kill()


def main() -> None:
    """Measure the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="default: those for the device")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=FORMS)
    parser.add_argument("--peer", action="store_true", help="torch.compile too")
    parser.add_argument("--recorded", action="store_true", help=f"also with mode={RECORDED!r}")
    parser.add_argument("--together", action="store_true", help="first steps of all ways at once: for many cores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.cases[0], options.worker, options.device)
    compilers = ["bytejit", "peer"] if options.peer else ["bytejit"]
    if options.recorded:
        compilers += [f"{c}+ro" for c in compilers]
    for case in options.cases or (CPU if options.device == "cpu" else GPU):
        ways = ["eager", *(f"{c}.{form}" for form in options.forms for c in compilers)]
        measure(case, ways, options.device, options.seconds, options.together)


if __name__ == "__main__":
    main()
