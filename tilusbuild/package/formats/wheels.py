"""Which wheels a package makes, and what they are called.

With one target, or without `split`, there is one wheel, and its list is the package's. Otherwise
each target is a package by itself, NAME-TARGET, in a wheel by itself, and a small wheel without
kernels finds those that are installed. It offers each as an extra: `pip install NAME[TARGET]`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from keyword import iskeyword

from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import CannotPack
from tilusbuild.package.formats import wheel_code
from tilusbuild.package.formats.write_wheel import Distribution, write_wheel
from tilusbuild.package.restrict import only_target

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def write_wheels(
    title: str,
    contents: Contents,
    attest: Callable[[Contents], Mapping[str, bytes]],
    folder: str,
    *,
    split: bool,
    time: int,
) -> Iterator[tuple[str, str | None]]:
    """Write them; their names, each with the digest of its list. Raises `CannotPack`, `OSError`."""
    for wheel, carried in _wheels(title, contents, split=split):
        name = wheel.file(carried)
        if carried is None:
            write_wheel(wheel, None, os.path.join(folder, name), time=time)
            yield name, None
        else:
            carried = replace(carried, beside=attest(carried))
            write_wheel(wheel, carried, os.path.join(folder, name), time=time)
            yield name, carried.digest


def _wheels(
    title: str, contents: Contents, *, split: bool
) -> Iterator[tuple[Distribution, Contents | None]]:
    name, version = normalized(title), _version(contents.listed.version)
    if not name[0].isalpha() or iskeyword(name):
        raise CannotPack(
            f'"{title}" cannot name a wheel', hint="Python imports it: it begins with a letter"
        )
    targets = sorted(contents.listed.targets)
    if not split or len(targets) == 1:
        yield whole(title, contents.listed.version), contents
        return
    parts = {target: f"{name}-{normalized(target)}" for target in targets}
    if len(set(parts.values())) < len(parts):
        raise CannotPack(
            f"two of the targets {', '.join(targets)} would make one wheel",
            hint="in a wheel's name, capitals, `.`, `_` and `-` are all one: rename a target",
        )
    for target in parts:
        yield part_of(title, target, contents.listed.version), only_target(contents, target)
    extras = tuple((normalized(t), f"{part}=={version}") for t, part in parts.items())
    code = wheel_code.shim(title, name.replace("-", "_"), name)
    yield Distribution(name, version, _summary(title), code, extras=extras), None


def whole(title: str, version: str) -> Distribution:
    """The one wheel of a package. Raises `CannotPack`."""
    name = normalized(title)
    module = name.replace("-", "_")
    code, entry = wheel_code.single(title, module), (name, f"{module}:path")
    return Distribution(name, _version(version), _summary(title), code, entry=entry)


def part_of(title: str, target: str, version: str) -> Distribution:
    """The wheel of one target of several. Raises `CannotPack`."""
    name, version = normalized(title), _version(version)
    part = f"{name}-{normalized(target)}"
    code = wheel_code.part(title, target, name.replace("-", "_"))
    entry = (f"{name}.{normalized(target)}", f"{part.replace('-', '_')}:path")
    summary = f"{_summary(title)}, for {target}"
    return Distribution(part, version, summary, code, (f"{name}=={version}",), entry=entry)


def _summary(title: str) -> str:
    return f"Kernels of {title}"


def normalized(name: str) -> str:
    """A distribution's name as PEP 503 compares it. Raises `CannotPack` for what cannot be one."""
    found = re.sub(r"[-_.]+", "-", name).lower()
    if not _NAME.fullmatch(found):
        raise CannotPack(f'"{name}" cannot name a wheel', hint="it ends with a letter or a digit")
    return found


def _version(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(text))
    except InvalidVersion:
        raise CannotPack(
            f'"{text}" cannot be the version of a wheel',
            hint="`version` in [project] as PEP 440 has it, as in 1.2.0 or 1.2.0rc1",
        ) from None
