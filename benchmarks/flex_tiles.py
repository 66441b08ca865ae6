"""Times the attention kernel of `bytejit::gpu_flex` on a GPU for each of some tiles, to choose `kernels/flex_triton.py`'s.

python benchmarks/flex_tiles.py [--dims 64 128 256] [--length 2048]
"""

from __future__ import annotations

import argparse

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import bytejit
from bytejit.kernels import flex_triton
from bytejit.kernels.flex_triton import Tiles

WAYS = [Tiles(r, k, w, s) for r in (64, 128) for k in (32, 64, 128) for w in (4, 8) for s in (2, 3, 4)]


def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q >= k


def bias(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return score - (q - k) * torch.exp2(-(h + 1) * 0.5)


def seconds(run: object, rounds: int = 30) -> float:
    """Median of a call's time on the GPU."""
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()  # type: ignore[operator]
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[rounds // 2] / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--length", type=int, default=2048)
    args = parser.parse_args()
    mask = create_block_mask(causal, None, None, args.length, args.length, device="cuda")
    for dim in args.dims:
        given = [torch.randn(2, 16, args.length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        usual = flex_triton.tiles
        for way in (None, *WAYS):
            flex_triton.launcher.cache_clear()
            flex_triton.tiles = usual if way is None else lambda p, way=way: (way,)
            bytejit.reset()
            f = bytejit.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=bias, block_mask=mask), fullgraph=True)
            try:
                with torch.no_grad():
                    f(*given)
                    print(f"{dim} {way or 'the usual'}: {seconds(lambda f=f: f(*given)) * 1e3:.4f} ms", flush=True)
            except RuntimeError as error:
                print(f"{dim} {way}: {str(error)[:100]}", flush=True)
        flex_triton.tiles = usual


if __name__ == "__main__":
    main()
