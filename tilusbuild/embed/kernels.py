"""Builds kernels for another build system, and packs them as a directory.

The other build may run in a temporary copy of the sources: an unpacked sdist, or a checkout of pip.
A cache inside would be lost with the copy. So a build outside of copies notes its cache under the
digest of its `tilus.toml`, and a build in a copy uses the noted cache; without one, the user's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct

from tilusbuild import _version, noop
from tilusbuild.builder.build import build_project
from tilusbuild.builder.project import Project
from tilusbuild.cache.index import forget_projects, read_index, record_build
from tilusbuild.embed import dispatcher
from tilusbuild.embed.csource import NoDispatcherError
from tilusbuild.embed.wheel import MIN_TIME, choose_platform
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import Location, TilusbuildError, did_you_mean, input_error
from tilusbuild.manifest.document import read_document
from tilusbuild.package import pack
from tilusbuild.package.collect import PackageOrder
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan
from tilusbuild.process.stopping import raise_on_signals
from tilusbuild.report.choose import add_file_reporters, make_reporter
from tilusbuild.runtime import option
from tilusbuild.runtime.script import CALLED, Script, read_script
from tilusbuild.runtime.search_roots import JIT_ROOT_PREFIX, find_declaration
from tilusbuild.runtime.where import (
    MANIFEST_NAME,
    find_named_cache,
    get_user_cache,
    is_within,
    walk_up,
)
from tilusbuild.state.envelope import Envelope
from tilusbuild.state.files import sha256_file

Settings = Mapping[str, str | float | None]
_NOTE = Envelope("caches")
_KEYS = ("manifest", "into", "package")


class EmbeddedPackage(Struct, frozen=True):
    """A directory package of kernels, for a wheel or a CMake target."""

    path: str
    platform: str
    """The platform of a wheel that may have them."""


class EmbedTable(Struct, frozen=True):
    """The table `[tool.tilusbuild]` of a Python project, or the hook's."""

    manifest: str
    """The path of the `tilus.toml`."""
    into: str
    """The Python package, dotted."""
    package: str | None
    """The name of a `[package.NAME]`."""
    location: Location


def read_embed_table(
    root: str, name: str, table: Mapping[str, Any] | None = None
) -> EmbedTable | None:
    """Check the table for tilusbuild of the project in `root`, whose distribution is called `name`.

    Without `table`, read the one of `pyproject.toml`; return None if there is none. Raises
    `InputError` for an unknown key, and for a manifest or a Python package that does not exist.
    """
    document = read_document(os.path.join(root, "pyproject.toml"))
    keys, declared_table = find_declaration(document.data)
    table = declared_table if table is None else table
    if table is None:
        return None
    values: dict[str, str] = {}
    for key, value in table.items():
        if key not in _KEYS:
            location, hint = document.locate_key(*keys, key), did_you_mean(key, _KEYS)
            raise input_error(f'unknown key "{key}"', location=location, hint=hint)
        if not isinstance(value, str) or not value:
            location = document.locate_key(*keys, key)
            raise input_error(f'"{key}" is not a name', location=location, hint="it is a string")
        values[key] = value
    manifest = values.get("manifest", MANIFEST_NAME)
    path = os.path.normpath(os.path.join(root, manifest))
    if os.path.basename(path) != MANIFEST_NAME or not os.path.isfile(path):
        raise input_error(
            f"there is no {MANIFEST_NAME} at {manifest}",
            location=document.locate_value(*keys, "manifest"),
            hint=f'`manifest = "kernels/{MANIFEST_NAME}"` names it; an sdist must contain it, too',
        )
    # By default the package has the distribution's name: `my-lib` has `my_lib`.
    into = values.get("into", name.replace("-", "_").replace(".", "_").lower())
    package_path = into.replace(".", "/")
    if not any(os.path.isdir(os.path.join(root, above, package_path)) for above in ("", "src")):
        raise input_error(
            f"there is no Python package {into}, here or in src/",
            location=document.locate_value(*keys, "into"),
            hint='`into = "mypackage"` names the package that gets the kernels',
        )
    return EmbedTable(path, into, values.get("package"), document.locate_value(*keys, "package"))


def embed_for_python(table: EmbedTable, directory: str | None) -> EmbeddedPackage | None:
    """Build the kernels of a Python project, and write them as a package below `directory`. With
    None (an editable install) write no package, and return None. Raises as `build_and_pack`."""
    # The sources of an editable install are not a temporary copy, so its cache is not chosen.
    settings: Settings | None = {} if directory is None else None
    choose = partial(_choose_package, table)
    return build_and_pack(table.manifest, directory, choose, settings=settings)


def _choose_package(table: EmbedTable, project: Project) -> PackageOrder:
    """Return the package to write: the one that the table names, else the only one, else the one
    with the project's name. Raises `InputError`."""
    orders = pack.list_orders(project.manifest, table.package)
    for order in orders:
        if len(orders) == 1 or order.name == project.manifest.project.name:
            return order
    message = f"{project.manifest.path} has several packages: {', '.join(o.name for o in orders)}"
    hint = f'`package = "{orders[0].name}"` chooses one'
    raise input_error(message, location=table.location, hint=hint)


def build_and_pack(
    manifest: str,
    directory: str | None,
    choose_package: Callable[[Project], PackageOrder],
    *,
    settings: Settings | None,
    after_build: Callable[[Project, PlanSelection], None] = lambda project, selection: None,
) -> EmbeddedPackage | None:
    """Build the kernels of a manifest for the package that `choose_package` returns, call
    `after_build`, and write the package below `directory`. With None for the directory, write no
    package, and return None.

    `settings` are a command's; None chooses the cache for sources that may be a temporary copy. The
    cache is noted for builds of later copies. The build's progress is printed.

    Raises `InputError`, `PackageError`, and `TilusbuildError` when something does not build.
    """
    if not os.path.isfile(manifest):
        raise input_error(f"there is no {manifest}")
    is_in_copy = settings is None and is_in_copied_sources(manifest)
    if settings is None:
        settings = _choose_cache_settings(manifest) if is_in_copy else {}
    root = os.path.dirname(manifest)
    with raise_on_signals(), Project.open(root, settings, os.environ) as project:
        order = choose_package(project)
        level, jobs = project.settings.level.value, project.settings.jobs.value
        selection = pack.select_programs(order, level)
        env, stderr = os.environ, sys.stderr
        console = make_reporter(stdout=sys.stdout, stderr=stderr, env=env)
        reporter = add_file_reporters(console, stderr=stderr, env=env, root=project.manifest.root)
        # Reported as by `tilusbuild build`.
        result = build_project(project, selection, BuildConfig(jobs=jobs), reporter)
        if result.summary.exit_status:
            raise TilusbuildError(f"the kernels of {manifest} were not built")
        after_build(project, selection)
        if is_in_copy:
            _record_under_project_name(project)
        note_cache(project)
        if directory is None:
            return None
        with project.cache.hold_use():
            contents = pack.gather_contents(project, order, level=level)
            # A wheel is a zip, which cannot hold an earlier time.
            time = max(pack.read_source_date(), MIN_TIME)
            (written,) = pack.write_formats(order, contents, ["dir"], directory, time=time)
        return EmbeddedPackage(written.path, choose_platform(contents.listed.needs))


def list_inputs(project: Project, plan: Plan) -> set[str]:
    """Return the paths on whose times a build tool is to decide whether to build again: the files
    of the project, of the tools and of tilusbuild, and the project's directories that were
    searched. Paths that do not exist are left out."""
    manifest, cache = project.manifest, project.cache.root
    # Another version of tilusbuild may build other libraries.
    paths = {manifest.path, *plan.inputs, _version.__file__}
    for instance in plan.instances:
        paths.update(instance.spec.toolchain.list_watched_paths())
    for name, script in manifest.scripts.items():
        reference = script.tune.ref if script.tune is not None else None
        paths.add(os.path.join(manifest.root, script.template))
        if reference:
            # Such as `reference.py:gemm`.
            paths.add(os.path.join(manifest.root, reference.rpartition(":")[0]))
        paths.update(map(_find_existing_ancestor, manifest.list_data_files(name)))
    return {
        path
        for path in paths
        if os.path.isfile(path)
        # A directory that a build itself writes into would never be older than its outputs.
        or (os.path.isdir(path) and is_within(path, manifest.root) and not is_within(cache, path))
    }


def _find_existing_ancestor(path: str) -> str:
    """Return the path if it exists, else its nearest existing ancestor."""
    # A build tool watches times: the ancestor's changes when the path is created.
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def list_sdist_files(root: str, name: str) -> list[str]:
    """Return the files that an sdist of the project in `root` must contain for its kernels,
    relative to `root`. Also note the project's cache, for later builds of the sdist. Without a
    table in `pyproject.toml`, return an empty list and note nothing. Raises `InputError`."""
    table = read_embed_table(root, name)
    if table is None:
        return []
    with Project.open(os.path.dirname(table.manifest), {}, os.environ) as project:
        note_cache(project)
        selection = PlanSelection(scripts=(), targets=(), level=project.settings.level.value)
        inputs = list_inputs(project, project.make_plan(selection))
    files = (path for path in inputs if is_within(path, root) and os.path.isfile(path))
    return sorted(os.path.relpath(path, root) for path in files)


def build_dispatchers(project: Project, plan: Plan) -> Iterator[Script]:
    """Build the C dispatcher of each script of a plan that can be called, and yield the script.
    Raises `TilusbuildError` for a script that can have none."""
    for instance in plan.instances:
        script = read_script(project.cache.script_path(instance.directory, instance.hash))
        if script.form == CALLED:
            try:
                # The toolchain is looked up only if the dispatcher must be compiled.
                find_toolchain = partial(getattr, instance.spec, "toolchain")
                path = dispatcher.build_if_outdated(
                    project.cache, script, find_toolchain, project.runner
                )
                if path is None:
                    # Called for its error, which says why the script can have no dispatcher.
                    dispatcher.is_current_dispatcher(script)
            except NoDispatcherError as error:
                raise TilusbuildError(f"{error}: it cannot be called from C") from None
            yield script


def is_in_copied_sources(manifest: str) -> bool:
    """Return whether a manifest is in a temporary copy of sources: an unpacked sdist, or a
    directory into which pip or uv fetched the sources."""
    directory, home = os.path.dirname(os.path.realpath(manifest)), os.path.expanduser("~")
    # pip copies into `/tmp/pip-req-build-*`, uv into its cache.
    caches = os.path.realpath(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache")
    if "/pip-" in directory or is_within(directory, caches):
        return True
    # An sdist has `PKG-INFO` beside its `pyproject.toml`.
    for above in walk_up(directory):
        if os.path.isfile(os.path.join(above, "PKG-INFO")):
            return True
        if os.path.isfile(os.path.join(above, "pyproject.toml")):
            break
    return False


def _choose_cache_settings(manifest: str) -> Settings:
    """Return the setting "cache-dir" for a copy of a manifest: the cache noted for a manifest with
    the same content, else the user's. Return no setting if the environment or an option names a
    cache."""
    if find_named_cache(option=None, program=option.chosen(), environment=os.environ) is not None:
        return {}
    note_path = _find_note_path(manifest)
    noted_cache = None if note_path is None else _NOTE.load_value(note_path, str)
    return {"cache-dir": noted_cache or get_user_cache()}


def note_cache(project: Project) -> None:
    """Record the cache directory of a manifest, for later builds of copies of it. Does nothing for
    a copy, and ignores `OSError`."""
    path = _find_note_path(project.manifest.path)
    if path is not None and not is_in_copied_sources(project.manifest.path):
        _NOTE.save_value(path, project.settings.cache_dir.value, parents=True)


def _find_note_path(manifest: str) -> str | None:
    """Return the path of the file that notes the cache of a manifest, named by the sha256 of its
    content; None without a directory for records, or if the manifest cannot be read."""
    records = noop.find_record_directory(os.environ)
    if not records:
        return None
    with suppress(OSError):
        return os.path.join(os.path.dirname(records), "caches", sha256_file(manifest))
    return None


def _record_under_project_name(project: Project) -> None:
    """Record the programs of a copy in the index under the project's name, in place of those of an
    earlier copy, and forget the copy's path. Does nothing if the index has no such path."""
    # The copy is deleted later. Under its path the cache would keep the programs for ever.
    path, name = project.manifest.path, project.manifest.project.name
    copied_project = read_index(project.cache).get(path)
    if copied_project is not None:
        record_build(project.cache, f"{JIT_ROOT_PREFIX}wheel:{name}", name, copied_project.scripts)
        forget_projects(project.cache, [path])
