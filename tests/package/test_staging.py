"""Private directories of packages go when their holder is gone, and stay while it is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tilusbuild.package.formats.directory import private_directory

_DIE = """
import os, signal, sys
from tilusbuild.package.formats.directory import private_directory
with private_directory(sys.argv[1]) as path:
    open(os.path.join(path, "half"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", _DIE, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    (tmp_path / ".tmp-abcdefgh").mkdir()
    with private_directory(str(tmp_path)) as path:
        assert [str(one) for one in tmp_path.iterdir()] == [path]
        assert path != str(left)
    assert not list(tmp_path.iterdir())


def test_what_somebody_holds_or_is_not_ours_stays(tmp_path: Path) -> None:
    kept = [tmp_path / ".tmp-abcdefgh/mine", tmp_path / ".tmp-mine/.lock", tmp_path / "other/.lock"]
    for path in kept:
        path.parent.mkdir()
        path.write_text("")
    (tmp_path / ".tmp-ijklmnop").symlink_to(tmp_path / "other")
    with private_directory(str(tmp_path)) as one, private_directory(str(tmp_path)) as two:
        assert os.path.isdir(one)
        assert os.path.isdir(two)
    assert all(path.exists() for path in kept)


def test_many_at_once(tmp_path: Path) -> None:
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(100):
                with private_directory(str(tmp_path)) as path:
                    Path(path, f"file{number}").write_text("")
                    assert sorted(os.listdir(path)) == [".lock", f"file{number}"]
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), private_directory(str(tmp_path / "none")):
        pass
