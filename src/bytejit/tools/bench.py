"""`python -m bytejit bench`: a call in eager, by bytejit, and by torch.compile if asked, each in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.text import first_line, table

from .loading import CannotLoad, Case, load, raised
from .timing import waited

WAYS = ("eager", "bytejit", "torch.compile")
MARK = "bytejit-bench-result: "  # before the line of a child that holds its result


@light_dataclass(frozen=True)
class BenchResult:
    """One way's figures. first: of the first call, which compiles; median, fastest: of the calls after it; distance: the largest
    from eager's result. Units: seconds. error: why there are none."""

    way: str
    first: float = 0.0
    median: float = 0.0
    fastest: float = 0.0
    calls: int = 0
    distance: float | None = None
    error: str = ""


# ---- in a process of its own -------------------------------------------------------------------------------------------
def measure(case: Case, way: str, compiled: Callable, seconds: float) -> BenchResult:
    """Calls for some seconds, at least five, after the first and two more. Raises: what the call raises."""
    wait = waited(pytree.tree_leaves(case.args))
    began = time.perf_counter()
    found = compiled(*case.args)
    wait()
    first = time.perf_counter() - began
    distance = None if way == "eager" else furthest(found, case.target(*case.args))
    times: list[float] = []
    for n in range(2 + 10_000):
        began = time.perf_counter()
        compiled(*case.args)
        wait()
        if n >= 2:
            times.append(time.perf_counter() - began)
        if len(times) >= 5 and sum(times) > seconds:
            break
    return BenchResult(way, first, statistics.median(times), min(times), len(times), distance)


def furthest(a: Any, b: Any) -> float | None:
    """The largest distance between the numbers of two results; None where they hold none, or random ones were drawn."""
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=False)
    tensors = [(x, y) for x, y in pairs if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.shape == y.shape]
    far = [float((x.double() - y.double()).abs().max()) for x, y in tensors if x.numel() and not x.is_complex()]
    return max(far, default=None)


def child(what: str, way: str, device: str, grad: bool, seconds: float, compilers: dict[str, Callable]) -> int:
    """Measure one way and print its result as a line of JSON. Returns: the exit status."""
    torch.manual_seed(0)
    try:
        case = load(what, device)
        try:
            with torch.set_grad_enabled(grad):
                found = measure(case, way, compilers[way](case.target), seconds)
        except (Exception, SystemExit) as e:
            raise raised(case.name, e) from None
    except CannotLoad as e:
        print(MARK + json.dumps({"way": way, "error": first_line(e), "status": e.status}), flush=True)
        return e.status
    print(MARK + json.dumps(asdict(found)), flush=True)
    return 0


# ---- around them ---------------------------------------------------------------------------------------------------------
def in_process(arguments: Sequence[str], way: str) -> BenchResult:
    """Runs one way in a process of its own. Raises: CannotLoad where the child cannot begin."""
    command = [sys.executable, "-m", "bytejit", "bench", *arguments, "--only", way]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *sys.path]))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return BenchResult(way, error=f"the process ended with status {done.returncode}: {why}")
    found = json.loads(lines[-1].removeprefix(MARK))
    if found.pop("status", 0):
        raise CannotLoad(found["error"], 1 if done.returncode == 1 else 2)
    return BenchResult(**found)


def rows_of(results: Sequence[BenchResult]) -> str:
    """The results as a table; how many times as fast as eager each is."""
    eager = next((r.median for r in results if r.way == "eager" and not r.error), 0.0)
    rows = [
        [r.way, r.error, "", "", "", ""]
        if r.error
        else [
            r.way,
            shown(r.median),
            shown(r.fastest),
            f"{eager / r.median:.2f}" if eager else "",
            shown(r.first),
            "" if r.distance is None else f"{r.distance:.2g}",
        ]
        for r in results
    ]
    return table(["", "median", "fastest", "times as fast", "first call", "from eager"], rows)


def shown(seconds: float) -> str:
    """A time in words."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def machine(device: str) -> dict[str, Any]:
    """Returns the machine and versions that the figures hold for."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else torch.backends.cpu.get_cpu_capability()
    return {"device": device, "name": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def picture(name: str, results: Sequence[BenchResult]) -> str:
    """The medians as bars, as SVG text."""
    drawn = [r for r in results if not r.error]
    longest = max((r.median for r in drawn), default=1.0)
    bars = []
    for i, r in enumerate(drawn):
        y, width = 40 + 34 * i, 380 * r.median / longest
        colour = "#8c959f" if r.way == "eager" else "#0969da"
        bars.append(
            f'<text x="100" y="{y + 16}" text-anchor="end">{escape(r.way)}</text>'
            f'<rect x="110" y="{y}" width="{width:.1f}" height="24" rx="3" fill="{colour}"/>'
            f'<text x="{116 + width:.1f}" y="{y + 16}">{shown(r.median)}</text>'
        )
    height = 50 + 34 * len(drawn)
    title = f'<text x="10" y="22" font-weight="bold">{escape(name)}: median time of a call</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="600" height="{height}" viewBox="0 0 600 {height}" '
        f'font-family="system-ui,sans-serif" font-size="13"><rect width="600" height="{height}" fill="#fff"/>'
        f"{title}{''.join(bars)}</svg>\n"
    )
