"""Marks that several files of tests here need."""

from __future__ import annotations

import os

import pytest

from bytejit.kernels.build_triton import triton_version

interpreted = pytest.mark.skipif(
    not triton_version() or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs triton and TRITON_INTERPRET=1 (set where there is no GPU)",
)
