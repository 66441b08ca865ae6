"""`python -m bytejit.verify`: what of this installation works, what does not, and what to install.

Looks at Python, torch, triton, CUDA, the C++ compiler and the cache folder, then compiles and compares a
small function and a small module on each backend that can run; each other backend has a row with the reason. Exit status 0:
all that this machine can do works.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import bytejit
from bytejit.compat.probes import PROBES, free_threaded, missing, refused, untested
from bytejit.compat.table import PYTHONS, ROWS, TORCHES
from bytejit.kernels.build import compiler_here
from bytejit.kernels.disk import Disk, disk_of
from bytejit.kernels.scratch import temporary

from .common.errors import backend_name
from .common.options import Options, config
from .common.text import first_line

WORKS, MISSING, BROKEN, NONE = "works", "missing", "broken", "none"
_SUM = """
extern "C" __attribute__((visibility("default"))) int bytejit_sum(int n) {
  int sum = 0;
  #pragma omp simd reduction(+ : sum)
  for (int i = 0; i < n; i++) sum += i;
  return sum;
}
"""


@dataclass(frozen=True)
class Finding:
    """One line of the table. state: "works", "missing" (bytejit runs without), "broken" (sets the exit status) or "none" (a
    name of TorchDynamo's documents, with no backend behind it)."""

    name: str
    state: str
    found: str
    do: str = ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" is (2, 13, 0)."""
    parts = version.partition("+")[0].split(".")
    return tuple(int(p) for p in parts if p.isdigit())


def check_python() -> Finding:
    """The interpreter."""
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    good = platform.python_implementation() == "CPython" and _release(platform.python_version())[:2] >= _release(PYTHONS[0])
    return Finding("Python", WORKS if good else BROKEN, text, "" if good else f"install CPython {' to '.join(PYTHONS)}")


def check_torch() -> Finding:
    """PyTorch's version and build."""
    good = _release(torch.__version__) >= _release(TORCHES[0])
    text = f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    return Finding("torch", WORKS if good else BROKEN, text, "" if good else "pip install 'torch>=2.11'")


def check_interfaces() -> Finding:
    """The private interfaces of torch and CPython, and the child process that reads memory as compiled guards do."""
    why, new, lost = refused(), untested(), [*missing()]
    if why:
        kind = "CPython with the GIL," if free_threaded() else "CPython"
        return Finding("interfaces", BROKEN, why, f"install torch {' to '.join(TORCHES)} and {kind} {' to '.join(PYTHONS)}")
    failed = PROBES.failed("layouts")
    if failed:
        lost += [row for row in ROWS if row.probe == "child"]
    text = f"{len(ROWS) - len(lost)} of {len(ROWS)} private interfaces found" + (f"; {new}" if new else "")
    if lost:
        said = "; ".join(f"without {row.name} {row.without}" for row in lost)
        text += f"; {said}" + (f" ({failed})" if failed else "")
        return Finding("interfaces", MISSING, text, "nothing is wrong, only slower")
    return Finding("interfaces", WORKS, text)


def check_packages() -> Iterator[Finding]:
    """The packages that bytejit imports when it compiles."""
    for package in ("bytecode", "sympy", "cffi"):
        version = _version(package)
        yield Finding(
            package,
            WORKS if version else BROKEN,
            version or "not installed",
            "" if version else f"pip install {package}",
        )


def check_cuda() -> Finding:
    """A CUDA device that kernels can be built for (sm_80 on)."""
    if torch.version.cuda is None and torch.version.hip is None:
        return Finding("CUDA", MISSING, "torch is a CPU build", "for a GPU install a CUDA build of torch")
    if not torch.cuda.is_available():
        return Finding(
            "CUDA",
            MISSING,
            f"torch is built for CUDA {torch.version.cuda}, no device found",
            "for a GPU check nvidia-smi and the driver",
        )
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    major, minor = torch.cuda.get_device_capability()
    text = f"CUDA {torch.version.cuda}, {', '.join(names)}, sm_{major}{minor}"
    if (major, minor) < (8, 0):
        return Finding("CUDA", MISSING, text, "GPUs before sm_80 run through torch")
    return Finding("CUDA", WORKS, text)


def check_triton() -> Finding:
    """Triton, which only a GPU needs."""
    version = _version("triton")
    if version is None:
        needed = torch.cuda.is_available()
        return Finding(
            "triton", BROKEN if needed else MISSING, "not installed", "pip install 'bytejit[gpu]' for kernels on a GPU"
        )
    return Finding("triton", WORKS, version)


def check_compiler(options: Options) -> Finding:
    """Builds a library with the flags of kernels, and calls it."""
    do = "install g++ (Debian: apt-get install g++), clang++ or zig, or set BYTEJIT_CXX to one; else graphs run through torch"
    named = options.cxx.strip()
    compiler = compiler_here(disk_of(options.cache_path, options.cache_mb), named)
    if compiler is None and named and shutil.which(shlex.split(named)[0]):
        return Finding("C++ compiler", BROKEN, f"{named} --version fails", do)
    if compiler is None:
        return Finding("C++ compiler", MISSING, f"no {named or 'g++, clang++ or zig'} on the PATH", do)
    with temporary() as folder:
        source, library = folder / "t.cpp", folder / "t.so"
        source.write_text(_SUM)
        command = [compiler.path, *compiler.extra, *compiler.flags, str(source), "-o", str(library), *compiler.libraries]
        built = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(folder)})
        if built.returncode:
            return Finding(
                "C++ compiler", BROKEN, f"{named or compiler.path}: {(built.stderr.strip() or 'failed').splitlines()[-1]}", do
            )
        try:
            total = ctypes.CDLL(str(library)).bytejit_sum(10)
        except (OSError, AttributeError) as e:
            return Finding("C++ compiler", BROKEN, f"{compiler!r}: {first_line(e)}", do)
    if total != 45:
        return Finding("C++ compiler", BROKEN, f"{compiler!r}: a sum of 45 is {total}", do)
    return Finding("C++ compiler", WORKS, f"{compiler.version.removesuffix(' clang')}: a library was built and called")


def check_cache(options: Options) -> Finding:
    """The folder of built kernels can be written, by this user alone; says how much is in it."""
    path = options.cache_path
    why = Disk(path).state()
    if why:
        return Finding("cache folder", MISSING, f"{path}: {why}", "make it yours alone, or set BYTEJIT_CACHE_DIR")
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    shown = str(path).replace(str(Path.home()), "~", 1)
    room = f"{size / 2**20:.1f} of {options.cache_mb} MB, {shutil.disk_usage(path).free >> 20} MB free"
    return Finding("cache folder", WORKS, f"{shown}: yours, closed to others; {room}")


def _small_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + torch.cos(y).sum(-1, keepdim=True)


class _SmallModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A norm, two linear layers and a softmax."""
        return self.outer(torch.nn.functional.gelu(self.inner(self.norm(x)))).softmax(-1)


def _compare(target: Callable, args: tuple, backend: str) -> tuple[float, float]:
    """Seconds of the first call and the largest error against eager, over two calls. Raises: whatever goes wrong."""
    with torch.no_grad(), config.patch(suppress_errors=False):
        bytejit.reset()
        want = target(*args)
        compiled = bytejit.compile(target, backend=backend, fullgraph=True)
        start = time.perf_counter()
        got = compiled(*args)
        seconds = time.perf_counter() - start
        again = compiled(*args)
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError(f"{got.dtype} {tuple(got.shape)} where eager gives {want.dtype} {tuple(want.shape)}")
    error = max((got - want).abs().max().item(), (again - want).abs().max().item())
    if not error < 1e-4:
        raise AssertionError(f"differs from eager by {error:.2g}")
    return seconds, error


def check_backend(backend: str, device: str) -> Finding:
    """Compiles and compares the small function and the small module on one backend and device."""
    name = f"{backend_name(backend)} on {device}"
    torch.manual_seed(0)
    cases = (
        ("function", _small_function, (torch.randn(8, 16, device=device), torch.randn(8, 16, device=device))),
        ("module", _SmallModule().eval().to(device), (torch.randn(8, 16, device=device),)),
    )
    seconds, worst = 0.0, 0.0
    for what, target, args in cases:
        try:
            took, error = _compare(target, args, backend)
        except Exception as raised:  # the table is the report: each thing that fails is a row, and sets the exit status
            return Finding(name, BROKEN, f"{what}: {type(raised).__name__}: {first_line(raised)}", "see docs/troubleshooting.md")
        seconds, worst = seconds + took, max(worst, error)
    fell = bytejit.counters.total("fallbacks")
    note = f", {fell} fallbacks to torch" if fell else ""
    return Finding(name, WORKS, f"function and module equal eager (largest error {worst:.1g}), compiled in {seconds:.2f} s{note}")


def checks(backends: list[str] | None = None) -> Iterator[Finding]:
    """All checks, one after the other."""
    options = config.current
    yield check_python()
    yield check_torch()
    yield check_interfaces()
    yield from check_packages()
    yield check_cuda()
    yield check_triton()
    yield check_compiler(options)
    yield check_cache(options)
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    table = bytejit.backends_table()
    for backend in backends or table:
        row = table[backend]
        if not row.available:
            yield Finding(backend, NONE if row.former else MISSING, row.why, row.do)
        for device in devices if row.available else ():
            if device == "cuda" or "cuda" not in backend:
                yield check_backend(backend, device)


def show(found: list[Finding]) -> None:
    """Print the table with rich, and one line that sums it up."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"bytejit {bytejit.__version__}", title_justify="left")
    for column in ("what", "state", "found", "do"):
        table.add_column(column, overflow="fold")
    colour = {WORKS: "green", MISSING: "yellow", BROKEN: "red", NONE: "dim"}
    for c in found:
        table.add_row(c.name, f"[{colour[c.state]}]{c.state}[/]", escape(c.found), escape(c.do))
    console = Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", 140)), highlight=False)
    console.print(table)
    broken, missing = ([c.name for c in found if c.state == s] for s in (BROKEN, MISSING))
    if broken:
        console.print(f"{len(broken)} broken: {', '.join(broken)}")
    else:
        console.print("All that this machine can do works." + (f" Missing: {', '.join(missing)}." if missing else ""))


def main(argv: list[str] | None = None) -> int:
    """Run all checks and print the table (or JSON). Returns the exit status: 1 when something is broken, 2 for a bad setting."""
    parser = argparse.ArgumentParser(prog="python -m bytejit.verify", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    names = [*bytejit.backends_table()]
    parser.add_argument("--backend", action="append", choices=names, metavar="NAME", help="only this backend; may be repeated")
    args = parser.parse_args(argv)
    if refused := Options.read()[1]:
        print(f"bytejit: {refused[0]}", file=sys.stderr)
        return 2
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "bytejit: ", RuntimeWarning)  # the table has a row about each
        found = list(checks(args.backend))
    if args.json:
        print(json.dumps([asdict(c) for c in found], indent=1))
    else:
        show(found)
    return int(any(c.state == BROKEN for c in found))


if __name__ == "__main__":
    sys.exit(main())
