"""The checked manifest, remembered, so that a build after an edit starts without pydantic.

One file for each manifest, beside the no-op records. It holds what the checks left of one text:
it answers for the same text only, to the tilusbuild that wrote it (another may be installed
elsewhere), and while each of its files that was loaded then has its stamp. What the file system
decides (whether templates are there, what the patterns of a library match) is checked each time, by
the same checks. Whatever is missing, damaged, of another version, another's, or does not pass is as
good as no file: then the manifest is loaded, and says what is wrong with it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Raw, json

from tilusbuild import noop
from tilusbuild.errors import InputError
from tilusbuild.manifest.check_files import check_files
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.document import Document, read_manifest_text
from tilusbuild.manifest.model import NO_DOCUMENT, Manifest
from tilusbuild.manifest.reading import A_MINUTE
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.runtime.regular import try_stat
from tilusbuild.state.envelope import Envelope
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import is_settled, read_stamp

_ENVELOPE = Envelope("manifest")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_Memo: TypeAlias = tuple[list[str], list[list[Any]], Raw]
"""What it is of, the stamps of our own code, and the manifest."""


def recall_manifest(path: str, environment: Mapping[str, str]) -> Manifest | None:
    """Return the remembered manifest of a path, equal to `load_manifest`'s, or None."""
    file = _memo_path(path, environment)
    body = None if file is None or not _is_own(file) else _ENVELOPE.read_body(file)
    if body is None:
        return None
    try:
        text = read_manifest_text(path)
        of, code, raw = json.decode(body, type=_Memo)
        ours = all(list(read_stamp(file)) == stamp for file, *stamp in code)
        if of != _memo_key(path, text) or not ours:
            return None
        manifest = json.decode(raw, type=Manifest)
        return _check_files_again(Document(path, text), manifest)
    except (InputError, ValueError, RecursionError):
        return None


def reread(manifest: Manifest) -> Manifest | None:
    """Return a manifest as `load` would now, where its text and what it was completed from are what
    they were, and its files pass the checks; else None."""
    try:
        text = read_manifest_text(manifest.path)
        same = text == manifest._document.text
        return _check_files_again(manifest._document, _bare(manifest)) if same else None
    except InputError:
        return None


def _bare(manifest: Manifest) -> Manifest:
    """Return a manifest without what follows from its text and the command line."""
    scripts = {name: own for name, own in manifest.scripts.items() if type(own) is ScriptSection}
    return manifest.replace_values(scripts=scripts, _last_flags=())


def _check_files_again(document: Document, manifest: Manifest) -> Manifest | None:
    reading = manifest.reading.reread()
    if reading is None:
        return None
    manifest = manifest.replace_values(_document=document, _reading=reading)
    checks = Checks(document, manifest)
    check_files(checks)
    if manifest.libraries:
        from tilusbuild.manifest.check_libraries import check_libraries

        check_libraries(checks)
    return None if checks.diagnostics else manifest.with_libraries()


def remember_manifest(manifest: Manifest, environment: Mapping[str, str]) -> None:
    """Write a manifest that was just loaded to its state file, if that is possible."""
    file = _memo_path(manifest.path, environment)
    code = _stamp_own_code()
    if file is None or code is None:
        return
    of = _memo_key(manifest.path, manifest._document.text)
    bare = _bare(manifest).replace_values(_document=NO_DOCUMENT)
    known: _Memo = (of, code, Raw(json.encode(bare, enc_hook=dict)))
    _ENVELOPE.write_body(file, json.encode(known), parents=True)


def _memo_path(path: str, environment: Mapping[str, str]) -> str | None:
    records = noop.find_record_directory(environment)
    if records is None:
        return None
    return os.path.join(os.path.dirname(records), "manifests", sha256_text(os.path.abspath(path)))


def _is_own(file: str) -> bool:
    status = try_stat(file)
    return status is not None and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _memo_key(path: str, text: str) -> list[str]:
    return [os.path.abspath(path), sha256_text(text), sys.version, _PACKAGE]


def _stamp_own_code() -> list[list[Any]] | None:
    """Return the stamps of all imported files of tilusbuild: only they took part in loading.

    None if one of them changed in the last minute, so that an equal stamp would prove nothing.
    """
    files = {
        module.__file__
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "tilusbuild" and getattr(module, "__file__", None)
    }
    stamps = [(file, read_stamp(file)) for file in sorted(filter(None, files))]
    now = time.time_ns()
    if not all(is_settled(stamp.newest, now, A_MINUTE) for _, stamp in stamps):
        return None
    return [[file, *stamp] for file, stamp in stamps]
