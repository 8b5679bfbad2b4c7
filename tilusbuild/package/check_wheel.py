"""Is all of a wheel what it should be? An import runs its code, and pip believes its metadata.

Both follow from the list, so they are made again from it and compared. The code is a copy of this
version's runtime; a wheel of another version cannot be checked by this one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilusbuild import __version__
from tilusbuild.package import names
from tilusbuild.package.errors import CannotPack, Incoherent
from tilusbuild.package.formats.read_wheel import WheelReader
from tilusbuild.package.formats.wheel_code import INSIDE
from tilusbuild.package.formats.wheels import part_of, whole
from tilusbuild.package.formats.write_wheel import (
    Distribution,
    last_line,
    metadata,
    record_line,
)
from tilusbuild.package.listing import FileList, title_of
from tilusbuild.state.hashing import sha256_bytes


def check_wheel(reader: WheelReader, listing: FileList) -> None:
    """Raises `Incoherent`, and what reading raises."""
    if listing.tool != __version__:
        raise Incoherent(
            f"the wheel's own code is of tilusbuild {listing.tool}; this is {__version__}",
            hint="verify it with that version, or take another carrier",
        )
    there = {name: _unordered(name, data) for name, data in reader.others().items()}
    made = [_others(reader, listing, wheel) for wheel in _distributions(listing)]
    if there in made:
        return
    expected = next((m for m in made if f"{reader.module}/__init__.py" in m), {})
    different = [n for n in {**there, **expected} if there.get(n) != expected.get(n)]
    odd = min(different, key=lambda name: (name.endswith("/RECORD"), name))
    raise Incoherent(f"{odd} is not what a wheel of this package has")


def _distributions(listing: FileList) -> Iterator[Distribution]:
    """What a wheel with this list can be: a whole package, or one target of several."""
    try:
        yield whole(listing.title, listing.version)
        for target in listing.targets:
            if listing.name.endswith(f"-{target}") and len(listing.targets) == 1:
                title = title_of(listing.project, listing.name.removesuffix(f"-{target}"))
                yield part_of(title, target, listing.version)
    except CannotPack:
        return


def _others(reader: WheelReader, listing: FileList, wheel: Distribution) -> dict[str, bytes]:
    """Every file beside the package, the record among them."""
    code = {f"{wheel.module}/{name}": wheel.code[name] for name in sorted(wheel.code)}
    about = dict(metadata(wheel, listing.needs))
    inside = f"{wheel.module}/{INSIDE}"
    carried = {names.LIST: reader.list_bytes(), **reader.attestations()}
    lines = [record_line(name, sha256_bytes(data), len(data)) for name, data in code.items()]
    lines += [
        record_line(f"{inside}/{name}", sha256_bytes(data), len(data))
        for name, data in carried.items()
    ]
    lines += [
        record_line(f"{inside}/{path}", listing.files[path].sha256, listing.files[path].size)
        for path in sorted(listing.files)
    ]
    lines += [record_line(name, sha256_bytes(data), len(data)) for name, data in about.items()]
    record = f"{wheel.about}/RECORD"
    said = "".join([*lines, last_line(record)]).encode()
    return {**code, **about, record: _unordered(record, said)}


def _unordered(name: str, data: bytes) -> bytes:
    """A record's lines may come in any order."""
    return b"".join(sorted(data.splitlines(keepends=True))) if name.endswith("/RECORD") else data
