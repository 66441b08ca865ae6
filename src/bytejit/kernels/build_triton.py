"""A Triton module and its launches -> functions that run them. Worker processes compile the kernels in parallel; the disk cache
keeps each binary under the hash of its inputs; our own unit loads and launches them. A warm start imports no triton.

A kernel that does not compile, or that the device refuses, is tried in its smaller configurations before it is given up.
"""

from __future__ import annotations

import ast
import base64
import functools
import importlib.metadata
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bytejit.common import caches
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import Options
from bytejit.common.registry import count

from . import cuda_launch
from .build import PRELUDE, BuildFailed
from .cuda_launch import Loaded, Param
from .disk import Disk, digest, disk_of
from .workers import workers

FORMAT = "5"  # of cache entries: raise it when their content changes


@light_dataclass(frozen=True)
class KernelJob:
    """One kernel to compile. text: a module that holds it alone; signature, constants: by parameter; aligned: the
    parameters known to be multiples of 16; arch: 90 for compute capability 9.0; contracts: a * b + c is rounded once."""

    text: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[str, ...]
    warps: int
    stages: int
    arch: int
    contracts: bool = True

    @functools.cached_property
    def key(self) -> str:
        """The hash of all that the binary depends on; comments and the kernel's name do not count."""
        rest = (self.signature, self.constants, self.aligned, self.warps, self.stages, self.arch, self.contracts)
        return digest(FORMAT, meaning(self.text, self.kernel), repr(rest), triton_version(), prelude_key())

    def __repr__(self) -> str:
        return f"job {self.kernel} {dict(self.constants)} warps={self.warps} sm_{self.arch}"


@functools.lru_cache(1024)
def meaning(text: str, kernel: str) -> str:
    """A module's code without its comments and the kernel's name."""
    return re.sub(rf"\b{kernel}\b", "kernel", ast.dump(ast.parse(text)))


@light_dataclass(frozen=True)
class Binary:
    """A compiled kernel. name: its function; shared: bytes of shared memory; early: it waits itself for the kernel before it."""

    code: bytes
    name: str
    shared: int
    warps: int
    early: bool

    def __repr__(self) -> str:
        return f"binary {self.name}: {len(self.code)} bytes, {self.shared} shared"


@light_dataclass(frozen=True)
class BuiltCuda:
    """runs: for each row of kernels, run(stream, *arguments) -> 0, or 1 when an address is not a multiple of 16, and then
    `unaligned` of the same row runs it. Units: seconds."""

    runs: tuple[Callable, ...]
    unaligned: tuple[Callable, ...]
    kernels: int
    cached: int
    seconds: float
    files: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"built {self.kernels} kernels, {self.cached} from the cache, {self.seconds:.2f} s"


@functools.cache
def triton_version() -> str:
    """The installed triton's version; "" when there is none. Imports nothing of it."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        try:
            return importlib.metadata.version("pytorch-triton")
        except importlib.metadata.PackageNotFoundError:
            return ""


@functools.cache
def prelude_key() -> str:
    """The hash of our Triton helpers."""
    return digest(*(p.read_bytes() for p in sorted(PRELUDE.glob("triton*.py"))))


def split_module(text: str) -> dict[str, str]:
    """One module for each kernel of a module: all that is no function, then the functions that the kernel calls, then the
    kernel."""
    tree = ast.parse(text)
    lines = text.splitlines()
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list}
    spans = {name: (min(d.lineno for d in n.decorator_list) - 1, n.end_lineno or n.lineno) for name, n in functions.items()}
    calls = {
        name: dict.fromkeys(x.id for x in ast.walk(n) if isinstance(x, ast.Name) and x.id in spans and x.id != name)
        for name, n in functions.items()
    }
    inside = {i for start, end in spans.values() for i in range(start, end)}
    head = "\n".join(line for i, line in enumerate(lines) if i not in inside and not line.startswith("#"))
    texts = {name: "\n".join(lines[start:end]) + "\n" for name, (start, end) in spans.items()}
    return {name: "\n\n".join([f"{head.strip()}\n", *(texts[n] for n in (*calls[name], name))]) for name in texts}


def parameters(text: str, kernel: str) -> list[str]:
    """Names of a kernel's parameters, in order."""
    found = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == kernel)
    return [a.arg for a in found.args.args]


def contracts(text: str) -> bool:
    """Whether a generated kernel may round products and sums once. Eager rounds each: log_softmax(300 * x) of one column is 0,
    and x * y - z is 0 where z is x * y. Where all is rounded to 16 bits, nothing of it is left."""
    return "bj_rough_" in text


# ---- compile ----------------------------------------------------------------------------------------------------------
class Binaries:
    """Compiled kernels, from memory, from disk or from the workers. It counts those that needed no compiler."""

    def __init__(self, options: Options) -> None:
        self.disk: Disk = disk_of(options.cache_path, options.cache_mb)
        self.fresh = 0

    def of(self, jobs: Sequence[KernelJob]) -> list[Binary | str]:
        """The binary of each job, or the compiler's message."""
        found: dict[str, Binary | str] = {}
        for job in jobs:
            if (known := self._known(job.key)) is not None:
                found[job.key] = known
        missing = list({job.key: job for job in jobs if job.key not in found}.values())
        if missing:
            self.fresh += len(missing)
            for job, result in zip(missing, workers().map([self._asked(job) for job in missing])):
                found[job.key] = result["error"] if "error" in result else self._keep(job.key, result)
            self.disk.trim()
        return [found[job.key] for job in jobs]

    def source(self, job: KernelJob) -> Path:
        """The path of the kernel's text, which a failure names."""
        return self.disk.path(job.key + ".py")

    def _known(self, key: str) -> Binary | None:
        found = caches.BINARIES.get(key)
        if isinstance(found, Binary):
            return found
        body = self.disk.read(key + ".cubin")
        made = binary_of(body) if body is not None else None
        if made is not None:
            caches.BINARIES[key] = made
        return made

    def _asked(self, job: KernelJob) -> dict:
        path = self.source(job)
        if not path.exists():
            self.disk.write(path.name, job.text.encode())
        return {
            "text": job.text,
            "name": job.key,
            "kernel": job.kernel,
            "signature": dict(job.signature),
            "constants": dict(job.constants),
            "aligned": list(job.aligned),
            "arch": job.arch,
            "warps": job.warps,
            "stages": job.stages,
            "contracts": job.contracts,
        }

    def _keep(self, key: str, result: dict) -> Binary:
        made = Binary(base64.b64decode(result["binary"]), result["name"], result["shared"], result["warps"], result["early"])
        head = json.dumps({"name": made.name, "shared": made.shared, "warps": made.warps, "early": made.early})
        self.disk.write(key + ".cubin", head.encode() + b"\n" + made.code)
        caches.BINARIES[key] = made
        return made


def binary_of(body: bytes) -> Binary | None:
    """The binary in a cache entry; None where the entry does not hold one."""
    head, _, code = body.partition(b"\n")
    try:
        facts = json.loads(head)
        binary = Binary(code, facts["name"], facts["shared"], facts["warps"], facts["early"])
    except (ValueError, KeyError, TypeError):
        return None
    types = tuple(map(type, (binary.name, binary.shared, binary.warps, binary.early)))
    return binary if types == (str, int, int, bool) else None


# ---- load and bind -------------------------------------------------------------------------------------------------------
class ModuleBuilder:
    """Builds the launches of one module for one device (an index; its capability decides the code)."""

    def __init__(self, source: Any, device: int, options: Options) -> None:
        self.source, self.device, self.options = source, device, options
        self.texts = split_module(source.text)
        self.names = {k: parameters(t, k) for k, t in self.texts.items()}
        major, minor = torch.cuda.get_device_capability(device)
        self.arch = major * 10 + minor
        self.calls = cuda_launch.driver(options)
        self.binaries = Binaries(options)
        self.chosen: dict[tuple, Any] = {}  # launch's kernel and first configuration -> the one that works
        self.jobs: dict[tuple, KernelJob] = {}

    def job(self, launch: Any, config: Any, aligned: bool) -> KernelJob:
        """What is to be compiled for a launch. aligned: buffers start at multiples of 16 (scratch always does)."""
        names = self.names[launch.kernel]
        signature = tuple((n, a.type) for n, a in zip(names, launch.args))
        known = tuple(n for n, a in zip(names, launch.args) if a.kind == "scratch" or aligned and a.kind == "buffer")
        of = (launch.kernel, signature, known, tuple(config.constants), config.warps, config.stages)
        if of not in self.jobs:  # one object for all launches of a kernel: it knows its key
            self.jobs[of] = KernelJob(
                self.texts[launch.kernel],
                launch.kernel,
                signature,
                tuple(config.constants),
                known,
                config.warps,
                config.stages,
                self.arch,
                contracts(self.texts[launch.kernel]),
            )
        return self.jobs[of]

    def load(self, launches: Sequence[Any], aligned: bool) -> list[tuple[Loaded, Any]]:
        """Each launch's kernel on the device and the configuration that it was built in. Raises: BuildFailed."""
        configs = [self.chosen.get((la.kernel, la.config), la.config) for la in launches]
        made = self.binaries.of([self.job(la, c, aligned) for la, c in zip(launches, configs)])
        with torch.cuda.device(self.device):
            torch.cuda.current_stream().synchronize()  # the device's context exists from here on
            return [self._load(la, c, binary, aligned) for la, c, binary in zip(launches, configs, made)]

    def _load(self, launch: Any, config: Any, binary: Binary | str, aligned: bool) -> tuple[Loaded, Any]:
        smaller = sorted((c for c in launch.alternatives if _size(c) < _size(config)), key=_size, reverse=True)
        said, first = "", self.job(launch, config, aligned)
        place = self.binaries.source(first)
        for now in (config, *smaller):
            job = first if now is config else self.job(launch, now, aligned)
            if now is not config:
                binary = self.binaries.of([job])[0]
            try:
                if isinstance(binary, Binary):
                    loaded = self._loaded(job.key, binary)
                    if now is not config:
                        count("fallbacks", f"a kernel is built smaller: {said.splitlines()[-1][:80]}")
                        caches.warn_once(
                            f"smaller {place}",
                            f"bytejit: a Triton kernel is built smaller, {now}\n  where  {place}\n  why    {said[-1500:]}",
                        )
                    self.chosen[launch.kernel, launch.config] = now
                    return loaded, now
                said = said or binary
            except RuntimeError as e:
                said = said or str(e)
        raise BuildFailed(f"a Triton kernel cannot be built\n  where  {place}\n  why    {said[-1500:]}")

    def _loaded(self, key: str, binary: Binary) -> Loaded:
        return cuda_launch.loaded(self.calls, binary, key, self.device)

    def try_load(self, job: KernelJob, binary: Binary | str) -> Loaded | None:
        """A compiled kernel on the device; None where the compiler or the device refused it."""
        if not isinstance(binary, Binary):
            return None
        try:
            return self._loaded(job.key, binary)
        except RuntimeError:
            return None

    def alone(self, launch: Any, config: Any, kernel: Loaded, addresses: Sequence[int], stream: int) -> Callable[[], Any]:
        """A function that launches one kernel on a stream, with its arguments at these addresses."""
        params = [Param(i, 0, a.kind == "buffer") for i, a in enumerate(launch.args)]
        table = cuda_launch.launch_table([(kernel, (*config.grid, 1, 1)[:3], params)])
        return functools.partial(cuda_launch.bind(self.calls, table), stream, *addresses)

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", self.device)

    def tune(self, launches: Sequence[Any], extents: Callable[[Any], int]) -> None:
        """Choose each launch's configuration by timing (`tune_launches`)."""
        from .tune_launches import ROOM, LaunchTuner

        with torch.cuda.device(self.device):
            torch.cuda.current_stream().synchronize()
            free = int(torch.cuda.mem_get_info()[0] * ROOM)
            stream = torch.cuda.current_stream().cuda_stream
            LaunchTuner(self, extents, torch.cuda.get_device_name(self.device), free, stream).run(launches)

    def run(self, row: Any, aligned: bool) -> Callable:
        """The function of a row of launches."""
        index = {arg: i for i, arg in enumerate(row.args[1:])}  # the first one is the stream
        rows = []
        for launch, (kernel, config) in zip(row.launches, self.load(row.launches, aligned)):
            places = [(row.place(a, index), a.kind == "buffer" and aligned) for a in launch.args]
            params = [Param(at, added, needed) for (at, added), needed in places]
            grid = [g if isinstance(g, int) else -1 - index["value", g] for g in (*config.grid, 1, 1)[:3]]
            rows.append((kernel, tuple(grid), params))
        return cuda_launch.bind(self.calls, cuda_launch.launch_table(rows))


def _size(config: Any) -> int:
    total = config.warps
    for _, value in config.constants:
        total *= value if isinstance(value, int) and value > 1 else 1
    return total


def build(source: Any, rows: Sequence[Any], device: int, options: Options, extents: Callable[[Any], int]) -> BuiltCuda:
    """Compile, load and bind. rows: `LaunchRow`s (`codegen/cuda/call.py`) of the source; extents(arg) -> bytes that an argument
    of a launch whose sizes are known spans. Raises: NoCompiler, NoDriver, BuildFailed."""
    start = time.perf_counter()
    builder = ModuleBuilder(source, device, options)
    every = [launch for row in rows for launch in row.launches]
    if options.tune:
        builder.tune(every, extents)
    builder.load(every, aligned=True)  # all at once; what `run` asks for below is then there
    runs = tuple(builder.run(row, True) for row in rows)

    def later(row: Any) -> Callable:
        made: list[Callable] = []

        def run(*args: Any) -> int:
            if not made:
                made.append(builder.run(row, False))
            return made[0](*args)

        return run

    jobs = {builder.job(la, la.config, True).key for la in every}
    return BuiltCuda(
        runs,
        tuple(later(row) for row in rows),
        len(jobs),
        len(jobs) - min(builder.binaries.fresh, len(jobs)),
        time.perf_counter() - start,
        tuple(str(builder.binaries.source(builder.job(la, la.config, True))) for la in every),
    )
