"""Opening what should be a file: never a hang, whatever is there; and nothing opens otherwise."""

import ast
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilusbuild
from tilusbuild.runtime.regular import (
    FileTooLargeError,
    NotAFileError,
    open_file,
    open_regular,
    read_bytes,
    read_text,
    try_list,
    try_read_bytes,
    try_read_text,
    try_stat,
)

PACKAGE = Path(tilusbuild.__file__).parent

ALLOWED = {
    "noop.py": "imports nothing; without waiting, and by the size that fstat gives",
    "cli/main.py": "the standard streams, and /dev/null in their place",
    "state/files.py": "temporary files of ours; what users name may be a device",
    "state/directories.py": "directories",
    "process/warden.py": "/proc files, /dev/null, and make's FIFO without waiting",
    "process/jobserver.py": "make's FIFO, which is what is expected",
    "runtime/regular.py": "is the one that opens",
    "report/text.py": "/dev/null",
    "intake/spy.py": "a program of its own without imports; appends to our file",
    "intake/recorder.py": "a program of its own without imports; the script that it was given",
    "toolchain/trace.py": "a program of its own without imports; memory of what it traces",
    "toolchain/nvrtc_command.py": "a program of its own without imports; reads our compiles' files",
    "toolchain/nvrtc_library.py": "loaded by nvrtc_command, without imports; reads what it made",
    "toolchain/nvrtc_places.py": "loaded by nvrtc_command, without imports; toolkits' headers",
    "toolchain/nvrtc_pch.py": "loaded by nvrtc_command, without imports; reads our compiles' files",
}
"""Where files are opened in another way, and why that is right."""

IN_OURS = {
    "builder/dump_ir.py",
    "builder/noop_record.py",
    "builder/compiler.py",
    "compile/declared.py",
    "compile/program.py",
    "embed/dispatcher.py",
    "rebuild/rebuilder.py",
    "reapi/execute.py",
    "tune/bench/work.py",
    "tune/prepare.py",
}
"""Where files are written by name: new ones, in private directories that were just made."""


OF_A_PATH = (".read_text", ".read_bytes")
"""Methods of pathlib, which take no argument: methods of ours with these names take one."""
OTHER_WAYS = (
    ".write_text", ".write_bytes", "FileIO", "ZipFile", "np.load", "np.fromfile", "shutil.copy",
    "shutil.copy2", "getlines",
)  # fmt: skip


def opened_otherwise(path: Path) -> Iterator[tuple[int, str]]:
    """Calls that open a file by its name and not through `runtime.regular`; for writing too, unless
    a new file is made (`x`, O_EXCL) or a directory is opened."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node)
        name = ast.unparse(node.func)
        if name in ("open", "io.open"):
            mode = ast.unparse(node.args[1]).strip("'") if len(node.args) > 1 else "r"
            if "x" not in mode and not (set("wa") & set(mode) and relative(path) in IN_OURS):
                yield node.lineno, text
        elif name == "os.open":
            if not any(flag in text for flag in ("O_EXCL", "O_TMPFILE", "O_DIRECTORY", "O_PATH")):
                yield node.lineno, text
        elif (name.endswith(OF_A_PATH) and not node.args) or (
            name.endswith(OTHER_WAYS)
            and not (node.args and ast.unparse(node.args[0]) in ("file", "out", "self._file"))
        ):
            yield node.lineno, text


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_files_are_opened_in_one_way() -> None:
    calls_by_path = {
        relative(path): calls
        for path in PACKAGE.rglob("*.py")
        if (calls := list(opened_otherwise(path)))
    }
    strangers = {name: calls for name, calls in calls_by_path.items() if name not in ALLOWED}
    assert not strangers, (
        "use tilusbuild.runtime.regular (or state.files.write_output for what users name)"
    )
    assert set(ALLOWED) <= set(calls_by_path), "exceptions that are no longer needed"


KINDS = ["a FIFO", "a socket", "a character device", "a block device", "a link to a FIFO"]


def make(path: Path, kind: str) -> None:
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as unix_socket:
            unix_socket.bind(os.path.relpath(path))
    elif kind.endswith("device"):
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        character = kind == "a character device"
        number = os.makedev(1, 5) if character else os.makedev(7, 250)
        os.mknod(path, 0o600 | (stat.S_IFCHR if character else stat.S_IFBLK), number)
    else:
        os.mkfifo(path.with_suffix(".fifo"))
        path.symlink_to(path.with_suffix(".fifo"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_file_is_said_and_not_waited_for(tmp_path, monkeypatch, kind) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.h"
    make(path, kind)
    for opener in (open_file, open_regular, read_bytes, read_text):
        with pytest.raises(NotAFileError) as caught:
            opener(path)
        assert str(caught.value) == f"{path} is a FIFO, a socket or a device, not a file"
    with pytest.raises(NotAFileError):  # for writing too, and nothing is made of it
        open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def test_links_are_followed_unless_they_are_not_wanted(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"content")
    link = tmp_path / "link"
    link.symlink_to("real")
    assert read_bytes(link) == b"content"
    with pytest.raises(NotAFileError, match="is a link, not a file"):
        read_bytes(link, follow=False)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nothing")


def test_a_limit_holds_for_every_way_to_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 70_000)
    assert len(read_bytes(path, 70_000)) == 70_000
    with pytest.raises(FileTooLargeError, match="more than 69999 bytes"):
        read_bytes(path, 69_999)
    with pytest.raises(FileTooLargeError):
        read_text(path, limit=10)
    # The size of a file of the kernel's is 0, whatever is in it.
    assert os.stat("/proc/self/maps").st_size == 0
    with pytest.raises(FileTooLargeError):
        read_bytes("/proc/self/maps", 10)
    with open_file("/proc/self/maps") as file:
        assert b"[stack]" in file.read()


def test_lines_end_as_open_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\r\ntwo\rthree\n\xff")
    with open(path, encoding="utf-8", errors="replace") as file:
        assert read_text(path, "replace") == file.read()
    with pytest.raises(OSError, match="not UTF-8"):  # an OSError, which readers think of
        read_text(path)


def test_sizes_around_a_piece_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size in (0, 1, (1 << 16) - 1, 1 << 16, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000):
        path.write_bytes(os.urandom(size))
        assert read_bytes(path) == path.read_bytes()
        with open_file(path) as file:
            assert file.read() == path.read_bytes()


def test_a_reader_that_tries_gets_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff")
    (tmp_path / "link").symlink_to("file")
    assert try_read_bytes(tmp_path / "file") == b"\xff"
    assert try_read_text(tmp_path / "file") is None
    assert try_read_bytes(tmp_path / "link", follow=False) is None
    assert try_list(tmp_path) == ["file", "link"]
    for missing in (str(tmp_path / "none"), "\0"):
        assert try_read_bytes(missing) is None
        assert try_read_text(missing) is None
        assert try_stat(missing) is None
        assert try_list(missing) == []
    link = try_stat(tmp_path / "link", follow=False)
    assert link is not None
    assert stat.S_ISLNK(link.st_mode)
