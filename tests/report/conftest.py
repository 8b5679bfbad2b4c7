"""A terminal in memory and a clock to set."""

import pytest

from support.build_story import Clock, Screen


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def screen() -> Screen:
    return Screen()
