"""Memory that is freed stays with the process."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

from bytejit.common.heap import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limit of glibc")
def test_freed_blocks_are_not_mapped_again() -> None:
    """As the results of library calls in a graph: some MB each, several alive at once."""
    keep_freed_memory()
    blocks, faults = [], []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks.extend(torch.ones(3 << 18) for _ in range(8))
        blocks.clear()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) < 600  # of 6144 pages; other threads of the process free memory, too
