"""The built project, and a working directory to change."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.marks import built, copied

__all__ = ["built", "copied", "in_directory"]


@pytest.fixture
def in_directory() -> Iterator[Callable[[Path], None]]:
    """Change the working directory until the end of the test."""
    before = os.getcwd()
    yield os.chdir
    os.chdir(before)
