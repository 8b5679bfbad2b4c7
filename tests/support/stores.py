"""A remote cache of each kind, empty: casd, nginx, which takes anything, and a directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.casd import Casd
from support.nginx import serving


@pytest.fixture(params=["casd", "nginx", "file"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/store"
    elif request.param == "nginx":
        with serving(tmp_path / "nginx") as where:
            yield where
    else:
        casd = Casd(tmp_path / "casd")
        yield casd.address
        casd.kill()
