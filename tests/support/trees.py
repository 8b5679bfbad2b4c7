"""What lies below a directory, to compare before and after, and things that stand in its way."""

import os
import shutil
from contextlib import suppress
from pathlib import Path


def snapshot(root: str | Path) -> dict[str, tuple[int, ...]]:
    """Everything below a directory, itself too, such that any write shows, also of the same
    bytes."""
    stamp_by_path: dict[str, tuple[int, ...]] = {}
    for where, directories, files in os.walk(root):
        for name in (".", *directories, *files):
            path = os.path.join(where, name)
            stat = os.lstat(path)
            # A directory's size is the file system's own affair.
            size = 0 if os.path.isdir(path) else stat.st_size
            key = os.path.relpath(path, root)
            times = (stat.st_mtime_ns, stat.st_ctime_ns)
            stamp_by_path[key] = (stat.st_ino, stat.st_mode, size, *times)
    return stamp_by_path


def published(cache: Path) -> dict[str, bytes | str]:
    """What a cache holds for its readers, byte for byte; links by where they lead."""
    paths = [p for part in ("programs", "scripts", "include") for p in (cache / part).rglob("*")]
    return {
        str(path.relative_to(cache)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in paths
        if path.is_symlink() or path.is_file()
    }


THINGS = ["link to a copy", "link to nothing", "link to a file", "FIFO"]


def put(thing: str, path: str, outside: str, number: int) -> None:
    """Put a thing in a place; what was there is copied out first, for a link to lead to."""
    copy = os.path.join(outside, f"{number}")
    if os.path.isdir(path) and not os.path.islink(path):
        with suppress(shutil.Error):  # a FIFO in it
            shutil.copytree(path, copy, symlinks=True)
        shutil.rmtree(path)
    elif os.path.isfile(path):
        shutil.copyfile(path, copy)
        os.unlink(path)
    elif not os.path.lexists(path):
        os.mkdir(copy)
        Path(copy, "precious").write_text("mine")
    else:
        return
    with suppress(FileNotFoundError, NotADirectoryError):
        if thing == "FIFO":
            os.mkfifo(path)
        elif thing == "link to nothing":
            os.symlink(os.path.join(outside, f"nothing {number}"), path)
        elif thing == "link to a file":
            os.symlink(os.path.join(outside, "precious"), path)
        else:
            os.symlink(copy, path)
