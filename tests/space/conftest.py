"""Each of the published spaces."""

from __future__ import annotations

import pytest

from support.published_spaces import PUBLISHED, Published


@pytest.fixture(params=sorted(PUBLISHED))
def published(request: pytest.FixtureRequest) -> Published:
    return PUBLISHED[request.param]()
