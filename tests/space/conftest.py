"""Each of the published spaces; and both ways in which a small one is found."""

from collections.abc import Iterator

import pytest

from support.published_spaces import PUBLISHED, Published
from tilusbuild.space import few


@pytest.fixture(params=sorted(PUBLISHED))
def published(request: pytest.FixtureRequest) -> Published:
    return PUBLISHED[request.param]()


@pytest.fixture(params=["few", "arrays"], scope="module")
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small spaces as they are found, and by the arrays that large ones take."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "arrays":
            patch.setattr(few, "MAX_COMBINATIONS", 0)
        yield
