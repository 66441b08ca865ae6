"""Every figure of the GPU in one run: eager, torch.compile (default and reduce-overhead) and bytejit, in turn, a process a case.

    python benchmarks/bench_gpu.py [--only CASE ...] [--listed] [--jobs 1] [--json FILE] [--no-peer] [--rounds 40] [--timeout 200]
                                   [--warm]

A time is the median over rounds of one call between two CUDA events, the device idle before it; the part of the copy bandwidth
is that of 30 calls in a row, the copy's as well. Outputs are compared with eager and with float64. Beside the models: copy
bandwidth, host time of 50 launches, seconds of a cold and of a warm start, peak memory, and, in a process of its own, how long
the GPU idles within a step.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from bench import errors
from gpu_list import CASES as LISTED
from models import CASES as NAMED
from models import Built, tensors
from timing import source_path

NAMES = ("trig_64m", "foo_10000", "ln_gelu_16k", "softmax_16k", "resnet18_b16", "resnext101_b16", "bert", "bert_b16_fp16", "gpt2")
EXTRA = ("copy", "launch50")
BYTES = {"trig_64m": 3 * 4 << 26, "ln_gelu_16k": 2 * 4 * 16384 * 1024, "softmax_16k": 2 * 4 * 16384 * 2048}
IDLE = ("resnet18_b16", "bert")
CASES = {**LISTED, **NAMED}
TOLD = ("breaks", "recompiles", "fallbacks", "faults", "cudagraphs")  # counters that a row shows


def event_ms(f: Callable[[], object]) -> float:
    """Milliseconds of one call, from an idle device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    f()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def queued_ms(f: Callable[[], object], calls: int = 30) -> float:
    """Milliseconds a call of many enqueued behind each other: what the device takes, where it is slower than the host."""

    def row() -> None:
        for _ in range(calls):
            f()

    row()
    return min(event_ms(row) for _ in range(5)) / calls


def in_turn(variants: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, measured in turn."""
    for f in variants.values():
        for _ in range(12):
            f()
    found: dict[str, list[float]] = {name: [] for name in variants}
    for n in range(rounds):
        for name in list(variants)[:: 1 if n % 2 else -1]:  # what ran before a call decides what the processor's caches hold
            found[name].append(event_ms(variants[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def first_call(f: Callable[[], object]) -> float:
    """Seconds of the call that compiles."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    f()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def peak(f: Callable[[], object]) -> float:
    """MiB above what is held before the call, at its highest."""
    f()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    f()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def idle_share(f: Callable[[], object], steps: int = 20) -> float:
    """The part of a run of steps in which no kernel runs, from the profiler's kernel times."""
    from torch.profiler import ProfilerActivity, profile

    f()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            f()
        torch.cuda.synchronize()
    spans = sorted(
        (e.time_range.start, e.time_range.end)
        for e in seen.events()
        if str(e.device_type).endswith("CUDA") and e.time_range.end > e.time_range.start
    )
    busy, reach = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return 1 - busy / (reach - spans[0][0])


def variants_of(built: Built, peer: bool) -> dict[str, Callable]:
    """The compiled forms beside eager, by name."""
    import bytejit

    found: dict[str, Callable] = {}
    if peer:
        for mode in ("default", "reduce-overhead"):
            found[f"peer[{mode}]"] = torch.compile(built.target, mode=mode)
    found["bytejit"] = bytejit.compile(built.target)
    found["bytejit[reduce-overhead]"] = bytejit.compile(built.target, mode="reduce-overhead")
    return found


@contextmanager
def gpu(lock: str, alone: bool) -> Iterator[None]:
    """Use of the GPU, by this process alone or together with others that were given the same lock file."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def measure(name: str, peer: bool, rounds: int, lock: str) -> dict:
    """One case in this process."""
    import bytejit

    torch.manual_seed(0)
    with gpu(lock, alone=False):
        built = CASES[name].build("cuda")
    row: dict = {"case": name, "title": CASES[name].title}

    def runner(f: Callable) -> Callable:
        return lambda: f(*built.args, **built.kwargs)

    calls = {"eager": runner(built.target)}
    forms = variants_of(built, peer)
    row["first_call"], row["failed_variants"] = {}, {}

    def compile_all(forms: dict[str, Callable]) -> None:
        for variant, f in forms.items():
            run = runner(f)
            try:
                row["first_call"][variant] = first_call(run)
                outputs[variant] = [t.clone() for t in tensors(run())]
                calls[variant] = run
            except Exception as e:  # the other variants' figures are still wanted
                row["failed_variants"][variant] = f"{type(e).__name__}: {e}"[:400]

    with torch.no_grad():
        with gpu(lock, alone=False):
            outputs = {"eager": [t.clone() for t in tensors(calls["eager"]())]}
            compile_all({v: f for v, f in forms.items() if v.startswith("peer")})
        with gpu(lock, alone=True):
            compile_all({v: f for v, f in forms.items() if not v.startswith("peer")})
            row["error"] = errors(built, outputs, CASES[name].exact) if name != "trig_64m" else {}
            row["distance"] = {
                v: max((a.double() - b.double()).abs().max().item() for a, b in zip(got, outputs["eager"], strict=True))
                for v, got in outputs.items()
                if v != "eager"
            }
            outputs.clear()
            row["ms"] = in_turn(calls, rounds)
            if name in BYTES:
                row["queued_ms"] = {v: queued_ms(f) for v, f in calls.items()}
            row["counters"] = {group: dict(c) for group, c in bytejit.counters.items() if c}
            row["peak_mib"] = {v: peak(calls[v]) for v in ("eager", "bytejit") if v in calls}
    return row


def measure_copy() -> dict:
    """Bytes a second, read and written, of a large copy on the device."""
    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    ms = queued_ms(lambda: y.copy_(x))
    return {"case": "copy", "title": "copy of 1 GiB", "gb_s": 2 * x.numel() * 4 / ms / 1e6}


def measure_launch(rounds: int) -> dict:
    """Host microseconds a kernel of a graph of about 50 that cannot be fused, without CUDA graphs."""
    import bytejit

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(25):
            x = x - x.sum(0)
            x = x - x.sum(1, keepdim=True)
        return x

    x = torch.randn(256, 256, device="cuda")
    compiled = bytejit.compile(f, options={"cudagraphs": False})
    with torch.no_grad():
        compiled(x)
        compiled(x)
        times = []
        for _ in range(rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            compiled(x)
            times.append(time.perf_counter() - start)
        # last: what it subscribes to makes every later launch slower
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            compiled(x)
            torch.cuda.synchronize()
        kernels = sum(str(e.device_type).endswith("CUDA") for e in seen.events())
    torch.cuda.synchronize()
    us = statistics.median(times) * 1e6
    return {
        "case": "launch50",
        "title": "host time of about 50 launches",
        "kernels": kernels,
        "us": us,
        "us_a_kernel": us / max(kernels, 1),
    }


def measure_warm(name: str) -> dict:
    """Seconds of the first call in a process whose cache is full."""
    import bytejit

    torch.manual_seed(0)
    built = CASES[name].build("cuda")
    with torch.no_grad():
        built.target(*built.args, **built.kwargs)
        compiled = bytejit.compile(built.target)
        seconds = first_call(lambda: compiled(*built.args, **built.kwargs))
    return {"case": name, "warm_s": seconds}


def measure_idle(name: str) -> dict:
    """How long the GPU idles within a step, in a process that holds no other CUDA graphs: once somebody else's are there
    (torch.compile's, or any that `torch.cuda.graph` makes), every recording waits 0.4 us between kernels instead of 0.1."""
    import bytejit

    torch.manual_seed(0)
    built = CASES[name].build("cuda")
    compiled = bytejit.compile(built.target)
    with torch.no_grad():
        found = {}
        for variant, f in (("eager", built.target), ("bytejit", compiled)):

            def run(f: Callable = f) -> object:
                return f(*built.args, **built.kwargs)

            for _ in range(20):
                run()
            found[variant] = idle_share(run)
    return {"case": name, "idle": found}


def child(name: str, args: argparse.Namespace, folder: str, *more: str) -> dict:
    """One measurement in a process of its own; what goes wrong is under "failed"."""
    command = [sys.executable, __file__, "--one", name, "--rounds", str(args.rounds), *more]
    env = {
        **os.environ,
        "BYTEJIT_SUPPRESS_ERRORS": "0",
        "BYTEJIT_CACHE_DIR": f"{folder}/b",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/i",
        "TRITON_CACHE_DIR": f"{folder}/t",
        "PYTHONPATH": source_path(),
    }
    try:
        out = subprocess.run(command, env=env, capture_output=True, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired as e:
        said = (e.stderr or b"").decode(errors="replace")[-300:]
        return {"case": name, "failed": f"no result after {args.timeout} s {said}"}
    lines = [line for line in out.stdout.splitlines() if line.startswith("{")]
    if out.returncode or not lines:
        return {"case": name, "failed": "\n".join(out.stderr.strip().splitlines()[-12:])[-1500:]}
    return json.loads(lines[-1])


def table(rows: list[dict]) -> str:
    """The results as text, a line a case."""
    copy = next((r["gb_s"] for r in rows if r["case"] == "copy" and "gb_s" in r), None)
    head = (
        f"{'case':<30}{'eager ms':>10}{'peer ms':>10}{'bytejit':>10}{'b[r-o]':>10}{'peer x':>8}"
        f"{'ours x':>8}{'ours/peer':>10}{'cold s':>8}{'peer s':>8}{'warm s':>8}{'err':>7}{'MiB':>8}{'of eager':>9}  notes"
    )
    lines = [head]
    for r in rows:
        if "failed" in r:
            lines.append(f"{r['case']:<30}failed: {r['failed']}")
        elif "ms" not in r:
            lines.append(f"{r['title']:<30}" + "  ".join(f"{k} {v:.3g}" for k, v in r.items() if isinstance(v, (int, float))))
        else:
            lines.append(line_of(r, copy))
    return "\n".join(lines)


def line_of(r: dict, copy: float | None) -> str:
    """One case."""
    ms = r["ms"]
    peers = [t for v, t in ms.items() if v.startswith("peer")]
    peer, ours, over = min(peers, default=None), ms.get("bytejit"), ms.get("bytejit[reduce-overhead]")

    def show(x: float | None, width: int, digits: int) -> str:
        return f"{x:>{width}.{digits}f}" if x is not None else " " * (width - 1) + "-"

    notes = []
    if copy and r["case"] in BYTES and ours:
        notes.append("of copy: " + ", ".join(f"{v} {BYTES[r['case']] / t / 1e6 / copy:.0%}" for v, t in r["queued_ms"].items()))
    notes += [f"idle {v}: {s:.1%}" for v, s in r.get("idle", {}).items()]
    notes += [f"{group}: {c}" for group, c in r["counters"].items() if group in TOLD]
    notes += [f"{v} FAILED: {why}" for v, why in r["failed_variants"].items()]
    error, memory, first = r["error"], r["peak_mib"], r["first_call"]
    cells = [
        f"{r['title']:<30}",
        show(ms["eager"], 10, 4),
        show(peer, 10, 4),
        show(ours, 10, 4),
        show(over, 10, 4),
        show(peer and ms["eager"] / peer, 8, 2),
        show(ours and ms["eager"] / ours, 8, 2),
        show(peer and ours and peer / ours, 10, 2),
        show(first.get("bytejit"), 8, 2),
        show(first.get("peer[default]"), 8, 1),
        show(r.get("warm_s"), 8, 2),
        show(error["bytejit"] / error["eager"] if error.get("eager") and "bytejit" in error else None, 7, 2),
        show(memory.get("bytejit"), 8, 1),
        show(memory.get("eager"), 9, 1),
    ]
    return "".join(cells) + "  " + "; ".join(notes)


def one(args: argparse.Namespace) -> dict:
    """The measurement that this process was started for."""
    if args.one == "copy":
        return measure_copy()
    if args.one == "launch50":
        return measure_launch(args.rounds)
    if args.first:
        return measure_warm(args.one)
    return measure_idle(args.one) if args.idle else measure(args.one, not args.no_peer, args.rounds, args.lock)


def whole_row(name: str, args: argparse.Namespace, folder: str) -> dict:
    """All that is measured of a case, each in a process of its own."""
    lock = ["--lock", f"{folder}/lock"]
    row = child(name, args, f"{folder}/{name}", *lock, *(["--no-peer"] if args.no_peer else []))
    if name in IDLE and "failed" not in row:
        row["idle"] = child(name, args, f"{folder}/{name}", "--idle").get("idle", {})
    if args.warm and name in CASES and "failed" not in row:
        row["warm_s"] = child(name, args, f"{folder}/{name}", "--first").get("warm_s")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--listed", action="store_true", help="the cases of gpu_list.py")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lock", default=os.devnull, help=argparse.SUPPRESS)
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--warm", action="store_true", help="also the first call of a second process")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--timeout", type=int, default=200)
    args = parser.parse_args()
    if args.one:
        row = one(args)
        print(json.dumps(row))
        return 0
    names = args.only or (list(LISTED) if args.listed else [*EXTRA, *NAMES])
    rows = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda name: whole_row(name, args, folder), names):
            rows.append(row)
            print(json.dumps(row)[:600], flush=True)
            if args.json:
                about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
                Path(args.json).write_text(json.dumps(about, indent=1))
    print(table(rows))
    return int(any("failed" in r for r in rows))


if __name__ == "__main__":
    sys.exit(main())
