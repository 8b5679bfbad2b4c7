"""A project built once for the cpu target, and packages of its cache made by hand."""

from pathlib import Path

import pytest

from support.marks import MARK, MARK_SCRIPT
from support.memory import memory, tmp_path
from support.packages import FORMATS, Hand, by_hand
from support.project import Project, head

__all__ = ["memory", "tmp_path"]

MANIFEST = f"""\
{head()}
{MARK_SCRIPT.replace("[0, 3]", "[0, 2]")}
[script.twice]
template = "twice.cu.j2"
kernel = "twice"

[script.twice.args]
x = "f32*[n]"
y = {{ type = "f32*[n]", out = true }}
n = "i64"
"""

TWICE = """\
extern "C" void twice(const float *x, float *y, long long n) {
  for (long long i = 0; i < n; i++) y[i] = 2 * x[i];
}
"""


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Not to be changed."""
    files = {"tilus.toml": MANIFEST, "mark.cu.j2": MARK, "twice.cu.j2": TWICE, ".git": ""}
    return Project.built(tmp_path_factory.mktemp("marks"), files)


@pytest.fixture
def own_project(project: Project, tmp_path: Path) -> Project:
    """The same, one's own."""
    return project.copy(tmp_path / "own")


@pytest.fixture(scope="session")
def _hand(project: Project) -> Hand:
    return by_hand(project.cache)


@pytest.fixture
def hand(_hand: Hand) -> Hand:
    return _hand.copy()


@pytest.fixture(params=FORMATS)
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)
