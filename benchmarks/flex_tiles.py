"""Times the attention kernel of `bytejit::gpu_flex` on a GPU for each of some tiles, to choose `kernels/flex_triton.py`'s.

python benchmarks/flex_tiles.py [--dims 64 128 256] [--length 2048]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import bytejit
from bytejit.common.options import config as options
from bytejit.kernels import flex_triton
from bytejit.kernels.build_triton import Binaries
from bytejit.kernels.flex_triton import FlexProblem, Tiles

WAYS = [Tiles(r, k, w, s) for r in (64, 128) for k in (32, 64, 128) for w in (4, 8) for s in (2, 3, 4)]


def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q >= k


def bias(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return score - (q - k) * torch.exp2(-(h + 1) * 0.5)


def seconds(run: Callable[[], object], rounds: int = 20) -> float:
    """Of a call on the GPU alone: ten of them recorded, the median over replays."""
    recording = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recording):
        for _ in range(10):
            run()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        recording.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 10)
    return sorted(times)[rounds // 2] / 1000


def build(problem: FlexProblem) -> None:
    """All ways' binaries, side by side."""
    major, minor = torch.cuda.get_device_capability()
    jobs = [flex_triton.job(problem, way, major * 10 + minor) for way in WAYS]
    Binaries(options.current).of(jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--length", type=int, default=2048)
    args = parser.parse_args()
    mask = create_block_mask(causal, None, None, args.length, args.length, device="cuda")
    for dim in args.dims:
        given = [torch.randn(2, 16, args.length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        f = bytejit.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=bias, block_mask=mask), fullgraph=True)
        usual, problems = flex_triton.tiles, []
        for way in (None, *WAYS):
            flex_triton.launcher.cache_clear()
            flex_triton.tiles = lambda p, way=way: problems.append(p) or (usual(p) if way is None else (way,))
            try:
                with torch.no_grad():
                    f(*given)
                    if way is None:
                        build(problems[0])
                    print(f"{dim} {way or 'the usual'}: {seconds(lambda: f(*given)) * 1e3:.4f} ms", flush=True)
            except RuntimeError as error:
                print(f"{dim} {way}: {str(error)[:100]}", flush=True)
        flex_triton.tiles = usual


if __name__ == "__main__":
    main()
