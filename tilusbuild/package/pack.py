"""`tilusbuild package`: from the cache and the manifest to packages in each of the wanted formats.

Nothing is built here. The bytes follow from the cache, the manifest, this version of tilusbuild and
`SOURCE_DATE_EPOCH`; not from the user, the place or the number of cores. Packages are made in a
private directory beside their place, and moved there when all of them are done: whole or not at
all, and never over something that is not a package of tilusbuild.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from msgspec.structs import replace

from tilusbuild.builder.project import Project
from tilusbuild.cache import layout
from tilusbuild.errors import TilusbuildError, did_you_mean, input_error
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.sections import PackageSection
from tilusbuild.package.collect import (
    PackageOrder,
    collect_contents,
    list_built_scripts,
    list_planned_scripts,
)
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import cannot_pack
from tilusbuild.package.formats import load_format
from tilusbuild.package.read import find_format, open_package
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.model import PlanSelection
from tilusbuild.state.files import replace_directory, sync_directory
from tilusbuild.state.temporary import TemporaryDirectory

Attest = Callable[[Contents], Mapping[str, bytes]]
"""A function from a package to its attestations, by their names."""
Tests = Callable[[Sequence[PlannedInstance]], Mapping[str, str]]
"""A function from the instances that are packed to the files of their tests: the path in the
package, and the path of the file."""
_MAX_TIME = 4354819199
"""The end of 2107, the last time that a zip can hold."""


def list_orders(
    manifest: Manifest, name: str | None, *, fitted: bool = False
) -> list[PackageOrder]:
    """Return the manifest's package `name`, or all of its packages for None. A manifest without
    packages has one of the whole project. `fitted` is as in `PackageOrder`.

    Raises `InputError` for an unknown name.
    """
    declared = dict(manifest.packages) or {manifest.project.name: PackageSection()}
    if name is not None and name not in declared:
        raise input_error(
            f'no package "{name}" in {manifest.path}', hint=did_you_mean(name, declared)
        )
    return [
        PackageOrder(package_name, package, manifest.project.name, manifest.project.version, fitted)
        for package_name, package in declared.items()
        if name in (None, package_name)
    ]


def select_programs(order: PackageOrder, level: int) -> PlanSelection:
    """Return the selection of the project's scripts and targets that a package holds."""
    return PlanSelection(order.package.scripts or (), order.package.targets or (), level)


def gather_contents(
    project: Project,
    order: PackageOrder,
    *,
    level: int,
    unchecked: bool = False,
    tests: Tests | None = None,
) -> Contents:
    """Collect a package's contents from the cache: the scripts that are planned now, and `tests` of
    them. With `unchecked`, take the scripts of the last build, which may be out of date, without
    tests. Raises `InputError`, `PackageError`."""
    selection = select_programs(order, level)
    if unchecked:
        scripts = list_built_scripts(project.cache, project.manifest, selection)
        return collect_contents(project.cache, order, scripts, {})
    planned = project.make_plan(selection).instances
    scripts = list_planned_scripts(project, planned)
    return collect_contents(project.cache, order, scripts, tests(planned) if tests else {})


class WrittenPackage(NamedTuple):
    """A package that was written in one format. `size` is in bytes."""

    format: str
    path: str
    size: int


def write_formats(
    order: PackageOrder,
    contents: Contents,
    formats: Sequence[str],
    directory: str,
    *,
    attest: Attest = lambda contents: {},
    time: int | None = None,
) -> list[WrittenPackage]:
    """Write a package in each format into a directory: in all of them, or none. `time` is that of
    the files, SOURCE_DATE_EPOCH if None. Raises `PackageError` and `InputError`."""
    time = read_source_date() if time is None else time
    stem, limit = f"{order.title}-{order.version}", order.package.max_size
    signed = replace(contents, beside=attest(contents))
    written: list[WrittenPackage] = []
    with _make_staging(directory) as staged:
        for format_name in formats:
            container = load_format(format_name)
            name = container.file_name(stem, contents.listed)
            path = os.path.join(staged, name)
            container.write(signed, path, time=time)
            size = os.stat(path).st_size if os.path.isfile(path) else layout.measure_files(path)[0]
            if limit is not None and size > limit:
                raise cannot_pack(
                    f"package {order.name} as {format_name} has {size} bytes,"
                    f" more than max-size, {limit}",
                    hint="less is packed with `scripts`, `targets` and `programs`;"
                    " `tilusbuild report` lists the largest programs",
                )
            written.append(WrittenPackage(format_name, os.path.join(directory, name), size))
        _move_into_place(staged, directory, [os.path.basename(file.path) for file in written])
    return written


def read_source_date() -> int:
    """Return `SOURCE_DATE_EPOCH`, in seconds since 1970; 0 if unset. Raises `InputError`."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "") or "0"
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or int(text) > _MAX_TIME:
        raise input_error(
            f"SOURCE_DATE_EPOCH is {text!r}", hint=f"it is seconds since 1970, at most {_MAX_TIME}"
        )
    return int(text)


@contextmanager
def _make_staging(output: str) -> Iterator[str]:
    """Make a private directory in `output`, removed after the block. Raises `InputError` if
    `output` cannot be written, and `PackageError` for an `OSError` of the block."""
    try:
        os.makedirs(output, exist_ok=True)
        staged = TemporaryDirectory("package", output)
    except OSError as error:
        raise input_error(f"--output {output}: {error.strerror}") from None
    try:
        with staged:
            yield staged.path
    except OSError as error:
        raise cannot_pack(f"{error.filename or output}: {error.strerror}") from None


def _move_into_place(staged: str, output: str, names: Sequence[str]) -> None:
    """Move the packages from `staged` to `output`, in place of earlier ones. Raises `OSError`, and
    `PackageError` if something in `output` has one of the names and is not a package."""
    # All names are checked before any package is moved, so that every format appears, or none.
    for name in names:
        path = os.path.join(output, name)
        if os.path.lexists(path) and not is_package(path):
            raise cannot_pack(
                f"{path} exists, and is not a package of tilusbuild",
                hint="remove it, or name another directory with --output",
            )
    # Replaced packages are removed with the private directory. No package has the name `.old`,
    # because no name of a package begins with a dot.
    aside = os.path.join(staged, ".old")
    os.mkdir(aside)
    for name in names:
        replace_directory(os.path.join(staged, name), os.path.join(output, name), aside)
    sync_directory(output)


def is_package(path: str) -> bool:
    """Return whether a path is a package in a known format; a link is not."""
    if os.path.islink(path):
        return False
    with suppress(TilusbuildError):
        container = find_format(path)
        # A format without a reader is recognized by the list in it: that is check enough.
        if container is not None and not container.is_readable:
            return True
        with open_package(path) as reader:
            return bool(reader.list_bytes())
    return False
