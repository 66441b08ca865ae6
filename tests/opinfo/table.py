"""torch's table of operators, which takes each of its samples for one of a `unittest.TestCase` and looks for that.

The look goes through all frames of the stack, with their source: three quarters of the time of a test. There is none here.
"""

from __future__ import annotations

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

__all__ = ["op_db"]

for module in (common_utils, core):
    if hasattr(module, "extract_test_fn"):  # torch 2.11 has it; a torch without it does not look
        module.extract_test_fn = lambda: None
