"""Entries of programs: how they are written, and how they are read.

A `Stage` is a private directory. The compile writes into it; `publish_program` adds the texts and,
last, `meta.json`, syncs all files, and renames the directory to the entry's path. If a complete
entry is there, the new one is discarded. Reading takes no lock and writes nothing. An entry is
complete when `meta.json` is sealed and names this program, and every file in its list exists with
its size; only `verify` compares contents. Any bytes are read as an `Entry` or raise
`CorruptFileError`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.disk import make_cache_error, wrap_oserror
from tilusbuild.cache.includes import make_directories
from tilusbuild.cache.tree import PrivateDirectory, Tree
from tilusbuild.runtime.regular import read_bytes, read_text, try_read_text
from tilusbuild.runtime.sealed import CorruptFileError, seal_json, unseal_json
from tilusbuild.state.files import sha256_file, sha256_text
from tilusbuild.status import RECORDED, Status

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1


class Entry(Struct, frozen=True):
    """A complete entry of a program."""

    hash: str
    path: str
    status: Status
    """One of `RECORDED`."""
    meta: Mapping[str, Any]
    """The values of meta.json, without its seal."""

    @property
    def reason(self) -> str:
        """Why the program was not built, in one line; "" for one that was built."""
        return str(self.meta.get("reason", ""))

    @property
    def size(self) -> int:
        """Bytes of the files that meta.json lists."""
        return sum(size for _, size, _ in list_meta_files(self.meta))


def _make_entry(path: str, program: str, meta: dict[str, Any]) -> Entry:
    """Return the entry at `path` with this meta.json. Raises `CorruptFileError` for a listed file
    that is missing or has another size."""
    for name, size, _ in list_meta_files(meta):
        problem = find_size_problem(os.path.join(path, name), size)
        if problem:
            raise CorruptFileError(f"{name} {problem}")
    return Entry(program, path, Status(meta["status"]), meta)


def lookup_entry(tree: Tree, program: str) -> Entry | None:
    """Return the entry of a program; None if it is missing or incomplete. Takes no lock."""
    path = tree.program_path(program)
    try:
        return _make_entry(path, program, _read_meta(path, program))
    # `CorruptFileError` is a ValueError, and so is the error for a NUL in a path.
    except (FileNotFoundError, ValueError):
        return None


def read_compiler_log(tree: Tree, program: str) -> str:
    """Return the compilers' output of a program; "" if it has none."""
    return try_read_text(os.path.join(tree.program_path(program), layout.LOG), "replace") or ""


def read_dump(path: str, part: str) -> str:
    """Return the IR that `--dump-ir` kept of the program at `path`; "" if it kept none. `part` is
    the ending of its files: "ptx", "sass", …

    Several files are joined, each after a line `// NAME`. Raises `OSError`.
    """
    import glob  # for people only

    paths = sorted(glob.glob(f"{glob.escape(path)}/module/ir/*.{part}"))
    if len(paths) == 1:
        return read_text(paths[0], "replace")
    return "".join(f"// {os.path.basename(f)}\n{read_text(f, 'replace')}" for f in paths)


def read_meta(path: str, program: str) -> dict[str, Any]:
    """Return the checked values of meta.json. Raises `CorruptFileError`, and `FileNotFoundError` if
    the entry's directory does not exist."""
    try:
        return _read_meta(path, program)
    except FileNotFoundError:
        # Two cases for `verify`: an entry that is damaged, and one that was removed meanwhile.
        if not os.path.isdir(path):
            raise
        raise CorruptFileError(f"there is no {layout.META}") from None


def _read_meta(path: str, program: str) -> dict[str, Any]:
    """Return the same as `read_meta`. Raises `FileNotFoundError` also for a missing meta.json."""
    try:
        data = read_bytes(os.path.join(path, layout.META))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptFileError(f"{layout.META} cannot be read: {error.strerror}") from None
    return parse_meta(data, program)


def parse_meta(data: bytes, program: str) -> dict[str, Any]:
    """Return the values of a meta.json without its seal. Raises `CorruptFileError` for one that is
    damaged, malformed, or of another program."""
    try:
        meta = unseal_json(data)
    except CorruptFileError as error:
        raise CorruptFileError(f"{layout.META} is damaged: {error}") from None
    problem = find_meta_problem(meta, program)
    if problem:
        raise CorruptFileError(f"{layout.META}: {problem}")
    return meta


class Product(NamedTuple):
    """The file that a compile makes; `size` and `sha256` are None for a failed program."""

    name: str
    size: int | None
    sha256: str | None


def get_product(meta: Mapping[str, Any]) -> Product:
    """Return a program's product. meta.json names one only if it is not `module/lib.so`."""
    name = str(meta.get("product", layout.LIBRARY))
    facts = meta.get("files", {}).get(name, {})
    return Product(name, facts.get("size"), facts.get("sha256"))


def list_meta_files(meta: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yield (name, size, sha256) of each file that a checked meta.json lists."""
    for name, facts in meta["files"].items():
        yield name, facts["size"], facts["sha256"]


def find_size_problem(path: str, size: int) -> str | None:
    """Return why the file at `path` is not one of this size in bytes; None if it is."""
    try:
        file_status = os.lstat(path)  # a link is not followed: its target is not of the entry
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(file_status.st_mode):
        return "is not a regular file"
    if file_status.st_size != size:
        return f"has {file_status.st_size} bytes instead of {size}"
    return None


def find_meta_problem(meta: Mapping[str, Any], program: str) -> str | None:
    """Return why a meta.json whose seal is right cannot be one of this program; None if it can."""
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
    for name in needed:
        if name not in files:
            return f"it does not list {name}"
    return None


def _is_file_listing(name: str, facts: object) -> bool:
    """Return whether a meta.json may have this item in its list of files."""
    if not isinstance(facts, dict) or not layout.is_inside(name):
        return False
    size, digest = facts.get("size"), facts.get("sha256")
    # Not `isinstance`: True is an int, too.
    return type(size) is int and size >= 0 and isinstance(digest, str) and layout.is_hash(digest)


class Stage:
    """A private directory for one entry. Publishing it removes it, also when that fails."""

    def __init__(self, tree: Tree) -> None:
        """Raises `CacheError`, `InputError`."""
        private = tree.make_private()
        self._tree = tree
        self._private: PrivateDirectory | None = private
        # A level below the private directory: temporary files beside it are not published.
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
        """Publish the entry of a program, durably; return it, or the entry that exists already.

        `meta` has the "status" and other facts; "schema", "program" and "files" are added. Raises
        `CacheError`, and `ValueError` for texts with another hash, for a built program without its
        product, and for anything that is neither a file nor a directory.
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
            batch = EntryBatch(self._tree)
            batch.add_directory(program, self.path)
            batch.commit_programs()
            return read_published_entry(self._tree, program)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the stage's directory, unless that was done before."""
        private, self._private = self._private, None
        if private is not None:
            private.discard()

    def _write_entry(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any]
    ) -> None:
        """Write the two texts and, last, meta.json with the list of all files beside the compile's.
        Raises as `publish_program`."""
        disk = self._tree.disk
        for name, text in ((layout.PROGRAM_TXT, program_txt), (layout.OPTIONS_TXT, options_txt)):
            disk.write_file(os.path.join(self.path, name), text.encode("utf-8", "surrogateescape"))
        files: dict[str, dict[str, Any]] = {}
        for name in layout.list_files_below(self.path):
            path = os.path.join(self.path, name)
            file_status = os.lstat(path)
            if not stat.S_ISREG(file_status.st_mode):
                raise ValueError(f"{name} is not a regular file")
            mode = _choose_mode(name, is_executable=bool(file_status.st_mode & stat.S_IXUSR))
            if stat.S_IMODE(file_status.st_mode) != mode:
                disk.set_mode(path, mode)
            files[name] = {"size": file_status.st_size, "sha256": sha256_file(path)}
        if meta["status"] == Status.BUILT and get_product(meta).name not in files:
            raise ValueError(f"a built program needs a {get_product(meta).name}")
        # Last: a directory without meta.json is not an entry, so no half-written one counts.
        full_meta = {**meta, "schema": SCHEMA, "program": program, "files": files}
        disk.write_file(os.path.join(self.path, layout.META), seal_json(full_meta))


def _choose_mode(name: str, *, is_executable: bool) -> int:
    """Return the permissions of an entry's file."""
    # Not those of compilers and umasks: equal programs are equal trees.
    return 0o755 if is_executable or name.endswith(".sh") else 0o644


def read_published_entry(tree: Tree, program: str) -> Entry:
    """Return the entry that was just published. Raises `CacheError`."""
    final = tree.program_path(program)
    try:
        return _make_entry(final, program, read_meta(final, program))
    except (FileNotFoundError, CorruptFileError) as error:
        message = f"damaged right after it was written: {error}"
        raise make_cache_error(final, OSError(errno.EIO, message)) from None


class EntryBatch:
    """Entries that are published together; the caller has checked their contents.

    All of a batch are written before the disk is synced once, and renamed after that: each entry is
    complete or missing. Use it as a context manager: its end removes what was written and not
    committed. A batch is committed once. All methods raise `CacheError`.
    """

    def __init__(self, cache: Tree) -> None:
        self._tree = cache
        self._private: PrivateDirectory | None = None
        self._directory_of: dict[str, str] = {}
        """The private directory of each program that is not committed."""
        self._files: list[str] = []
        self._directories: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._private is not None:
            self._private.discard()

    def add_program(self, program: str, files: Mapping[str, bytes | str], meta: bytes) -> None:
        """Write a program's files and its meta.json, for `commit_programs` to publish. `files` has
        each file's content, or the path of a file on the cache's disk, which is moved."""
        if self._private is None:
            self._private = self._tree.make_private()
        directory = os.path.join(self._private.path, program)
        disk = self._tree.disk
        with wrap_oserror(self._tree.program_path(program)):
            made_directories = {""}
            disk.make_directory(directory)
            for name, data in (*files.items(), (layout.META, meta)):
                make_directories(self._tree, directory, os.path.dirname(name), made_directories)
                # Archives have no modes: a library gets the mode that linkers give it.
                mode = _choose_mode(name, is_executable=name == layout.LIBRARY)
                path = os.path.join(directory, name)
                if isinstance(data, bytes):
                    disk.write_file(path, data, mode)
                else:
                    disk.rename(data, path)
                    disk.set_mode(path, mode)
        self.add_directory(program, directory)

    def add_directory(self, program: str, directory: str) -> None:
        """Add the program whose files are in a directory on the cache's disk. `commit_programs`
        moves the directory."""
        with wrap_oserror(self._tree.program_path(program)):
            paths = [os.path.join(directory, name) for name in layout.list_files_below(directory)]
        self._files += paths
        # The deepest first: a name is durable only when the directory above is synced after it.
        file_directories = {os.path.dirname(path) for path in paths}
        self._directories += sorted(file_directories, reverse=True)
        self._directory_of[program] = directory

    def commit_programs(self) -> None:
        """Publish the added programs, durably. A complete entry that exists already stays."""
        tree = self._tree
        if not self._directory_of:
            return
        with wrap_oserror(tree.path(layout.PROGRAMS)):
            # All files are synced before the first rename: a power failure leaves no half entry.
            tree.disk.sync_files(self._files)
            for directory in self._directories:
                tree.disk.sync_directory(directory)
            # `programs` may have been removed by hand since the cache was opened.
            tree.disk.make_directory(tree.path(layout.PROGRAMS))
            for program, source in self._directory_of.items():
                self._move_into_place(program, source)
            tree.disk.sync_directory(tree.path(layout.PROGRAMS))

    def _move_into_place(self, program: str, source: str) -> None:
        """Rename the directory `source` to the program's entry, unless a complete one exists."""
        final = self._tree.program_path(program)

        def is_complete() -> bool:
            return lookup_entry(self._tree, program) is not None

        # A complete entry stays, as readers may use it; a damaged one is replaced.
        self._tree.move_into_place(source, final, durable=False, is_kept=is_complete)
