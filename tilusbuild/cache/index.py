"""The index: `index.json` with the scripts of each project's last build; and lists for people.

Garbage collection keeps the entries that the index names. The index is changed under a lock, by one
rename, and only if its content changes. A missing or damaged index never counts as empty, since
entries would be removed for it: a new one lists every script that no project lists, as a project of
its own. Listing writes nothing.

A build replaces what the same directory recorded. If another directory had its path then, as in
another container, the other's entry gets a key of its own.

A name on the command line means a script or program of a project's last build; an older directory
only if there is none of that name. An ambiguous name is an error that lists what to type instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.entries import Entry, lookup_entry
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.scripts import ScriptText, read_script_txt
from tilusbuild.cache.tree import Tree
from tilusbuild.errors import InputError, did_you_mean, input_error
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import (
    NamePattern,
    format_hint_lines,
    format_instance_name,
    format_program_name,
    parse_name,
    quote_name,
)
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.sealed import CorruptFileError, seal_json, unseal_json
from tilusbuild.runtime.search_roots import (
    JIT_ROOT_PREFIX,
    LOST_ROOT,
    SearchRoot,
    get_working_directory,
    select_projects,
)
from tilusbuild.runtime.semantics import Value
from tilusbuild.status import KNOWN_IN_CACHE, RECORDED, Status

SCHEMA = 1
HOST = os.uname().nodename
"""The name of this machine, by which `gc` knows whose paths a project's are."""


class BuiltProject(Struct, frozen=True, omit_defaults=True):
    """A project's name, (directory, hash) of each script of its last build, the name of the machine
    that recorded it, and the project's origin (`runtime.search_roots`); none for scripts that were
    not built from files here."""

    name: str
    scripts: tuple[tuple[str, str], ...]
    host: str = ""
    origin: Mapping[str, str] = {}


def read_index(tree: Tree) -> dict[str, BuiltProject]:
    """Return the projects by the paths of their manifests; none without an index. Raises
    `CorruptFileError`."""
    try:
        data = read_bytes(tree.path(layout.INDEX))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CorruptFileError(f"{layout.INDEX} cannot be read: {error.strerror}") from None
    try:
        return _parse_projects(unseal_json(data))
    except CorruptFileError as error:
        raise CorruptFileError(f"{layout.INDEX} is damaged: {error}") from None


def find_projects_here(tree: Tree) -> dict[str, BuiltProject]:
    """Return the project of the index that is around the working directory; elsewhere, every one.
    Raises `CorruptFileError`."""
    projects = read_index(tree)
    origins = {key: project.origin for key, project in projects.items() if os.path.isabs(key)}
    root = SearchRoot(tree.root, "cache")
    is_own, keys = select_projects(root, origins, get_working_directory())
    return {key: projects[key] for key in keys} if is_own else projects


def record_build(
    tree: Tree,
    manifest: str,
    name: str,
    scripts: Sequence[tuple[str, str]],
    *,
    replace: bool = True,
    keeps_larger: bool = False,
    host: str = HOST,
    origin: Mapping[str, str] = {},
    before_write: Callable[[], None] = lambda: None,
) -> None:
    """Record the scripts of a project's build in the index; do nothing if they are recorded.

    `before_write` is called under the lock that keeps `gc` away, so that it can make missing
    scripts again. Without `replace`, for a build of a part, the scripts are added; each replaces an
    earlier one of the same constants and target. With `keeps_larger`, for a build of a lower level,
    one with more programs stays if it has the same inputs. A missing or damaged index is made
    again. `host` is another machine's name, whose build was copied. Raises `CacheError`.
    """
    if manifest.startswith(JIT_ROOT_PREFIX):
        for script in scripts:
            # The time of the script's last use, for `gc`. A read-only cache has none.
            with suppress(OSError):
                os.utime(tree.script_path(*script), follow_symlinks=False)
    built = BuiltProject(name, tuple(sorted(set(scripts))), host, origin)
    projects = _read_or_begin_index(tree)
    merged = _merge_build(tree, projects, manifest, built, replace, keeps_larger)
    # Compared without the lock: most builds change nothing, and must not wait for a collection.
    if merged == projects and os.path.exists(tree.path(layout.INDEX)):
        return
    with (
        tree.hold_locks(LockName("use", shared=True), LockName("index")),
        wrap_oserror(tree.path(layout.INDEX)),
    ):
        before_write()
        # Read again, under the lock: another build may have changed it since.
        merged = _merge_build(
            tree, _read_or_begin_index(tree), manifest, built, replace, keeps_larger
        )
        tree.put_file(tree.path(layout.INDEX), _seal_index(merged))


def forget_projects(tree: Tree, manifests: Sequence[str]) -> None:
    """Remove projects from the index, so that `gc` may remove the entries that only they use.

    Raises `CorruptFileError` and `CacheError`.
    """
    with (
        tree.hold_locks(LockName("use", shared=True), LockName("index")),
        wrap_oserror(tree.path(layout.INDEX)),
    ):
        drop_from_index(tree, manifests)


def drop_from_index(
    tree: Tree, manifests: Container[str], script_names: Container[str] = ()
) -> None:
    """Remove projects, and scripts by their names in the cache, from the index. The caller keeps
    other writers away. Raises `CorruptFileError` and `CacheError`."""
    # A damaged index is an error: one that is made again would list every script, also those of the
    # projects to forget.
    projects = read_index(tree)
    remaining = {}
    for manifest, project in projects.items():
        scripts = tuple(
            (directory, digest)
            for directory, digest in project.scripts
            if f"{layout.SCRIPTS}/{directory}/{digest}" not in script_names
        )
        # A project that never had a script stays, as one whose last build made none.
        if manifest not in manifests and (scripts or not project.scripts):
            remaining[manifest] = structs.replace(project, scripts=scripts)
    if remaining != projects:
        tree.put_file(tree.path(layout.INDEX), _seal_index(remaining))


def _read_or_begin_index(tree: Tree) -> dict[str, BuiltProject]:
    """Return the projects of the index; without a readable one, a project with every script."""
    try:
        if os.path.lexists(tree.path(layout.INDEX)):
            return read_index(tree)
    except CorruptFileError:
        pass
    # Scripts without programs are left out: `gc` raises an error for such a root.
    scripts = tuple(
        (name, digest) for name, digest, text in _read_script_texts(tree) if text.programs
    )
    return {LOST_ROOT: BuiltProject(LOST_ROOT, scripts)}


def _drop_scripts_listed_twice(projects: Mapping[str, BuiltProject]) -> dict[str, BuiltProject]:
    """Return the projects. The one that stands for a lost index keeps only scripts that no other
    project lists, and is left out if it keeps none."""
    remaining = {path: project for path, project in projects.items() if path != LOST_ROOT}
    listed_scripts = {script for project in remaining.values() for script in project.scripts}
    if (lost := projects.get(LOST_ROOT)) is not None:
        still_lost = tuple(script for script in lost.scripts if script not in listed_scripts)
        if still_lost:
            remaining[LOST_ROOT] = BuiltProject(lost.name, still_lost, lost.host)
    return remaining


def _merge_build(
    tree: Tree,
    projects: Mapping[str, BuiltProject],
    manifest: str,
    built: BuiltProject,
    replace: bool,
    keeps_larger: bool,
) -> dict[str, BuiltProject]:
    """Return the projects with the scripts of a build added to the project of `manifest`, or, with
    `replace`, in the place of all that it had."""
    projects = dict(projects)
    earlier = projects.get(manifest)
    inode, earlier_inode = _get_inode(built), _get_inode(earlier)
    if earlier is not None and inode and earlier_inode not in ("", inode):
        projects[f"{manifest}#{earlier_inode}"] = earlier
        earlier = projects.pop(f"{manifest}#{inode}", None)
    if earlier is not None and not replace:
        # After an edit, an earlier script with more programs may have some that are gone.
        keeps_larger = keeps_larger and built.origin.items() <= earlier.origin.items()
        scripts = tuple(sorted(_merge_scripts(tree, earlier.scripts, built.scripts, keeps_larger)))
        built = structs.replace(built, scripts=scripts, origin={**earlier.origin, **built.origin})
    return _drop_scripts_listed_twice({**projects, manifest: built})


def _get_inode(project: BuiltProject | None) -> str:
    """Return the inode of the directory that a project was built in; "" if it is not known."""
    return project.origin.get("", "").partition(" ")[0] if project is not None else ""


def _merge_scripts(
    tree: Tree,
    earlier_scripts: Sequence[tuple[str, str]],
    scripts: Sequence[tuple[str, str]],
    keeps_larger: bool,
) -> set[tuple[str, str]]:
    """Return the scripts of a project after a build of some: `earlier_scripts`, and `scripts`.

    Of two scripts of one instance only one stays: the new one, or with `keeps_larger` the earlier
    one if it has all programs of the new one. Raises as `read_script_txt`.
    """
    merged = set(scripts)
    script_of_instance = {_identify_instance(tree, script): script for script in scripts}
    for earlier in earlier_scripts:
        instance = _identify_instance(tree, earlier)
        # The instance of a script that cannot be read is unknown: the script stays.
        new = None if instance is None else script_of_instance.get(instance)
        if new is None:
            merged.add(earlier)
        elif keeps_larger and _read_programs(tree, new) <= _read_programs(tree, earlier):
            merged.discard(new)
            merged.add(earlier)
    return merged


def _read_programs(tree: Tree, script: tuple[str, str]) -> set[str]:
    """Return the hashes of a script's programs. Raises as `read_script_txt`."""
    directory, digest = script
    return set(read_script_txt(tree.script_path(directory, digest), digest).programs)


def _identify_instance(tree: Tree, script: tuple[str, str]) -> tuple[str, ...] | None:
    """Return the directory, target and constants of a script, which identify its instance; None if
    the script is missing or damaged."""
    directory, digest = script
    try:
        text = read_script_txt(tree.script_path(directory, digest), digest)
    except (FileNotFoundError, CorruptFileError):
        return None
    return (directory, text.head.get("target", ""), *text.params)


def _seal_index(projects: Mapping[str, BuiltProject]) -> bytes:
    return seal_json({"schema": SCHEMA, "projects": msgspec.to_builtins(projects)})


def _parse_projects(value: Mapping[str, Any]) -> dict[str, BuiltProject]:
    """Return the projects in the unsealed content of an index. Raises `CorruptFileError`."""
    if value.get("schema") != SCHEMA:
        raise CorruptFileError(f"a schema that this version does not read: {value.get('schema')!r}")
    try:
        projects = msgspec.convert(value.get("projects"), dict[str, BuiltProject])
    except (msgspec.ValidationError, UnicodeError) as error:
        raise CorruptFileError(f"it is malformed: {error}") from None
    # Names become paths that `gc` removes: none may lead out of the tree.
    for path, project in projects.items():
        for directory, digest in project.scripts:
            if not (layout.is_script_directory(directory) and layout.is_hash(digest)):
                raise CorruptFileError(f"its entry for {path!r} is malformed")
    return projects


class ScriptListing(Struct, frozen=True):
    """A script's directory, `scripts/DIRECTORY/HASH`, and the state of its programs."""

    directory: str
    hash: str
    head: Mapping[str, str]
    """The first lines of script.txt: "script", "target", "arch"."""
    numbered: Mapping[int, str]
    """Hashes of its programs by their numbers."""
    statuses: Mapping[str, int]
    """The number of programs by status: built, failed, pruned, missing."""
    size: int
    """Bytes of the programs; a program with two numbers counts once."""
    params: Mapping[str, Value] = field(default_factory=dict)
    """The values of the script's constants, by name."""

    @property
    def programs(self) -> tuple[str, ...]:
        """The hashes of its programs, in the order of their numbers."""
        return tuple(self.numbered.values())

    @property
    def script(self) -> str:
        """The script's name, as the manifest has it."""
        return self.head.get("script", self.directory)

    @property
    def target(self) -> str:
        return self.head.get("target", "")

    @property
    def label(self) -> str:
        """The name of the instance on the command line."""
        return format_instance_name(self.script, self.params, self.target)

    @property
    def key(self) -> tuple[str, str]:
        """The script's directory and hash, by which a project keeps it."""
        return self.directory, self.hash

    def format_label(self, program: int) -> str:
        """Return the name of the program with this number on the command line."""
        return format_program_name(self.script, self.params, program, self.target)


class CacheStats(Struct, frozen=True):
    """Counts and sizes of a cache."""

    root: str
    statuses: Mapping[str, int]
    """The number of programs by status: built, failed, pruned, broken."""
    sizes: Mapping[str, int]
    """Bytes below each directory of the cache."""
    scripts: tuple[ScriptListing, ...]

    @property
    def size(self) -> int:
        """Bytes of everything."""
        return sum(self.sizes.values())


def list_programs(tree: Tree) -> Iterator[str]:
    """Yield the hashes of all directories of programs, sorted; none if the cache does not exist.
    Raises `InputError` for a directory that is not a cache."""
    if tree.exists():
        yield from filter(layout.is_hash, tree.list_names(layout.PROGRAMS))


def list_scripts(tree: Tree) -> list[ScriptListing]:
    """Return every readable script directory, sorted; none if the cache does not exist. Raises as
    `list_programs`."""
    return list(_make_listings(tree, {})) if tree.exists() else []


def collect_stats(tree: Tree) -> CacheStats:
    """Return counts and sizes of the cache. Raises as `list_programs`."""
    entries = {program: lookup_entry(tree, program) for program in list_programs(tree)}
    # All statuses are shown, also those that no program has.
    counts = dict.fromkeys((*RECORDED, "broken"), 0)
    for entry in entries.values():
        counts[entry.status if entry else "broken"] += 1
    sizes = {name: layout.measure_files(tree.path(name))[0] for name in layout.DIRECTORIES}
    return CacheStats(tree.root, counts, sizes, tuple(_make_listings(tree, entries)))


def _read_script_texts(tree: Tree) -> Iterator[tuple[str, str, ScriptText]]:
    """Yield (directory, hash, script.txt) of every readable script directory, sorted."""
    for directory in tree.list_names(layout.SCRIPTS):
        for digest in filter(layout.is_hash, tree.list_names(layout.SCRIPTS, directory)):
            with suppress(FileNotFoundError, CorruptFileError):
                text = read_script_txt(tree.script_path(directory, digest), digest)
                yield directory, digest, text


def _make_listings(tree: Tree, entry_cache: dict[str, Entry | None]) -> Iterator[ScriptListing]:
    """Yield every readable script directory, sorted. `entry_cache` has entries by program; entries
    that are looked up here are added to it."""
    for directory, digest, script_txt in _read_script_texts(tree):
        try:
            params = script_txt.constants
        except CorruptFileError:
            continue  # `verify` reports it
        counts: dict[str, int] = dict.fromkeys(KNOWN_IN_CACHE, 0)
        size = 0
        for program in dict.fromkeys(script_txt.programs):
            # Scripts of two levels share programs: each is looked up once.
            if program not in entry_cache:
                entry_cache[program] = lookup_entry(tree, program)
            entry = entry_cache[program]
            counts[entry.status if entry else Status.MISSING] += 1
            size += entry.size if entry else 0
        yield ScriptListing(
            directory=directory,
            hash=digest,
            head=script_txt.head,
            numbered=script_txt.numbered,
            statuses=counts,
            size=size,
            params=params,
        )


_DIGITS = re.compile("[0-9a-f]{1,64}")


def find_instances(cache: Tree, word: str, target: str | None = None) -> list[ScriptListing]:
    """Return the instances that a word of the command line names, at least one. The name of a
    program means the instances that have it. Raises `InputError` if there is none."""
    scripts = list_scripts(cache)
    name = parse_word(word)
    listings = [listing for listing in scripts if name.matches_script(listing.script)]
    if not listings:
        # The name of a script with several kernels means all of its scripts NAME.KERNEL.
        prefix = f"{name.script}."
        listings = [listing for listing in scripts if listing.script.startswith(prefix)]
    if not listings:
        hint = did_you_mean(name.script, {listing.script for listing in scripts})
        raise input_error(f'no script "{name.script}" in {cache.root}', hint=hint)
    instances = [
        listing
        for listing in listings
        if _matches_name(name, listing, target) and find_numbers(cache, word, listing)
    ]
    if not instances:
        ranges = (
            f"{quote_name(item.label)}  # programs {min(item.numbered)} to {max(item.numbered)}"
            for item in select_current(cache, listings)
        )
        raise input_error(
            f'no "{name}" in {cache.root}',
            hint="there are:\n" + format_hint_lines(ranges),
        )
    return select_current(cache, instances)


def find_numbers(cache: Tree, word: str, script: ScriptListing) -> list[int]:
    """Return the numbers of those programs of `script` that a word of the command line names,
    perhaps none. Raises `InputError` for a malformed word."""
    name = parse_word(word)
    name = name.split_schedule({key for key, _ in name.constants if key}, script.params)
    get_schedule: Callable[[int], Mapping[str, Value]] = lambda number: {}  # noqa: E731
    # Only a name with values of the schedule needs script.json.
    if name.schedule:
        from tilusbuild.runtime.script import read_script

        with suppress(LoadError):
            path = cache.script_path(script.directory, script.hash)
            get_schedule = read_script(path).get_schedule
    return [
        number for number in script.numbered if name.matches_program(number, get_schedule(number))
    ]


def find_program(cache: Tree, word: str, target: str | None = None) -> str:
    """Return the hash of the program that a word names, also by the first digits of its hash.
    Raises `InputError` for none or several."""
    try:
        scripts = find_instances(cache, word, target)
    except InputError:
        # Only now is the word read as digits: "feed" may be the name of a script.
        if not _DIGITS.fullmatch(word):
            raise
        matches = [program for program in list_programs(cache) if program.startswith(word)]
        if len(matches) == 1:
            return matches[0]
        several = f"{len(matches)} programs start"
        problem = several if matches else "no script has this name; no program starts"
        hint = "name one as SCRIPT/I, or by the first digits of its hash"
        raise input_error(f'{problem} with "{word}"', hint=hint) from None
    label_of_program: dict[str, str] = {}
    for script in scripts:
        for number in find_numbers(cache, word, script):
            label_of_program.setdefault(script.numbered[number], script.format_label(number))
    if len(label_of_program) == 1:
        return next(iter(label_of_program))
    hint = "name one of them:\n" + format_hint_lines(sorted(_list_unique_words(label_of_program)))
    raise input_error(f'"{word}" names {len(label_of_program)} programs', hint=hint)


def select_current(cache: Tree, scripts: list[ScriptListing]) -> list[ScriptListing]:
    """Return the scripts that the index names; all of them if it names none of them."""
    try:
        roots = {pair for project in read_index(cache).values() for pair in project.scripts}
    except CorruptFileError:
        roots = set()
    return [item for item in scripts if item.key in roots] or scripts


def parse_word(word: str) -> NamePattern:
    """Parse a name of scripts or programs from the command line. Raises `InputError`."""
    try:
        return parse_name(word)
    except ValueError as error:
        raise input_error(f'"{word}": {error}') from None


def _matches_name(name: NamePattern, script: ScriptListing, target: str | None) -> bool:
    """Return whether a name means this instance. If the name has no target and `target` is not
    None, `target` must be the instance's target or one of its architectures."""
    # `NAME[a=1]` does not say whether `a` is a constant or a parameter: the script does.
    name = name.split_schedule({key for key, _ in name.constants if key}, script.params)
    # The name of a script with several kernels means each script NAME.KERNEL.
    if not name.matches_script(script.script):
        name = name._replace(script=script.script)
    target_names = (script.target, *script.head.get("arch", "").split("+"))
    has_target = name.target is not None or target is None or target in target_names
    return has_target and name.matches_instance(script.script, script.params, script.target)


def _list_unique_words(label_of_program: dict[str, str]) -> Iterable[str]:
    """Yield a word for each program that names only this one: its name or, if two have the same
    name, the first digits of its hash with the name as a comment."""
    # Two instances may have one name after an edit: one of them is of an earlier build.
    names = list(label_of_program.values())
    for digest, name in label_of_program.items():
        yield quote_name(name) if names.count(name) == 1 else f"{digest[:12]}  # {name}"
