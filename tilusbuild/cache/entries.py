"""A published program: the one way to make an entry, and the one way to read it.

A `Stage` is a private directory that becomes an entry by one rename: the compile writes into it,
`publish_program` adds the texts and, last, `meta.json`, and syncs everything. Who comes second to a
whole entry discards its own. Reading takes no lock and writes nothing: an entry counts only when
`meta.json` is sealed, names this program, and every file that it lists is there with its size;
contents are compared by `verify`. Whatever the bytes of an entry are, reading it ends in an `Entry`
or in `CorruptFileError`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.includes import make_directories
from tilusbuild.cache.tree import PrivateDirectory, Tree
from tilusbuild.runtime.regular import read_bytes, read_text, try_read_text
from tilusbuild.runtime.sealed import CorruptFileError, seal_json, unseal_json
from tilusbuild.state.files import sha256_file, sha256_text
from tilusbuild.status import RECORDED, Status

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
ADDED_KEYS = ("schema", "program", "files")
"""What publishing adds to a meta.json: an entry that is published again gets its own."""


class Entry(Struct, frozen=True):
    """A whole program of the cache."""

    hash: str
    path: str
    status: Status
    """One of `RECORDED`."""
    meta: Mapping[str, Any]
    """meta.json, less its seal."""

    @property
    def reason(self) -> str:
        """Why it is not "built", in one line; "" when it is."""
        return str(self.meta.get("reason", ""))

    @property
    def size(self) -> int:
        """Bytes of the files that meta.json lists."""
        return sum(size for _, size, _ in list_meta_files(self.meta))


def _make_entry(path: str, program: str, meta: dict[str, Any]) -> Entry:
    """Return the entry whose meta.json this is. Raises `CorruptFileError`."""
    for name, size, _ in list_meta_files(meta):
        problem = find_size_problem(os.path.join(path, name), size)
        if problem:
            raise CorruptFileError(f"{name} {problem}")
    return Entry(program, path, Status(meta["status"]), meta)


def find_entry(path: str, program: str) -> Entry | None:
    """Return the entry in the directory `path`, or None when there is nothing whole."""
    try:
        return _make_entry(path, program, _read_meta(path, program))
    # `CorruptFileError` is a ValueError, and so is NUL in a path.
    except (FileNotFoundError, ValueError):
        return None


def lookup_entry(tree: Tree, program: str) -> Entry | None:
    """Return the whole entry of a program, or None. Takes no lock and writes nothing."""
    return find_entry(tree.program_path(program), program)


def read_compiler_log(tree: Tree, program: str) -> str:
    """Return the compiler's output for a published program; "" without any."""
    return try_read_text(os.path.join(tree.program_path(program), layout.LOG), "replace") or ""


def read_dump(path: str, part: str) -> str:
    """Return the PTX or SASS that was dumped of a program; "" where none was. Raises `OSError`."""
    import glob  # for people only

    paths = sorted(glob.glob(f"{glob.escape(path)}/module/ir/*.{part}"))
    heads = [f"// {os.path.basename(file)}\n" if len(paths) > 1 else "" for file in paths]
    return "".join(h + read_text(each, "replace") for h, each in zip(heads, paths, strict=True))


def read_meta(path: str, program: str) -> dict[str, Any]:
    """meta.json, checked in form. Raises `CorruptFileError`; `FileNotFoundError`: no directory."""
    try:
        return _read_meta(path, program)
    except FileNotFoundError:
        if not os.path.isdir(path):
            raise
        raise CorruptFileError(f"there is no {layout.META}") from None


def _read_meta(path: str, program: str) -> dict[str, Any]:
    """As `read_meta`; raises `FileNotFoundError` also for a directory without one."""
    try:
        data = read_bytes(os.path.join(path, layout.META))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptFileError(f"{layout.META} cannot be read: {error.strerror}") from None
    return parse_meta(data, program)


def parse_meta(data: bytes, program: str) -> dict[str, Any]:
    """Return what a meta.json says, less its seal, checked in form. Raises `CorruptFileError`."""
    try:
        meta = unseal_json(data)
    except CorruptFileError as error:
        raise CorruptFileError(f"{layout.META} is damaged: {error}") from None
    problem = find_meta_problem(meta, program)
    if problem:
        raise CorruptFileError(f"{layout.META}: {problem}")
    return meta


class Product(NamedTuple):
    """The file that a program is made into; `size` and `sha256` are None where it was not."""

    name: str
    size: int | None
    sha256: str | None


def get_product(meta: Mapping[str, Any]) -> Product:
    """Return what a program was made into; only that of no library is written down."""
    name = str(meta.get("product", layout.LIBRARY))
    facts = meta.get("files", {}).get(name, {})
    return Product(name, facts.get("size"), facts.get("sha256"))


def list_meta_files(meta: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """(name, size, sha256) of the files of a checked meta.json."""
    for name, facts in meta["files"].items():
        yield name, facts["size"], facts["sha256"]


def find_size_problem(path: str, size: int) -> str | None:
    """Return why a file cannot be the one that was listed with this size; None when it can."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_size != size:
        return f"has {status.st_size} bytes instead of {size}"
    return None


def find_meta_problem(meta: Mapping[str, Any], program: str) -> str | None:
    if meta.get("schema") != SCHEMA:
        return f"a schema that this version does not read: {meta.get('schema')!r}"
    if meta.get("program") != program:
        return "it belongs to another program"
    if meta.get("status") not in RECORDED:
        return f"no such status: {meta.get('status')!r}"
    files = meta.get("files")
    if not isinstance(files, dict) or not all(_is_file_listing(n, f) for n, f in files.items()):
        return "its list of files is malformed"
    needed = [layout.PROGRAM_TXT, layout.OPTIONS_TXT]
    if meta["status"] == Status.BUILT:
        needed.append(get_product(meta).name)
    missing = [name for name in needed if name not in files]
    return f"it does not list {missing[0]}" if missing else None


def _is_file_listing(name: str, facts: object) -> bool:
    if not isinstance(facts, dict) or not layout.is_inside(name):
        return False
    size, digest = facts.get("size"), facts.get("sha256")
    return type(size) is int and size >= 0 and isinstance(digest, str) and layout.is_hash(digest)


class Stage:
    """A private directory: publish it or discard it. After either, whatever was raised, it is
    gone."""

    def __init__(self, tree: Tree) -> None:
        """Raises `CacheError`, `InputError`."""
        private = tree.make_private()
        self._tree = tree
        self._private: PrivateDirectory | None = private
        # Below the private directory, so that whatever else is made there is never published.
        self.path = os.path.join(private.path, "entry")
        try:
            with wrap_oserror(private.path):
                tree.disk.make_directory(self.path)
        except BaseException:
            self.discard()
            raise

    def publish_program(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any], /
    ) -> Entry:
        """Make the entry with this hash, durably; the entry is ours or, if one was there, that.

        `meta` has a "status" and whatever is known of the program; "schema", "program" and "files"
        are added. Raises `CacheError`, and `ValueError` for what cannot be an entry: a hash that
        is not the texts', no library in what was built, anything but files and directories.
        """
        if self._private is None:
            raise ValueError("this stage was published or discarded")
        final = self._tree.program_path(program)
        try:
            if sha256_text(program_txt + options_txt) != program:
                raise ValueError(f"the texts do not belong to program {program}")
            if meta.get("status") not in RECORDED:
                raise ValueError(f"{meta.get('status')!r} is not a status to publish")
            with wrap_oserror(final):
                self._write_entry(program, program_txt, options_txt, meta)
                return self._move_into_place(program, final)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove it."""
        private, self._private = self._private, None
        if private is not None:
            private.discard()

    def _write_entry(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any]
    ) -> None:
        disk = self._tree.disk
        for name, text in ((layout.PROGRAM_TXT, program_txt), (layout.OPTIONS_TXT, options_txt)):
            disk.write_file(os.path.join(self.path, name), text.encode("utf-8", "surrogateescape"))
        files: dict[str, dict[str, Any]] = {}
        for name in layout.list_files_below(self.path):
            path = os.path.join(self.path, name)
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{name} is not a regular file")
            is_executable = status.st_mode & stat.S_IXUSR or name.endswith(".sh")
            mode = 0o755 if is_executable else 0o644
            if stat.S_IMODE(status.st_mode) != mode:
                disk.set_mode(path, mode)
            files[name] = {"size": status.st_size, "sha256": sha256_file(path)}
        if meta["status"] == Status.BUILT and get_product(meta).name not in files:
            raise ValueError(f"a built program needs a {get_product(meta).name}")
        # Last: without meta.json a directory is not an entry, so that nothing half-written is one.
        full_meta = {**meta, "schema": SCHEMA, "program": program, "files": files}
        disk.write_file(os.path.join(self.path, layout.META), seal_json(full_meta))
        disk.sync_files([os.path.join(self.path, name) for name in (*files, layout.META)])
        for directory in sorted({os.path.dirname(name) for name in (*files, "")}, reverse=True):
            disk.sync_directory(os.path.join(self.path, directory))

    def _move_into_place(self, program: str, final: str) -> Entry:
        # Who comes second to a whole entry discards its own; a damaged one is replaced.
        existing = find_entry(final, program)
        if existing is not None:
            return existing
        self._tree.disk.make_directory(os.path.dirname(final))
        self._tree.move_into_place(
            self.path, final, is_kept=lambda: find_entry(final, program) is not None
        )
        try:
            return _make_entry(final, program, read_meta(final, program))
        except (FileNotFoundError, CorruptFileError) as error:
            raise OSError(
                errno.EIO, f"damaged right after it was written: {error}", final
            ) from None


class EntryBatch:
    """Entries whose files are known byte for byte before they are written: of a remote cache, or of
    another tree. The caller has checked them: nothing is read back. Several are written before the
    disk is waited for, and only then renamed to their places: each is whole or not there.

    Use as a context manager: what was not committed by its end is removed. The caller holds the
    programs' locks. Everything raises `CacheError`."""

    def __init__(self, cache: Tree) -> None:
        self._tree = cache
        self._private: PrivateDirectory | None = None
        self._directory_of: dict[str, str] = {}
        """Where each program's directory is, until it is in its place."""
        self._files: list[str] = []
        self._directories: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._private is not None:
            self._private.discard()

    def add_program(self, program: str, files: Mapping[str, bytes | str], meta: bytes) -> None:
        """Write a program's files, content or the path of a file by name, and its meta.json."""
        if self._private is None:
            self._private = self._tree.make_private()
        directory = os.path.join(self._private.path, program)
        disk = self._tree.disk
        with wrap_oserror(self._tree.program_path(program)):
            made_directories = {""}
            disk.make_directory(directory)
            for name, data in (*files.items(), (layout.META, meta)):
                make_directories(self._tree, directory, os.path.dirname(name), made_directories)
                path = os.path.join(directory, name)
                # As `Stage` leaves them: a library as linkers do.
                is_executable = name.endswith(".sh") or name == layout.LIBRARY
                disk.write_file(path, data, 0o755 if is_executable else 0o644)
                self._files.append(path)
            self._directories += [
                os.path.join(directory, n) for n in sorted(made_directories, reverse=True)
            ]
        self._directory_of[program] = directory

    def commit_programs(self) -> None:
        """Put what was added into its place, durably. What is there and whole stays."""
        tree = self._tree
        directory_of, self._directory_of = self._directory_of, {}
        files, self._files = self._files, []
        directories, self._directories = self._directories, []
        if not directory_of:
            return
        with wrap_oserror(tree.path(layout.PROGRAMS)):
            tree.disk.sync_files(files)
            for directory in directories:
                tree.disk.sync_directory(directory)
            for program, place in directory_of.items():
                self._move_into_place(program, place)
            tree.disk.sync_directory(tree.path(layout.PROGRAMS))

    def _move_into_place(self, program: str, source: str) -> None:
        final = self._tree.program_path(program)

        def is_complete() -> bool:
            return find_entry(final, program) is not None

        self._tree.disk.make_directory(os.path.dirname(final))
        self._tree.move_into_place(source, final, durable=False, is_kept=is_complete)
