"""Attention with the program's own scores and mask in one kernel of a GPU: `bytejit::gpu_flex` (`prelude/triton_flex.py`).

Goes over the blocks of keys that the block mask names. Split as flash attention is: a program has some rows of one head.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import torch

from bytejit.common import attention_marks  # noqa: F401  (defines the operator)
from bytejit.common.dtypes import DTYPES, SHORT
from bytejit.common.errors import Bug
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import config as options
from bytejit.common.own_operators import OPERATORS

from . import cuda_launch, interpret
from .build import PRELUDE
from .build_triton import Binaries, Binary, KernelJob
from .cuda_launch import Param
from .tune_gpu import uses_tf32

LEAST = 16  # rows, columns and depth of a product on the tensor cores
POINTERS = "q", "k", "v", "out", "sums", "tops", "few", "few_at", "full", "full_at"
Shaped = tuple[tuple, tuple, torch.dtype]  # shape, strides, dtype


@light_dataclass(frozen=True)
class FlexProblem:
    """tensors: q, k, v, few, few_at, full, full_at (the last two: or None). strides: of the output. rows, keys: of a block of the
    mask. score, seen: as `gpu_flex` takes them."""

    tensors: tuple[Shaped | None, ...]
    captured: tuple[Shaped, ...]
    strides: tuple[int, ...]
    rows: int
    keys: int
    scale: float
    score: str
    seen: str
    tf32: bool


@light_dataclass(frozen=True)
class Tiles:
    """Rows and keys of a program's tile, warps, stages of the pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


def power(n: int) -> int:
    """The least power of two that is n or more, and that a product takes."""
    return max(LEAST, 1 << (n - 1).bit_length())


def tiles(p: FlexProblem) -> tuple[Tiles, ...]:
    """Tiles to try, the fastest first (`benchmarks/flex_tiles.py` on an H100): the next is taken where one has no room."""
    q, _, v = p.tensors[:3]
    assert q and v
    shape, _, dtype = q
    dim = max(power(shape[3]), power(v[0][3]))
    if dtype is torch.float32:
        found = [(64, 32, 4, 2), (32, 32, 4, 2), (16, 16, 4, 1)]
    elif dim <= 64:
        found = [(64, 128, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2), (32, 32, 4, 1)]
    elif dim <= 128:
        found = [(64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1)]
    else:
        found = [(128, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1), (16, 16, 4, 1)]
    most = power(shape[2])
    return tuple(dict.fromkeys(_fitted(p, Tiles(min(r, most), k, w, s)) for r, k, w, s in found))


def listed(p: FlexProblem) -> bool:
    """Whether tiles lie within the mask's blocks; else all keys are gone over, and masked."""
    return p.rows % LEAST == 0 and p.keys % LEAST == 0


def block_of(p: FlexProblem) -> tuple[int, int]:
    """Rows and keys of a block, no more than a power of two beyond what there is: torch says 2**30 where there is no mask."""
    q, k = p.tensors[:2]
    assert q and k

    def least(size: int, n: int) -> int:
        return power(n) if size >= power(n) else size

    return least(p.rows, q[0][2]), least(p.keys, k[0][2])


def _fitted(p: FlexProblem, t: Tiles) -> Tiles:
    """The tile made so small that it divides the mask's blocks."""
    if not listed(p):
        return t
    rows, keys = block_of(p)
    return Tiles(min(t.rows, rows & -rows), min(t.keys, keys & -keys), t.warps, t.stages)


def constants(p: FlexProblem, t: Tiles) -> tuple[tuple[str, int | float], ...]:
    """The numbers of the kernel's text."""
    q, k, v, few, few_at, full, full_at = p.tensors
    assert q and k and v and few and few_at
    at = listed(p)
    names = ["H", "G", "Q", "K", "D", "E"]
    values: list[int | float] = [q[0][1], q[0][1] // k[0][1], q[0][2], k[0][2], q[0][3], v[0][3]]
    for letter, tensor, dims in (
        ("Q", q, "BHND"),
        ("K", k, "BHND"),
        ("V", v, "BHND"),
        ("O", ((*q[0][:3], v[0][3]), p.strides, q[2]), "BHND"),
        ("N", few, "BHR"),
        ("I", few_at, "BHRC"),
        ("F", full or few, "BHR"),
        ("J", full_at or few_at, "BHRC"),
    ):
        names += [letter + d for d in dims]
        values += [0 if n == 1 else s for n, s in zip(tensor[0], tensor[1])]
    rows, keys = block_of(p)
    rest = {
        "ROWS": rows,
        "KEYS": keys,
        "LISTED": int(at),
        "FULL": int(at and full is not None),
        "WHOLE": int(k[0][2] % (keys if at else t.keys) == 0),
        "MASKED": int(p.seen != ""),
        "SCALE": p.scale,
        "BM": t.rows,
        "BN": t.keys,
        "BD": power(q[0][3]),
        "BE": power(v[0][3]),
        "PRECISION": (1 if p.tf32 else 2) if q[2] is torch.float32 else 0,
    }
    return (*zip(names, values), *rest.items())


def text_of(p: FlexProblem, t: Tiles, form: str = "tl.constexpr({})") -> str:
    """The module of the kernel, with its numbers and the program's functions in their places. form: of a number."""
    text = (PRELUDE / "triton_flex.py").read_text()
    numbers = dict(constants(p, t))
    text = re.sub(r"^([A-Z]+) = tl\.constexpr\(.*\)$", lambda m: f"{m[1]} = {form.format(numbers[m[1]])}", text, flags=re.M)
    for name, own in (("score", p.score), ("seen", p.seen)):
        if own:
            text = re.sub(rf"@triton\.jit\ndef {name}\(.*?\n    return [^\n]*\n", lambda _: own, text, flags=re.S)
    names = [f"c{i}" for i in range(len(p.captured))]
    text = text.replace("    captured: tl.tensor,\n", "".join(f"    {n}: tl.tensor,\n" for n in names))
    text = re.sub(r", captured\b(: tl\.tensor)?", "".join(f", {n}" for n in names), text)
    return re.sub(r"from \.triton_", "from bytejit.kernels.prelude.triton_", text)


def signature(p: FlexProblem) -> tuple[tuple[str, str], ...]:
    """The kernel's pointers and their types."""
    q, _, _, few, few_at, full, full_at = p.tensors
    assert q and few and few_at
    kinds = [q[2]] * 4 + [torch.float32] * 2 + [few[2], few_at[2], (full or few)[2], (full_at or few_at)[2]]
    named = [*zip(POINTERS, kinds), *((f"c{i}", c[2]) for i, c in enumerate(p.captured))]
    return tuple((name, DTYPES[SHORT[dtype]].pointer) for name, dtype in named)


def job(p: FlexProblem, t: Tiles, arch: int) -> KernelJob:
    """Returns the job that compiles the kernel."""
    return KernelJob(text_of(p, t), "flex", signature(p), (), POINTERS[:6], t.warps, t.stages, arch)


def grid(p: FlexProblem, t: Tiles) -> tuple[int, int, int]:
    """Programs."""
    assert p.tensors[0]
    b, h, n, _ = p.tensors[0][0]
    return -(-n // t.rows), b * h, 1


@functools.cache
def launcher(p: FlexProblem, device: int) -> Callable[..., int]:
    """run(stream, *addresses) -> 0, or 1 where q, k or v is no multiple of 16. Raises: RuntimeError where none can be built."""
    major, minor = torch.cuda.get_device_capability(device)
    calls, said = cuda_launch.driver(options.current), ""
    for t in tiles(p):
        what = job(p, t, major * 10 + minor)
        binary = Binaries(options.current).of([what])[0]
        if not isinstance(binary, Binary):
            said = f"{t}: {binary}"
            continue
        room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
        if binary.shared > room:
            said = f"{t}: {binary.shared} bytes of shared memory, {room} there"
            continue
        given = [Param(i, 0, i < 6) for i in range(len(POINTERS) + len(p.captured))]
        return cuda_launch.bind_alone(calls, binary, what.key, device, grid(p, t), given)
    raise RuntimeError(f"flex_attention: {said}")


def _shaped(t: torch.Tensor | None) -> Shaped | None:
    return None if t is None else (tuple(t.shape), t.stride(), t.dtype)


def gpu_flex(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    few: torch.Tensor,
    few_at: torch.Tensor,
    full: torch.Tensor | None,
    full_at: torch.Tensor | None,
    captured: Sequence[torch.Tensor],
    strides: Sequence[int],
    rows: int,
    keys: int,
    scale: float,
    score: str,
    seen: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, and of each row the logarithm of the sum and the largest score, in powers of two. strides: of the output. few,
    full: how many blocks of keys are seen in part and as a whole; few_at, full_at: which. score, seen: functions in Triton; ""
    for none."""
    q, k, v = (t if t.data_ptr() % 16 == 0 else t.clone(memory_format=torch.contiguous_format) for t in (q, k, v))
    own = q, k, v, few, few_at, full, full_at
    kinds = tuple(map(_shaped, own)), tuple((tuple(c.shape), c.stride(), c.dtype) for c in captured)
    p = FlexProblem(*kinds, tuple(strides), rows, keys, scale, score, seen, uses_tf32() if q.device.type == "cuda" else False)
    out = q.new_empty_strided((*q.shape[:3], v.shape[3]), strides)
    sums, tops = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
    given = [q, k, v, out, sums, tops, few, few_at, few if full is None else full, few_at if full_at is None else full_at]
    if q.device.type == "cpu":
        t = tiles(p)[-1]
        module = interpret.load_module(text_of(p, t, "{}"))
        wide = [x.float() if x.dtype is torch.bfloat16 else x for x in given]  # the interpreter's products know no bf16
        module.flex[grid(p, t)](*wide, *captured)
        return out.copy_(wide[3]), sums, tops
    run = launcher(p, q.device.index)
    if run(torch._C._cuda_getCurrentRawStream(q.device.index), *[t.data_ptr() for t in (*given, *captured)]):
        raise Bug("gpu_flex: memory that is not aligned to 16 bytes")
    return out, sums, tops


for key in ("CUDA", "CPU"):
    OPERATORS.impl("gpu_flex", gpu_flex, key)
