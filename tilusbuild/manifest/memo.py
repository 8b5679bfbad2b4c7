"""Remember the checked manifest, so that a build after an edit starts without pydantic.

There is one file for each manifest, beside the no-op records. A remembered manifest is that of one
text, one Python and one installation of tilusbuild, whose imported files all have their stamps. The
checks of files (templates, patterns of libraries) run again each time. Whatever is missing, damaged
or fails a check counts as no file: then the manifest is loaded, with its errors.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
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

# The key, the paths and stamps of our own code, and the manifest.
_Memo: TypeAlias = tuple[list[str], list[list[Any]], Raw]


def recall_manifest(path: str, environment: Mapping[str, str]) -> Manifest | None:
    """Return the remembered manifest of a path, equal to `load_manifest`'s. Return None if there
    is none, or if it does not hold any longer."""
    file = _find_memo_path(path, environment)
    if file is None or not _is_own(file):
        return None
    body = _ENVELOPE.read_body(file)
    if body is None:
        return None
    try:
        text = read_manifest_text(path)
        key, code_stamps, raw_manifest = json.decode(body, type=_Memo)
        if key != _make_memo_key(path, text):
            return None
        if any(list(read_stamp(code)) != stamp for code, *stamp in code_stamps):
            return None
        # Decoded only now, as that takes the longest: mostly the text has changed.
        return _check_files_again(Document(path, text), json.decode(raw_manifest, type=Manifest))
    except (InputError, ValueError, RecursionError):
        return None


def reread_manifest(manifest: Manifest) -> Manifest | None:
    """Return the manifest with its files checked and its templates read again.

    None if `load_manifest` would return another one, or raise.
    """
    try:
        if read_manifest_text(manifest.path) != manifest._document.text:
            return None
        return _check_files_again(manifest._document, _strip_derived(manifest))
    except InputError:
        return None


def _strip_derived(manifest: Manifest) -> Manifest:
    """Return a manifest without its libraries' scripts and the flags of the command line."""
    # Not `isinstance`: the scripts of libraries have classes of their own.
    scripts = {
        name: script for name, script in manifest.scripts.items() if type(script) is ScriptSection
    }
    return manifest.replace_values(scripts=scripts, _last_flags=())


def _check_files_again(document: Document, manifest: Manifest) -> Manifest | None:
    """Return the manifest with its libraries; None if a template or a file has changed."""
    reading = manifest.reading.reread()
    if reading is None:
        return None
    manifest = manifest.replace_values(_document=document, _reading=reading)
    checks = Checks(document, manifest)
    check_files(checks)
    if manifest.libraries:
        from tilusbuild.manifest.check_libraries import check_libraries

        check_libraries(checks)
    return None if checks.diagnostics else manifest.add_library_scripts()


def remember_manifest(manifest: Manifest, environment: Mapping[str, str]) -> None:
    """Write a manifest that was just loaded to its state file, if that is possible."""
    file = _find_memo_path(manifest.path, environment)
    stamps = _stamp_own_code()
    if file is not None and stamps is not None:
        bare = _strip_derived(manifest).replace_values(_document=NO_DOCUMENT)
        key = _make_memo_key(manifest.path, manifest._document.text)
        with suppress(UnicodeEncodeError):  # JSON has no path that is not UTF-8
            memo: _Memo = (key, stamps, Raw(json.encode(bare, enc_hook=dict)))
            _ENVELOPE.write_body(file, json.encode(memo), parents=True)


def _find_memo_path(path: str, environment: Mapping[str, str]) -> str | None:
    records = noop.find_record_directory(environment)
    if records is None:
        return None
    return os.path.join(os.path.dirname(records), "manifests", sha256_text(os.path.abspath(path)))


def _is_own(file: str) -> bool:
    """Return whether a file is this user's own, and no other user may write it."""
    # Its manifest is not checked again: whoever writes the file decides which commands run.
    status = try_stat(file)
    return status is not None and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _make_memo_key(path: str, text: str) -> list[str]:
    return [os.path.abspath(path), sha256_text(text), sys.version, _PACKAGE]


def _stamp_own_code() -> list[list[Any]] | None:
    """Return `[path, *stamp]` of each imported file of tilusbuild: only they took part in loading.

    Return None if one of them changed in the last minute: an equal stamp would prove nothing.
    """
    files = {
        module.__file__
        # A copy of the items: another thread may import a module meanwhile.
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "tilusbuild" and getattr(module, "__file__", None)
    }
    stamps = [(file, read_stamp(file)) for file in sorted(filter(None, files))]
    now = time.time_ns()
    if not all(is_settled(stamp.newest, now, A_MINUTE) for _, stamp in stamps):
        return None
    return [[file, *stamp] for file, stamp in stamps]
