"""Single operators and their gradients beside eager, on a CPU: what is slower than eager shows here first.

    python benchmarks/bench_ops.py                    # forward, f32, one thread
    python benchmarks/bench_ops.py --backward --dtype bfloat16 --below 0.95
    python benchmarks/bench_ops.py --only pool norm

Both run in turn in this process. Times are the processor's, so that other programs add little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from operator_list import OPERATORS, Operator
from rich.console import Console
from timing import in_turn, seconds_text, speedup

import bytejit
from bytejit.kernels.machine import cpu


def arguments() -> argparse.Namespace:
    """What the user asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backward", action="store_true", help="forward and gradients of all inputs")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--below", type=float, default=float("inf"), help="show rows under this ratio only")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing a row")
    return parser.parse_args()


def step(run: Callable[..., torch.Tensor], inputs: list[torch.Tensor], backward: bool) -> Callable[[], object]:
    """A call that makes the result; backward: and the gradients of all inputs."""
    if not backward:
        return lambda: run(*inputs)
    with torch.no_grad():
        weights = torch.randn_like(run(*inputs))

    def both() -> None:
        for x in inputs:
            x.grad = None
        run(*inputs).backward(weights)

    return both


def measured(operator: Operator, dtype: torch.dtype, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds a call of eager and of bytejit."""
    bytejit.reset()
    inputs = operator.inputs(dtype, args.backward)
    ways = {"eager": operator.run, "bytejit": bytejit.compile(operator.run)}
    steps = {name: step(run, inputs, args.backward) for name, run in ways.items()}
    clock = time.process_time if args.threads == 1 else time.perf_counter
    with torch.set_grad_enabled(args.backward):
        return in_turn(steps, args.seconds, block=args.seconds / 20, clock=clock)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    dtype, console = getattr(torch, args.dtype), Console()
    passes = "forward and gradients" if args.backward else "forward"
    console.print(f"{passes}, {args.dtype}, {args.threads} thread(s), {cpu().vector_bytes * 8} bit vectors")
    console.print(f"{'operator':40} {'eager':>9} {'bytejit':>9} {'x of eager':>11}")
    ratios: list[float] = []
    for name, operator in OPERATORS.items():
        if args.only and not any(part in name for part in args.only):
            continue
        try:
            step(operator.run, operator.inputs(dtype, args.backward), args.backward)()
        except (RuntimeError, NotImplementedError) as error:  # eager has no such gradient, or dtype
            console.print(f"{name:40} {str(error).splitlines()[0][:80]}", markup=False, style="dim")
            continue
        with bytejit.config.patch(suppress_errors=False):  # a fault of ours is no figure
            found = measured(operator, dtype, args)
        ratios.append(speedup(found["eager"], found["bytejit"]))
        if ratios[-1] < args.below:
            times = [seconds_text(min(found[way])) for way in ("eager", "bytejit")]
            console.print(f"{name:40} {times[0]:>9} {times[1]:>9} {ratios[-1]:11.2f}", style="red" if ratios[-1] < 0.95 else "")
    if ratios:
        console.print(f"{len(ratios)} operators, geometric mean {statistics.geometric_mean(ratios):.2f} x of eager")


if __name__ == "__main__":
    main()
