"""Every program runs on a forgetful compiler whose faults raise."""

import pytest

from . import targets


@pytest.fixture(autouse=True)
def fresh_compiler():
    targets.reset()
    with targets.strict():
        yield
    targets.reset()
