"""The names of files and directories in a cache, and which names are valid."""

from __future__ import annotations

import os
import re
import stat

from tilusbuild.runtime.reader_lock import LOCKS
from tilusbuild.runtime.regular import try_stat

PROGRAMS, SCRIPTS, INCLUDE, STAGING, STATE = "programs", "scripts", "include", "staging", "state"
INDEX, TAG, IGNORE = "index.json", "CACHEDIR.TAG", ".gitignore"
META, PROGRAM_TXT, OPTIONS_TXT = "meta.json", "program.txt", "options.txt"
TEXTS = (PROGRAM_TXT, OPTIONS_TXT)
"""The files whose sha256, one after the other, is the program's hash."""
LOG = "module/nvcc_output.txt"
LIBRARY = "module/lib.so"
TESTS = "tests"
"""In a package: the test cases of each script, in a directory named by its hash."""
SOURCE = "module/source.cu"
COMPILE_SH = "module/compile.sh"
DUMPS = ("ir/", "module/ir/")
"""Directories that `--dump-ir` adds to a program: for people; meta.json does not list them."""
MANIFEST = "MANIFEST"
SCRIPT_TXT, SCHEDULE_TXT, FAILED = "script.txt", "schedule.txt", "failed"
SCRIPT_JSON = "script.json"
DISPATCH, DISPATCH_JSON = "dispatch", "dispatch.json"
"""The directory of a script's C dispatcher, and the file in it with the digest of its library."""
TABLE_JSON, TABLE_TXT = TABLES = "dispatch_table.json", "dispatch_table.txt"
LATENCY, LATENCY_REPORT = "latency", "report.txt"
"""In a script's directory: the measurements, a directory for each dispatch key."""

TUNED, MEASURED = "tune", "measured.jsonl"
"""In `state`: the samples and the measurements of tunings, a directory for each script."""

SOURCES = "sources"
"""In `state`: the projects of `Source`s, which kernel caches requested."""

DIRECTORIES = (PROGRAMS, SCRIPTS, INCLUDE, STAGING, STATE, LOCKS)
TOP = frozenset((*DIRECTORIES, INDEX, TAG, IGNORE))
"""The names in a tree's root: tilusbuild writes no others."""

TAG_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# A cache of tilusbuild. Backups may leave it out; it can be deleted at any time.
# What the signature means: https://bford.info/cachedir/
"""
# A CACHEDIR.TAG of tilusbuild begins so, of every version: many programs make such files.
TAG_START = TAG_TEXT[: TAG_TEXT.index(b".", 60)]
IGNORE_TEXT = b"*\n"

_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DIRECTORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
# 80 random bits.
_STAGING = re.compile(r"[0-9a-f]{20}", re.ASCII)
# A lock file's name has the first digits of a hash: 4096 files of a kind, 256 for readers.
_LOCK = re.compile(
    r"use|index|read-[0-9a-f]{2}|(?:program|include|script|stage)-[0-9a-f]{3}", re.ASCII
)
# No leading zeros: a number has one name.
_INDEX = re.compile(r"0|[1-9][0-9]{0,99}", re.ASCII)
_HEADERS = re.compile(rb"include/([0-9a-f]{64})")


def is_hash(name: str) -> bool:
    """Return whether a name is a sha256 in lower-case hex digits."""
    return _HASH.fullmatch(name) is not None


def is_script_directory(name: str) -> bool:
    """Return whether a name is valid for a script's directory."""
    return len(name) <= 255 and _DIRECTORY.fullmatch(name) is not None


def is_staging(name: str) -> bool:
    """Return whether a name is that of a private directory in `staging`."""
    return _STAGING.fullmatch(name) is not None


def is_lock(name: str) -> bool:
    """Return whether a name is that of a lock file."""
    return _LOCK.fullmatch(name) is not None


def is_shared_default(root: str) -> bool:
    """Return whether a directory is one of the defaults that other programs use, too: `.cache` of a
    repository, and `~/.cache/tilus`."""
    return f"/{root}".endswith(("/.cache", "/.cache/tilus"))


def is_program_number(name: str) -> bool:
    """Return whether the name of a link is a program's number in its script."""
    return _INDEX.fullmatch(name) is not None


def is_inside(name: str) -> bool:
    """Return whether a relative name stays in its directory, and is in its shortest form."""
    return (
        bool(name) and "\0" not in name and all(p not in ("", ".", "..") for p in name.split("/"))
    )


def find_header_digests(compile_sh: bytes) -> list[str]:
    """Return the digests of the header directories that a `compile.sh` names, sorted."""
    return sorted({match.decode() for match in _HEADERS.findall(compile_sh)})


def format_program_link(program: str) -> str:
    """Return the target of a program's link in `programs` or `failed` of a script."""
    return f"../../../../{PROGRAMS}/{program}"


def list_files_below(directory: str) -> list[str]:
    """Return the relative names of all files below a directory, sorted.

    Symbolic links are listed and not followed. Raises `OSError`.
    """
    names: list[str] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(os.path.join(directory, prefix)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{prefix}{entry.name}/")
                else:
                    names.append(prefix + entry.name)
    return sorted(names)


def measure_files(path: str) -> tuple[int, float]:
    """Return the bytes of the file `path`, or of all files below it, and the latest mtime, in
    seconds since 1970.

    Files that cannot be read count nothing.
    """
    size, latest = 0, 0.0
    try:
        names = list_files_below(path)
    except OSError:
        names = []
    for name in ["", *names]:
        # `path` joined with "" ends with a slash, and `lstat` follows a link before a slash.
        status = try_stat(os.path.join(path, name).rstrip("/"), follow=False)
        if status is not None:
            if not stat.S_ISDIR(status.st_mode):  # "" stands for `path` itself
                size += status.st_size
            latest = max(latest, status.st_mtime)
    return size, latest
