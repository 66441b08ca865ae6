"""Microseconds of a call: small calls as a whole, and what guards and dispatch of a model cost beyond its graph.

For the second, a backend runs the graph once and from then on returns the same outputs: what is left of a call is
guards, fetching the inputs, and the exit. The call of that backend's function is measured by itself and taken off.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from models import CASES, Built
from timing import in_turn

import bytejit

GOALS = {"resnet18_b1": 20.0}  # microseconds


def frozen_outputs(bare: list[Callable]) -> Callable:
    """A backend whose function returns the outputs of the first run; the bare call is appended to `bare`."""

    def backend(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
        outputs = gm(*example_inputs)
        answer = lambda *args: outputs
        inputs = tuple(example_inputs)
        bare.append(lambda: answer(*inputs))
        return answer

    return backend


def overhead(built: Built, seconds: float, peer: bool) -> dict[str, float]:
    """Microseconds of a call of each compiler beyond the graph."""
    calls: dict[str, Callable] = {}
    bares: dict[str, list[Callable]] = {}
    for name, make in (
        ("bytejit", lambda b: bytejit.compile(built.target, backend=b)),
        ("torch.compile", lambda b: torch.compile(built.target, backend=b)),
    )[: 2 if peer else 1]:
        bares[name] = []
        f = make(frozen_outputs(bares[name]))
        calls[name] = (lambda f: lambda: f(*built.args, **built.kwargs))(f)
        calls[name]()
    found = in_turn(calls | {f"bare {n} {i}": b for n, bare in bares.items() for i, b in enumerate(bare)}, seconds)
    median = {name: statistics.median(t) * 1e6 for name, t in found.items()}
    return {name: median[name] - sum(v for k, v in median.items() if k.startswith(f"bare {name} ")) for name in calls}


def whole(built: Built, seconds: float, peer: bool, device: str) -> dict[str, float]:
    """Microseconds of a whole call of eager and each compiler."""
    targets = {"eager": built.target, "bytejit": bytejit.compile(built.target)}
    if peer:
        targets["torch.compile"] = torch.compile(built.target)
    calls = {name: (lambda f: lambda: f(*built.args, **built.kwargs))(f) for name, f in targets.items()}
    for call in calls.values():
        call()
    return {name: statistics.median(t) * 1e6 for name, t in in_turn(calls, seconds, device=device).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=4, help="timing, a case")
    parser.add_argument("--no-peer", action="store_true", help="without torch.compile")
    parser.add_argument("--json", metavar="FILE", help="write the rows")
    parser.add_argument("--whole", nargs="*", default=["foo_8", "foo_10000"], metavar="CASE", help="cases timed as a whole")
    parser.add_argument(
        "--beyond",
        nargs="*",
        default=["foo_8", "resnet18_b1", "bert"],
        metavar="CASE",
        help="cases timed beyond the graph",
    )
    args = parser.parse_args()
    rows = []
    print(f"{'case':<16}{'what':<18}{'eager us':>10}{'bytejit us':>12}{'torch.compile us':>18}   goal")
    with torch.no_grad():
        for what, cases in (("whole call", args.whole), ("beyond the graph", args.beyond)):
            for case in cases:
                torch.manual_seed(0)
                bytejit.reset()
                built = CASES[case].build(args.device)
                found = (
                    whole(built, args.seconds, not args.no_peer, args.device)
                    if what == "whole call"
                    else overhead(built, args.seconds, not args.no_peer)
                )
                rows.append({"case": case, "what": what, "us": found})
                goal = f"{GOALS[case]:.0f} us" if what != "whole call" and case in GOALS else ""
                cell = [f"{found[n]:.2f}" if n in found else "" for n in ("eager", "bytejit", "torch.compile")]
                counts = [(g, bytejit.counters.total(g)) for g in ("breaks", "fallbacks", "faults")]
                note = ", ".join(f"{n} {g}" for g, n in counts if n)  # then the figure holds uncompiled code too
                line = f"{case:<16}{what:<18}{cell[0]:>10}{cell[1]:>12}{cell[2]:>18}   {goal} {note}"
                print(line.rstrip(), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps({"device": args.device, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
