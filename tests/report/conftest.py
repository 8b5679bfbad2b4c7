"""A terminal in memory and a clock to set."""

from __future__ import annotations

import pytest

from support.build_story import Clock, Screen


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def screen() -> Screen:
    return Screen()
