"""What a user names is written to: files in one step, links to their end, and nothing replaced that
is not a file."""

import os
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from support.processes import wait_until
from tilusbuild.state.files import write_output


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_output(str(path), b"one")
    assert path.read_bytes() == b"one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o600)
    before = path.stat().st_ino
    write_output(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_ino != before  # a reader of the old one keeps it whole
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("second")
    (tmp_path / "second").symlink_to("there/real")
    write_output(str(tmp_path / "link"), b"content")
    assert (tmp_path / "there" / "real").read_bytes() == b"content"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "second").is_symlink()
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        write_output(str(tmp_path / "round"), b"")


def write_when_read(path: str, data: bytes) -> None:
    def written() -> bool:
        with suppress(OSError):
            write_output(path, data)
            return True
        return False

    wait_until(written)


def test_a_fifo_is_written_to_and_without_a_reader_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(OSError, match="no process reads from it"):
        write_output(str(path), b"x")
    data = os.urandom(1 << 20)  # more than a pipe holds
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as reader:
        writer = threading.Thread(target=write_when_read, args=(str(path), data))
        writer.start()
        assert reader.communicate()[0] == data
        writer.join()
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/null", "/dev/full"])
def test_devices_stay_what_they_are(tmp_path: Path, name: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    device = tmp_path / "device"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.stat(name).st_rdev)
    if name == "/dev/full":
        with pytest.raises(OSError, match="No space left"):
            write_output(str(device), b"x")
    else:
        write_output(str(device), b"x")
    assert os.lstat(device).st_rdev == os.stat(name).st_rdev
    assert os.listdir(tmp_path) == ["device"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_stdout_that_is_a_file_is_written_where_it_stands(tmp_path: Path, name: str) -> None:
    code = (
        "import sys; from tilusbuild.state.files import write_output\n"
        "print('before', flush=True); write_output(sys.argv[1], b'middle\\n'); print('after')"
    )
    path = tmp_path / "file"
    with open(path, "wb") as file:
        subprocess.run([sys.executable, "-c", code, name], stdout=file, check=True)
    assert path.read_text() == "before\nmiddle\nafter\n"
    assert os.listdir(tmp_path) == ["file"]
