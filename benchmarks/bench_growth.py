"""How the time and memory of a compile grow with the graph, by stage.

    python benchmarks/bench_growth.py                           every shape at 250, 500, 1,000 and 2,000 operations
    python benchmarks/bench_growth.py chain --sizes 5000 10000 20000
    python benchmarks/bench_growth.py --from rows.json --write  docs/compile-growth.md and its plot

Seconds are the processor's (of this process, and of the C++ compilers that it ran), each size in a process of its own with an
empty cache. A stage whose seconds grow by more than 2.3 as the graph doubles is marked.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from growth_shapes import SHAPES
from timing import ROOT, source_path

SIZES = (250, 500, 1000, 2000)
MOST = 2.3  # growth of a stage as the graph doubles
LEAST = 0.1  # seconds from which growth is told
STAGES = (
    ("capture", "bytejit.pipeline", "trace"),
    ("entry", "bytejit.pipeline", "compile_entry"),
    ("normalise", "bytejit.backends.inductor", "normalise"),
    ("joint", "bytejit.backends.training", "make_joint"),
    ("partition", "bytejit.backends.training", "partition"),
    ("libraries", "bytejit.backends.compiled", "choose_libraries"),
    ("lower", "bytejit.backends.compiled", "lower"),
    ("cache", "bytejit.backends.plan_cache", "key_of"),
    ("cache", "bytejit.backends.plan_cache", "keep"),
    ("schedule", "bytejit.backends.cpu", "schedule"),
    ("emit", "bytejit.backends.cpu", "emit_cpp"),
    ("build", "bytejit.backends.cpu", "build"),
    ("call", "bytejit.codegen.emit.call", "CallPrinter.print"),
)


class Clock:
    """Processor seconds of stages: what a stage takes beside the stages within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.inner: list[float] = []

    def timed(self, name: str, run: Callable) -> Callable:
        """`run`, with its seconds noted under a name."""

        def call(*args: object, **kwargs: object) -> object:
            self.inner.append(0.0)
            began = time.process_time()
            try:
                return run(*args, **kwargs)
            finally:
                took = time.process_time() - began
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self.inner.pop()
                if self.inner:
                    self.inner[-1] += took

        return call

    def watch(self) -> None:
        """Note every stage, and every pass over loops."""
        from bytejit.backends.cpu import CpuTarget

        for name, module, path in STAGES:
            place: object = importlib.import_module(module)
            *classes, attribute = path.split(".")
            for one in classes:
                place = getattr(place, one)
            setattr(place, attribute, self.timed(name, getattr(place, attribute)))
        CpuTarget.loop_passes = tuple(
            dataclasses.replace(p, run=self.timed(f"loops.{p.name}", p.run)) for p in CpuTarget.loop_passes
        )


def used() -> tuple[float, float, float]:
    """(own seconds, those of compilers, most MiB)."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime, own.ru_maxrss / 1024


def measure(shape: str, n: int) -> dict:
    """One row, in this process."""
    import torch

    import bytejit

    torch.set_num_threads(1)
    torch.manual_seed(0)
    f, args = SHAPES[shape](n)
    bytejit.compile(lambda x: x + 1)(torch.ones(3))  # imports and the first start are no part of it
    clock = Clock()
    clock.watch()
    before = used()
    with torch.set_grad_enabled(shape in ("training", "writes", "recurrence", "model", "step")):
        bytejit.compile(f)(*args)
    own, compilers, mib = (b - a for a, b in zip(before, used()))
    told = {k: sum(bytejit.counters[k].values()) for k in ("breaks", "fallbacks")}
    if any(told.values()):
        raise RuntimeError(f"{shape} is not one compiled graph: {bytejit.counters}")
    stages = {**clock.seconds, "rest": own - sum(clock.seconds.values())}
    return {"shape": shape, "n": n, "own": own, "compilers": compilers, "mib": mib, "stages": stages}


def fresh(shape: str, n: int) -> dict:
    """One row, in a process with an empty cache. Raises: RuntimeError with its output when it fails."""
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "PYTHONPATH": source_path(), "BYTEJIT_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, __file__, "--one", shape, str(n)], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shape} of {n} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def factors(values: list[float], sizes: list[int]) -> str:
    """Growth from the first to the last, a doubling of the size; marked where it is too much."""
    if len(values) < 2 or values[0] <= 0 or values[-1] < LEAST:
        return ""
    doublings = sum(b / a - 1 for a, b in zip(sizes, sizes[1:]))
    found = (values[-1] / values[0]) ** (1 / doublings)
    return f"{found:.2f}" + (" !" if found > MOST else "")


def table(rows: list[dict]) -> str:
    """Markdown of one shape: a line a stage, a column a size."""
    sizes = [r["n"] for r in rows]
    names = sorted({s for r in rows for s in r["stages"]}, key=lambda s: -rows[-1]["stages"].get(s, 0.0))
    lines = [f"| {rows[0]['shape']} | {' | '.join(f'{n:,}' for n in sizes)} | a doubling |", "|---" * (len(sizes) + 2) + "|"]
    shown = [("seconds, own", [r["own"] for r in rows]), ("seconds, C++ compilers", [r["compilers"] for r in rows])]
    shown += [("MiB", [r["mib"] for r in rows])]
    shown += [(name, [r["stages"].get(name, 0.0) for r in rows]) for name in names if rows[-1]["stages"].get(name, 0.0) >= LEAST]
    for name, values in shown:
        lines.append(f"| {name} | {' | '.join(f'{v:.3g}' for v in values)} | {factors(values, sizes)} |")
    return "\n".join(lines) + "\n"


def markdown(rows: list[dict]) -> str:
    """docs/compile-growth.md."""
    import torch

    parts = [
        "# How compiling grows with the graph\n",
        f"Written by `benchmarks/bench_growth.py --write`: torch {torch.__version__}, "
        f"{torch.backends.cpu.get_cpu_capability()}, one thread, processor seconds in fresh processes with an empty cache. "
        f"{' '.join(f'{s}: {SHAPES[s].__doc__}' for s in dict.fromkeys(r['shape'] for r in rows))}\n",
        f"The last column is the growth as the graph doubles, from the smallest to the largest; `!` marks more than {MOST}.\n",
        "![seconds and MiB over the number of operations](compile-growth.png)\n",
    ]
    for shape in dict.fromkeys(r["shape"] for r in rows):
        parts.append(table([r for r in rows if r["shape"] == shape]))
    return "\n".join(parts)


def draw(rows: list[dict], path: Path) -> None:
    """Seconds and MiB over the size, a line a shape."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, both = plt.subplots(1, 2, figsize=(11, 4.5))
    for shape in dict.fromkeys(r["shape"] for r in rows):
        own = [r for r in rows if r["shape"] == shape]
        for axes, values in zip(both, ([r["own"] + r["compilers"] for r in own], [r["mib"] for r in own])):
            axes.plot([r["n"] for r in own], values, marker="o", markersize=3, label=shape)
    for axes, title in zip(both, ("processor seconds, with the C++ compilers'", "MiB more")):
        axes.set(xscale="log", yscale="log", xlabel="operations", title=title)
        axes.grid(True, which="both", alpha=0.25)
    both[0].legend(fontsize=8)
    fig.tight_layout()
    fig.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="shape", help=", ".join(SHAPES))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--from", dest="rows", metavar="FILE", help="begin with rows that were written; those are not measured")
    parser.add_argument("--json", metavar="FILE", help="write the rows, after each")
    parser.add_argument("--write", action="store_true", help="write docs/compile-growth.md and its plot")
    parser.add_argument("--one", nargs=2, metavar=("SHAPE", "N"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return
    if unknown := set(args.shapes) - set(SHAPES):
        parser.error(f"unknown shape {', '.join(sorted(unknown))}; known: {', '.join(SHAPES)}")
    rows = json.loads(Path(args.rows).read_text()) if args.rows else []
    known = {(r["shape"], r["n"]) for r in rows}
    for shape in args.shapes or ([] if rows else SHAPES):
        for n in args.sizes:
            if (shape, n) not in known:
                rows.append(fresh(shape, n))
                if args.json:
                    Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
        print(table(sorted((r for r in rows if r["shape"] == shape), key=lambda r: r["n"])), flush=True)
    if args.write:
        rows.sort(key=lambda r: (list(SHAPES).index(r["shape"]), r["n"]))
        (ROOT / "docs" / "compile-growth.md").write_text(markdown(rows))
        draw(rows, ROOT / "docs" / "compile-growth.png")


if __name__ == "__main__":
    main()
