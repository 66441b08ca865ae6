"""Matrix products of our own on a GPU, with what leads to them and what follows in the same kernel: `bytejit::gpu_linear`.

cuBLAS is hard to beat; but what stands before or behind a product is then a kernel of its own, which a small product does not
hide. Under max-autotune the two are timed (`codegen/libraries/linear_triton.py`). Products of f32 are three of TF32
each, on the tensor cores: as near to float64 as cuBLAS's (measured: nearer) in two thirds of its time; TF32 itself only
where torch is told to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from bytejit.common.dtypes import DTYPES, SHORT
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import config as options
from bytejit.common.own_operators import OPERATORS
from bytejit.common.spec import Spec

from . import cuda_launch
from .build import PRELUDE
from .build_triton import Binaries, Binary, KernelJob
from .cuda_launch import EARLY, Param
from .tune_gpu import uses_tf32

EPILOGUES = ("", "relu", "gelu", "gelu_tanh", "silu")
GROUP = 8
F = torch.nn.functional
TORCH: dict[str, Callable] = {
    "": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}
PRECISIONS = "", "tf32", "tf32x3"  # of f32; the first is IEEE's


@light_dataclass(frozen=True)
class Problem:
    """prologue(x [m, k]) * y [m, k] times w [k, n]; then bias, epilogue, an addition; all that `batch` times. x, y, w: steps from
    one of the batch, a row and a column to the next. dtype: of w and the result; xtype, ytype: of x and y. Units: elements."""

    m: int
    n: int
    k: int
    x: tuple[int, int, int]
    w: tuple[int, int, int]
    dtype: torch.dtype
    epilogue: str = ""
    bias: bool = False
    other: bool = False
    batch: int = 1
    xtype: torch.dtype | None = None
    prologue: str = ""
    y: tuple[int, int, int] | None = None
    ytype: torch.dtype | None = None


@light_dataclass(frozen=True)
class Way:
    """A tile of the result [rows, columns], how much of k a turn takes, warps, stages of the pipeline; precision: of f32, a
    place in `PRECISIONS`."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    precision: int = 0

    @property
    def name(self) -> str:
        return f"triton_{self.rows}x{self.columns}x{self.depth}_{self.warps}w{self.stages}s{PRECISIONS[self.precision]}"

    @property
    def numbers(self) -> list[int]:
        """Returns the numbers in which the operator takes it."""
        return [self.rows, self.columns, self.depth, self.warps, self.stages, self.precision]


LARGE = Way(128, 256, 64, 8, 3), Way(128, 128, 64, 8, 3), Way(128, 64, 64, 4, 4), Way(64, 128, 64, 4, 4), Way(64, 64, 64, 4, 4)
MIDDLE = Way(64, 64, 128, 4, 4), Way(32, 64, 128, 4, 4), Way(32, 32, 128, 2, 4), Way(64, 32, 128, 4, 4)
LITTLE = Way(16, 32, 256, 2, 4), Way(16, 64, 128, 4, 4), Way(16, 128, 64, 4, 4), Way(16, 16, 256, 2, 4)


def ways(m: int, dtype: torch.dtype = torch.float16, tf32: bool = False) -> tuple[Way, ...]:
    """The configurations to time for a product of m rows. f32 takes twice the room, so half the depth. tf32: whether torch's
    own products may use it."""
    found = LITTLE if m <= 16 else MIDDLE if m <= 128 else LARGE
    if dtype is not torch.float32:
        return found
    return tuple(replace(w, depth=w.depth // 2, precision=1 if tf32 else 2) for w in found if w.rows * w.columns <= 128 * 128)


def constants(p: Problem, way: Way, arch: int) -> tuple[tuple[str, int], ...]:
    """The kernel's constexpr parameters, in order. arch: 90 for compute capability 9.0."""
    (xb, xm, xk), (yb, ym, yk), (wb, wk, wn) = p.x, p.y or (0, 0, 0), p.w
    return (
        ("M", p.m),
        ("N", p.n),
        ("K", p.k),
        ("XB", xb),
        ("XM", xm),
        ("XK", xk),
        ("YB", yb),
        ("YM", ym),
        ("YK", yk),
        ("WB", wb),
        ("WK", wk),
        ("WN", wn),
        ("PROLOGUE", EPILOGUES.index(p.prologue)),
        ("TIMES", int(p.y is not None)),
        ("BIAS", int(p.bias)),
        ("OTHER", int(p.other)),
        ("EPILOGUE", EPILOGUES.index(p.epilogue)),
        ("BM", way.rows),
        ("BN", way.columns),
        ("BK", way.depth),
        ("PRECISION", way.precision),
        ("GROUP", GROUP),
        ("EARLY", int(arch >= EARLY)),
    )


def grid(p: Problem, way: Way) -> tuple[int, int, int]:
    """Programs."""
    return -(-p.m // way.rows) * -(-p.n // way.columns), p.batch, 1


def job(p: Problem, way: Way, arch: int) -> KernelJob:
    """Returns the job that compiles the kernel."""
    types = {"x": p.xtype or p.dtype, "y": p.ytype or p.dtype, **dict.fromkeys(("w", "b", "other", "out"), p.dtype)}
    return KernelJob(
        (PRELUDE / "triton_matmul.py").read_text(),
        "matmul",
        tuple((n, DTYPES[SHORT[t]].pointer) for n, t in types.items()),
        constants(p, way, arch),
        tuple(types),
        way.warps,
        way.stages,
        arch,
    )


def prepare(p: Problem, found: Sequence[Way], device: int) -> list[Way]:
    """The ways that compile, all compiled now, side by side."""
    major, minor = torch.cuda.get_device_capability(device)
    made = Binaries(options.current).of([job(p, way, major * 10 + minor) for way in found])
    return [way for way, binary in zip(found, made) if isinstance(binary, Binary)]


@functools.cache
def launcher(p: Problem, way: Way, device: int) -> Callable[..., int]:
    """run(stream, *six addresses) -> 0, or 1 where one is no multiple of 16. Raises: RuntimeError where it cannot be built."""
    major, minor = torch.cuda.get_device_capability(device)
    calls, what = cuda_launch.driver(options.current), job(p, way, major * 10 + minor)
    binary = Binaries(options.current).of([what])[0]
    if not isinstance(binary, Binary):
        raise RuntimeError(f"{way.name}: {binary}")
    return cuda_launch.bind_alone(calls, binary, what.key, device, grid(p, way), [Param(i, 0, True) for i in range(6)])


def plain(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None,
    other: torch.Tensor | None,
    epilogue: str,
    y: torch.Tensor | None = None,
    prologue: str = "",
) -> torch.Tensor:
    """The same through torch."""
    x = TORCH[prologue](x)
    x = (x if y is None else x * y).to(w.dtype)
    made = TORCH[epilogue](torch.matmul(x, w) if b is None else torch.addmm(b, x, w))
    return made if other is None else made + other


def problem_of(x: Any, w: Any, b: Any, other: Any, epilogue: str, y: Any = None, prologue: str = "") -> Problem:
    """The problem that specs pose; b, other: None, or anything."""

    def steps(spec: Any) -> tuple[int, int, int]:
        return tuple(spec.stride) if len(spec.shape) == 3 else (0, *spec.stride)

    return Problem(
        x.shape[-2],
        w.shape[-1],
        x.shape[-1],
        steps(x),
        steps(w),
        w.dtype,
        epilogue,
        b is not None,
        other is not None,
        x.shape[0] if len(x.shape) == 3 else 1,
        None if x.dtype == w.dtype else x.dtype,
        prologue,
        None if y is None else steps(y),
        None if y is None or y.dtype == w.dtype else y.dtype,
    )


@functools.cache
def _run(
    device: torch.device, way: tuple, epilogue: str, prologue: str, bias: bool, other: bool, x: tuple, w: tuple, y: tuple
) -> Callable:
    """The launcher for tensors of these shapes, strides and dtypes."""
    specs = [Spec(shape, stride, dtype, device) for shape, stride, dtype in (x, w)]
    factor = Spec(y[0], y[1], y[2], device) if y else None
    return launcher(
        problem_of(specs[0], specs[1], bias or None, other or None, epilogue, factor, prologue), Way(*way), device.index
    )


def gpu_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None,
    other: torch.Tensor | None,
    epilogue: str,
    way: Sequence[int],
    y: torch.Tensor | None = None,
    prologue: str = "",
) -> torch.Tensor:
    """epilogue(prologue(x) * y @ w + b) + other, contiguous. x, y [m, k]; w [k, n]; b [n], other [m, n] dense; or x, y, w, other
    with one more dim in front."""
    device, at = x.device, x.data_ptr()
    out = w.new_empty((*x.shape[:-1], w.shape[-1]))
    given = [at if t is None else t.data_ptr() for t in (y, w, b, other)]
    kinds = [(t.shape, t.stride(), t.dtype) if t is not None else () for t in (x, w, y)]
    run = _run(device, tuple(way), epilogue, prologue, b is not None, other is not None, *kinds)
    rounded = PRECISIONS[way[5]] == "tf32" and not uses_tf32()  # torch allowed TF32 when this was chosen
    if rounded or run(torch._C._cuda_getCurrentRawStream(device.index), at, *given, out.data_ptr()):
        return plain(x, w, b, other, epilogue, y, prologue)
    return out


@functools.cache
def register() -> None:
    """Lets the operator run this."""
    OPERATORS.impl("gpu_linear", gpu_linear, "CUDA")
