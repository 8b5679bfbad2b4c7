"""Compiled templates kept between runs, in a directory of this user's own.

Loading bytecode runs it, so only a directory and files that this user owns and nobody else can
write are trusted, and the content is checked before `marshal`, which crashes on garbage, sees it.
If the file is missing, another user's, old or corrupt, the template is compiled again.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys

import jinja2
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket

from tilusbuild.state.envelope import Envelope
from tilusbuild.state.files import sha256_file, sha256_text, write_atomic


def _implementation() -> str:
    """Return all but its source that decides a template's bytecode: tilusbuild, Jinja2, Python."""
    directory = os.path.dirname(os.path.abspath(__file__))
    ours = [sha256_file(os.path.join(directory, name)) for name in ("environment.py", "cuda.py")]
    return "\n".join([*ours, jinja2.__version__, sys.version])


class PrivateBytecode(BytecodeCache):
    """Keeps one file per template in `directory`, which is created by the first write."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._salt = _implementation()

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        return sha256_text(f"{self._salt}\n{name}")

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            _check_private(os.lstat(self._directory))
            handle = os.open(self._path(bucket), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                _check_private(os.fstat(handle))
                data = file.read()
        except OSError:
            return
        payload = _envelope(bucket).unwrap(data)
        if payload is not None:
            bucket.code = marshal.loads(payload)  # noqa: S302 - checked above

    def dump_bytecode(self, bucket: Bucket) -> None:
        payload = marshal.dumps(bucket.code)
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            write_atomic(self._path(bucket), _envelope(bucket).wrap(payload), mode=0o600)
        except OSError:
            pass

    def _path(self, bucket: Bucket) -> str:
        return os.path.join(self._directory, bucket.key)


def _envelope(bucket: Bucket) -> Envelope:
    """Return the envelope of the bucket's file: it fits this template with this content only."""
    return Envelope(f"template 2 {bucket.key} {bucket.checksum}")


def _check_private(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError
