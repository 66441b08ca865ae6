"""A sample of `make soak`: models and functions that come and go leave nothing behind."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.soak import KINDS, Reading, grown, soak


@pytest.mark.cxx
def test_what_comes_and_goes_leaves_nothing():
    assert soak(60, "inductor", KINDS[:6], lambda text: None) == []


def test_what_grows_is_told():
    before = Reading(100 << 20, {"a.table": 10, "a.cache": 3}, Counter(Entry=5))
    after = Reading(300 << 20, {"a.table": 90, "a.cache": 4}, Counter(Entry=60, Tracer=2))
    assert [line.partition(":")[0] for line in grown(before, after, 100)] == ["table a.table", "living Entry", "resident"]
