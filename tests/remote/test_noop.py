"""A build with nothing to do does the same with a remote as without, call by call."""

import os
import shutil
import subprocess
from collections import Counter

import pytest

from support.command_line import TILUSBUILD
from support.one_library import FILES, MANIFEST
from support.project import Project

LIBRARY = {**FILES, "tilus.toml": MANIFEST.replace("LIBRARY\n", 'link-libs = ["gcc_eh"]\n')}
_OF_THE_ALLOCATOR = {"brk", "mmap", "munmap", "madvise", "mremap", "futex"}


def calls(project: Project, address: str | None = None) -> Counter[str]:
    """The system calls of a build that has nothing to do, by name."""
    log = project.directory.parent / "calls"  # a new file beside a source may be a header
    if address is not None:
        project.environment["TILUSBUILD_REMOTE_CACHE"] = address
    words = ["strace", "-f", "-qq", "-o", str(log), *TILUSBUILD, "build"]
    variables = {**project.environment, "PYTHONHASHSEED": "0"}
    for _ in range(3):  # the first ones write its record, which is for one search path of Python
        environment = {**os.environ, **variables}
        subprocess.run(words[5:], cwd=project.directory, env=environment, check=True)
    ended = subprocess.run(
        words, cwd=project.directory, env={**os.environ, **variables}, capture_output=True
    )
    if ended.returncode:
        pytest.skip("strace cannot trace here")
    names = (line.split(None, 1)[1].partition("(")[0] for line in log.read_text().splitlines())
    return Counter(name for name in names if name not in _OF_THE_ALLOCATOR)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_an_unreachable_remote_costs_no_call(new_user, tmp_path) -> None:
    user = new_user(f"file://{tmp_path}/none").write_all(LIBRARY)
    without = calls(user, "off")
    assert "socket" not in without
    # Of the network that is for examples: what is sent there comes nowhere.
    assert calls(user, "grpcs://192.0.2.1:443") == without
    user.edit("tilus.toml", "[build]\n", '[remote]\ncache = "https://192.0.2.1"\n\n[build]\n')
    del user.environment["TILUSBUILD_REMOTE_CACHE"]
    assert calls(user) == without
