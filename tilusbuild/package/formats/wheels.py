"""A package as wheels, for pip: one for each target and a small one that finds them, or all in one.

With one target, or without `split`, there is one wheel, and its list is the package's. Otherwise
each target is a package by itself, NAME-TARGET, in a wheel by itself, and a small wheel without
kernels finds those that are installed. It offers each as an extra: `pip install NAME[TARGET]`.

A zip's times, order and modes are fixed, so equal packages are equal bytes as long as zlib is the
same. The tag says the least glibc and libstdc++ that the libraries load with; libraries that no
manylinux policy allows give a plain `linux` tag, which PyPI refuses and other indexes take.

The code of a wheel is a module with `load`, and a copy of tilusbuild's runtime under the module's
name: a deployment needs the wheel, tvm-ffi and Python, and reads a package with the very code that
it was made for. A wheel of one target among several has no code but the path of its files.
"""

from __future__ import annotations

import base64
import os
import re
import stat
import time as clock
import zipfile
from collections.abc import Callable, Iterator, Mapping
from keyword import iskeyword

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild import runtime
from tilusbuild.package import names
from tilusbuild.package.contents import Contents, only_target
from tilusbuild.package.errors import cannot_pack
from tilusbuild.package.formats.directory import finish
from tilusbuild.package.listing import FileList, HostNeeds
from tilusbuild.package.model import mode_of, numbers_of
from tilusbuild.runtime.places import ENTRY_POINTS
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.files import sha256_bytes

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_MIN_TIME = 315532800
"""1980-01-01, the least time that a zip can say."""
_MIN_GLIBC = (2, 17)
_ALLOWED = frozenset(
    (
        *("libc.so.6", "libm.so.6", "libmvec.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
        *("libutil.so.1", "libresolv.so.2", "libnsl.so.1", "libanl.so.1", "libatomic.so.1"),
        *("libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    )
)
"""Libraries that every manylinux platform has (auditwheel 6.8, manylinux-policy.json); the
loader's own name is what they depend on."""
_LIBSTDCXX = ((19, 17), (22, 24), (24, 27), (28, 31), (29, 34), (30, 35), (33, 39))
"""GLIBCXX_3.4.N → the first manylinux_2_M that has it (auditwheel 6.8, both machines)."""
_PYTHON = ">=3.10"
_TVM_FFI = "apache-tvm-ffi>=0.1.9"


class Distribution(Struct, frozen=True):
    """A wheel to write. `name` is normalized as PEP 503 has it, `version` as PEP 440;
    `requires` are its dependencies besides tvm-ffi; `extras` the extras, each with what it needs;
    `entry` its entry point in the group of packages, as (name, object)."""

    name: str
    version: str
    summary: str
    code: Mapping[str, bytes]
    requires: tuple[str, ...] = ()
    extras: tuple[tuple[str, str], ...] = ()
    entry: tuple[str, str] | None = None

    @property
    def module(self) -> str:
        """The name to import."""
        return self.name.replace("-", "_")

    def file(self, listed: FileList | None) -> str:
        """Return the wheel's file name."""
        return f"{self.module}-{self.version}-{tag_of(_needs_of(listed))}.whl"

    @property
    def dist_info(self) -> str:
        """The directory with the wheel's metadata."""
        return f"{self.module}-{self.version}.dist-info"


# Which wheels, and what they are called.


def write_wheels(
    title: str,
    contents: Contents,
    attest: Callable[[Contents], Mapping[str, bytes]],
    directory: str,
    *,
    split: bool,
    time: int,
) -> Iterator[tuple[str, str | None]]:
    """Write the wheels; yield their names, each with the digest of its list. Raises
    `PackageError`, `OSError`."""
    for wheel, held in _wheels(title, contents, split=split):
        if held is not None:
            held = replace(held, beside=attest(held))
        name = wheel.file(None if held is None else held.listed)
        write_wheel(wheel, held, os.path.join(directory, name), time=time)
        yield name, None if held is None else held.digest


def _wheels(
    title: str, contents: Contents, *, split: bool
) -> Iterator[tuple[Distribution, Contents | None]]:
    name, version = normalized(title), _version(contents.listed.version)
    if not name[0].isalpha() or iskeyword(name):
        raise cannot_pack(
            f'"{title}" cannot name a wheel', hint="Python imports it: it begins with a letter"
        )
    targets = sorted(contents.listed.targets)
    if not split or len(targets) == 1:
        yield whole(title, contents.listed.version), contents
        return
    parts = {target: f"{name}-{normalized(target)}" for target in targets}
    if len(set(parts.values())) < len(parts):
        raise cannot_pack(
            f"two of the targets {', '.join(targets)} would make one wheel",
            hint="in a wheel's name, capitals, `.`, `_` and `-` are all one: rename a target",
        )
    for target in parts:
        yield part_of(title, target, contents.listed.version), only_target(contents, target)
    extras = tuple((normalized(t), f"{part}=={version}") for t, part in parts.items())
    code = _code_of_shim(title, name.replace("-", "_"), name)
    yield Distribution(name, version, _summary(title), code, extras=extras), None


def whole(title: str, version: str) -> Distribution:
    """Return the one wheel of a package. Raises `PackageError`."""
    name = normalized(title)
    module = name.replace("-", "_")
    code, entry = _code_of_single(title, module), (name, f"{module}:path")
    return Distribution(name, _version(version), _summary(title), code, entry=entry)


def part_of(title: str, target: str, version: str) -> Distribution:
    """Return the wheel of one target of several. Raises `PackageError`."""
    name, version = normalized(title), _version(version)
    part = f"{name}-{normalized(target)}"
    code = _code_of_part(title, target, name.replace("-", "_"))
    entry = (f"{name}.{normalized(target)}", f"{part.replace('-', '_')}:path")
    summary = f"{_summary(title)}, for {target}"
    return Distribution(part, version, summary, code, (f"{name}=={version}",), entry=entry)


def _summary(title: str) -> str:
    return f"Kernels of {title}"


def normalized(name: str) -> str:
    """Return a distribution's name as PEP 503 compares it. Raises `PackageError` for what cannot
    be one."""
    found = re.sub(r"[-_.]+", "-", name).lower()
    if not _NAME.fullmatch(found):
        raise cannot_pack(f'"{name}" cannot name a wheel', hint="it ends with a letter or a digit")
    return found


def _version(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(text))
    except InvalidVersion:
        raise cannot_pack(
            f'"{text}" cannot be the version of a wheel',
            hint="`version` in [project] as PEP 440 has it, as in 1.2.0 or 1.2.0rc1",
        ) from None


def _needs_of(listed: FileList | None) -> HostNeeds | None:
    return None if listed is None else listed.needs


def tag_of(needs: HostNeeds | None) -> str:
    """Return the tag of a wheel with libraries that need this, or with none."""
    return "py3-none-any" if needs is None else f"py3-none-{platform(needs)}"


def platform(needs: HostNeeds) -> str:
    """Return the platform that has all that the libraries need."""
    if not set(needs.libraries) <= _ALLOWED:
        return f"linux_{needs.machine}"
    least = max(_MIN_GLIBC, numbers_of(needs.glibc or "0"))
    if needs.libstdcxx is not None:
        wanted = numbers_of(needs.libstdcxx)[-1]
        minors = [minor for having, minor in _LIBSTDCXX if having >= wanted]
        if not minors:
            return f"linux_{needs.machine}"
        least = max(least, (2, minors[0]))
    return f"manylinux_{least[0]}_{least[1]}_{needs.machine}"


# What is in a wheel. `check_wheel` makes the same again from the list.


def members(
    wheel: Distribution, listed: FileList | None, heads: Mapping[str, bytes]
) -> Iterator[tuple[str, bytes | str]]:
    """Yield the name of each file but the record, in order, with its bytes, or with its path in the
    package. `heads` are the list and the attestations by name; without `listed` there is code
    alone."""
    for name in sorted(wheel.code):
        yield f"{wheel.module}/{name}", wheel.code[name]
    for name, data in heads.items():
        yield f"{wheel.module}/{INSIDE}/{name}", data
    for path in sorted(listed.files) if listed is not None else ():
        yield f"{wheel.module}/{INSIDE}/{path}", path
    yield from metadata(wheel, _needs_of(listed))


def write_wheel(wheel: Distribution, contents: Contents | None, path: str, *, time: int) -> None:
    """Write the file, with a package or with code alone. `time`: every entry's, in seconds since
    1970. Raises `PackageError` and `OSError`."""
    listed, heads, lines = None, {}, []
    if contents is not None:
        listed, heads = contents.listed, {names.LIST: contents.encoded, **contents.beside}
    date = clock.gmtime(max(time, _MIN_TIME))[:6]
    with open(path, "xb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members(wheel, listed, heads):
            data = contents.read(content) if contents and isinstance(content, str) else content
            assert isinstance(data, bytes)  # noqa: S101 - paths are a package's
            _put(archive, name, data, date)
            lines.append(record_line(name, sha256_bytes(data), len(data)))
        record = f"{wheel.dist_info}/RECORD"
        _put(archive, record, "".join([*lines, last_line(record)]).encode(), date)
        archive.close()  # it writes the directory of the zip, which is to be synced, too
        finish(out)


def _put(
    archive: zipfile.ZipFile, name: str, data: bytes, date: tuple[int, int, int, int, int, int]
) -> None:
    info = zipfile.ZipInfo(name, date)
    info.create_system = 3  # Unix: a mode is meant
    info.external_attr = (stat.S_IFREG | mode_of(name)) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def metadata(wheel: Distribution, needs: HostNeeds | None) -> Iterator[tuple[str, bytes]]:
    """Yield the files with the wheel's metadata, in their order, without the record."""
    yield f"{wheel.dist_info}/METADATA", _metadata(wheel)
    yield f"{wheel.dist_info}/WHEEL", _wheel(needs)
    if wheel.entry is not None:
        text = f"[{ENTRY_POINTS}]\n{wheel.entry[0]} = {wheel.entry[1]}\n"
        yield f"{wheel.dist_info}/entry_points.txt", text.encode()


def record_line(name: str, sha256: str, size: int) -> str:
    """Return a file's line in the record (PEP 376)."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
    return f"{_quoted(name)},sha256={digest},{size}\n"


def last_line(name: str) -> str:
    """Return the record's line for itself."""
    return f"{_quoted(name)},,\n"


def _quoted(name: str) -> str:
    return f'"{name.replace(chr(34), chr(34) * 2)}"' if "," in name or '"' in name else name


def _metadata(wheel: Distribution) -> bytes:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {wheel.name}",
        f"Version: {wheel.version}",
        f"Summary: {wheel.summary}",
        f"Requires-Python: {_PYTHON}",
        *(f"Requires-Dist: {each}" for each in (_TVM_FFI, *wheel.requires)),
    ]
    for extra, needed in wheel.extras:
        lines += [f"Provides-Extra: {extra}", f'Requires-Dist: {needed}; extra == "{extra}"']
    return ("\n".join(lines) + "\n").encode()


def _wheel(needs: HostNeeds | None) -> bytes:
    from tilusbuild._version import __version__

    lines = [
        "Wheel-Version: 1.0",
        f"Generator: tilusbuild {__version__}",
        f"Root-Is-Purelib: {'true' if needs is None else 'false'}",
        f"Tag: {tag_of(needs)}",
    ]
    return ("\n".join(lines) + "\n").encode()


# The code.


INSIDE = "tilus"
"""The directory of the package in the module."""
RUNTIME = "_runtime"
_LAYER = "tilusbuild.runtime"

_PART = '''\
"""Kernels of {title}, for {target}: the files. `import {shim}` loads them."""

import os

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{inside}")
'''

_LOADING = '''\
"""Kernels of {title}. `load(script)` gives one, to be called with arrays."""

{finding}

def load(script, *, target=None, strict=False, **params):
    """The kernel of a script, as `tilusbuild.load` gives it, from this package."""
    from {module}.{runtime}.loading import load

    return load(script, where=folders(), target=target, strict=strict, **params)


def __getattr__(name):
    if name not in ("Kernel", "LoadError"):
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    from {module} import {runtime}

    return getattr({runtime}, name)
'''

_SINGLE = '''\
import os

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{inside}")


def folders():
    """Where the files are."""
    return [path]
'''

_SHIM = '''\

def folders():
    """Where the files are: a folder for each target that is installed."""
    from importlib import metadata

    found = metadata.entry_points(group="{group}")
    parts = sorted(entry for entry in found if entry.name.startswith("{prefix}"))
    if not parts:
        raise ImportError(
            "none of the targets of {title} is installed: pip install '{distribution}[TARGET]'"
        )
    return [entry.load() for entry in parts]
'''


def _code_of_part(title: str, target: str, shim: str) -> dict[str, bytes]:
    """Return the code of a wheel with one target of several; names are relative to the module."""
    text = _PART.format(title=title, target=target, shim=shim, inside=INSIDE)
    return {"__init__.py": text.encode()}


def _code_of_single(title: str, module: str) -> dict[str, bytes]:
    """Return the code of a wheel with all targets."""
    return _loading(title, module, _SINGLE.format(inside=INSIDE))


def _code_of_shim(title: str, module: str, distribution: str) -> dict[str, bytes]:
    """Return the code of the wheel that finds those of the targets by their entry points."""
    finding = _SHIM.format(
        group=ENTRY_POINTS, prefix=f"{distribution}.", title=title, distribution=distribution
    )
    return _loading(title, module, finding)


def _loading(title: str, module: str, finding: str) -> dict[str, bytes]:
    text = _LOADING.format(title=title, module=module, runtime=RUNTIME, finding=finding)
    return {"__init__.py": text.encode(), **runtime_copy(module)}


def runtime_copy(module: str) -> dict[str, bytes]:
    """Return tilusbuild's runtime as `MODULE._runtime`, with its imports naming that."""
    directory = os.path.dirname(os.path.abspath(runtime.__file__))
    found = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".py"):
            text = read_text(os.path.join(directory, name))
            copied = text.replace(_LAYER, f"{module}.{RUNTIME}")
            found[f"{RUNTIME}/{name}"] = copied.encode()
    return found
