"""A remote cache of each kind, empty: casd, nginx, which takes anything, and a directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.casd import Casd
from support.nginx import serving
from tilusbuild.rooms import find_contributions

ENCRYPTED = {"https", "grpcs"}
"""The back ends of the schemes without the s; `test_tls` has the difference."""


@pytest.fixture(params=sorted({*find_contributions("remote backend")} - ENCRYPTED))
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store, of each scheme that has a back end."""
    if request.param == "file":
        yield f"file://{tmp_path}/store"
    elif request.param == "http":
        with serving(tmp_path / "nginx") as where:
            yield where
    else:
        assert request.param == "grpc", "a store of the new scheme is to be opened here"
        casd = Casd(tmp_path / "casd")
        yield casd.address
        casd.kill()
