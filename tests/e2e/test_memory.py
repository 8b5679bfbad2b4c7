"""Builds in a control group with little memory: they wait rather than die, and survive a kill."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject

MIB = 1 << 20


@pytest.fixture
def little_memory(root: None) -> Iterator[tuple[str, ...]]:
    """Words in front of a command that run it in a group with 450 MiB."""
    name = f"tilusbuild-test-{os.getpid()}-{time.monotonic_ns()}"
    for above, limit, swap in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
    ):
        directory = Path(above, name)
        with contextlib.suppress(OSError):
            directory.mkdir()
            try:
                (directory / limit).write_text(str(450 * MIB))
                with contextlib.suppress(OSError):
                    (directory / swap).write_text("0" if swap.endswith("max") else str(450 * MIB))
                yield ("sh", "-c", f'echo $$ > {directory}/cgroup.procs && exec "$@"', "sh")
                return
            finally:
                _remove(directory)
    pytest.skip("no control group with a limit on memory can be made here")


def _remove(directory: Path) -> None:
    for _ in range(1000):
        try:
            directory.rmdir()
            return
        except OSError:
            time.sleep(0.01)


def project(new_project: NewProject, fake_cuda: FakeCuda, template: str) -> Any:
    return new_project(
        scale.manifest(scale.script(target="gpu", schedules=2)),
        {"kernels/scale.cu.j2": template},
        **fake_cuda.environment,
    )


def test_a_first_build_does_not_start_what_may_not_fit(
    new_project: NewProject, fake_cuda: FakeCuda, little_memory: tuple[str, ...]
) -> None:
    made = project(new_project, fake_cuda, "// fake: allocate 250\n" + scale.TEMPLATE)
    made.before = little_memory
    summary = made.build("-j2")
    assert (summary["compiled"], summary["attempts"]) == (2, 2)
    assert fake_cuda.most_at_once() == 1
