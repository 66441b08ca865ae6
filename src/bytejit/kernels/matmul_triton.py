"""Matrix products of our own on a GPU, with bias, activation and residual in the same kernel: `bytejit::gpu_linear`.

cuBLAS is hard to beat; but what follows a product is then a kernel of its own, which a small product does not hide. Under
max-autotune the two are timed (`codegen/linears_gpu.py`). f16 and bf16 alone: products of f32 are IEEE's in eager.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import caches
from ..options import config as options
from . import cuda_launch
from .build import PRELUDE
from .build_triton import Binaries, Binary, Job
from .cuda_launch import Param

POSTS = ("", "relu", "gelu", "gelu_tanh", "silu")
TYPES = {torch.float16: "*fp16", torch.bfloat16: "*bf16"}
GROUP = 8
F = torch.nn.functional
TORCH: dict[str, Callable] = {"": lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu,
                              "gelu_tanh": functools.partial(F.gelu, approximate="tanh")}


@dataclass(frozen=True)
class Problem:
    """x [m, k], rows `row` apart, times w [k, n], `wk` and `wn` apart; then bias, post, an addition. Units: elements."""

    m: int
    n: int
    k: int
    row: int
    wk: int
    wn: int
    dtype: torch.dtype
    post: str = ""
    bias: bool = False
    other: bool = False


@dataclass(frozen=True)
class Way:
    """A tile of the result [rows, columns], how much of k a turn takes, warps, stages of the pipeline."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def name(self) -> str:
        return f"triton_{self.rows}x{self.columns}x{self.depth}_{self.warps}w{self.stages}s"

    @property
    def numbers(self) -> list[int]:
        """As the operator takes it."""
        return [self.rows, self.columns, self.depth, self.warps, self.stages]


LARGE = Way(128, 256, 64, 8, 3), Way(128, 128, 64, 8, 3), Way(128, 64, 64, 4, 4), Way(64, 128, 64, 4, 4), Way(64, 64, 64, 4, 4)
MIDDLE = Way(64, 64, 128, 4, 4), Way(32, 64, 128, 4, 4), Way(32, 32, 128, 2, 4), Way(64, 32, 128, 4, 4)
LITTLE = Way(16, 32, 256, 2, 4), Way(16, 64, 128, 4, 4), Way(16, 128, 64, 4, 4), Way(16, 16, 256, 2, 4)


def ways(m: int, n: int, k: int) -> tuple[Way, ...]:
    """What is worth timing."""
    return LITTLE if m <= 16 else MIDDLE if m <= 128 else LARGE


def constants(p: Problem, way: Way) -> tuple[tuple[str, int], ...]:
    """The kernel's constexpr parameters, in order."""
    return (("M", p.m), ("N", p.n), ("K", p.k), ("XM", p.row), ("WK", p.wk), ("WN", p.wn), ("BIAS", int(p.bias)),
            ("OTHER", int(p.other)), ("POST", POSTS.index(p.post)), ("BM", way.rows), ("BN", way.columns), ("BK", way.depth),
            ("GROUP", GROUP))


def grid(p: Problem, way: Way) -> int:
    """Programs."""
    return -(-p.m // way.rows) * -(-p.n // way.columns)


def job(p: Problem, way: Way, arch: int) -> Job:
    """What is compiled."""
    names = ("x", "w", "b", "other", "out")
    return Job((PRELUDE / "triton_matmul.py").read_text(), "matmul", tuple((n, TYPES[p.dtype]) for n in names),
               constants(p, way), names, way.warps, way.stages, arch)


def prepare(p: Problem, found: Sequence[Way], device: int) -> list[Way]:
    """The ways that compile, all compiled now, side by side."""
    major, minor = torch.cuda.get_device_capability(device)
    made = Binaries(options.current).of([job(p, way, major * 10 + minor) for way in found])
    return [way for way, binary in zip(found, made) if isinstance(binary, Binary)]


@functools.cache
def launcher(p: Problem, way: Way, device: int) -> Callable[..., int]:
    """run(stream, *five addresses) -> 0, or 1 where one is no multiple of 16. Raises: RuntimeError where it cannot be built."""
    major, minor = torch.cuda.get_device_capability(device)
    calls, what = cuda_launch.driver(options.current), job(p, way, major * 10 + minor)
    binary = Binaries(options.current).of([what])[0]
    if not isinstance(binary, Binary):
        raise RuntimeError(f"{way.name}: {binary}")
    with torch.cuda.device(device):
        at = (what.key, device)
        if at not in caches.GPU_KERNELS:
            caches.GPU_KERNELS[at] = cuda_launch.load_kernel(calls, binary.code, binary.name, binary.warps, binary.shared)
    table = cuda_launch.launch_table([(caches.GPU_KERNELS[at], (grid(p, way), 1, 1), [Param(i, 0, True) for i in range(5)])])
    return cuda_launch.bind(calls, table)


def plain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, other: torch.Tensor | None, post: str) -> torch.Tensor:
    """The same through torch."""
    made = TORCH[post](torch.mm(x, w) if b is None else torch.addmm(b, x, w))
    return made if other is None else made + other


def problem_of(x: Any, w: Any, b: Any, other: Any, post: str) -> Problem:
    """The problem that tensors pose. x: dense along its rows."""
    return Problem(x.shape[0], w.shape[1], x.shape[1], x.stride(0), *w.stride(), x.dtype, post, b is not None, other is not None)


def gpu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, other: torch.Tensor | None, post: str,
               way: Sequence[int]) -> torch.Tensor:
    """post(x @ w + b) + other, contiguous. x [m, k]; w [k, n] of any strides; b [n], other [m, n] dense."""
    device = x.device.index
    run = launcher(problem_of(x, w, b, other, post), Way(*way), device)
    out = x.new_empty((x.shape[0], w.shape[1]))
    at = x.data_ptr()
    stream = torch._C._cuda_getCurrentRawStream(device)
    bias, more = at if b is None else b.data_ptr(), at if other is None else other.data_ptr()
    if run(stream, at, w.data_ptr(), bias, more, out.data_ptr()):
        return plain(x, w, b, other, post)
    return out


@functools.cache
def register() -> torch.library.Library:
    """Let the operator run this."""
    made = torch.library.Library("bytejit", "IMPL")
    made.impl("gpu_linear", gpu_linear, "CUDA")
    return made
