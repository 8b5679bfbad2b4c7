"""The record of a finished build: proof, in one pass of `stat`, that there is nothing to do.

A record names the command it answers, every input that the plan read, every folder in which it
looked for one, and every published entry, each with size, mtime, ctime and inode. If all of them
are as they were, the build would come to the same end, and its summary is printed again.

- A record never makes an answer wrong. One that is missing, damaged, cut short, of another version,
  or about anything else is no record, and the build runs in full.
- A record is written only when no input changed after the build began to read. ctime cannot be set
  back, so a file whose ctime is older than the start was not written since.
- Many entries are looked at by several threads, each a share; one that does not say "all as it
  was" stands for a change. They need the looker, which Python does not stop: without it, one.
- This module imports `_thread`, `os`, `sys`, `struct` and `zlib`, and nothing of tilusbuild: it
  runs before everything else, and on the way of a build with nothing to do it is all that runs.
"""

from __future__ import annotations

import _thread
import os
import struct
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from tilusbuild.noop.stat_helper import Same

    Stat: TypeAlias = tuple[int, int, int, int]  # as `snapshot` gives
    _Group: TypeAlias = tuple[memoryview, memoryview]  # names, stats

_MAGIC = b"tilusbuild record 4\n"
_HEAD = struct.Struct("<IQ")
_COUNT = struct.Struct("<Q")
_STAT = struct.Struct("<4q")
_ABSENT = (-1, 0, 0, 0)
_IN_A_GROUP = 1000
"""Entries; groups are what threads share out."""
_WORTH_A_THREAD = 1 << 17
"""Bytes of a record: some 1,300 entries, which take ten times as long as a thread's start."""

# Changes of these can change the plan: where tools are found, and every setting.
_ENVIRONMENT = ("CC", "CUDA_HOME", "CUDA_PATH", "CXX", "HOME", "NVCC", "PATH", "VIRTUAL_ENV")


TICK = 50_000_000
"""Nanoseconds. Linux stamps files with the time of its last timer tick, up to 10 ms ago (HZ=100);
a file system that keeps whole seconds is recognised by its stamps and given `COARSE_TICK`."""
COARSE_TICK = 2_000_000_000


def key(words: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """What a record answers: the command, where it runs, and the environment that matters.

    Another interpreter or installation gives another answer. Words that change only what is
    printed are left out.
    """
    kept = [word for word in words if word not in ("-q", "--quiet", "-v", "--verbose", "--json")]
    settings = [
        f"{name}={value}"
        for name, value in sorted(environment.items())
        if name in _ENVIRONMENT or name.startswith("TILUSBUILD_")
    ]
    parts = [sys.executable, sys.version, __file__, os.getcwd(), *kept, "", *settings]
    return "\0".join(parts).encode("utf-8", "surrogateescape")


def folder(environment: Mapping[str, str]) -> str | None:
    """Where records are kept: outside projects and caches, so that both may be read-only."""
    base = environment.get("XDG_CACHE_HOME")
    if not base or not os.path.isabs(base):
        home = environment.get("HOME")
        if not home or not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "tilusbuild", "records")


def path(name: bytes, environment: Mapping[str, str]) -> str | None:
    """The file of the record for a key. Keys that share a file overwrite each other's."""
    where = folder(environment)
    if where is None:
        return None
    return os.path.join(where, f"{zlib.crc32(name):08x}{zlib.adler32(name):08x}")


def snapshot(file: str) -> Stat:
    """Size, mtime, ctime (nanoseconds) and inode; size -1 when there is no such file.

    A folder's size says nothing and differs between file systems, so it counts as 0.
    """
    try:
        found = os.stat(file)
    except OSError:
        return _ABSENT
    size = 0 if found.st_mode & 0o170000 == 0o040000 else found.st_size
    return size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def make(
    name: bytes,
    summary: bytes,
    inputs: Iterable[str],
    entries: Mapping[tuple[str, str], Sequence[str]],
    started: int,
    looker: str = "",
) -> bytes | None:
    """A record, or None when an input changed since `started` (nanoseconds of the wall clock).

    `entries` maps a (prefix, suffix) to the words between: an entry's path is all three joined.
    `looker` is the path of the library to look with, if there is one: it was tried.
    """
    files = sorted(set(inputs))
    stats = [snapshot(file) for file in files]
    if any(_racy(stat, started) for stat in stats):
        return None
    groups = _by_folder(files, stats)
    for (before, after), middles in sorted(entries.items()):
        found = [snapshot(before + middle + after) for middle in middles]
        if _ABSENT in found:
            return None
        for start in range(0, len(middles), _IN_A_GROUP):
            end = start + _IN_A_GROUP
            groups.append(((before, after), list(middles[start:end]), found[start:end]))
    helper = _STAT.pack(*snapshot(looker)) + os.fsencode(looker) if looker else b""
    parts = [_packed(part) for part in (name, summary, helper)]
    body = b"".join([*parts, *(_group(*group) for group in groups)])
    return _MAGIC + _HEAD.pack(zlib.crc32(body), len(body)) + body


def _by_folder(
    files: Sequence[str], stats: Sequence[Stat]
) -> list[tuple[tuple[str, str], list[str], list[Stat]]]:
    """The inputs as groups, each of one folder: standing in it, a name is found sooner than by its
    whole path. What is not there, or not by an absolute path, comes first and by its whole name."""
    folders: dict[str, tuple[list[str], list[Stat]]] = {"": ([], [])}
    for file, stat in zip(files, stats):  # noqa: B905 - side by side
        folder, name = os.path.split(file)
        whole = stat == _ABSENT or not name or not os.path.isabs(file)
        names, seen = folders.setdefault("" if whole else os.path.join(folder, ""), ([], []))
        names.append(file if whole else name)
        seen.append(stat)
    return [((folder, ""), *found) for folder, found in folders.items()]


def _racy(stat: Stat, started: int) -> bool:
    newest = max(stat[1], stat[2])
    coarse = stat[2] % 1_000_000_000 == 0 and stat[1] % 1_000_000_000 == 0
    return newest > started - (COARSE_TICK if coarse else TICK)


def _packed(data: bytes) -> bytes:
    return _COUNT.pack(len(data)) + data


def _group(around: tuple[str, str], middles: Sequence[str], stats: Iterable[Stat]) -> bytes:
    return _packed(packed_names(around, middles)) + _packed(packed_stats(stats))


def packed_names(around: tuple[str, str], middles: Sequence[str]) -> bytes:
    """A group's names: what they begin and end with, and the words between."""
    return "\0".join([*around, *middles]).encode("utf-8", "surrogateescape")


def packed_stats(stats: Iterable[Stat]) -> bytes:
    """What `snapshot` gave for each name of a group."""
    return b"".join(_STAT.pack(*stat) for stat in stats)


def holds(
    data: bytes,
    name: bytes,
    stat: Callable[[str], os.stat_result] | None = None,
    threads: int | None = None,
) -> bytes | None:
    """The summary, when the record answers `name` and everything is as it was; else None.

    Looks by `stat`, or by the record's looker and then, without a number, in as many threads as are
    worth starting.
    """
    pieces = _pieces(data)
    if not pieces or pieces[0] != name:
        return None
    groups = _groups(pieces)
    same = _same(pieces[2]) if stat is None else None
    if same is None:
        held = _unchanged(groups, stat or os.stat)
    else:
        most = min(len(os.sched_getaffinity(0)), len(data) // _WORTH_A_THREAD)
        held = _hold(groups, same, max(threads or most, 1))
    return bytes(pieces[1]) if held else None


def _groups(pieces: Sequence[memoryview]) -> list[_Group]:
    return list(zip(pieces[3::2], pieces[4::2]))  # noqa: B905 - both halves come in pairs


def _same(helper: memoryview) -> Same | None:
    """The looker that a record names."""
    if not helper:
        return None
    from tilusbuild.noop.stat_helper import load

    return load(os.fsdecode(bytes(helper[_STAT.size :])), _STAT.unpack_from(helper))


def _hold(groups: Sequence[_Group], same: Same, threads: int) -> bool:
    """Whether all is as it was: the first share is looked at here, each other one by a thread."""
    own, *others = [groups[number::threads] for number in range(threads)]
    answers: list[bool] = []
    waiting = []
    for share in others:
        done = _thread.allocate_lock()
        done.acquire()
        try:
            _thread.start_new_thread(_look, (share, same, answers, done))
        except RuntimeError:
            own = [*own, *share]
            continue
        waiting.append(done)
    answers.append(all(same(*group) for group in own))
    for done in waiting:
        done.acquire()
    return answers.count(True) == 1 + len(waiting)


def _look(share: Sequence[_Group], same: Same, answers: list[bool], done: _thread.LockType) -> None:
    try:
        answers.append(all(same(*group) for group in share))
    except Exception:
        answers.append(False)
    finally:
        done.release()


def inputs(data: bytes) -> list[str]:
    """The inputs that a record speaks of; none when it is damaged."""
    found = []
    for names, _ in _groups(_pieces(data)):
        before, after, *words = str(names, "utf-8", "surrogateescape").split("\0")
        if not after:
            found += [before + word for word in words]
    return sorted(found)


def entries(data: bytes, around: tuple[str, str]) -> dict[str, Stat]:
    """What a record says of the entries whose paths begin and end so: the word between, and what
    `snapshot` gave. None when it is damaged."""
    found: dict[str, Stat] = {}
    for names, stats in _groups(_pieces(data)):
        before, after, *middles = str(names, "utf-8", "surrogateescape").split("\0")
        if (before, after) == around:
            found.update(zip(middles, _STAT.iter_unpack(stats)))  # noqa: B905 - side by side
    return found


def _pieces(data: bytes) -> list[memoryview]:
    """The key, the summary, the looker, and for each group its names and its stats; nothing when
    the bytes are not those of a whole record."""
    start = len(_MAGIC) + _HEAD.size
    if len(data) < start or not data.startswith(_MAGIC):
        return []
    checksum, length = _HEAD.unpack_from(data, len(_MAGIC))
    body = memoryview(data)[start:]
    if len(body) != length or zlib.crc32(body) != checksum:
        return []
    pieces = []
    position = 0
    while position < length:
        (size,) = _COUNT.unpack_from(body, position)
        position += _COUNT.size
        pieces.append(body[position : position + size])
        position += size
    return pieces


def _unchanged(groups: Sequence[_Group], stat: Callable[[str], os.stat_result]) -> bool:
    # A short name, in the folder that we are in, is found soonest.
    try:
        here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return all(_group_unchanged(names, stats, stat) for names, stats in groups)
    finally:
        os.fchdir(here)
        os.close(here)


def _group_unchanged(
    names: memoryview, stats: memoryview, stat: Callable[[str], os.stat_result]
) -> bool:
    before, after, *rest = str(names, "utf-8", "surrogateescape").split("\0", 2)
    if before:
        try:
            os.chdir(before)
        except OSError:
            return False
    looks = map(stat, "\0".join([*rest, ""]).replace("\0", f"{after}\0").split("\0"))
    for size, mtime, ctime, inode in _STAT.iter_unpack(stats):
        try:
            found = next(looks)
        except OSError:
            if size != -1:
                return False
            continue
        if (
            found.st_mtime_ns != mtime
            or found.st_ctime_ns != ctime
            or found.st_ino != inode
            or (found.st_size != size and found.st_mode & 0o170000 != 0o040000)
        ):
            return False
    return True


def read(name: bytes, environment: Mapping[str, str]) -> bytes | None:
    """The summary of the last build by this command, when it would come to the same end now."""
    file = path(name, environment)
    if file is None:
        return None
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = b""
        size = os.fstat(handle).st_size
        while len(data) < size:
            piece = os.read(handle, size - len(data))
            if not piece:
                return None
            data = data + piece if data else piece
    except OSError:
        return None
    finally:
        os.close(handle)
    return holds(data, name)
