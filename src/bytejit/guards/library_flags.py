"""What a program may set of how torch's libraries compute on a GPU: the precision of products and convolutions, which attention.
Choices made while compiling rest on it, and a recorded CUDA graph is what it was."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bytejit.common import attention_choice
from bytejit.common.graph_calls import why_opaque

_C = torch._C


def _present(*names: str) -> tuple[Callable[[], Any], ...]:
    """The getters of this list that exist in the installed torch."""
    return tuple(getattr(_C, n) for n in names if hasattr(_C, n))


def _precision(of: str, before: str) -> tuple[Callable[[], Any], ...]:
    """Returns the getters of the precision of f32 products. Before torch 2.9 it is another, which later ones may refuse."""
    getter = getattr(_C, "_get_fp32_precision_getter", None)
    return _present(before) if getter is None else (functools.partial(getter, "cuda", of),)


_PRODUCTS = (
    *_precision("matmul", "_get_cublas_allow_tf32"),
    *_present("_get_cublas_allow_fp16_reduced_precision_reduction", "_get_cublas_allow_bf16_reduced_precision_reduction"),
)
_CONVOLUTIONS = (
    *_precision("conv", "_get_cudnn_allow_tf32"),
    *_present("_get_cudnn_enabled", "_get_cudnn_benchmark", "_get_cudnn_deterministic"),
)


def products() -> tuple:
    return tuple([f() for f in _PRODUCTS])


def convolutions() -> tuple:
    return tuple([f() for f in _CONVOLUTIONS])


# name -> (getter, text of its call), as in guards.STATES. Cost: 0.1 to 0.4 us a call
STATES: dict[str, tuple[Callable[[], Any], str]] = {
    "gpu_products": (products, "{f}()"),
    "gpu_convolutions": (convolutions, "{f}()"),
    "attention": (attention_choice.read, "{f}()"),
}
# parts of an operation's name -> the states that decide how it computes
_WORDS = {
    "conv": ("gpu_convolutions",),
    "attention": ("attention", "gpu_products"),
    **dict.fromkeys(("mm", "mat", "linear", "einsum", "dot", "inner", "mv", "cdist"), ("gpu_products",)),
    **dict.fromkeys(("lstm", "gru", "rnn"), ("gpu_products", "gpu_convolutions")),
}


def states_of(nodes: Iterable[torch.fx.Node]) -> list[str]:
    """The states that decide how a graph's operations compute, in order of STATES: on a GPU; of an attention, anywhere."""
    found: set[str] = set()
    for n in nodes:
        if n.op in ("placeholder", "output"):
            continue
        on_gpu = _on_gpu(n.meta.get("val"))
        if on_gpu and why_opaque(n):  # Python of the program's: any operation
            return list(STATES)
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", str(n.target))
        decide = {s for word, states in _WORDS.items() if word in name.lower() for s in states}
        found |= decide if on_gpu else decide & {"attention"}
    return [s for s in STATES if s in found]


def _on_gpu(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_on_gpu, value))
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"
