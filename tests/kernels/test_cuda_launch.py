"""The launcher's call, without a GPU: rows of kernels of no programs, which it looks at and does not launch."""

from __future__ import annotations

import pytest

from bytejit.common.options import config
from bytejit.kernels.build_cpp import functions
from bytejit.kernels.cuda_launch import UNIT, Loaded, Param, launch_table

pytestmark = pytest.mark.cxx


@pytest.mark.parametrize("arguments", [1, 256, 257, 3000])
@pytest.mark.parametrize("parameters", [0, 1, 254, 255, 2000])
def test_any_number_of_arguments(arguments: int, parameters: int) -> None:
    """A training step's last row updates all parameters: four tensors each, hundreds of them"""
    launch = functions(UNIT, config.current)["launch"]
    last = arguments - 1
    row = (Loaded(0, 128, 0), (0, 1, 1), [Param(last, 0, True)] * parameters)
    table = launch_table([row, row])
    given = [16 * i for i in range(arguments)]
    assert launch(table.buffer_info()[0], 0, *given) == 0
    given[last] += 8
    assert launch(table.buffer_info()[0], 0, *given) == (1 if parameters else 0)
