"""Reading a manifest: file → document → models → checks → `Manifest`, or all its mistakes."""

from __future__ import annotations

import os

from tilusbuild.errors import Diagnostic, InputError, Place, input_error
from tilusbuild.manifest.check_dispatch import check_dispatch
from tilusbuild.manifest.check_expressions import check_expressions
from tilusbuild.manifest.check_files import check_files
from tilusbuild.manifest.check_flags import check_flags
from tilusbuild.manifest.check_names import check_names
from tilusbuild.manifest.check_space import check_space
from tilusbuild.manifest.check_targets import check_targets
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.document import read_document, shown_path
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.structure import structured

_CHECKS = (
    check_names,
    check_targets,
    check_space,
    check_expressions,
    check_dispatch,
    check_flags,
    check_files,
)


def load(path: str | os.PathLike[str]) -> Manifest:
    """Return the checked manifest. Raises `InputError` with every mistake, in the order of the
    file."""
    try:
        return _load(os.fspath(path))
    except RecursionError:
        raise input_error("nested too deeply", place=Place(shown_path(os.fspath(path)))) from None


def _load(path: str) -> Manifest:
    document = read_document(path)
    manifest, diagnostics = structured(document)
    if manifest is not None:
        checks = Checks(document, manifest)
        for check in _CHECKS:
            check(checks)
        diagnostics += checks.diagnostics
    if diagnostics or manifest is None:
        raise InputError(*sorted(diagnostics, key=_position))
    return manifest


def _position(diagnostic: Diagnostic) -> tuple[int, int]:
    place = diagnostic.place
    return (place.line or 0, place.column or 0) if place else (0, 0)
