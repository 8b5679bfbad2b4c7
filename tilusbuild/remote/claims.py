"""What a remote says of a program, compared with what can be worked out here.

The two texts are the program's hash: from them follow the files that its directory has, and of all
but the product, `compile.sh` and the log the digests; the headers, and of the launcher its source.
That is compared before any of it is fetched. What `meta.json` says of the code is worked out again
from the library and from the compilers' log; it counts only where it says the same. What remains a
claim, and is checked in form only: that the library is what the compilers make of the source
(`verify` compiles it), the text of `compile.sh`, and why a program does not compile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, json

from tilusbuild.binary import BinaryError, CodeImage, parse_ptxas, read_archs, read_needs
from tilusbuild.binary.elf import MAGIC
from tilusbuild.cache import layout
from tilusbuild.cache.entries import listed, meta_problem, product_of
from tilusbuild.compile.checks import images_of
from tilusbuild.compile.launcher import EXPORTS
from tilusbuild.compile.model import Pipeline
from tilusbuild.compile.module import image_rows, kernel_rows
from tilusbuild.compile.steps import LAUNCHER, LAUNCHER_OBJECT
from tilusbuild.plan.identity import section_of
from tilusbuild.plan.recorded import headers_of, pipeline_of, program_files
from tilusbuild.remote.record import Blob, Digest, Record, RecordError, parsed
from tilusbuild.runtime.sealed import seal
from tilusbuild.state.files import sha256_bytes
from tilusbuild.status import Status
from tilusbuild.toolchain import nvrtc_command

_ARCHIVE = b"!<arch>\n"
_OF_LAUNCHERS = {LAUNCHER, LAUNCHER_OBJECT, *map(os.path.basename, nvrtc_command.SHIPPED)}
"""The files of a launcher's directory, besides its MANIFEST."""

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, Meta(max_length=16 << 10)]


class _Listing(Struct, forbid_unknown_fields=True):
    size: _Number
    sha256: Digest


class _Meta(Struct, forbid_unknown_fields=True):
    """A meta.json: what it may say, by type and range."""

    schema: int
    program: Digest
    status: _Text
    reason: _Text
    files: dict[str, _Listing]
    images: list[dict[str, _Number | _Text]]
    kernels: dict[str, dict[str, dict[str, _Number]]]
    digest: Digest
    dynamic_smem: _Number | _Text = 0
    product: _Text = ""


_META = json.Decoder(_Meta)


class Claim(Struct, frozen=True):
    """What a program may consist of, as its texts have it."""

    meta: Mapping[str, Any]
    pipeline: Pipeline
    launcher: str | None
    """The digest of its launcher's source."""
    headers: str | None
    """The directory of its headers."""
    listed: Mapping[str, str]
    """The digests of what is in that."""


def claim_of(program: str, record: Record, texts: Mapping[str, bytes]) -> Claim:
    """Return what is to be fetched for a program, from its `NEEDED` texts: no file is in its record
    that it cannot have. Raises `RecordError`."""
    text, options = (texts[n].decode("utf-8", "surrogateescape") for n in layout.TEXTS)
    if sha256_bytes(texts[layout.PROGRAM_TXT] + texts[layout.OPTIONS_TXT]) != program:
        raise RecordError(f"{layout.PROGRAM_TXT} and {layout.OPTIONS_TXT} do not match it")
    if (pipeline := pipeline_of(options)) is None:
        raise RecordError(f"{layout.OPTIONS_TXT} names no pipeline")
    meta = _checked_meta(program, record, texts[layout.META])
    known = program_files(text, options)
    product = f"module/{pipeline.product}"
    if meta["status"] != Status.BUILT:
        del known[product]
    for name, blob in record.files.items():
        if name not in known:
            raise RecordError(f"its record names {name[:80]!r}, which no such program has")
        if known[name] not in (None, blob.digest):
            raise RecordError(f"{name} is not the one that {layout.OPTIONS_TXT} names")
    required = {name for name, digest in known.items() if digest is not None}
    if missing := sorted(required - record.files.keys()):
        raise RecordError(f"its record names no {missing[0]}")
    if meta["status"] == Status.BUILT and product_of(meta).name != product:
        raise RecordError(f"{layout.META} does not name the product {product}")
    launcher = section_of(options, "generated").get(LAUNCHER)
    claim = Claim(meta, pipeline, launcher, *headers_of(text))
    _check_directories(record, claim, texts[layout.COMPILE_SH])
    return claim


def check_listing(digest: str, listing: Mapping[str, Blob], claim: Claim) -> None:
    """Compare a directory's listing with what the program's texts say. Raises `RecordError`."""
    where = f"{layout.INCLUDE}/{digest}"
    found = {name: blob.digest for name, blob in listing.items()}
    if found.pop(layout.MANIFEST, None) != digest:
        raise RecordError(f"{where} is not named by the hash of a {layout.MANIFEST}")
    if digest == claim.headers:
        if found != claim.listed:
            raise RecordError(f"{where} does not have the headers that {layout.PROGRAM_TXT} names")
    elif strange := sorted(found.keys() - _OF_LAUNCHERS):
        raise RecordError(f"{where} has {strange[0][:80]!r}, which no launcher has")
    elif found.get(LAUNCHER) != claim.launcher:
        raise RecordError(f"{LAUNCHER} is not the one that {layout.OPTIONS_TXT} names")


def check_code(claim: Claim, made: bytes | None, log: bytes) -> None:
    """Compare what meta.json says of the code with the product, and with what the compilers said.
    Raises `RecordError`."""
    meta, pipeline = claim.meta, claim.pipeline
    kernels = kernel_rows(parse_ptxas(log.decode("utf-8", "replace")))
    built = meta["status"] == Status.BUILT
    # A step that failed may have reported kernels before it did; then none is recorded.
    if meta.get("kernels") != kernels and (built or meta.get("kernels")):
        raise RecordError(f"{layout.META} does not have the kernels that the compilers reported")
    if not built and meta.get("images"):
        raise RecordError(f"{layout.META} has code, and says {meta['status']}")
    if built:
        name = f"module/{pipeline.product}"
        if meta.get("images") != image_rows(_images(name, made or b"", pipeline)):
            raise RecordError(f"{layout.META} and {name} disagree on the code")


def _images(name: str, made: bytes, pipeline: Pipeline) -> Sequence[CodeImage]:
    """Return the code in a product. Raises `RecordError` for what is none."""
    if not pipeline.launcher.is_there:
        start = _ARCHIVE if name.endswith(".a") else MAGIC
        if made[: len(start)] != start:
            raise RecordError(f"{name} is not what its name says")
        return images_of(made)
    try:
        images, missing = read_archs(made), read_needs(made).missing(*EXPORTS)
    except BinaryError as error:
        raise RecordError(f"{name} is not a library: {error}") from None
    if missing:
        raise RecordError(f"{name} does not export {', '.join(missing)}")
    return images


def _checked_meta(program: str, record: Record, data: bytes) -> dict[str, Any]:
    """Return what meta.json says, if it is what publishing would write. Raises `RecordError`."""
    parsed(data, _META, layout.META)
    meta: dict[str, Any] = json.decode(data)
    del meta["digest"]
    if seal(meta) != data:
        raise RecordError(f"{layout.META} has another form, or is not what was sealed")
    if problem := meta_problem(meta, program):
        raise RecordError(f"{layout.META}: {problem}")
    said = {name: Blob(digest, size) for name, size, digest in listed(meta)}
    if said != {name: blob for name, blob in record.files.items() if name != layout.META}:
        raise RecordError(f"{layout.META} and the record list different files")
    return meta


def _check_directories(record: Record, claim: Claim, compile_sh: bytes) -> None:
    if set(layout.mentioned_headers(compile_sh)) != record.directories.keys():
        raise RecordError("the record and compile.sh have different directories")
    others = record.directories.keys() - {claim.headers}
    if len(others) > claim.pipeline.launcher.is_there:
        raise RecordError(f"the record has {layout.INCLUDE}/{min(others)}, which it cannot have")
    if claim.headers is not None and claim.headers not in record.directories:
        raise RecordError(f"the record has no {layout.INCLUDE}/{claim.headers}")
