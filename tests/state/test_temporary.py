"""Directories in TMPDIR: none is left, also by who may not open another file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

_FEW = """
import os, resource, sys
from tilusbuild.state.temporary import TemporaryDirectory
limit, most = int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
try:
    with TemporaryDirectory("tool") as made:
        try:
            os.mkdir(os.path.join(made.path, "deep"))
            open(os.path.join(made.path, "deep", "file"), "w").close()
        finally:
            taken = []
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("limit", range(4, 16))
def test_it_goes_however_few_files_may_be_open(limit: int, tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < limit:
        pytest.skip("fewer files may be open here")
    done = subprocess.run(
        [sys.executable, "-c", _FEW, str(limit)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "Too many open files\n", done.stderr
    assert os.listdir(tmp_path) == []
