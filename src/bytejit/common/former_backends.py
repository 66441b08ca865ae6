"""Names of backends that bytejit has nothing behind: what each was, and what to use instead. One row a name."""

from __future__ import annotations

from typing import NamedTuple


class Former(NamedTuple):
    """was: what the name stood for, or needs; instead: what to use."""

    was: str
    instead: str


NVFUSER = "nvFuser was TorchScript's fuser for CUDA, which torch no longer has"
TENSORRT = "TensorRT is in the package torch-tensorrt (version as torch's, NVIDIA GPUs), which bytejit does not use"
SERVED = (
    "backend 'inductor' on the GPU, or that package itself: pip install torch-tensorrt, torch_tensorrt.compile(model, inputs=...)"
)

FORMER = {
    "tensorrt": Former(TENSORRT, SERVED),
    "fx2trt": Former(f"fx2trt was the first form of torch_tensorrt. {TENSORRT}", SERVED),
    "ipex": Former(
        "Intel's extension (package intel-extension-for-pytorch) ended with version 2.8, and torch has its optimizations",
        "backend 'inductor', or 'openvino'",
    ),
    "nvfuser": Former(
        f"{NVFUSER}. Today's nvfuser (packages nvfuser-cu126-torch210 and the like) has another interface",
        "backend 'inductor', or 'ts' for TorchScript",
    ),
    "aot_nvfuser": Former(
        f"{NVFUSER}; this name was the forward and the backward graph in it",
        "backend 'inductor', or 'aot_ts'",
    ),
    "aot_ts_nvfuser": Former(f"{NVFUSER}; this name was 'aot_ts' with it", "backend 'aot_ts', or 'inductor'"),
    "nvprims_nvfuser": Former(
        f"{NVFUSER}; this name was graphs of its own primitives, which torch has no more",
        "backend 'inductor'",
    ),
}

# torch's own, for finding faults of its compiler -> what runs graphs in the same way here
DEBUGGING = {
    "eager_debug": "eager",
    "eager_noexcept": "eager",
    "pre_dispatch_eager": "eager",
    "aot_eager_decomp_partition": "aot_eager",
    "aot_eager_decomp_partition_crossref": "aot_eager",
    "aot_eager_decomp_partition_with_mode": "aot_eager",
    "aot_eager_default_partitioner": "aot_eager",
}


def refusal(name: str) -> str:
    """The text of the error for a name of one of the tables."""
    if name in DEBUGGING:
        why = "it is for finding faults of torch's own compiler"
        return f"bytejit has no backend {name!r}\n  why    {why}\n  do     use backend {DEBUGGING[name]!r}"
    row = FORMER[name]
    return f"bytejit has no backend {name!r}\n  why    {row.was}\n  do     use {row.instead}"
