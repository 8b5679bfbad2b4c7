"""Requirements on a version of nvcc."""

import pytest

from tilusbuild.manifest.sections import parse_requirement
from tilusbuild.manifest.table import Fault


@pytest.mark.parametrize(
    ("requirement", "version", "accepted"),
    [
        (">=12.4,<14", "13.0.88", True),
        (">=12.4,<14", "12.3.107", False),
        (">=12.4,<14", "14.0", False),
        (">=12.4", "12.4.0", True),
        (">12.4", "12.4.0", False),
        ("==12.4", "12.4.131", False),
        ("==12.4.*", "12.4.131", True),
        ("==12.4.*", "12.40.1", False),
        ("!=13.0.*, >=12", "13.0.88", False),
        ("<=13", "13.0", True),
    ],
)
def test_accepts(requirement: str, version: str, accepted: bool) -> None:
    assert (version in parse_requirement(requirement)) is accepted


@pytest.mark.parametrize("text", ["", "12.4", ">=12.4,", ">=12.*", "=>12", ">= twelve", "~=12.4"])
def test_refuses(text: str) -> None:
    with pytest.raises(Fault):
        parse_requirement(text)
