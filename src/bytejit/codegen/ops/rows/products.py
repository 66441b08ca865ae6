"""Row of our matrix product on a GPU (`kernels/matmul_triton.py`), a library call that `libraries/linear_triton.py` puts in."""

from __future__ import annotations

from bytejit.codegen.ops.table import op
from bytejit.common.own_operators import OPERATORS

OPERATORS.define(
    'gpu_linear(Tensor x, Tensor w, Tensor? b, Tensor? other, str epilogue, int[] way, Tensor? y=None, str prologue="") -> Tensor'
)

op("gpu_linear", "bytejit.gpu_linear.default", kind="extern")
