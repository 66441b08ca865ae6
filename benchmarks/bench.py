"""Eager, torch.compile and bytejit in turn, one process a case: ratios, compile seconds, errors; table, JSON, plot.

    python benchmarks/bench.py [CASE ...] [--device cuda] [--json FILE] [--write] [--no-peer] [--seconds 10]

`--write` writes docs/benchmarks.md and docs/benchmarks.png (with -cuda in their names on a GPU).
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from models import CASES, Built, Case, tensors
from timing import ROOT, in_turn, processor_seconds, seconds_text, source_path, speedup

PEER_MODES = {"cpu": ("default",), "cuda": ("default", "reduce-overhead")}  # on a GPU its better one counts


def distance(got: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest error over all outputs, each relative to its largest exact value."""
    return max(((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in zip(got, exact, strict=True))


def errors(built: Built, outputs: dict[str, list[torch.Tensor]], in_float64: bool) -> dict[str, float]:
    """Each variant's distance from a float64 run, or from eager's."""
    if not in_float64:
        return {name: distance(got, [t.double() for t in outputs["eager"]]) for name, got in outputs.items()}

    def wide(t: object) -> object:
        return t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t

    target = copy.deepcopy(built.target).double() if isinstance(built.target, torch.nn.Module) else built.target
    kwargs = {name: wide(value) for name, value in built.kwargs.items()}
    exact = [t.double() for t in tensors(target(*map(wide, built.args), **kwargs))]
    return {name: distance(got, exact) for name, got in outputs.items()}


def variants(case: Case, built: Built, device: str, peer: bool, backend: str) -> dict[str, Callable]:
    """The callables to compare, by name; the first call of each compiles it."""
    import bytejit

    found: dict[str, Callable] = {"eager": built.target}
    if peer:
        if case.options:
            # the peer's counterpart of freeze is a setting of its own
            importlib.import_module("torch._inductor.config").freezing = bool(dict(case.options).get("freeze"))
        for mode in PEER_MODES[device]:
            found["peer" if mode == "default" else f"peer[{mode}]"] = torch.compile(built.target, mode=mode)
    modes = {"bytejit": None} | ({"bytejit[reduce-overhead]": "reduce-overhead"} if device == "cuda" else {})
    for name, mode in modes.items():
        found[name] = bytejit.compile(
            copy.deepcopy(built.target) if case.options else built.target,
            backend=backend,
            mode=mode,
            options=dict(case.options),
        )
    return found


def run_case(
    case: Case, device: str, seconds: float, peer: bool, backend: str, clock: Callable[[], float] = time.perf_counter
) -> dict[str, object]:
    """Measure one case in this process. Times in seconds; speedups are against eager."""
    import bytejit

    torch.manual_seed(0)
    built = case.build(device)
    row: dict[str, object] = {"case": case.name, "title": case.title, "device": device}
    outputs, compile_s, processor_s, calls = {}, {}, {}, {}
    with torch.no_grad():
        for name, f in variants(case, built, device, peer, backend).items():
            start, used = time.perf_counter(), processor_seconds()
            result = f(*built.args, **built.kwargs)
            if device == "cuda":
                torch.cuda.synchronize()
            compile_s[name], processor_s[name] = time.perf_counter() - start, processor_seconds() - used
            result = f(*built.args, **built.kwargs)  # this call runs in the layouts that the first one met
            outputs[name] = [t.clone() for t in tensors(result)]
            del result
            calls[name] = (lambda f: lambda: f(*built.args, **built.kwargs))(f)
        row["error"] = errors(built, outputs, case.exact) if case.name != "trig_64m" else {}
        times = in_turn(calls, seconds, device=device, clock=clock)
    row["fastest"] = {name: min(t) for name, t in times.items()}
    row["seconds"] = {name: statistics.median(t) for name, t in times.items()}
    row["speedup"] = {name: speedup(times["eager"], t) for name, t in times.items() if name != "eager"}
    row["first_call"] = {name: s for name, s in compile_s.items() if name != "eager"}
    row["first_call_processor"] = processor_s
    row["counters"] = {group: dict(c) for group, c in bytejit.counters.items() if c}
    return row


def best(row: dict, of: str) -> float | None:
    """The better speedup over eager of the modes of "peer" or "bytejit"."""
    found = [s for name, s in row.get("speedup", {}).items() if name.split("[")[0] == of]
    return max(found) if found else None


def verdict(row: dict) -> str:
    """Whether the case reaches its goal, and the goal in words."""
    against, factor = CASES[row["case"]].goal
    ours, peer = best(row, "bytejit"), best(row, "peer")
    if ours is None or (against == "peer" and peer is None):
        return "not measured"
    reached = ours if against == "eager" else ours / peer
    words = f"{factor:.2f} x {'eager' if against == 'eager' else 'torch.compile'}"
    return f"yes ({words})" if reached >= factor else f"NO: {reached:.2f} of {words}"


def in_process(case: Case, args: argparse.Namespace, program: str = __file__) -> dict:
    """Run one case in a fresh process with empty caches. What goes wrong is in the row, under "failed"."""
    name = case.name
    command = [sys.executable, program, name, "--device", args.device, "--seconds", str(args.seconds)]
    command += ["--backend", args.backend, "--one"]
    with tempfile.TemporaryDirectory() as folder:
        # a fault of bytejit fails the case: the original code's time is not bytejit's
        env = {**os.environ, "BYTEJIT_SUPPRESS_ERRORS": "0", "PYTHONPATH": source_path()}
        env["TORCHINDUCTOR_CACHE_DIR"] = env["BYTEJIT_CACHE_DIR"] = folder
        try:
            out = subprocess.run(
                [*command, *(["--no-peer"] if args.no_peer else [])],
                env=env,
                capture_output=True,
                text=True,
                timeout=args.timeout,
            )
        except subprocess.TimeoutExpired:
            return {"case": name, "title": case.title, "failed": f"no result after {args.timeout} s"}
    lines = [line for line in out.stdout.splitlines() if line.startswith("{")]
    if out.returncode or not lines:
        last = [line for line in out.stderr.splitlines() if line.strip()][-1:] or ["no output"]
        return {"case": name, "title": case.title, "failed": last[0][:300]}
    return json.loads(lines[-1])


HEAD = ("case", "eager", "torch.compile", "bytejit", "torch.compile x", "bytejit x", "goal reached", "error / eager's")


def cells(row: dict) -> tuple[str, ...]:
    """One row as the table shows it."""
    if "failed" in row:
        return (row["title"], "", "", "", "", "", f"failed: {row['failed']}", "")

    def fastest(of: str) -> str:
        found = [s for name, s in row["seconds"].items() if name.split("[")[0] == of]
        return seconds_text(min(found)) if found else ""

    def ratio(of: str) -> str:
        found = best(row, of)
        return f"{found:.2f}" if found is not None else ""

    e = row["error"]
    error = f"{e['bytejit'] / e['eager']:.2f}" if e.get("eager") else ""
    return (
        row["title"],
        fastest("eager"),
        fastest("peer"),
        fastest("bytejit"),
        ratio("peer"),
        ratio("bytejit"),
        verdict(row),
        error,
    )


def markdown(rows: list[dict], device: str, plot: str) -> str:
    """docs/benchmarks.md."""
    where = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    )
    lines = [
        "# Benchmarks",
        "",
        f"{where}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}; written by `make bench`. Eager, torch.compile and bytejit run in turn "
        "in one process a case, under no_grad; `x` is how many times as fast as eager (median over rounds). "
        "The last column is the distance from a float64 run, over eager's own.",
        "",
        f"![speed over eager]({plot})",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|---" * len(HEAD) + "|",
    ]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    geo = {of: [s for row in rows if (s := best(row, of))] for of in ("peer", "bytejit")}
    means = [
        f"{'torch.compile' if of == 'peer' else of} {math.exp(statistics.mean(map(math.log, s))):.2f}"
        for of, s in geo.items()
        if s
    ]
    lines += [
        "",
        f"Geometric mean over eager: {', '.join(means)}.",
        "",
        "First call in a process (both with an empty cache), seconds:",
        "",
        "| case | torch.compile | bytejit |",
        "|---|---|---|",
    ]
    lines += [
        f"| {r['title']} | {r['first_call'].get('peer', float('nan')):.1f} | {r['first_call']['bytejit']:.2f} |"
        for r in rows
        if "first_call" in r
    ]
    return "\n".join(lines) + "\n"


def draw(rows: list[dict], path: Path, cases: dict[str, Case] = CASES) -> None:
    """A bar chart of speed over eager, with a mark where each goal against eager lies."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in rows if "failed" not in r]
    if not rows:
        return
    fig, ax = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.4))
    y = range(len(rows))
    ax.barh([i - 0.2 for i in y], [best(r, "peer") or 0 for r in rows], 0.38, label="torch.compile", color="#b0b7c3")
    ax.barh([i + 0.2 for i in y], [best(r, "bytejit") or 0 for r in rows], 0.38, label="bytejit", color="#2f6db5")
    for i, r in enumerate(rows):
        against, factor = cases[r["case"]].goal
        goal = factor if against == "eager" else factor * (best(r, "peer") or float("nan"))
        ax.plot([goal, goal], [i - 0.42, i + 0.42], color="#c0392b", lw=1.4, label="goal" if i == 0 else None)
    ax.axvline(1, color="black", lw=0.8)
    ax.set_yticks(list(y), [r["title"] for r in rows])
    ax.invert_yaxis()
    ax.set_xlabel("times as fast as eager")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    fig.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help="; ".join(CASES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=10, help="timing, a case")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a case may take in all")
    parser.add_argument("--json", metavar="FILE", help="write the rows; - prints them")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and the plot")
    parser.add_argument("--backend", default="inductor", help="of bytejit")
    parser.add_argument("--no-peer", action="store_true", help="without torch.compile")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown case {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    if args.one:
        print(json.dumps(run_case(CASES[args.cases[0]], args.device, args.seconds, not args.no_peer, args.backend)))
        return
    rows = []
    for name in args.cases or [n for n, c in CASES.items() if args.device in c.devices]:
        print(f"{name} …", file=sys.stderr, flush=True)
        rows.append(in_process(CASES[name], args))
        print("  ".join(c for c in cells(rows[-1]) if c), flush=True)
    report(rows, args)


def report(rows: list[dict], args: argparse.Namespace) -> None:
    """The table, and the files that were asked for."""
    widths = [max(len(r[i]) for r in [HEAD, *map(cells, rows)]) for i in range(len(HEAD))]
    print()
    for row in [HEAD, *map(cells, rows)]:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip())
    if args.json:
        text = json.dumps(
            {"torch": torch.__version__, "python": platform.python_version(), "device": args.device, "rows": rows},
            indent=1,
        )
        print(text) if args.json == "-" else Path(args.json).write_text(text + "\n")
    if args.write:
        name = "benchmarks" + ("-cuda" if args.device == "cuda" else "")
        (ROOT / "docs" / f"{name}.md").write_text(markdown(rows, args.device, f"{name}.png"))
        draw(rows, ROOT / "docs" / f"{name}.png")
        print(f"wrote docs/{name}.md and docs/{name}.png")


if __name__ == "__main__":
    main()
