"""Script directories: an instance, in a form that people browse.

`script.txt` lists the programs in plan order, and its sha256 names the directory. The other files
follow from it and from the programs: links to those that are built, links to those that failed, the
table of schedules. They are updated while programs are compiled, each by one rename; a directory
that is up to date is not touched. Measurements follow from nothing: a new directory may begin with
some, and no build removes any.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.includes import make_directories
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.tree import Tree
from tilusbuild.runtime.regular import read_bytes, try_read_bytes
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.runtime.semantics import Value
from tilusbuild.state.directories import is_real_directory
from tilusbuild.state.files import sha256_text
from tilusbuild.status import RECORDED, Status
from tilusbuild.table import Cell, format_table

# A line of `[programs]`: "12 9f86d081…", the program's number and its hash.
_PROGRAM = re.compile(r"(0|[1-9]\d{0,99}) ([0-9a-f]{64})", re.ASCII)


class ScriptRecord(Struct, frozen=True):
    """The content of a script's directory.

    `columns` and `rows` are the table of schedules. `load` reads `script_json`
    (`tilusbuild.runtime.script`). Only a new directory gets `initial_files()`; tuning changes them.
    """

    directory: str
    script_txt: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    script_json: bytes | None = None
    initial_files: Callable[[], Mapping[str, bytes]] = dict

    @property
    def hash(self) -> str:
        return sha256_text(self.script_txt)


class ScriptText(Struct, frozen=True):
    """A parsed script.txt: the lines of its head ("script", "target", …), the lines of its
    constants, and its programs by their numbers."""

    head: Mapping[str, str]
    numbered: Mapping[int, str]
    params: tuple[str, ...] = ()

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs in order."""
        return tuple(self.numbered.values())

    @property
    def constants(self) -> dict[str, Value]:
        """The values of the constants by name. Raises `CorruptFileError`."""
        pairs = (line.partition(" = ") for line in self.params)
        try:
            return {name: json.loads(text) for name, _, text in pairs}
        except ValueError:
            raise CorruptFileError(f"{layout.SCRIPT_TXT} has a malformed constant") from None


def parse_script_txt(text: str) -> ScriptText:
    """Parse the text of a script.txt. Raises `CorruptFileError`.

    It begins with lines such as `script = "gemm"`. The section `[params]` has lines such as
    `dtype = "f16"`, and `[programs]` a line with number and hash for each program.
    """
    head: dict[str, str] = {}
    section = ""
    programs: dict[int, str] = {}
    params: list[str] = []
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            section = line
        elif not section and " = " in line:
            name, _, value = line.partition(" = ")
            head[name] = value.strip('"')
        elif section == "[programs]" and line:
            match = _PROGRAM.fullmatch(line)
            last_number = next(reversed(programs), -1)
            # The numbers rise: two lines of one number would mean two programs.
            if match is None or int(match[1]) <= last_number:
                raise CorruptFileError(f"{layout.SCRIPT_TXT} has a malformed list of programs")
            programs[int(match[1])] = match[2]
        elif section == "[params]" and line:
            params.append(line)
    return ScriptText(head, programs, tuple(params))


def read_script_txt(path: str, digest: str) -> ScriptText:
    """Return the parsed script.txt in `path`. Raises `CorruptFileError` for one that is damaged or
    missing, and `FileNotFoundError` if there is no directory."""
    try:
        text = read_bytes(os.path.join(path, layout.SCRIPT_TXT)).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        if not os.path.isdir(path):
            raise
        raise CorruptFileError(f"there is no {layout.SCRIPT_TXT}") from None
    except OSError as error:
        raise CorruptFileError(f"{layout.SCRIPT_TXT} cannot be read: {error.strerror}") from None
    if sha256_text(text) != digest:
        raise CorruptFileError(f"the directory is not named by the hash of its {layout.SCRIPT_TXT}")
    return parse_script_txt(text)


def publish_script(
    tree: Tree, record: ScriptRecord, statuses: Mapping[str, str] | None = None
) -> str:
    """Create or update the script's directory; return its path.

    `statuses` has the status of each published program by hash; None looks them up. Raises
    `CacheError`, and `ValueError` for an invalid directory name.
    """
    if not layout.is_script_directory(record.directory):
        raise ValueError(f"no script's directory can be called {record.directory!r}")
    digest = record.hash
    links = collect_links(tree, parse_script_txt(record.script_txt).numbered, statuses)
    texts = {
        layout.SCRIPT_TXT: record.script_txt,
        layout.SCHEDULE_TXT: format_table(record.columns, record.rows),
    }
    files = {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}
    if record.script_json is not None:
        files[layout.SCRIPT_JSON] = record.script_json
    write_script(tree, record.directory, digest, files, links, record.initial_files)
    return tree.script_path(record.directory, digest)


def collect_links(
    tree: Tree, programs: Mapping[int, str], statuses: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the hash of each published program by the name of its link in a script's directory:
    `programs/NUMBER` if it was built, else `failed/NUMBER`.

    `statuses` is as for `publish_script`.
    """
    # A build knows the statuses; a merge and an installation ask the entries.
    if statuses is None:
        entries = (lookup_entry(tree, digest) for digest in programs.values())
        statuses = {entry.hash: entry.status for entry in entries if entry is not None}
    links: dict[str, str] = {}
    for number, program in programs.items():
        status = statuses.get(program)
        if status in RECORDED:
            part = layout.PROGRAMS if status == Status.BUILT else layout.FAILED
            links[f"{part}/{number}"] = program
    return links


def write_script(
    tree: Tree,
    directory: str,
    digest: str,
    files: Mapping[str, bytes],
    links: Mapping[str, str],
    initial_files: Callable[[], Mapping[str, bytes]] = dict,
) -> None:
    """Create a script's directory, or update its files and links; a new one also gets
    `initial_files()`. Raises `CacheError`."""
    path = tree.script_path(directory, digest)
    if _is_up_to_date(path, files, links):
        return
    with (
        tree.hold_locks(LockName("use", shared=True), LockName("script", digest)),
        wrap_oserror(path),
    ):
        # An existing directory is updated in place, as it holds measurements.
        if not _update_directory(tree, path, digest, files, links):
            _make_directory(tree, path, digest, {**initial_files(), **files}, links)


def _make_directory(
    tree: Tree, path: str, digest: str, files: Mapping[str, bytes], links: Mapping[str, str]
) -> None:
    """Write a new script's directory in private, sync it, and move it to `path`. Raises
    `OSError`."""
    # Readers lock this file when they load the script. It is made now, since a process that may
    # only read the cache cannot make it.
    tree.locks.make_lock_file(LockName("read", digest))
    tree.disk.make_directory(os.path.dirname(path))
    # A collection waits for the caller anyway, who holds `use`.
    private = tree.make_private(is_waited_for=False)
    try:
        made_directories = {""}
        for part in (layout.PROGRAMS, layout.FAILED, *map(os.path.dirname, files)):
            make_directories(tree, private.path, part, made_directories)
        for name, program in links.items():
            tree.disk.make_link(
                layout.format_program_link(program), os.path.join(private.path, name)
            )
        for name, data in files.items():
            tree.disk.write_file(os.path.join(private.path, name), data)
        tree.disk.sync_files([os.path.join(private.path, name) for name in files])
        for part in sorted(made_directories, reverse=True):
            tree.disk.sync_directory(os.path.join(private.path, part))
        tree.move_into_place(private.path, path)
    finally:
        private.discard()


def _update_directory(
    tree: Tree, path: str, digest: str, files: Mapping[str, bytes], links: Mapping[str, str]
) -> bool:
    """Update the files and links of an existing directory and return True. If `path` is not a real
    directory, remove it, if it exists, and return False.

    Each name is replaced by one rename. Links to programs that are not in `links` are removed;
    files that are not in `files` stay. A damaged directory is repaired, not replaced: it holds
    measurements.
    """
    if not is_real_directory(path):
        tree.remove_entry(path)
        return False
    tree.locks.make_lock_file(LockName("read", digest))
    # Old links first: a number may move from `failed` to `programs`, and has one link at a time.
    for part in (layout.PROGRAMS, layout.FAILED):
        if not is_real_directory(os.path.join(path, part)):
            tree.remove_entry(os.path.join(path, part))
        tree.disk.make_directory(os.path.join(path, part))
        for name in os.listdir(os.path.join(path, part)):
            if f"{part}/{name}" not in links:
                tree.remove_entry(os.path.join(path, part, name))
    private = tree.make_private(is_waited_for=False)
    try:
        new_link = os.path.join(private.path, "link")
        for name, program in links.items():
            if read_link(os.path.join(path, name)) != layout.format_program_link(program):
                tree.disk.make_link(layout.format_program_link(program), new_link)
                tree.move_into_place(new_link, os.path.join(path, name), durable=False)
    finally:
        private.discard()
    for part in (layout.PROGRAMS, layout.FAILED):
        tree.disk.sync_directory(os.path.join(path, part))
    directories = {""}
    # After the links: script.json says which programs are there.
    for name, data in files.items():
        if try_read_bytes(os.path.join(path, name)) != data:
            make_directories(tree, path, os.path.dirname(name), directories)
            tree.put_file(os.path.join(path, name), data)
    return True


def _is_up_to_date(path: str, files: Mapping[str, bytes], links: Mapping[str, str]) -> bool:
    """Return whether a script's directory has these contents, these links and no other link."""
    # Without a lock: a directory that another process updates meanwhile is just looked at again.
    if any(try_read_bytes(os.path.join(path, name)) != data for name, data in files.items()):
        return False
    try:
        existing = {
            f"{part}/{name}"
            for part in (layout.PROGRAMS, layout.FAILED)
            for name in os.listdir(os.path.join(path, part))
        }
    except OSError:
        return False
    return existing == set(links) and all(
        read_link(os.path.join(path, name)) == layout.format_program_link(program)
        for name, program in links.items()
    )


def read_link(path: str) -> str | None:
    """Return the target of a link; None for anything else."""
    try:
        return os.readlink(path)
    except OSError:
        return None
