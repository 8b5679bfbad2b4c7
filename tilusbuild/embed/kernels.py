"""Build the kernels that another build asks for, and pack them as a directory.

Another build may run in a copy of the sources that is gone afterwards: an unpacked sdist, or a
checkout that pip made. A cache inside of it would be lost, so the kernels are built into the cache
that the same `tilus.toml` was last built into where it stays, which a note remembers by the file's
content; without a note, into the user's own cache.
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
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import Place, TilusbuildError, did_you_mean, input_error
from tilusbuild.manifest.document import read_document
from tilusbuild.package import pack
from tilusbuild.package.collect import PackageOrder
from tilusbuild.package.formats.wheel import MIN_TIME, platform
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan
from tilusbuild.process.stopping import raise_on_signals
from tilusbuild.report.choose import add_file_reporters, make_reporter
from tilusbuild.runtime import option
from tilusbuild.runtime.places import JIT_ROOT_PREFIX, find_declaration
from tilusbuild.runtime.script import CALLED, Script, read_script
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


class Packed(Struct, frozen=True):
    """Kernels as a directory package."""

    path: str
    platform: str
    """The platform of a wheel that may have them."""


class Wanted(Struct, frozen=True):
    """What a Python project's `pyproject.toml` asks for."""

    manifest: str
    """The path of the `tilus.toml`."""
    into: str
    """The Python package, dotted."""
    package: str | None
    """Which `[package.NAME]`."""
    place: Place


def wanted(root: str, name: str, table: Mapping[str, Any] | None = None) -> Wanted | None:
    """Return what the project in a directory asks for; `name` is the project's. Without a `table`,
    None where its `pyproject.toml` has none for tilusbuild. Raises `InputError`."""
    document = read_document(os.path.join(root, "pyproject.toml"))
    keys, found = find_declaration(document.data)
    table = found if table is None else table
    if table is None:
        return None
    given: dict[str, str] = {}
    for key, value in table.items():
        if key not in _KEYS or not isinstance(value, str) or not value:
            right = did_you_mean(key, _KEYS) if key not in _KEYS else "it is a string"
            known = f'unknown key "{key}"' if key not in _KEYS else f'"{key}" is not a name'
            raise input_error(known, place=document.locate_key(*keys, key), hint=right)
        given[key] = value
    path = os.path.normpath(os.path.join(root, given.get("manifest", MANIFEST_NAME)))
    if os.path.basename(path) != MANIFEST_NAME or not os.path.isfile(path):
        raise input_error(
            f"there is no {MANIFEST_NAME} at {given.get('manifest', MANIFEST_NAME)}",
            place=document.locate_value(*keys, "manifest"),
            hint=f'`manifest = "kernels/{MANIFEST_NAME}"` names it; an sdist must contain it, too',
        )
    into = given.get("into", name.replace("-", "_").replace(".", "_").lower())
    below = into.replace(".", "/")
    if not any(os.path.isdir(os.path.join(root, each, below)) for each in ("", "src")):
        raise input_error(
            f"there is no Python package {into}, here or in src/",
            place=document.locate_value(*keys, "into"),
            hint='`into = "mypackage"` names the package that gets the kernels',
        )
    return Wanted(path, into, given.get("package"), document.locate_value(*keys, "package"))


def embed_wanted(asked: Wanted, directory: str | None) -> Packed | None:
    """Build what a Python project asks for and write it below `directory`; with None, as for an
    editable install, it is only built. Raises as `embed`."""
    settings: Settings | None = {} if directory is None else None
    order = partial(_ordered, asked)
    return embed(asked.manifest, directory, order, settings=settings)


def _ordered(asked: Wanted, project: Project) -> PackageOrder:
    """Return the package to make: the one that is named, the only one, or the one named as the
    project. Raises `InputError`."""
    manifest = project.manifest
    found = pack.orders(manifest, asked.package)
    own = [each for each in found if len(found) == 1 or each.name == manifest.project.name]
    if not own:
        names = ", ".join(each.name for each in found)
        hint = f'`package = "{found[0].name}"` chooses one'
        said = f"{manifest.path} has several packages: {names}"
        raise input_error(said, place=asked.place, hint=hint)
    return own[0]


def embed(
    manifest: str,
    directory: str | None,
    choice: Callable[[Project], PackageOrder],
    *,
    settings: Settings | None,
    built: Callable[[Project, PlanSelection], None] = lambda project, selection: None,
) -> Packed | None:
    """Build the package that `choice` orders and write it below `directory`; with None it is only
    built. `settings` are those of a command; without them the cache is also right where the sources
    are a copy. `built` is called when everything is built.

    Raises `InputError`, `PackageError`, and `TilusbuildError` when something does not build.
    """
    if not os.path.isfile(manifest):
        raise input_error(f"there is no {manifest}")
    copied = settings is None and is_copy(manifest)
    chosen = _cache(manifest, copied) if settings is None else settings
    with raise_on_signals(), Project.open(os.path.dirname(manifest), chosen, os.environ) as project:
        order = choice(project)
        level, jobs = project.settings.level.value, project.settings.jobs.value
        selection = pack.selection_of(order, level)
        env, stderr = os.environ, sys.stderr
        shown = make_reporter(stdout=sys.stdout, stderr=stderr, env=env)
        reporter = add_file_reporters(shown, stderr=stderr, env=env, root=project.manifest.root)
        result = build_project(project, selection, BuildConfig(jobs=jobs), reporter)
        if result.summary.exit_status:
            raise TilusbuildError(f"the kernels of {manifest} were not built")
        built(project, selection)
        if copied:
            _move_to_its_name(project)
        note(project)
        if directory is None:
            return None
        with project.cache.hold_use():
            contents = pack.gather(project, order, level=level)
            time = max(pack.source_date(), MIN_TIME)
            ((_, path, _),) = pack.write(order, contents, ["dir"], directory, time=time)
        return Packed(path, platform(contents.listed.needs))


def inputs_of(project: Project, plan: Plan) -> set[str]:
    """Return the paths of all files that a plan was made from, those of tools and of tilusbuild
    among them, and the directories of the project that it searched."""
    manifest, cache = project.manifest, project.cache.root
    found = {manifest.path, *plan.inputs, _version.__file__}
    for instance in plan.instances:
        found.update(instance.spec.toolchain.list_watched_paths())
    for name, script in manifest.scripts.items():
        ref = script.tune.ref if script.tune is not None else None
        found.add(os.path.join(manifest.root, script.template))
        found.update([os.path.join(manifest.root, ref.rpartition(":")[0])] if ref else ())
        found.update(map(_there, manifest.data_of(name)))
    return {
        path
        for path in found
        if os.path.isfile(path)
        # A directory that a build itself writes into would never be older than its outputs.
        or (os.path.isdir(path) and is_within(path, manifest.root) and not is_within(cache, path))
    }


def _there(path: str) -> str:
    """Return a path, or the directory that shows when it comes to be."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def sources_of(root: str, name: str) -> list[str]:
    """Return what an sdist of the project in a directory must contain for its kernels, relative to
    it. Raises `InputError`."""
    asked = wanted(root, name)
    if asked is None:
        return []
    with Project.open(os.path.dirname(asked.manifest), {}, os.environ) as project:
        note(project)
        selection = PlanSelection((), (), project.settings.level.value)
        found = inputs_of(project, project.make_plan(selection))
    files = (path for path in found if is_within(path, root) and os.path.isfile(path))
    return sorted(os.path.relpath(path, root) for path in files)


def with_dispatchers(project: Project, plan: Plan) -> Iterator[Script]:
    """Yield the scripts of a plan that can be called, each with its C dispatcher built. Raises
    `TilusbuildError` for one that cannot have one."""
    for instance in plan.instances:
        script = read_script(project.cache.script_path(instance.directory, instance.hash))
        if script.form == CALLED:
            try:
                find_toolchain = partial(getattr, instance.spec, "toolchain")
                # Of a script that can have none, `refresh` returns None, and `is_current` raises.
                dispatcher.refresh(
                    project.cache, script, find_toolchain, project.runner
                ) or dispatcher.is_current(script)
            except NoDispatcherError as error:
                raise TilusbuildError(f"{error}: it cannot be called from C") from None
            yield script


def is_copy(manifest: str) -> bool:
    """Return whether a manifest is in sources that are gone after a build: in an unpacked sdist, or
    where pip and uv fetch sources to."""
    directory, home = os.path.dirname(os.path.realpath(manifest)), os.path.expanduser("~")
    caches = os.path.realpath(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache")
    if "/pip-" in directory or is_within(directory, caches):
        return True
    for above in walk_up(directory):
        if os.path.isfile(os.path.join(above, "PKG-INFO")):
            return True
        if os.path.isfile(os.path.join(above, "pyproject.toml")):
            break
    return False


def _cache(manifest: str, copied: bool) -> Settings:
    """Return the settings that choose the cache: none, where any build there takes the same."""
    if not copied or find_named_cache(None, option.chosen(), os.environ) is not None:
        return {}
    path = _note_of(manifest)
    noted = None if path is None else _NOTE.load_value(path, str)
    return {"cache-dir": noted or get_user_cache()}


def note(project: Project) -> None:
    """Note into which cache a manifest is built, unless it is in a copy. A note that cannot be
    written is left out."""
    path = _note_of(project.manifest.path)
    if path is not None and not is_copy(project.manifest.path):
        _NOTE.save_value(path, project.settings.cache_dir.value, parents=True)


def _note_of(manifest: str) -> str | None:
    records = noop.find_record_directory(os.environ)
    with suppress(OSError):
        return records and os.path.join(os.path.dirname(records), "caches", sha256_file(manifest))
    return None


def _move_to_its_name(project: Project) -> None:
    """Have the cache keep what a copy built under the project's name, in place of the last such: a
    path that is gone would keep it forever. No call finds it there."""
    path, name = project.manifest.path, project.manifest.project.name
    made = read_index(project.cache).get(path)
    if made is not None:
        record_build(project.cache, f"{JIT_ROOT_PREFIX}wheel:{name}", name, made.scripts)
        forget_projects(project.cache, [path])
