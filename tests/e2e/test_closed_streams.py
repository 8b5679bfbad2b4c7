"""A command whose standard streams are closed: the null device takes their place."""

from __future__ import annotations

import itertools
import os

import pytest

from support import scale
from support.project import NewProject

STREAMS = ("<&-", ">&-", "2>&-")
CLOSED = [each for count in (1, 2, 3) for each in itertools.combinations(STREAMS, count)]


@pytest.mark.parametrize("closed", CLOSED, ids=" ".join)
@pytest.mark.parametrize("words", [("build",), ("build", "--json"), ("cache", "ls"), ("plan",)])
def test_a_command_does_its_work(
    new_project: NewProject, closed: tuple[str, ...], words: tuple[str, ...]
) -> None:
    made = new_project(scale.manifest(scale.script()), {"kernels/scale.cu.j2": scale.TEMPLATE})
    made.before = ("sh", "-c", f'exec "$@" {" ".join(closed)}', "sh")
    made.run(*words)
    if words[0] != "build":
        return
    made.run(*words)  # from the record
    assert len(os.listdir(made.directory / ".cache" / "programs")) == 2
    made.before = ()
    assert made.build()["cached"] == 2


def test_a_mistake_keeps_its_exit_status(new_project: NewProject) -> None:
    made = new_project(scale.manifest(scale.script()), {"kernels/scale.cu.j2": scale.TEMPLATE})
    made.before = ("sh", "-c", 'exec "$@" >&- 2>&-', "sh")
    made.run("no-such-verb", status=2)
