"""The check of an entry, wherever its files come from: another cache, a remote, a package.

`check_entry` is pure: it reads no disk and takes no lock. It compares the files with `meta.json`,
and the two texts with the program's hash. A stranger's entry is also compared with its texts, from
which follow the names of its files, most of their digests and its include directories; and the
facts of `meta.json` on the code with the product and the compilers' log. Three claims remain, and
are checked in form only: that the compilers make this product of the source, the text of
`compile.sh`, and why a program does not compile. Price: one hash of each content, and one reading
of the product.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import DecodeError, Meta, Struct, json

from tilusbuild.binary.cubin import parse_ptxas
from tilusbuild.binary.elf import MAGIC, BinaryError, read_needs
from tilusbuild.binary.fatbin import CodeImage, read_archs
from tilusbuild.cache import layout
from tilusbuild.cache.entries import get_product, list_meta_files, parse_meta
from tilusbuild.cache.includes import Problem, check_headers, parse_manifest
from tilusbuild.compile.checks import read_images
from tilusbuild.compile.launcher import EXPORTS
from tilusbuild.compile.model import Pipeline
from tilusbuild.compile.module import OPTIONS_FORMAT, list_image_rows, list_kernel_rows
from tilusbuild.compile.steps import LAUNCHER, LAUNCHER_OBJECT
from tilusbuild.plan.identity import PROGRAM_FORMAT, parse_section
from tilusbuild.plan.recorded import find_pipeline, list_header_digests, list_program_files
from tilusbuild.runtime.sealed import CorruptFileError, seal_json
from tilusbuild.state.files import make_hasher, sha256_bytes
from tilusbuild.status import Status
from tilusbuild.toolchain import nvrtc_command

_AR_MAGIC = b"!<arch>\n"
# Bytes of a mapped file that are hashed at once, and then need not stay in memory.
_PIECE = 1 << 20
# What a launcher's directory may have: its source, its object, and headers that NVRTC's programs
# include by name.
_LAUNCHER_FILES = {LAUNCHER, LAUNCHER_OBJECT, *map(os.path.basename, nvrtc_command.SHIPPED)}


class Origin(Enum):
    """The writer of an entry, which decides how much of the entry is checked."""

    CACHE = "cache"
    """A build wrote it into a cache on this machine: its digests are compared."""
    REMOTE = "remote"
    """Any machine may have written it: every file and every claim is compared with its texts."""
    PACKAGE = "package"
    """As `REMOTE`, but a package may leave out files, and has a list of its own for the code."""


class FileFacts(NamedTuple):
    """The size in bytes and the digest of a file whose content the caller has hashed."""

    size: int
    sha256: str


Content: TypeAlias = bytes | FileFacts
"""The content of a file, or its facts. A `mmap` serves as bytes."""


# Bounds of JSON values: `10**4000` would be read, and fail where it is used as a size.
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, Meta(max_length=16 << 10)]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _FileForm(Struct, forbid_unknown_fields=True):
    size: _Number
    sha256: _Digest


class _MetaForm(Struct, forbid_unknown_fields=True):
    """The keys of a meta.json, with their types and ranges."""

    schema: int
    program: _Digest
    status: _Text
    reason: _Text
    files: dict[str, _FileForm]
    images: list[dict[str, _Number | _Text]]
    kernels: dict[str, dict[str, dict[str, _Number]]]
    digest: _Digest
    dynamic_smem: _Number | _Text = 0
    product: _Text = ""


# Made here: msgspec ends the process where two threads meet a type for the first time.
_META_FORM = json.Decoder(_MetaForm)


def check_entry(
    program: str,
    files: Mapping[str, Content],
    manifests: Mapping[str, bytes] | None = None,
    *,
    origin: Origin,
) -> list[Problem]:
    """Return the problems of a program's entry; an empty list for an entry that is right.

    `files` has the content of each file by its name in the program's directory: `meta.json` and
    the two texts as bytes and, from a remote, also `compile.sh`, the log and the product.
    `manifests` has the `MANIFEST` of each include directory that came with the entry, by digest:
    directories in which `check_directory` found no problem. It is None if the entry came without
    them, which are then not compared. No content makes this raise an exception. Raises `ValueError`
    if the caller passed `FileFacts` for a file that has to be read.
    """
    meta_json = _get_bytes(files, layout.META)
    if meta_json is None:
        return [Problem("", f"there is no {layout.META}")]
    try:
        if origin is Origin.REMOTE:
            _check_form(meta_json)
        meta = parse_meta(meta_json, program)
    except CorruptFileError as error:
        return [Problem("", str(error))]
    # Texts that are not the listed ones would only give further problems of the same cause.
    if problems := list(_check_listing(files, meta)):
        return problems
    texts = [_get_bytes(files, name) or b"" for name in layout.TEXTS]
    if sha256_bytes(b"".join(texts)) != program:
        message = "the directory is not named by the hash of its program.txt and options.txt"
        return [Problem("", message)]
    # The hash is of both texts together: only their first lines say where the second one begins.
    for name, text, form in zip(layout.TEXTS, texts, (PROGRAM_FORMAT, OPTIONS_FORMAT), strict=True):
        if not text.startswith(f"{form}\n".encode()):
            return [Problem(name, f'does not begin with the line "{form}"')]
    if origin is Origin.CACHE:
        return []
    program_txt, options_txt = (text.decode("utf-8", "surrogateescape") for text in texts)
    problems = list(_check_names(files, program_txt, options_txt))
    if problems or origin is Origin.PACKAGE:
        return problems
    return list(_check_claims(files, meta, meta_json, program_txt, options_txt, manifests))


def _check_form(meta_json: bytes) -> None:
    """Raise `CorruptFileError` for a meta.json with other keys, types or ranges than ours."""
    try:
        _META_FORM.decode(meta_json)
    except (DecodeError, RecursionError) as error:
        raise CorruptFileError(f"{layout.META} cannot be read: {error!s:.200}") from None


def _check_listing(files: Mapping[str, Content], meta: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the differences between the files and the list in meta.json."""
    listing = {name: FileFacts(size, digest) for name, size, digest in list_meta_files(meta)}
    # Sorted: equal damage gives the same first problem on every machine.
    for name in sorted(files.keys() - listing.keys() - {layout.META}):
        if not name.startswith(layout.DUMPS):
            yield Problem(name, f"is not listed in {layout.META}")
    for name, facts in listing.items():
        if name not in files:
            yield Problem(name, "is missing")
        elif (size := _get_size(files[name])) != facts.size:
            yield Problem(name, f"has {size} bytes instead of {facts.size}")
        elif _get_digest(files[name]) != facts.sha256:
            yield Problem(name, "was modified")


def _check_names(
    files: Mapping[str, Content], program_txt: str, options_txt: str
) -> Iterator[Problem]:
    """Yield a problem for each file that does not follow from the texts."""
    expected_digests = list_program_files(program_txt, options_txt)
    for name, content in files.items():
        # A name that no pipeline makes could be a script or a header that a later step runs.
        if name not in expected_digests:
            yield Problem(name, "is not a file that its pipeline makes")
            continue
        expected_digest = expected_digests[name]
        # The digest of a product or a log is None, since no text determines their content.
        if expected_digest is not None and expected_digest != _get_digest(content):
            yield Problem(name, "is not the one that its texts name")


def _check_claims(
    files: Mapping[str, Content],
    meta: Mapping[str, Any],
    meta_json: bytes,
    program_txt: str,
    options_txt: str,
    manifests: Mapping[str, bytes] | None,
) -> Iterator[Problem]:
    """Yield the claims of a stranger's entry that do not follow from its texts."""
    if (pipeline := find_pipeline(options_txt)) is None:
        yield Problem(layout.OPTIONS_TXT, "names no pipeline")
        return
    # Equal programs are equal bytes on every machine: one form of meta.json is accepted.
    if seal_json(meta) != meta_json:
        yield Problem(layout.META, "is not in the form that publishing writes")
    product = f"module/{pipeline.product}"
    # compile.sh is always required: it names the include directories that the program needs.
    required = {layout.COMPILE_SH}
    for name, digest in list_program_files(program_txt, options_txt).items():
        if digest is not None and name != product:
            required.add(name)
    if meta["status"] == Status.BUILT:
        required.add(product)
        # The runtime would load the product that meta.json names, and `_check_meta_against_code`
        # reads this one.
        if get_product(meta).name != product:
            yield Problem(layout.META, f"does not name the product {product}")
    elif product in files:
        yield Problem(product, f"is there, and {layout.META} says {meta['status']}")
    missing = sorted(required - files.keys())
    for name in missing:
        yield Problem(name, "is missing")
    if not missing:
        yield from _check_directories(files, pipeline, program_txt, options_txt, manifests)
        yield from _check_meta_against_code(files, meta, pipeline)


def _check_directories(
    files: Mapping[str, Content],
    pipeline: Pipeline,
    program_txt: str,
    options_txt: str,
    manifests: Mapping[str, bytes] | None,
) -> Iterator[Problem]:
    """Yield the problems of the include directories that compile.sh names: the headers' directory,
    and the launcher's if the pipeline has one. `manifests` has their lists of files by digest."""
    named_digests = set(layout.find_header_digests(_get_bytes(files, layout.COMPILE_SH) or b""))
    # The program's hash covers program.txt, and not compile.sh, which must agree with it.
    header_digest, _ = list_header_digests(program_txt)
    if manifests is not None and named_digests != manifests.keys():
        yield Problem(layout.COMPILE_SH, "does not name exactly the include directories beside it")
    if header_digest is not None and header_digest not in named_digests:
        yield Problem(layout.COMPILE_SH, f"does not name {layout.INCLUDE}/{header_digest}")
    other_digests = sorted(named_digests - {header_digest})
    if len(other_digests) > (1 if pipeline.launcher.is_there else 0):
        surplus_directory = f"{layout.INCLUDE}/{other_digests[-1]}"
        yield Problem(surplus_directory, "is not a directory that it can have")
    elif other_digests and manifests is not None:
        # The headers' directory needs no such check: its digest is in program.txt, and covers all
        # files in it.
        (digest,) = other_digests
        launcher_sha256 = parse_section(options_txt, "generated").get(LAUNCHER)
        yield from _check_launcher_directory(digest, manifests.get(digest, b""), launcher_sha256)


def _check_launcher_directory(
    digest: str, manifest: bytes, launcher_sha256: str | None
) -> Iterator[Problem]:
    """Yield the files of a launcher's include directory that its texts do not determine."""
    directory = f"{layout.INCLUDE}/{digest}"
    members = parse_manifest(manifest)
    for name in sorted(members.keys() - _LAUNCHER_FILES):
        yield Problem(f"{directory}/{name}", "is not a file that a launcher has")
    # "": a directory without a launcher must not pass where the texts name none.
    if members.get(LAUNCHER, "") != launcher_sha256:
        yield Problem(f"{directory}/{LAUNCHER}", f"is not the one that {layout.OPTIONS_TXT} names")


def check_directory(digest: str, members: Mapping[str, Content]) -> list[Problem]:
    """Return the problems of an include directory, whose `MANIFEST` is given as bytes."""
    manifest = _get_bytes(members, layout.MANIFEST)
    digests = {name: _get_digest(content) for name, content in members.items()}
    return check_headers(digest, manifest, digests)


def _check_meta_against_code(
    files: Mapping[str, Content], meta: Mapping[str, Any], pipeline: Pipeline
) -> Iterator[Problem]:
    """Yield a problem for each fact on the code in meta.json that contradicts the product or the
    log, and for a product that cannot be read."""
    # The log is believed, since only a compile shows what the compilers print: meta.json need only
    # agree with it.
    log = _get_bytes(files, layout.LOG) or b""
    kernels = list_kernel_rows(parse_ptxas(log.decode("utf-8", "replace")))
    is_built = meta["status"] == Status.BUILT
    # Steps before the one that failed may have reported kernels: the log then has some, and
    # meta.json has none.
    if meta["kernels"] != kernels and (is_built or meta["kernels"]):
        yield Problem(layout.META, "does not have the kernels that the compilers reported")
    if not is_built:
        if meta["images"]:
            yield Problem(layout.META, f"has code, and says {meta['status']}")
        return
    name = f"module/{pipeline.product}"
    try:
        images = _read_images(name, _get_bytes(files, name) or b"", pipeline)
    except BinaryError as error:
        yield Problem(name, str(error))
        return
    if meta["images"] != list_image_rows(images):
        yield Problem(layout.META, f"does not have the code that is in {name}")


def _read_images(name: str, product: bytes, pipeline: Pipeline) -> Sequence[CodeImage]:
    """Return the code in a product. Raises `BinaryError` for content that is not a product."""
    # An object or an archive has no launcher to export: only its first bytes are checked.
    if not pipeline.launcher.is_there:
        magic = _AR_MAGIC if name.endswith(".a") else MAGIC
        if product[: len(magic)] != magic:
            raise BinaryError("is not what its name says")
        return read_images(product)
    # A library that loads and exports nothing would fail at the first call, on a user's machine.
    try:
        images = read_archs(product)
        missing_exports = read_needs(product).find_missing_exports(*EXPORTS)
    except BinaryError as error:
        raise BinaryError(f"is not a library: {error}") from None
    if missing_exports:
        raise BinaryError(f"does not export {', '.join(missing_exports)}")
    return images


def _get_bytes(files: Mapping[str, Content], name: str) -> bytes | None:
    """Return the content of a file; None if `files` does not have it. Raises `ValueError` if the
    caller passed only its facts."""
    content = files.get(name)
    if isinstance(content, FileFacts):
        raise ValueError(f"{name} is to be given as bytes")
    return content


def _get_size(content: Content) -> int:
    return content.size if isinstance(content, FileFacts) else len(content)


def _get_digest(content: Content) -> str:
    """Return the sha256 of a content. A mapped file is hashed in pieces, to save memory."""
    if isinstance(content, FileFacts):
        return content.sha256
    # An object for mypy: `Content` has no mmap, though one serves as bytes.
    mapped: object = content
    if not isinstance(mapped, mmap.mmap):
        return sha256_bytes(content)
    digest = make_hasher()
    for start in range(0, len(mapped), _PIECE):
        digest.update(mapped[start : start + _PIECE])
        mapped.madvise(mmap.MADV_DONTNEED)  # pages that were read count as memory of this process
    return digest.hexdigest()
