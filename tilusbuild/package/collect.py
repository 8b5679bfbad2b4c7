"""Collect a package's contents from a cache: scripts and files, their digests, host requirements.

The scripts are those that the project would build now: the plan is made again and compared with the
cache, so that a package never holds outdated programs. `list_built_scripts` returns those of the
last build instead, which needs no toolchain.

Every file is read and checked before anything is written: a program against its `meta.json`, a
script against its own hash, headers against their `MANIFEST`. What GPU code a library holds is read
from the library. A `meta.json` is checksummed again when not all of its files are packed, so that
it is true of the package, too. Two caches that hold the same programs give the same contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct, field

from tilusbuild._version import __version__
from tilusbuild.binary.elf import read_needs
from tilusbuild.builder.project import Project
from tilusbuild.cache import layout, scripts
from tilusbuild.cache.entries import list_meta_files, lookup_entry
from tilusbuild.cache.includes import check_include
from tilusbuild.cache.index import read_index
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.measurements import describe_damage
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.sections import PackageSection
from tilusbuild.package.contents import Contents, PackedLibrary, collect_host_needs, read_file
from tilusbuild.package.errors import cannot_pack
from tilusbuild.package.listing import (
    FileEntry,
    FileList,
    PackageTarget,
    ProgramEntry,
    ScriptEntry,
    make_title,
)
from tilusbuild.package.model import (
    Purpose,
    classify_program_file,
    classify_script_file,
    parse_version,
    read_code,
)
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.model import PlanSelection, select_script_targets
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import format_command, to_snake_case
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.sealed import CorruptFileError, seal_json
from tilusbuild.runtime.table_file import explain_refusals
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.state.files import sha256_bytes
from tilusbuild.status import Status

_MEND_HINT = (
    "`tilusbuild cache verify --repair` removes what is corrupt, `tilusbuild build` makes it"
)
_BUILD_HINT = "run `tilusbuild build` first; `tilusbuild explain` says what is out of date, and why"


class PackageOrder(Struct, frozen=True):
    """A package to make: its name and section in the manifest."""

    name: str
    package: PackageSection
    project: str
    version: str
    fitted: bool = False
    """Whether to pack of each script only what dispatch can choose, by fitted costs."""

    @property
    def title(self) -> str:
        """The name that its files begin with."""
        return make_title(self.project, self.name)

    @property
    def purposes(self) -> frozenset[Purpose]:
        """The purposes of the files that are packed."""
        purposes: set[Purpose] = {"runtime"}
        for purpose in self.package.include:
            purposes |= {"sources", "logs"} if purpose == "all" else {purpose}
        return frozenset(purposes)


def collect_contents(
    cache: Tree,
    order: PackageOrder,
    instances: Iterable[tuple[str, str]],
    tests: Mapping[str, str],
) -> Contents:
    """Read the files of the package, and return them with its list.

    `instances` are (directory, hash) of the scripts; `tests` maps the path of a test in the package
    to its file. Raises `PackageError`, also for a script or program that is not whole in the cache.
    """
    collector = _Collector(
        cache, order.purposes, order.fitted or order.package.programs == "dispatched", order.fitted
    )
    entries: list[ScriptEntry] = []
    targets: dict[str, PackageTarget] = {}

    def get_order(item: tuple[Script, Mapping[str, str]]) -> tuple[str, str, str]:
        script, _ = item
        return script.name, script.target, script.hash

    for script, params in sorted(_read_scripts(cache, instances), key=get_order):
        entries.append(collector.add_script(script, params))
        is_cuda = script.kind == "cuda"
        previous_target = targets.get(script.target)
        toolkits = (script.code.toolkit, previous_target.toolkit if previous_target else None)
        # Scripts of one target may have several toolkits: a driver must know the newest.
        newest_toolkit = max(filter(None, toolkits), key=parse_version, default=None)
        toolkit = newest_toolkit if is_cuda else None
        kind: Literal["cuda", "cpu"] = "cuda" if is_cuda else "cpu"
        targets[script.target] = PackageTarget(kind, script.code.archs, script.code.ptx, toolkit)
    if not entries:
        raise cannot_pack("there is no script to pack")
    for path, origin in tests.items():
        collector.add_file(path, read_file(origin), origin)
    listing = FileList(
        name=order.name,
        version=order.version,
        project=order.project,
        tool=__version__,
        targets=targets,
        needs=collect_host_needs(collector.libraries),
        scripts=tuple(entries),
        programs=collector.programs,
        files=collector.files,
    )
    return Contents(listing, listing.encode(), collector.origins, {})


def _read_scripts(
    cache: Tree, instances: Iterable[tuple[str, str]]
) -> Iterator[tuple[Script, Mapping[str, str]]]:
    """Yield each script with its constants, as script.txt writes them. Raises `PackageError`."""
    for directory, digest in instances:
        path = cache.script_path(directory, digest)
        try:
            params = {}
            # Such as `dtype = "f16"`.
            for line in scripts.read_script_txt(path, digest).params:
                name, _, value = line.partition(" = ")
                params[name] = value
            yield read_script(path), params
        except (LoadError, CorruptFileError, OSError) as error:
            raise cannot_pack(str(error), hint=_MEND_HINT) from None


class _Collector(Struct):
    """The files, programs and libraries collected so far. With `dispatched`, only the programs that
    dispatch can choose are collected; with `fitted`, each script must have a fit. `origins` has the
    bytes or the path of each file."""

    cache: Tree
    purposes: frozenset[Purpose]
    dispatched: bool
    fitted: bool
    origins: dict[str, bytes | str] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    programs: dict[str, ProgramEntry] = field(default_factory=dict)
    libraries: list[PackedLibrary] = field(default_factory=list)

    def add_script(self, script: Script, params: Mapping[str, str]) -> ScriptEntry:
        """Add a script's files and programs. Return the list's entry of the script. Raises
        `PackageError`."""
        numbers = self._select_numbers(script)
        programs = tuple(dict.fromkeys(script.programs[number] for number in numbers))
        entry = ScriptEntry(script.name, script.hash, script.target, params, programs)
        for name in layout.list_files_below(script.path):
            if classify_script_file(name) in self.purposes:
                path = os.path.join(script.path, name)
                data = read_file(path)
                self.add_file(f"{entry.root}/{name}", data, path)
                # The C dispatcher is a library of the host, too.
                if name.endswith(".so"):
                    self.libraries.append(PackedLibrary(path, read_needs(data), options=""))
        for program in programs:
            if program not in self.programs:
                self.programs[program] = self._add_program(script, program)
        return entry

    def _select_numbers(self, script: Script) -> list[int]:
        """Return the numbers of the programs to pack, in the order of the plan. Raises
        `PackageError` if there are none."""
        try:
            built = set(script.programs) - script.not_built.keys()
            tables = read_dispatch_table(script).tables if self.fitted else ()
            if self.fitted and len(built) > 1 and not any(table.fitted for table in tables):
                hint = f"`{format_command('dispatch', 'fit', script.name)}` fits it"
                raise cannot_pack(f"--fitted: {script.label} has no fitted programs", hint=hint)
            numbers = sorted(find_reachable(script) if self.dispatched else built)
        except LoadError as error:
            raise cannot_pack(str(error)) from None
        if not numbers:
            raise cannot_pack(
                f"{script.label} has no program that was built",
                hint="leave it out with `scripts` or `targets`; `tilusbuild explain` says why",
            )
        return numbers

    def _add_program(self, script: Script, program: str) -> ProgramEntry:
        """Add a program's files, and the headers that its compile.sh reads. Return the list's entry
        of the program. Raises `PackageError`."""
        entry = lookup_entry(self.cache, program)
        if entry is None or entry.status != Status.BUILT:
            raise cannot_pack(f"program {program} of {script.label} is not whole", hint=_MEND_HINT)
        root = f"{layout.PROGRAMS}/{program}"
        texts: dict[str, bytes] = {}
        for name, size, digest in list_meta_files(entry.meta):
            if classify_program_file(name) in self.purposes:
                path = os.path.join(entry.path, name)
                texts[name] = read_file(path)
                self.add_file(f"{root}/{name}", texts[name], path)
                if self.files[f"{root}/{name}"] != FileEntry(size, digest):
                    raise cannot_pack(f"{path} is not what was built", hint=_MEND_HINT)
        # Sealed again: the package is checked against a meta.json that lists exactly its files.
        packed_files = {name: facts for name, facts in entry.meta["files"].items() if name in texts}
        meta = seal_json({**entry.meta, "files": packed_files})
        self.add_file(f"{root}/{layout.META}", meta, meta)
        for digest in layout.find_header_digests(texts.get(layout.COMPILE_SH, b"")):
            self._add_headers(digest)
        images, needs = read_code(texts[layout.LIBRARY])
        if needs is None:
            raise cannot_pack(f"{root}/{layout.LIBRARY} is not a library", hint=_MEND_HINT)
        options = texts[layout.OPTIONS_TXT].decode("utf-8", "replace")
        self.libraries.append(PackedLibrary(root, needs, options))
        return ProgramEntry(script.name, script.target, images)

    def _add_headers(self, digest: str) -> None:
        """Check a header directory and add its files, unless it was added before. Raises
        `PackageError`."""
        root = f"{layout.INCLUDE}/{digest}"
        if f"{root}/{layout.MANIFEST}" in self.files:
            return
        path = self.cache.include_path(digest)
        try:
            if problems := check_include(path, digest):
                raise cannot_pack(
                    f"{root}/{problems[0].name} {problems[0].message}", hint=_MEND_HINT
                )
            for name in layout.list_files_below(path):
                self.add_file(f"{root}/{name}", read_file(f"{path}/{name}"), f"{path}/{name}")
        except OSError as error:
            raise cannot_pack(f"{root} cannot be read: {error.strerror}", hint=_MEND_HINT) from None

    def add_file(self, path: str, data: bytes, origin: bytes | str) -> None:
        """Add a file of the package; `origin` is its bytes, or the path to read them from again."""
        self.files[path] = FileEntry(len(data), sha256_bytes(data))
        self.origins[path] = origin


def describe_unmeasured(cache: Tree, listing: FileList) -> Iterator[str]:
    """Yield a message about the scripts of a package whose choice among several programs rests on
    no measurement, one about those whose measurements are for earlier code, and one about each
    file with damaged measurements. Scripts with a cost model need none."""
    unmeasured, earlier = [], []
    for entry in listing.scripts:
        script = read_script(cache.script_path(*entry.pair))
        rows = [row for table in read_dispatch_table(script).tables for row in table.entries]
        if len(entry.programs) > 1 and not rows and script.model is None:
            unmeasured.append(script)
        elif any(row.is_earlier for row in rows):
            earlier.append(script)
    groups = (("without measurements", unmeasured), ("with measurements of earlier code", earlier))
    for problem, group in groups:
        if group:
            labels = ", ".join(script.label for script in group)
            names = dict.fromkeys(script.name for script in group)
            yield f"packed {problem}: {labels} (`{format_command('tune', *names)}`)"
    directories = dict.fromkeys(entry.pair[0] for entry in listing.scripts)
    yield from filter(None, (describe_damage(cache, directory) for directory in directories))


def find_reachable(script: Script) -> frozenset[int]:
    """Return the numbers of the built programs that dispatch can choose for some sizes on some
    device. Raises `LoadError`."""
    dispatch = read_dispatch_table(script)
    refused = explain_refusals(script.programs, dispatch.refused)
    built = frozenset(script.programs) - script.not_built.keys() - refused.keys()
    measured = {number for table in dispatch.tables for number in table.programs}
    # A device with a table is served from the table. Any other is served by the rules, the model
    # and the default, and a model chooses among the rest: with a table, the programs that only
    # a model would choose may stay behind. Without one they may not.
    if script.model is not None and not measured:
        return built
    chosen = measured | {rule.program for rule in script.rules}
    if script.default is not None:
        chosen.add(script.default)
    # Without a default that was built, dispatch takes the first built program.
    first_built = [] if script.default in built else sorted(built)[:1]
    return (built & chosen) | frozenset(first_built)


def list_planned_scripts(
    project: Project, planned: Iterable[PlannedInstance]
) -> tuple[tuple[str, str], ...]:
    """Return (directory, hash) of the planned scripts, without those that can only be linked.

    Raises `PackageError` if a script is not published with its programs, or a program is not built.
    Of a tuned script, a tuning with a budget may not have looked at some.
    """
    instances = [item for item in planned if _is_shipped(project.manifest, item.script)]
    not_built = [
        f"{instance.script}/{index} {instance.target.name}"
        for instance in instances
        if not _is_tuned(project.cache, instance)
        for index, program in instance.programs_by_number.items()
        if lookup_entry(project.cache, program) is None
    ]
    if not_built:
        total = sum(len(instance.programs) for instance in instances)
        examples = ", ".join(not_built[:3]) + (", …" if len(not_built) > 3 else "")
        text = f"{len(not_built)} of {total} programs are not built, or out of date: {examples}"
        raise cannot_pack(text, hint=_BUILD_HINT)
    for instance in instances:
        _check_published_script(project.cache, instance)
    return tuple((instance.directory, instance.hash) for instance in instances)


def _is_shipped(manifest: Manifest, script: str) -> bool:
    """Return whether a script can be loaded; an object or an archive can only be linked."""
    return manifest.scripts[script].form in ("kernel", "entry", "shared")


def _is_tuned(cache: Tree, instance: PlannedInstance) -> bool:
    """Return whether the script of an instance is published and has a measured choice."""
    try:
        tables = read_dispatch_table(read_script(_locate_script(cache, instance))).tables
    except LoadError:
        return False
    return any(table.entries for table in tables)


def _locate_script(cache: Tree, instance: PlannedInstance) -> str:
    return cache.script_path(instance.directory, instance.hash)


def _check_published_script(cache: Tree, instance: PlannedInstance) -> None:
    """Raise `PackageError` if an instance's script is not published, or is published with other
    programs built than the cache has."""
    try:
        script = read_script(_locate_script(cache, instance))
    except LoadError as error:
        raise cannot_pack(f"{instance.label} is not published: {error}", hint=_BUILD_HINT) from None
    for index, program in instance.programs_by_number.items():
        entry = lookup_entry(cache, program)
        is_built = entry is not None and entry.status == Status.BUILT
        is_published = index not in script.not_built
        # They differ if a build was stopped after it published programs and before their script.
        if is_built != is_published:
            text = f"the published {instance.label} is older than its programs"
            raise cannot_pack(text, hint=_BUILD_HINT)


def list_built_scripts(
    cache: Tree, manifest: Manifest, selection: PlanSelection
) -> tuple[tuple[str, str], ...]:
    """Return (directory, hash) of the selected scripts of the manifest's last build.

    If the manifest's path has no build in this cache, use the build of the projects with the same
    name, if all of them agree. Raises `PackageError` if there is no such build, and `InputError`.
    """
    try:
        projects = read_index(cache)
    except CorruptFileError as error:
        raise cannot_pack(str(error), hint=_BUILD_HINT) from None
    name = manifest.project.name
    build = projects.get(manifest.path)
    builds = (
        [build] if build else [project for project in projects.values() if project.name == name]
    )
    # A set, in which builds of equal scripts count as one.
    distinct_scripts = {build.scripts for build in builds}
    if len(distinct_scripts) != 1:
        text = f"{cache.root} has no build of {manifest.path}"
        if distinct_scripts:
            text += f", and {len(distinct_scripts)} different ones of other {name}"
        raise cannot_pack(text, hint=_BUILD_HINT)
    pairs = {
        (to_snake_case(script), target.name)
        for script, target in select_script_targets(manifest, selection)
        if _is_shipped(manifest, script)
    }
    return tuple(_select_scripts(cache, distinct_scripts.pop(), pairs))


def _select_scripts(
    cache: Tree, built: Iterable[tuple[str, str]], pairs: set[tuple[str, str]]
) -> Iterable[tuple[str, str]]:
    """Yield (directory, hash) of the built scripts whose (directory, target) is in `pairs`. Raises
    `PackageError`."""
    for directory, digest in built:
        try:
            head = scripts.read_script_txt(cache.script_path(directory, digest), digest).head
        except (CorruptFileError, FileNotFoundError) as error:
            raise cannot_pack(f"scripts/{directory}/{digest}: {error}", hint=_BUILD_HINT) from None
        if (directory, head.get("target", "")) in pairs:
            yield directory, digest
