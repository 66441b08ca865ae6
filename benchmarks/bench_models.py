"""Eager and bytejit on the 46 models and loops of model_list.py, one process a case: a page, a picture, what is wrong.

    python benchmarks/bench_models.py [CASE ...] [--threads 1] [--peer] [--again] [--write] [--rows FILE]

Rows are appended to a file as they are found; a case that has one there is not run again without `--again`. `--peer`
measures torch.compile in the same run. `--write` writes docs/models.md and docs/models.png from the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
from bench import ROOT, best, draw, in_process, run_case
from model_list import CASES
from timing import seconds_text

LIMIT = 2.0  # times eager's distance from float64
FLOOR = 3 * 2.0**-23  # of the largest value: two results as near as this are both right
FROM_EAGER = 1e-5  # the same where there is no float64 run, and eager's own distance is not known


def ratios(row: dict) -> dict:
    """The row with speeds over eager taken from the fastest round of each: others use the machine, too."""
    if "failed" not in row:
        row["speedup"] = {name: row["fastest"]["eager"] / s for name, s in row["fastest"].items() if name != "eager"}
    return row


def read(path: Path) -> dict[str, dict]:
    """The newest row of each case of the list."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["case"]: ratios(row) for row in map(json.loads, lines) if row["case"] in CASES}


def wrong(row: dict) -> bool:
    """Whether bytejit's result is further from float64 than it may be."""
    error = row["error"]
    floor = FLOOR if CASES[row["case"]].exact else FROM_EAGER
    return not error["bytejit"] <= max(LIMIT * error["eager"], floor)


def broken(row: dict) -> int:
    """Graph breaks, recompiles, and graphs or calls that did not run compiled."""
    return sum(sum(row["counters"].get(group, {}).values()) for group in ("breaks", "recompiles", "fallbacks"))


def mean(rows: list[dict], of: str) -> str:
    """The geometric mean of the speeds over eager."""
    found = [s for row in rows if (s := best(row, of))]
    return f"{math.exp(statistics.mean(map(math.log, found))):.2f} over {len(found)} cases" if found else "not measured"


def line(row: dict) -> str:
    """One row of the table."""
    if "failed" in row:
        return f"| {row['title']} | failed: {row['failed']} | | | | | | |"
    peer, first = best(row, "peer"), row["first_call_processor"]
    cells = (
        row["title"],
        seconds_text(row["fastest"]["eager"]),
        seconds_text(row["fastest"]["bytejit"]),
        f"{best(row, 'bytejit'):.2f}",
        f"{peer:.2f}" if peer else "",
        f"{row['error']['bytejit'] / row['error']['eager']:.2f}"
        if row["error"]["eager"]
        else f"{row['error']['bytejit']:.0e} in all",
        f"{first['bytejit']:.1f}" + (f" ({first['peer']:.1f})" if "peer" in first else ""),
        str(broken(row)),
    )
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| case | eager | bytejit | x eager | torch.compile x | error / eager's | first call s (torch.compile) | breaks |\n"
    + "|---" * 8
    + "|"
)


def markdown(rows: list[dict], threads: int) -> str:
    """docs/models.md."""
    good = sorted((r for r in rows if "failed" not in r), key=lambda r: best(r, "bytejit") or 0)
    failed = [r for r in rows if "failed" in r]
    bad = [r["title"] for r in good if wrong(r)]
    slow = [r for r in good if (best(r, "bytejit") or 0) < 1]
    lines = [
        "# Models and loops that nobody tuned for",
        "",
        f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {threads} thread{'s' * (threads > 1)}, torch "
        f"{torch.__version__}, Python {platform.python_version()}; written by `make bench-models`. The list "
        "(`benchmarks/model_list.py`) was chosen before anything was tuned for it, and no case leaves it. Eager and bytejit run "
        "in turn in one process a case, with random weights, under no_grad; `x eager` compares the fastest rounds"
        f"{', in seconds of the processor' if threads == 1 else ''}. torch.compile is "
        "measured, in the same run, where a figure stands; where its first call takes less than a second it left the program to "
        "eager. Errors are distances from a float64 run (of int8 linears and groups of experts: from eager). "
        "First call: with an empty cache, seconds of the processor, of all processes. A case keeps its newest row: "
        "rows may be of different versions.",
        "",
        "![speed over eager](models.png)",
        "",
        f"- Geometric mean over eager: bytejit {mean(good, 'bytejit')}; torch.compile {mean(good, 'peer')}.",
        f"- Slower than eager: {len(slow)}. Failed: {len(failed)}.",
        f"- Wrong (further from float64 than {LIMIT:.0f} times eager): {', '.join(bad) or 'none'}.",
        f"- First calls: {sum(r['first_call_processor']['bytejit'] for r in good):.0f} s in all, the longest "
        f"{max((r['first_call_processor']['bytejit'] for r in good), default=0):.1f} s.",
        "",
        "## The ten slowest over eager",
        "",
        HEAD,
        *map(line, good[:10]),
        "",
        "## The others, and what failed",
        "",
        HEAD,
        *map(line, good[10:] + failed),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help="; ".join(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer", action="store_true", help="measure torch.compile, too")
    parser.add_argument("--again", action="store_true", help="also cases that have a row")
    parser.add_argument("--rows", metavar="FILE", help="default: build/models-THREADS.jsonl")
    parser.add_argument("--write", action="store_true", help="write docs/models.md and docs/models.png")
    parser.add_argument("--seconds", type=float, default=4, help="timing, a case")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a case may take in all")
    parser.add_argument("--device", default="cpu", help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="inductor", help=argparse.SUPPRESS)
    parser.add_argument("--no-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        # one thread: what the processor did, so that others may use the machine at the same time
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        print(json.dumps(run_case(CASES[args.cases[0]], args.device, args.seconds, not args.no_peer, args.backend, clock)))
        return
    if unknown := set(args.cases) - set(CASES):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    path = Path(args.rows or ROOT / "build" / f"models-{args.threads}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    args.no_peer = not args.peer
    known = read(path)
    for name in args.cases or CASES:
        if name in known and not args.again:
            continue
        row = in_process(CASES[name], args, __file__)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(line(ratios(row)), flush=True)
    known = read(path)
    rows = [known[name] for name in CASES if name in known]
    if args.write:
        (ROOT / "docs" / "models.md").write_text(markdown(rows, args.threads))
        draw(sorted(rows, key=lambda r: best(r, "bytejit") or 0), ROOT / "docs" / "models.png", CASES)
    print(f"geometric mean over eager: bytejit {mean(rows, 'bytejit')}; torch.compile {mean(rows, 'peer')}", file=sys.stderr)


if __name__ == "__main__":
    main()
