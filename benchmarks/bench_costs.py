"""What capture costs outside kernels: first calls, breaks at every line, loops of plain Python, the import.

Ratios of CPU seconds (of the calling thread for calls, of the process for first calls), both sides in turn, the least
of each: other work on the machine moves them little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from timing import source_path

import bytejit

STEPS = 1_000_000


def breaks(x):
    """A graph of one operation, then a break, at each line."""
    x = x + 1
    bytejit.graph_break()
    x = x * 2
    bytejit.graph_break()
    x = x - 3
    bytejit.graph_break()
    x = torch.sin(x)
    bytejit.graph_break()
    x = x / 2
    bytejit.graph_break()
    x = torch.cos(x)
    bytejit.graph_break()
    return x * 3


def values(x):
    """Breaks for values: item, numpy, tolist, branches."""
    a = x.sum().item()
    x = x * a
    b = x.numpy().sum()
    x = x - float(b)
    if x.sum() > 100:
        x = x + 1
    first = x.tolist()[0]
    x = torch.cos(x)
    if x.max() > 50:
        return x
    return x + first


def plain_loop(x):
    s = 0
    for i in range(STEPS):
        s += i & 3
    return s


def loop_between(x):
    """Tensor work before and after the loop."""
    x = torch.sin(x)
    s = i = 0
    while i < STEPS:
        s += i & 3
        i += 1
    return torch.cos(x) * s


def loop_of_calls(x):
    """Method calls in the loop."""
    out = []
    for i in range(STEPS):
        out.append(i * 2)
    return x + len(out)


GOALS = {"breaks": 3.0, "values": 3.0, "plain_loop": 1.3, "loop_between": 1.3, "loop_of_calls": 1.3}
CAPTURES = ("foo_8", "resnet18_b1", "bert")


def least(calls: dict[str, Callable[[], object]], times: int, rounds: int = 7) -> dict[str, float]:
    """CPU seconds of a call of each, in turn."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, f in calls.items():
            start = time.thread_time()
            for _ in range(times):
                f()
            found[name] = min(found[name], (time.thread_time() - start) / times)
    return found


def steady(backend: str) -> list[dict]:
    """Compiled against plain, after the first calls."""
    rows = []
    for fn in (breaks, values, plain_loop, loop_between, loop_of_calls):
        bytejit.reset()
        x, made = torch.randn(8), bytejit.compile(fn, backend=backend)
        start = time.process_time()
        for _ in range(4):
            made(x)
        first = time.process_time() - start
        times = 1 if "loop" in fn.__name__ else 1000
        found = least({"plain": lambda fn=fn, x=x: fn(x), "bytejit": lambda made=made, x=x: made(x)}, times)
        rows.append(
            {"case": fn.__name__, "first": first, **found, "ratio": found["bytejit"] / found["plain"], "goal": GOALS[fn.__name__]}
        )
    return rows


def first_call(case: str, compiler: str) -> float:
    """In this process: CPU seconds of the first call with backend `eager`, imports of the compiler included, the run
    of the graph (that of a second call) not."""
    from models import CASES

    built = CASES[case].build("cpu")
    with torch.no_grad():
        for _ in range(2):
            built.target(*built.args, **built.kwargs)
        start = time.process_time()
        made = (bytejit.compile if compiler == "bytejit" else torch.compile)(built.target, backend="eager")
        made(*built.args, **built.kwargs)
        middle = time.process_time()
        made(*built.args, **built.kwargs)
        return middle - start - (time.process_time() - middle)


def fresh(*arguments: str) -> float:
    """What this program prints, run with these arguments in a fresh process. Raises: RuntimeError with its output."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as installed: compiled modules
    env |= {"PYTHONPATH": source_path(), "BYTEJIT_SUPPRESS_ERRORS": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, *arguments], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


def import_seconds() -> float:
    """CPU seconds of `import bytejit` after torch, in a fresh process."""
    text = "import time, torch; t = time.process_time(); import bytejit; print(time.process_time() - t)"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": source_path()}
    runs = [subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True) for _ in "ab"]
    return min(float(run.stdout) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="eager", help="of the breaks and loops")
    parser.add_argument("--captures", nargs="*", default=list(CAPTURES), metavar="CASE")
    parser.add_argument("--no-peer", action="store_true", help="without torch.compile")
    parser.add_argument("--json", metavar="FILE", help="write the rows")
    parser.add_argument("--first", nargs=2, metavar=("CASE", "COMPILER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first:
        print(first_call(*args.first))
        return
    print(f"import bytejit after torch: {import_seconds():.3f} s of CPU (goal 0.1)\n")
    with torch.no_grad():
        rows = steady(args.backend)
    print(f"{'case':<16}{'first calls s':>14}{'plain us':>12}{'bytejit us':>12}{'ratio':>8}   goal")
    for r in rows:
        print(
            f"{r['case']:<16}{r['first']:>14.2f}{r['plain'] * 1e6:>12.1f}{r['bytejit'] * 1e6:>12.1f}"
            f"{r['ratio']:>8.2f}   {r['goal']}"
        )
    print(f"\n{'capture':<16}{'bytejit s':>12}{'torch.compile s':>18}{'ratio':>8}   goal")
    for case in args.captures:
        mine, peer = fresh("--first", case, "bytejit"), None if args.no_peer else fresh("--first", case, "torch")
        rows.append({"case": f"capture {case}", "bytejit": mine, "torch.compile": peer})
        print(
            f"{case:<16}{mine:>12.2f}{'' if peer is None else f'{peer:.2f}':>18}"
            f"{'' if peer is None else f'{mine / peer:.2f}':>8}   0.5",
            flush=True,
        )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
