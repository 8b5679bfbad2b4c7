"""The answer of a build with nothing to do: the no-op record of the last one proves it, in one pass
of `stat`.

A record names the command that it answers and every variable that the plan asked for; and with
size, mtime, ctime and inode every input that the plan read, every directory in which it searched
for one, and what a load and the next build need of the cache tree. If all of them are as they were,
the build would come to the same end, and its summary is printed again.

- A record never makes an answer wrong. One that is missing, damaged, cut short, of another version,
  or of another command is not used, and the build runs in full.
- Its price is one `os.stat` for each entry; of many entries, each core looks at a share.
- This module imports `_operator`, `os`, `sys`, `struct`, `time` and `zlib`, and nothing of
  tilusbuild: `tests/noop` holds the list. It is all that runs when there is nothing to do, and the
  time of such a build is mostly the interpreter's, so an import more is a cost that everybody pays
  at every build. So it knows the four numbers of `tilusbuild.state.stamp` by itself;
  `tests/state/test_stamp.py` compares the two. Records are written by `builder.noop_record`.
"""

from __future__ import annotations

import os
import struct
import sys
import time
import zlib
from _operator import attrgetter, eq

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    _Group: TypeAlias = tuple[memoryview, memoryview]  # names, stamps

MAGIC = b"tilusbuild record 9\n"
HEAD = struct.Struct("<IQ")
COUNT = struct.Struct("<Q")
STAMP = struct.Struct("<4q")
"""Size (-1 for nothing), mtime, ctime, inode."""
_numbers = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
DIRECTORY = "\1"
"""Before the end of the names of a group of directories, whose sizes do not count."""
_DIRECTORY_STAMP = struct.Struct("<8x3q")
_directory_numbers = attrgetter("st_mtime_ns", "st_ctime_ns", "st_ino")

# S_IFMT and S_IFDIR of the module `stat`, which is not imported here.
_FILE_TYPE, _DIRECTORY_TYPE = 0o170000, 0o040000

# A fork takes 1 ms, and 4,000 entries take 13.
_SHARE = 4_000

# Two shells that differ in one of these have a record each. Settings of the remote cache do not
# change the result of a build, and may hold secrets: no record has them.
_OFTEN_DIFFERENT = ("CUDA_HOME", "HOME", "PATH")
REMOTE_PREFIX = "TILUSBUILD_REMOTE_"

_ONLY_PRINTED = ("-q", "--quiet", "-v", "--verbose", "--json")
_VERBOSE = ("-v", "--verbose")


def answer_build(words: Sequence[str]) -> int | None:
    """Print the recorded summary and return the exit status, if a record shows that this build has
    nothing to do; else print nothing and return None. `words` are the command line's. With -v or
    --junit, or on GitHub Actions, no record is used."""
    if "build" not in words or not set(words).isdisjoint(_VERBOSE):
        return None
    # A record has no JUnit file and no annotations: the full build writes them.
    if any(word.startswith("--junit") for word in words) or "GITHUB_ACTIONS" in os.environ:
        return None
    started = time.perf_counter()
    summary = read_record(make_key(words, os.environ), os.environ)
    if summary is None:
        return None
    # `builder.noop_record._format_answer` has made the summary.
    status, text, quiet_text, lines = summary.decode("utf-8", "surrogateescape").split("\0")
    seconds = time.perf_counter() - started
    if "--json" in words:
        sys.stdout.write(lines.replace('"seconds": 0.0,', f'"seconds": {seconds:.3f},', 1))
        text = quiet_text
    elif "-q" in words or "--quiet" in words:
        text = quiet_text
    try:  # noqa: SIM105 - nothing is imported here that need not be
        sys.stderr.write(text.replace("(0.00 s)", f"({seconds:.2f} s)"))
    except OSError:
        pass  # A reader that is gone does not change the exit status.
    return int(status)


def make_key(words: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """Return the identity of a command: its words, the working directory, the settings in the
    environment, the interpreter with its search path, and the installation. Words that change only
    the output are left out."""
    settings = []
    for name, value in sorted(environment.items()):
        is_setting = name.startswith("TILUSBUILD_") and not name.startswith(REMOTE_PREFIX)
        if is_setting or name in _OFTEN_DIFFERENT:
            settings.append(f"{name}={value}")
    try:
        working_directory = os.getcwd()
    except OSError:
        working_directory = ""  # It was deleted, so nothing was built there.
    # A command's own directory is searched by Python, and has no packages.
    search_path = [path for path in sys.path if path != os.path.dirname(sys.argv[0])]
    # Not `sys.executable`: `python`, `python3` and the command `tilusbuild` are one installation.
    parts = [sys.prefix, sys.version, __file__, *search_path, working_directory]
    for word in words:
        if word not in _ONLY_PRINTED:
            parts.append(word)
            # A directory may be a link that leads elsewhere by the next time: `-C link`.
            directory = word.removeprefix("-C").rpartition("=")[2]
            if os.path.isdir(directory):
                parts.append(os.path.realpath(directory))
    return "\0".join([*parts, "", *settings]).encode("utf-8", "surrogateescape")


def find_record_directory(environment: Mapping[str, str]) -> str | None:
    """Return the directory of the records; None without a home directory. It is outside of projects
    and caches, so that both may be read-only."""
    base = environment.get("XDG_CACHE_HOME")
    if not base or not os.path.isabs(base):
        home = environment.get("HOME")
        if not home or not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "tilusbuild", "records")


def find_record_path(name: bytes, environment: Mapping[str, str]) -> str | None:
    """Return the file of the record for a key. Two keys with one checksum overwrite each other's
    record."""
    records = find_record_directory(environment)
    if records is None:
        return None
    return os.path.join(records, f"{zlib.crc32(name):08x}{zlib.adler32(name):08x}")


def format_variables(names: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """Return the piece of a record for these variables: of each its name, and its value if set."""
    words = [f"{name}={environment[name]}" if name in environment else name for name in names]
    return "\0".join(words).encode("utf-8", "surrogateescape")


def check_record(data: bytes, name: bytes, environment: Mapping[str, str]) -> bytes | None:
    """Return the summary in a record when its key is `name`, and the variables and all stamps are
    equal; else None."""
    pieces = split_pieces(data)
    if not pieces or pieces[0] != name:
        return None
    words = bytes(pieces[2]).decode("utf-8", "surrogateescape").split("\0")
    names = [word.partition("=")[0] for word in words if word]
    if pieces[2] != format_variables(names, environment):
        return None
    return bytes(pieces[1]) if _are_groups_unchanged(split_groups(pieces)) else None


def split_groups(pieces: Sequence[memoryview]) -> list[_Group]:
    """Return the groups among the pieces of a record."""
    return list(zip(pieces[3::2], pieces[4::2]))  # noqa: B905 - both halves come in pairs


def split_pieces(data: bytes) -> list[memoryview]:
    """Return the pieces of a record: the key, the summary, the variables, and then the names and
    the stamps of each group. Return an empty list for bytes that are not a whole record."""
    start = len(MAGIC) + HEAD.size
    if len(data) < start or not data.startswith(MAGIC):
        return []
    checksum, length = HEAD.unpack_from(data, len(MAGIC))
    body = memoryview(data)[start:]
    if len(body) != length or zlib.crc32(body) != checksum:
        return []
    pieces = []
    position = 0
    while position < length:
        (size,) = COUNT.unpack_from(body, position)
        position += COUNT.size
        pieces.append(body[position : position + size])
        position += size
    return pieces


def _are_groups_unchanged(groups: Sequence[_Group]) -> bool:
    """Return whether all stamps are equal, looked at by this process and, of many entries, forks of
    it; False after an error of the system."""
    # Each process looks at a share of the groups. The others are forks and not threads, which would
    # wait for Python's lock during most of the loop.
    entry_count = sum(len(stamps) for _, stamps in groups) // STAMP.size
    share_count = min(len(os.sched_getaffinity(0)), 1 + entry_count // _SHARE)
    forks: list[int] = []
    try:
        for share in range(1, share_count):
            pid = os.fork()
            if pid == 0:
                is_unchanged = False
                try:
                    is_unchanged = _is_share_unchanged(groups[share::share_count])
                finally:
                    # Exit status 0 says that the share is unchanged. Not `sys.exit`: the fork must
                    # not use the parent's buffers and handlers.
                    os._exit(not is_unchanged)
            forks.append(pid)
        is_unchanged = _is_share_unchanged(groups[::share_count])
        for pid in forks:
            _, status = os.waitpid(pid, 0)
            is_unchanged = is_unchanged and status == 0
        return is_unchanged
    except OSError:
        return False


def _is_share_unchanged(groups: Sequence[_Group]) -> bool:
    """Return whether the stamps of these groups are equal. The working directory changes meanwhile,
    and is the same again at the end."""
    # A check of a group changes to the group's directory, as the system finds a name in the working
    # directory soonest.
    try:
        working_directory = os.open(".", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return all(_is_group_unchanged(names, stamps) for names, stamps in groups)
    finally:
        os.fchdir(working_directory)
        os.close(working_directory)


def _is_group_unchanged(names: memoryview, stamps: memoryview) -> bool:
    """Return whether the paths of a group have its stamps. `names` are the beginning and the ending
    of its paths and the words between, with NULs. Changes the working directory."""
    # `names` is such as b"/cache/programs/\0/module/lib.so\0WORD\0WORD", or b"/project/\0\0WORD".
    # The mark `DIRECTORY` before the ending says that all paths are directories. Names stay bytes,
    # as the system takes them.
    beginning, marked_ending, *words = bytes(names).split(b"\0", 2)
    ending = marked_ending.removeprefix(DIRECTORY.encode())
    # One `replace` and one `split` make all paths: a loop took as long as the `stat`s.
    paths = b"\0".join([*words, b""]).replace(b"\0", ending + b"\0").split(b"\0")[:-1]
    if len(paths) != len(stamps) // STAMP.size:
        return False
    try:
        if beginning:
            os.chdir(beginning)
        # For directories alone, or files alone, which all exist, the whole loop runs in C.
        if ending != marked_ending:
            expected = _DIRECTORY_STAMP.iter_unpack(stamps)
            return all(map(eq, map(_directory_numbers, map(os.stat, paths)), expected))
        if ending:
            return all(map(eq, map(_numbers, map(os.stat, paths)), STAMP.iter_unpack(stamps)))
        return all(map(_is_path_unchanged, paths, STAMP.iter_unpack(stamps)))
    except OSError:
        return False


def _is_path_unchanged(path: bytes, stamp: tuple[int, int, int, int]) -> bool:
    """Return whether a path has this stamp. The stamp may be that of a missing path, or of a
    directory, whose size does not count."""
    try:
        status = os.stat(path)
    except OSError:
        return stamp[0] == -1
    # The size, the first number, does not count for a directory.
    is_directory = status.st_mode & _FILE_TYPE == _DIRECTORY_TYPE
    first = 1 if is_directory else 0
    return _numbers(status)[first:] == stamp[first:]


def read_record(name: bytes, environment: Mapping[str, str]) -> bytes | None:
    """Return the summary of the last build by this command when its record still holds; else
    None."""
    file = find_record_path(name, environment)
    if file is None:
        return None
    try:
        # O_NONBLOCK: a FIFO in its place is opened without a writer, and reads as empty.
        with open(os.open(file, os.O_NONBLOCK | os.O_CLOEXEC), "rb") as record:
            return check_record(record.read(), name, environment)
    except OSError:
        return None
