"""Rows of losses over sequences of different lengths: calls of torch's kernels."""

from __future__ import annotations

from bytejit.codegen.ops.table import op

op("ctc_loss", ("aten._ctc_loss.default", "aten._ctc_loss.Tensor"), kind="extern", unsized=(1,), refuses=True)
op("ctc_loss_backward", ("aten._ctc_loss_backward.default", "aten._ctc_loss_backward.Tensor"), kind="extern")
