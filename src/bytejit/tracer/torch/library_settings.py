"""Reads of settings of torch's libraries: `torch.backends.cudnn.benchmark`, the number of threads.

Each read is a guard. Setting one of them breaks the graph, so it is constant within a region.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.guards.references import Ref
from bytejit.guards.sources import CallOf, KnownSource
from bytejit.tracer.core.models import models
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Var

_C = torch._C
GETTERS = """
    _get_blas_preferred_backend _get_cublas_allow_bf16_reduced_precision_reduction _get_cublas_allow_fp16_accumulation
    _get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_tf32 _get_cudnn_allow_tf32 _get_cudnn_benchmark
    _get_cudnn_depthwise_kernel _get_cudnn_deterministic _get_cudnn_enabled _get_float32_matmul_precision
    _get_fp32_precision_getter
    _get_linalg_preferred_backend _get_mkldnn_deterministic _get_mkldnn_enabled _get_nnpack_enabled _get_onednn_allow_tf32
    _get_qengine
""".split()


def _asked(function: Callable) -> None:
    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        real, named = tuple(t.const(a) for a in args), {k: t.const(v) for k, v in kwargs.items()}
        found = function(*real, **named)
        if found is None or type(found) in (bool, int, str, tuple):
            t.guard("EQUALS", CallOf(KnownSource.of(function), real, tuple(named.items())), found)
        else:  # an enumeration in C++: each value is one object
            t.guard("EQUALS", CallOf(KnownSource.of(_as_int), (Ref(function), *real)), int(found))
        return t.values.constant(found)


def _as_int(function: Callable, *args: object) -> int:
    return int(function(*args))


for _name in GETTERS:
    if hasattr(_C, _name):  # versions of torch differ in which they have
        _asked(getattr(_C, _name))
_asked(torch.get_num_threads)
