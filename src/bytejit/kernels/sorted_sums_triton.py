"""Sums at sorted places on a GPU: `bytejit::add_sorted` (`prelude/triton_sorted_sums.py`).

A program has some rows of the result: it finds where their values begin and end among the sorted places, and adds them up. So
the order is always the same, and no row is written twice. torch's own call sorts, too, but in 64 bits, each time anew, and
starts about ten kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from bytejit.common import sorted_sums  # noqa: F401  (defines the operator)
from bytejit.common.dtypes import DTYPES, SHORT
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import config as options
from bytejit.common.own_operators import OPERATORS

from . import cuda_launch, interpret
from .build import PRELUDE
from .build_triton import Binaries, Binary, KernelJob
from .cuda_launch import Param

TILE = 2048  # elements that a program reads in a turn
COLUMNS = 64  # the most of a tile
TURN = 64  # the most values of a row that a turn adds up
POINTERS = "base", "values", "places", "order", "out"
NUMBERS = "rows", "columns", "count", "steps"
WARPS = 2
MOST = 1 << 31  # places and positions are int32; a graph looks at the sizes that it is made with


@light_dataclass(frozen=True)
class SumTile:
    """rows, columns: of a program; turn: values of each row that it adds up in a turn. base: whether something is added to."""

    rows: int
    columns: int
    turn: int
    dtype: torch.dtype
    base: bool


def tile_of(rows: int, columns: int, count: int, dtype: torch.dtype, base: bool) -> SumTile:
    """The tile for a result [rows, columns] and `count` values."""
    wide = min(_power(columns), COLUMNS)
    turn = min(_power(count // rows), TURN)
    return SumTile(min(max(TILE // (wide * turn), 1), _power(rows)), wide, turn, dtype, base)


def _power(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << max(n - 1, 0).bit_length()


def constants(t: SumTile) -> tuple[tuple[str, int], ...]:
    """The kernel's constexpr parameters, in order."""
    return ("BASE", int(t.base)), ("BM", t.rows), ("BN", t.columns), ("BK", t.turn)


def text() -> str:
    """The module of the kernel."""
    return (PRELUDE / "triton_sorted_sums.py").read_text()


def job(t: SumTile, arch: int) -> KernelJob:
    """Returns the job that compiles the kernel."""
    types = dict.fromkeys(("base", "values", "out"), t.dtype) | {"places": torch.int32, "order": torch.int64}
    pointers = tuple((name, DTYPES[SHORT[types[name]]].pointer) for name in POINTERS)
    numbers = tuple((name, "i64") for name in NUMBERS)
    return KernelJob(text(), "add_sorted", pointers + numbers, constants(t), (), WARPS, 1, arch)


@functools.cache
def launcher(t: SumTile, device: int) -> Callable[..., int]:
    """run(stream, *five addresses, *four numbers, *two sizes of the grid). Raises: RuntimeError where it cannot be built."""
    major, minor = torch.cuda.get_device_capability(device)
    calls, what = cuda_launch.driver(options.current), job(t, major * 10 + minor)
    binary = Binaries(options.current).of([what])[0]
    if not isinstance(binary, Binary):
        raise RuntimeError(f"sums at sorted places: {binary}")
    given = len(POINTERS) + len(NUMBERS)
    grid = (-1 - given, -2 - given, 1)
    return cuda_launch.bind_alone(calls, binary, what.key, device, grid, [Param(i) for i in range(given)])


def add_sorted(
    base: torch.Tensor | None, values: torch.Tensor, places: torch.Tensor, order: torch.Tensor, rows: int
) -> torch.Tensor:
    """base [rows, n] (None: zeros) with values [count, n] added: the one at order[p] to the row places[p]. All contiguous; order:
    int64, places: int32, sorted. Raises: RuntimeError for 2**31 rows or values, as sizes that change may become."""
    count, columns = values.shape
    if max(rows, count) >= MOST:
        raise RuntimeError(f"{count} values at {rows} places: 2**31 or more of either are for eager code, without bytejit")
    t = tile_of(rows, columns, count, values.dtype, base is not None)
    out = values.new_empty((rows, columns))
    given = (out if base is None else base, values, places, order, out)
    numbers = rows, columns, count, count.bit_length()
    grid = -(-rows // t.rows), -(-columns // t.columns)
    if values.device.type == "cpu":
        interpret.load_module(text()).add_sorted[grid](*given, *numbers, **dict(constants(t)))
        return out
    stream = torch._C._cuda_getCurrentRawStream(values.device.index)
    launcher(t, values.device.index)(stream, *[x.data_ptr() for x in given], *numbers, *grid)
    return out


for key in ("CUDA", "CPU"):
    OPERATORS.impl("add_sorted", add_sorted, key)
