"""A package as a wheel, which pip installs. It is written here, and never read.

A zip's times, order and modes are fixed, so equal packages are equal bytes as long as zlib is the
same. The tag says the least glibc and libstdc++ that the libraries load with; libraries that no
manylinux policy allows give a plain `linux` tag, which PyPI refuses and other indexes take.

The code of a wheel is a module with `load`, and a copy of tilusbuild's runtime under the module's
name: a deployment needs the wheel, tvm-ffi and Python, and reads a package with the very code that
it was made for. The price of one wheel for all targets is its size: who wants one a target declares
a package a target (`targets`).
"""

from __future__ import annotations

import base64
import csv
import io
import os
import re
import stat
import time as clock
import zipfile
from collections.abc import Iterator
from keyword import iskeyword

from msgspec import Struct

from tilusbuild import runtime
from tilusbuild._version import __version__
from tilusbuild.package import names
from tilusbuild.package.contents import TVM_FFI, Contents
from tilusbuild.package.errors import cannot_pack, no_package
from tilusbuild.package.formats import PackageFormat
from tilusbuild.package.formats.directory import sync_public_file
from tilusbuild.package.listing import FileList, HostNeeds
from tilusbuild.package.model import Reader, choose_mode, parse_version
from tilusbuild.runtime.regular import open_file, read_text
from tilusbuild.runtime.search_roots import ENTRY_POINTS
from tilusbuild.state.files import sha256_bytes

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
MIN_TIME = 315532800
"""1980-01-01, the first time that a zip can hold."""
_MIN_GLIBC = (2, 17)
_ALLOWED = frozenset(
    (
        *("libc.so.6", "libm.so.6", "libmvec.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
        *("libutil.so.1", "libresolv.so.2", "libnsl.so.1", "libanl.so.1", "libatomic.so.1"),
        *("libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    )
)
"""Libraries that every manylinux platform has (auditwheel 6.8, manylinux-policy.json), and the
loader, on which these depend."""
_LIBSTDCXX = ((19, 17), (22, 24), (24, 27), (28, 31), (29, 34), (30, 35), (33, 39))
"""GLIBCXX_3.4.N → the first manylinux_2_M that has it (auditwheel 6.8, both machines)."""
_PYTHON = ">=3.10"
_TVM_FFI = f"apache-tvm-ffi~={TVM_FFI}"


class Distribution(Struct, frozen=True):
    """The names of a wheel. `name` is normalized by PEP 503, `version` by PEP 440."""

    title: str
    name: str
    version: str
    tag: str

    @property
    def module(self) -> str:
        """The name to import."""
        return self.name.replace("-", "_")

    @property
    def dist_info(self) -> str:
        """The directory with the wheel's metadata."""
        return f"{self.module}-{self.version}.dist-info"


def make_distribution(listed: FileList) -> Distribution:
    """Return the names and the tag of a package's wheel. Raises `PackageError` for a name or a
    version that a wheel cannot have."""
    name = normalize_name(listed.title)
    if not name[0].isalpha() or iskeyword(name):
        raise cannot_pack(
            f'"{listed.title}" cannot name a wheel',
            hint="Python imports it: it begins with a letter",
        )
    tag = f"py3-none-{choose_platform(listed.needs)}"
    return Distribution(listed.title, name, _normalize_version(listed.version), tag)


def make_file_name(_: str, listed: FileList) -> str:
    """Return the wheel's file name. Raises `PackageError`."""
    wheel = make_distribution(listed)
    return f"{wheel.module}-{wheel.version}-{wheel.tag}.whl"


def normalize_name(name: str) -> str:
    """Return a name as PEP 503 compares it. Raises `PackageError` for one that cannot be used."""
    normal_name = re.sub(r"[-_.]+", "-", name).lower()
    if not _NAME.fullmatch(normal_name):
        raise cannot_pack(f'"{name}" cannot name a wheel', hint="it ends with a letter or a digit")
    return normal_name


def _normalize_version(text: str) -> str:
    """Return a version as PEP 440 writes it. Raises `PackageError` for any other text."""
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(text))
    except InvalidVersion:
        raise cannot_pack(
            f'"{text}" cannot be the version of a wheel',
            hint="`version` in [project] as PEP 440 has it, as in 1.2.0 or 1.2.0rc1",
        ) from None


def choose_platform(needs: HostNeeds) -> str:
    """Return the platform tag: the oldest manylinux that has everything that the libraries need,
    as "manylinux_2_28_x86_64"; "linux_MACHINE" if none has."""
    # A `linux` wheel promises nothing of its host: PyPI refuses it.
    if not set(needs.libraries) <= _ALLOWED:
        return f"linux_{needs.machine}"
    glibc = max(_MIN_GLIBC, parse_version(needs.glibc or "0"))
    if needs.libstdcxx is not None:
        needed_patch = parse_version(needs.libstdcxx)[-1]
        glibc_minors = [minor for patch, minor in _LIBSTDCXX if patch >= needed_patch]
        if not glibc_minors:
            return f"linux_{needs.machine}"
        glibc = max(glibc, (2, glibc_minors[0]))
    return f"manylinux_{glibc[0]}_{glibc[1]}_{needs.machine}"


def _list_members(contents: Contents, wheel: Distribution) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of each file of the wheel except RECORD, in the order of the zip: code,
    list, packed files, metadata. Raises `PackageError`."""
    module = wheel.module
    code = _CODE.format(title=wheel.title, module=module, runtime=RUNTIME, inside=INSIDE)
    yield f"{module}/__init__.py", code.encode()
    yield from ((f"{module}/{name}", data) for name, data in list_runtime_code())
    for name, data in {names.LIST: contents.encoded, **contents.beside}.items():
        yield f"{module}/{INSIDE}/{name}", data
    for path in sorted(contents.listed.files):
        yield f"{module}/{INSIDE}/{path}", contents.read_listed(path)
    yield from _list_metadata(wheel)


_MAGIC = b"PK\x03\x04"


def is_wheel(path: str, start: bytes) -> bool:
    """Return whether a file with these first 4 bytes is a wheel that holds a package."""
    if start != _MAGIC:
        return False
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
    return any(name.endswith(f"/{INSIDE}/{names.LIST}") for name in members)


def write_wheel(contents: Contents, path: str, *, time: int) -> None:
    """Write the wheel to a new file. `time` is that of every entry, in seconds since 1970; a zip
    has none before 1980. Raises `PackageError`, `OSError`."""
    wheel = make_distribution(contents.listed)
    rows: list[tuple[str, str, object]] = []
    date = clock.gmtime(max(time, MIN_TIME))[:6]
    with open(path, "xb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in _list_members(contents, wheel):
            _put_member(archive, name, data, date)
            digest = base64.urlsafe_b64encode(bytes.fromhex(sha256_bytes(data))).rstrip(b"=")
            rows.append((name, f"sha256={digest.decode()}", len(data)))
        # PEP 376: the record lists itself, without a digest, which it cannot hold.
        record = f"{wheel.dist_info}/RECORD"
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows([*rows, (record, "", "")])
        _put_member(archive, record, table.getvalue().encode(), date)
        # Closing writes the directory of the zip, which is to be synced, too.
        archive.close()
        sync_public_file(out)


def _put_member(
    archive: zipfile.ZipFile, name: str, data: bytes, date: tuple[int, int, int, int, int, int]
) -> None:
    """Add a file to a zip, with the mode of its name and the date."""
    info = zipfile.ZipInfo(name, date)
    info.create_system = 3  # Unix: a mode is meant
    info.external_attr = (stat.S_IFREG | choose_mode(name)) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def _list_metadata(wheel: Distribution) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of each metadata file of the wheel except RECORD."""
    texts = {
        "METADATA": (
            f"Metadata-Version: 2.1\nName: {wheel.name}\nVersion: {wheel.version}\n"
            f"Summary: Kernels of {wheel.title}\nRequires-Python: {_PYTHON}\n"
            f"Requires-Dist: {_TVM_FFI}\n"
        ),
        "WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: tilusbuild {__version__}\nRoot-Is-Purelib: false\n"
            f"Tag: {wheel.tag}\n"
        ),
        "entry_points.txt": f"[{ENTRY_POINTS}]\n{wheel.name} = {wheel.module}:path\n",
    }
    for name, text in texts.items():
        yield f"{wheel.dist_info}/{name}", text.encode()


# The code.


INSIDE = "tilus"
"""The directory of the package in the module."""
RUNTIME = "_runtime"
_LAYER = "tilusbuild.runtime"

_CODE = '''\
"""Kernels of {title}. `load(script)` gives one, to be called with arrays."""

import os

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{inside}")


def load(script, *, target=None, strict=False, **params):
    """The kernel of a script, as `tilusbuild.load` gives it, from this package."""
    from {module}.{runtime}.loading import load

    return load(script, where=path, target=target, strict=strict, **params)


def __getattr__(name):
    if name not in ("Kernel", "LoadError"):
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    from {module} import {runtime}

    return getattr({runtime}, name)
'''


def list_runtime_code() -> Iterator[tuple[str, bytes]]:
    """Yield the files of tilusbuild's runtime as the package `_runtime` of any module."""
    directory = os.path.dirname(os.path.abspath(runtime.__file__))
    for name in sorted(os.listdir(directory)):
        if name.endswith(".py"):
            yield f"{RUNTIME}/{name}", rewrite_imports(os.path.join(directory, name), "")


def rewrite_imports(path: str, package: str) -> bytes:
    """Return the source of a file, with `from tilusbuild.runtime.x import` as `from PACKAGE.x
    import`. `package` is a relative name, "" for the file's own package."""
    text = read_text(path).replace(f"from {_LAYER} import", f"from {package or '.'} import")
    return text.replace(f"from {_LAYER}.", f"from {package}.").encode()


def _raise_not_read(path: str) -> Reader:
    """Raise `PackageError` with the command that checks an installed wheel."""
    module = os.path.basename(path).partition("-")[0]
    raise no_package(
        "a wheel is for pip, and is not read",
        hint="check what pip installed:"
        f" tilusbuild verify \"$(python -c 'import {module}; print({module}.path)')\"",
    )


FORMAT = PackageFormat(
    title="a wheel",
    file_name=make_file_name,
    write=write_wheel,
    recognize=is_wheel,
    read=_raise_not_read,
    is_readable=False,
    holds_kinds=False,
)
