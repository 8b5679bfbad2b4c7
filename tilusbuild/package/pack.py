"""A package from a project: collected once, and written in each of the carriers that are wanted.

Nothing is built here. What the carriers hold follows from the cache, the manifest, this version of
tilusbuild and `SOURCE_DATE_EPOCH`; not from who packs, where, or with how many cores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilusbuild import __version__
from tilusbuild.build.project import Project
from tilusbuild.errors import input_error
from tilusbuild.manifest import Manifest
from tilusbuild.manifest.sections import PackageSection
from tilusbuild.package import output
from tilusbuild.package.collect import Wanted, collect
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import TooLarge
from tilusbuild.package.formats.wheels import write_wheels
from tilusbuild.package.formats.write_archive import write_archive
from tilusbuild.package.formats.write_directory import write_directory
from tilusbuild.package.formats.write_oci import write_oci
from tilusbuild.package.listing import title_of
from tilusbuild.package.purpose import Purpose
from tilusbuild.package.sizes import layer_sizes, layer_table, program_sizes, program_table
from tilusbuild.package.uptodate import as_built, current
from tilusbuild.plan.selection import Selection

Attest = Callable[[Contents], Mapping[str, bytes]]
"""What makes the attestations about a package, by their names in it."""
FORMATS = ("dir", "tar.zst", "wheel", "oci")
_LARGEST_SHOWN = 10
_LAST = 4354819199
"""The end of 2107, the last that a zip can say."""


@dataclass(frozen=True, slots=True)
class Made:
    """A carrier that was written: its format, path and bytes. `digest` is the list's; None for the
    wheel that only finds others."""

    format: str
    path: str
    size: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """A package to make: its name in the manifest, and what the manifest says of it."""

    name: str
    package: PackageSection
    project: str
    version: str

    @property
    def title(self) -> str:
        """What its files are called."""
        return title_of(self.project, self.name)


def orders(manifest: Manifest, name: str | None) -> list[Order]:
    """The packages that are meant: one, or all; of a manifest without any, the whole project.

    Raises `InputError`.
    """
    declared = dict(manifest.packages) or {manifest.project.name: PackageSection()}
    if name is not None and name not in declared:
        from tilusbuild.errors import did_you_mean

        raise input_error(
            f'no package "{name}" in {manifest.path}', hint=did_you_mean(name, declared)
        )
    return [
        Order(each, package, manifest.project.name, manifest.project.version)
        for each, package in declared.items()
        if name in (None, each)
    ]


def gather(project: Project, order: Order, *, level: int, unchecked: bool = False) -> Contents:
    """Collect a package's contents; `unchecked`: what the last build made, whatever has changed
    since. Raises `InputError`, `CannotPack`, `UnsafeName`, `ListMalformed`."""
    package = order.package
    selection = Selection(package.scripts or (), package.targets or (), level)
    if unchecked:
        scripts = as_built(project.cache, project.manifest, selection)
    else:
        scripts = current(project, selection)
    wanted = Wanted(
        name=order.name,
        version=order.version,
        project=order.project,
        tool=__version__,
        scripts=scripts,
        purposes=_purposes(package),
        dispatched=package.programs == "dispatched",
    )
    return collect(project.cache, wanted)


def _purposes(package: PackageSection) -> frozenset[Purpose]:
    more: set[Purpose] = set()
    for each in package.include:
        more |= {"sources", "logs"} if each == "all" else {each}
    return frozenset({"runtime", *more} - set(package.exclude))


def write(
    order: Order,
    contents: Contents,
    formats: Sequence[str],
    folder: str,
    *,
    attest: Attest = lambda contents: {},
    time: int | None = None,
) -> list[Made]:
    """Write a package's carriers into a folder: all of them, or none. Raises `TooLarge`,
    `CannotPack` and `InputError`."""
    time = source_date() if time is None else time
    with output.staging(folder) as made_in:
        made = []
        for form in formats:
            for name, digest in _write(form, order, contents, made_in, attest, time):
                size = _size(os.path.join(made_in, name))
                made.append(Made(form, os.path.join(folder, name), size, digest))
        _check_size(order, contents, made)
        files = [os.path.basename(each.path) for each in made]
        output.check_replaceable(folder, files)
        output.move(made_in, folder, files)
    return made


def _write(
    form: str, order: Order, contents: Contents, folder: str, attest: Attest, time: int
) -> Iterator[tuple[str, str | None]]:
    """Write one carrier, or several wheels; the names of what was made, each with its digest."""
    stem = f"{order.title}-{order.version}"
    if form == "wheel":
        yield from write_wheels(
            order.title, contents, attest, folder, split=order.package.split, time=time
        )
        return
    name, writer = {
        "dir": (stem, write_directory),
        "tar.zst": (f"{stem}.tar.zst", write_archive),
        "oci": (f"{stem}.oci", write_oci),
    }[form]
    writer(replace(contents, beside=attest(contents)), os.path.join(folder, name), time=time)
    yield name, contents.digest


def _check_size(order: Order, contents: Contents, made: Sequence[Made]) -> None:
    most = order.package.max_size
    for form in dict.fromkeys(each.format for each in made):
        size = sum(each.size for each in made if each.format == form)
        if most is not None and size > most:
            raise TooLarge(
                f"package {order.name} as {form} has {size} bytes, more than max-size, {most}",
                hint=f"{layer_table(layer_sizes(contents))}\nthe largest programs:\n"
                f"{program_table(program_sizes(contents), _LARGEST_SHOWN)}\n"
                'less is carried with `scripts`, `targets`, `programs = "dispatched"`, `exclude`',
            )


def _size(path: str) -> int:
    if os.path.isfile(path):
        return os.stat(path).st_size
    return sum(
        os.stat(os.path.join(where, name)).st_size
        for where, _, files in os.walk(path)
        for name in files
    )


def source_date() -> int:
    """`SOURCE_DATE_EPOCH`, in seconds since 1970; 0 when it is not set. Raises `InputError`."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "") or "0"
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or int(text) > _LAST:
        raise input_error(
            f"SOURCE_DATE_EPOCH is {text!r}", hint=f"it is seconds since 1970, at most {_LAST}"
        )
    return int(text)
