"""A sample of random programs at each run; `python -m tests.fuzz` runs many."""

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ..programs import targets
from .runner import check_source
from .writer import programs

COUNT = int(os.environ.get("BYTEJIT_FUZZ_COUNT", "45"))


# no shrinking here: it takes minutes; `python -m tests.fuzz` shrinks what it finds
@settings(
    phases=[Phase.generate],
    max_examples=COUNT,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_random_programs(source):
    """Random programs behave as eager"""
    with targets.strict():
        check_source(source, interrupts=False)  # the clock decides their moments: tests/common/test_interrupts_random.py


def test_a_difference_is_seen():
    """The runner itself notices a wrong result: a program that tells its sides apart"""
    source = (
        "import torch\nLOG, TOTAL = [], 0\nclass Thing:\n    def __init__(self, t, k):\n        self.t = t\n"
        "class Child(Thing): pass\nimport builtins\n"
        "builtins._fuzz_sides = getattr(builtins, '_fuzz_sides', 0) + 1\n"
        "SIDE = builtins._fuzz_sides\ndef program(x, y, n, items, table, thing):\n    return x + SIDE\n"
    )
    with pytest.raises(AssertionError, match="values differ"):
        check_source(source)
