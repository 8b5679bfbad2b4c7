"""A package as wheels, for pip: one a target and a small one that finds them, or all in one.

A zip's times, order and modes are fixed, so equal packages are equal bytes as long as zlib is the
same. The tag says the least glibc and libstdc++ that the libraries load with; libraries that no
manylinux policy allows give a plain `linux` tag, which PyPI refuses and other indexes take.
"""

from __future__ import annotations

import base64
import stat
import time as clock
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.formats.plain import finish
from tilusbuild.package.formats.wheel_code import INSIDE
from tilusbuild.package.listing import Needs
from tilusbuild.package.purpose import is_executable
from tilusbuild.runtime.places import ENTRY_POINTS
from tilusbuild.state.hashing import sha256_bytes

_FIRST = 315532800
"""1980-01-01, the least time that a zip can say."""
_LEAST_GLIBC = (2, 17)
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


@dataclass(frozen=True, slots=True)
class Distribution:
    """A wheel to write. `name` is normalized as PEP 503 has it, `version` as PEP 440;
    `requires` are its dependencies besides tvm-ffi; `extras` the extras, each with what it needs;
    `entry` what it says in the group of packages, as (name, object)."""

    name: str
    version: str
    summary: str
    code: Mapping[str, bytes]
    requires: tuple[str, ...] = ()
    extras: tuple[tuple[str, str], ...] = ()
    entry: tuple[str, str] | None = None

    @property
    def module(self) -> str:
        """What is imported."""
        return self.name.replace("-", "_")

    def file(self, contents: Contents | None) -> str:
        """The wheel's own name."""
        tag = tag_of(None if contents is None else contents.listed.needs)
        return f"{self.module}-{self.version}-{tag}.whl"

    @property
    def about(self) -> str:
        """The folder that says what the wheel is."""
        return f"{self.module}-{self.version}.dist-info"


def tag_of(needs: Needs | None) -> str:
    """The tag of a wheel with libraries that need this, or with none."""
    return "py3-none-any" if needs is None else f"py3-none-{platform(needs)}"


def platform(needs: Needs) -> str:
    """The platform that has all that the libraries need."""
    if not set(needs.libraries) <= _ALLOWED:
        return f"linux_{needs.machine}"
    least = max(_LEAST_GLIBC, _numbers(needs.glibc))
    if needs.libstdcxx is not None:
        wanted = _numbers(needs.libstdcxx)[-1]
        minors = [minor for having, minor in _LIBSTDCXX if having >= wanted]
        if not minors:
            return f"linux_{needs.machine}"
        least = max(least, (2, minors[0]))
    return f"manylinux_{least[0]}_{least[1]}_{needs.machine}"


def write_wheel(wheel: Distribution, contents: Contents | None, path: str, *, time: int) -> None:
    """Make the file, with a package or with code alone. `time`: every entry's, in seconds since
    1970. Raises `CannotPack` and `OSError`."""
    with open(path, "xb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        record = _Record(archive, time)
        for name in sorted(wheel.code):
            record.add(f"{wheel.module}/{name}", wheel.code[name])
        if contents is not None:
            inside = f"{wheel.module}/{INSIDE}"
            for name, data in {names.LIST: contents.encoded, **contents.beside}.items():
                record.add(f"{inside}/{name}", data)
            for name in sorted(contents.listed.files):
                record.add(f"{inside}/{name}", contents.read(name))
        for name, data in metadata(wheel, None if contents is None else contents.listed.needs):
            record.add(name, data)
        record.close(f"{wheel.about}/RECORD")
        archive.close()
        finish(out)


def metadata(wheel: Distribution, needs: Needs | None) -> Iterator[tuple[str, bytes]]:
    """The files that say what the wheel is, in their order, without the record."""
    yield f"{wheel.about}/METADATA", _metadata(wheel)
    yield f"{wheel.about}/WHEEL", _wheel(needs)
    if wheel.entry is not None:
        text = f"[{ENTRY_POINTS}]\n{wheel.entry[0]} = {wheel.entry[1]}\n"
        yield f"{wheel.about}/entry_points.txt", text.encode()


def record_line(name: str, sha256: str, size: int) -> str:
    """A file's line in the record (PEP 376)."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
    return f"{_quoted(name)},sha256={digest},{size}\n"


def last_line(name: str) -> str:
    """The record's line for itself."""
    return f"{_quoted(name)},,\n"


class _Record:
    """The entries of a wheel as they are written, and the record of them (PEP 376)."""

    def __init__(self, archive: zipfile.ZipFile, time: int) -> None:
        self._archive = archive
        self._time = clock.gmtime(max(time, _FIRST))[:6]
        self._lines: list[str] = []

    def add(self, name: str, data: bytes) -> None:
        self._lines.append(record_line(name, sha256_bytes(data), len(data)))
        self._write(name, data)

    def close(self, name: str) -> None:
        self._write(name, "".join([*self._lines, last_line(name)]).encode())

    def _write(self, name: str, data: bytes) -> None:
        info = zipfile.ZipInfo(name, self._time)
        info.create_system = 3  # Unix: a mode is meant
        mode = 0o755 if is_executable(name) else 0o644
        info.external_attr = (stat.S_IFREG | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self._archive.writestr(info, data)


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


def _wheel(needs: Needs | None) -> bytes:
    from tilusbuild import __version__

    lines = [
        "Wheel-Version: 1.0",
        f"Generator: tilusbuild {__version__}",
        f"Root-Is-Purelib: {'true' if needs is None else 'false'}",
        f"Tag: {tag_of(needs)}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split(".")) if version else ()
