"""Check `[library.NAME]`, scripts whose programs are objects of a library, and link settings.

Patterns stay inside of the project and match a file. The suffix of a source decides its language.
Keys of launchers are not allowed for objects, and keys of links not for kernels.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING

from tilusbuild.errors import Place, did_you_mean
from tilusbuild.manifest.check_files import check_include_dirs
from tilusbuild.manifest.check_names import check_macros
from tilusbuild.manifest.check_targets import check_flag_list, check_references, check_toolchain
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.library import LANGUAGES, LINKED, match_files
from tilusbuild.manifest.scanner import Path
from tilusbuild.runtime.where import is_within
from tilusbuild.state.patterns import PatternTooWideError

if TYPE_CHECKING:
    from tilusbuild.manifest.library import LibrarySection
    from tilusbuild.manifest.script import ScriptSection
    from tilusbuild.manifest.sections import ProductKeys

_OF_A_CALL = ("kernel", "entry", "args", "launch", "prune", "dispatch", "tune", "cudart")
"""Keys that a script of objects cannot have."""
_OF_A_LINK = ("link-libs", "link-dirs", "rpath", "undefined", "needed")
_OF_A_WHOLE = ("kind", "objects", "targets", "output", "cudart", "torch", "rdc", *_OF_A_LINK)
"""Keys of a library that a part of it cannot have."""
_IN_BRACES = re.compile(r"\{[^{}]*\}")


def check_libraries(checks: Checks) -> None:
    """Report the mistakes of all libraries, and of scripts in their use of libraries."""
    for name, library in checks.manifest.libraries.items():
        path: Path = ("library", name)
        check_references(checks, (*path, "targets"), library.targets, "target")
        check_toolchain(checks, path, library.toolchain)
        check_include_dirs(checks, path, library.include_dirs)
        check_macros(checks, (*path, "defines"))
        allowed = checks.manifest.build.unsafe_flags or library.unsafe_flags
        check_flag_list(checks, (*path, "flags"), library.flags, allowed)
        _check_patterns(checks, (*path, "sources"), library.sources, tuple(LANGUAGES))
        _check_patterns(checks, (*path, "objects"), library.objects, LINKED[library.kind])
        _check_link(checks, path, name, library)
        _check_link_keys(checks, path, library)
    for path, _, script in checks.list_scripts():
        if script.library is not None:
            _check_object(checks, path, script)
        if script.entry is None:
            why = "a kernel's launcher needs only the driver's library"
            checks.reject_keys(path, _OF_A_LINK, "scripts with an entry", why)
        _check_link_keys(checks, path, script)


def _check_patterns(
    checks: Checks, path: Path, patterns: tuple[str, ...], suffixes: tuple[str, ...]
) -> None:
    root = checks.manifest.root

    def resolve_links(name: str) -> str:
        return os.path.realpath(os.path.join(root, name))

    for number, pattern in enumerate(patterns):
        place = partial(checks.document.locate_value, *path, number)
        try:
            names = match_files(root, pattern)
        except PatternTooWideError as error:
            checks.add_error(str(error), place, "name the directory that they are in")
            continue
        if os.path.isabs(pattern) or os.pardir in pattern.split("/"):
            checks.add_error(
                f'"{pattern}" leads out of the project', place, f"the project is {root}"
            )
        elif not names:
            checks.add_error(
                f'no file matches "{pattern}"', place, "patterns start at the manifest"
            )
        elif odd := next((n for n in names if os.path.splitext(n)[1] not in suffixes), None):
            known = ", ".join(suffixes)
            checks.add_error(f'"{odd}" has the wrong suffix', place, f"files here end in {known}")
        elif away := next(
            (n for n in names if not is_within(resolve_links(n), resolve_links("."))), None
        ):
            checks.add_error(f'"{away}" is outside the project, through a symbolic link', place)


def _check_link(checks: Checks, path: Path, name: str, library: LibrarySection) -> None:
    """Report a library without objects, and keys that do not fit its kind."""
    if library.library is not None:
        _check_library_name(checks, path, library.library)
        checks.reject_keys(path, _OF_A_WHOLE, "the library itself", "and this is a part of one")
    manifest = checks.manifest
    named = any(each.library == name for each in manifest.scripts.values())
    named = named or any(each.library == name for each in manifest.libraries.values())
    if not (library.sources or library.objects or named):
        checks.add_error(
            f'library "{name}" has no object',
            checks.document.locate_key(*path),
            f'as in: sources = ["src/*.cu"], or library = "{name}" in a script',
        )
    if library.kind == "static":
        keys = ("cudart", *_OF_A_LINK)
        checks.reject_keys(path, keys, 'kind = "shared"', "an archive is not linked")
    if library.output is not None:
        _check_output(checks, checks.document.locate_value(*path, "output"), library.output)


def _check_link_keys(checks: Checks, path: Path, linked: ProductKeys) -> None:
    check_include_dirs(checks, path, linked.link_dirs, "link-dirs")


def _check_output(checks: Checks, place: Place, output: str) -> None:
    unknown = next((each for each in _IN_BRACES.findall(output) if each != "{target}"), None)
    if os.path.isabs(output) or os.pardir in output.split("/"):
        checks.add_error("the output must be inside the project", place)
    elif unknown is not None:
        checks.add_error(
            f"there is no placeholder {unknown}", place, "{target} is the target's name"
        )
    elif os.path.basename(output) in ("", "."):
        checks.add_error("the output is a directory", place, 'as in: output = "build/libname.so"')


def _check_library_name(checks: Checks, path: Path, library: str) -> None:
    """Report a name of a library that is unknown, or that is a part of another library."""
    wholes = [name for name, each in checks.manifest.libraries.items() if each.library is None]
    if library not in wholes:
        part = library in checks.manifest.libraries
        checks.add_error(
            f'"{library}" is a part itself' if part else f'unknown library "{library}"',
            checks.document.locate_value(*path, "library"),
            (not part and did_you_mean(library, wholes))
            or "a library is declared as [library.NAME]",
        )


def _check_object(checks: Checks, path: Path, script: ScriptSection) -> None:
    _check_library_name(checks, path, script.library or "")
    why = "with library, each program is an object of it"
    checks.reject_keys(path, _OF_A_CALL, "scripts that are called", why)
