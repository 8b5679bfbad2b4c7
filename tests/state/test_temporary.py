"""Directories in TMPDIR: none is left, also of a command that was killed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tilusbuild.state.temporary import TemporaryDirectory

KILLED = """
import os, signal
from tilusbuild.state.temporary import TemporaryDirectory
made = TemporaryDirectory("tool")
os.mkdir(os.path.join(made.path, "deep"))
print(made.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_one_removes_what_a_killed_command_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True)
    (tmp_path / "tilusbuild-tmp-theirs").mkdir()  # no name of ours
    left = Path(os.fsdecode(done.stdout).strip())
    assert (left / "deep").is_dir()
    with TemporaryDirectory("first") as held, TemporaryDirectory("second") as made:
        assert not left.exists()
        assert os.path.isdir(held.path)
        Path(made.path, "file").touch()
    assert os.listdir(tmp_path) == ["tilusbuild-tmp-theirs"]


def test_what_another_one_has_beside_a_place_stays(tmp_path: Path) -> None:
    kept = [tmp_path / ".tmp-abcdefgh", tmp_path / "package"]
    for path in kept:
        path.mkdir()
    (tmp_path / ".tilusbuild-tmp-package-abcdefgh").symlink_to("package")
    (tmp_path / ".tilusbuild-tmp-package-ijklmnop").mkdir()
    with TemporaryDirectory("package", str(tmp_path)) as one:
        with TemporaryDirectory("package", str(tmp_path)) as two:
            assert os.path.isdir(one.path)
            assert os.path.dirname(two.path) == str(tmp_path)
        assert not os.path.exists(two.path)
    names = {path.name for path in [*kept, tmp_path / ".tilusbuild-tmp-package-abcdefgh"]}
    assert set(os.listdir(tmp_path)) == names
