"""Rows of attentions whose scores a program changes (`common/attention_marks.py`)."""

from __future__ import annotations

from bytejit.codegen.ops.table import op
from bytejit.common import attention_marks  # noqa: F401  (defines the operators)

op("flex_mark", "bytejit.flex_mark.default", kind="extern")
op("gpu_flex", "bytejit.gpu_flex.default", kind="extern")
