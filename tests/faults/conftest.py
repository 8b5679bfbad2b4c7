"""What the laboratory needs of a machine, and a world for its own tests."""

import shutil
from collections.abc import Iterator

import pytest

from support.faults.laboratory import directory_for
from support.faults.world import World, make_equipment


@pytest.fixture(scope="session")
def compilers() -> None:
    """Skips where the laboratory cannot be built."""
    for name in ("gcc", "g++", "as", "ld"):
        if shutil.which(name, path="/usr/bin") is None:
            pytest.skip(f"needs /usr/bin/{name}")


@pytest.fixture(scope="session")
def world(compilers: None) -> Iterator[World]:
    """A world in which nothing fails by itself."""
    directory = directory_for("tests")
    new_world = World(directory / "world", make_equipment(directory / "equipment"))
    yield new_world
    new_world.close()
    shutil.rmtree(directory)
