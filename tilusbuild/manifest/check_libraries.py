"""Check `[library.NAME]`, scripts whose programs are objects of a library, and link settings.

Patterns stay inside of the project and match a file. The suffix of a source decides its language.
Keys of launchers are not allowed for objects, and keys of links not for kernels.
"""

from __future__ import annotations

import os

from tilusbuild.errors import did_you_mean
from tilusbuild.manifest.check_files import check_include_dirs
from tilusbuild.manifest.check_targets import (
    check_archs,
    check_declared,
    check_flag_list,
    check_toolchain,
)
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.library import LANGUAGES, LINKED, LibrarySection, match_files
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.sections import TargetSection
from tilusbuild.runtime.where import is_within
from tilusbuild.state.patterns import PatternTooWideError

# Keys that a script of objects cannot have.
_CALL_KEYS = ("kernel", "entry", "args", "launch", "prune", "dispatch", "tune", "cudart")
_LINK_KEYS = ("link-libs", "link-dirs", "rpath", "undefined", "needed")
# Keys of a library that a part of it cannot have.
_WHOLE_KEYS = ("kind", "objects", "targets", "output", "cudart", "torch", *_LINK_KEYS)


def check_libraries(checks: Checks) -> None:
    """Report the mistakes of all libraries, and of scripts in their use of libraries."""
    for name, library in checks.manifest.libraries.items():
        path: Path = ("library", name)
        check_declared(checks, (*path, "targets"), library.targets, "target")
        check_toolchain(checks, path, library.toolchain)
        # `manifest.memo` runs these checks of files again: files come and go without the manifest.
        check_include_dirs(checks, path, library.include_dirs)
        allows_all = checks.manifest.build.unsafe_flags or library.unsafe_flags
        check_flag_list(checks, (*path, "flags"), library.flags, unsafe=allows_all)
        _check_patterns(checks, (*path, "sources"), library.sources, tuple(LANGUAGES))
        _check_patterns(checks, (*path, "objects"), library.objects, LINKED[library.kind])
        _check_link(checks, path, name, library)
        check_include_dirs(checks, path, library.link_dirs, "link-dirs")
    for path, _, script in checks.list_scripts():
        if script.library is not None:
            _check_library_name(checks, path, script.library)
            why = "with library, each program is an object of it"
            checks.reject_keys(path, _CALL_KEYS, "scripts that are called", why)
        if script.entry is None:
            why = "a kernel's launcher needs only the driver's library"
            checks.reject_keys(path, _LINK_KEYS, "scripts with an entry", why)
        check_include_dirs(checks, path, script.link_dirs, "link-dirs")


def _check_patterns(
    checks: Checks, path: Path, patterns: tuple[str, ...], suffixes: tuple[str, ...]
) -> None:
    """Report patterns that match no file, or files that cannot be used, once for each pattern."""
    root = checks.manifest.root
    # The project itself may be reached through a link.
    real_root = os.path.realpath(root)
    for number, pattern in enumerate(patterns):
        pattern_path = (*path, number)
        if os.path.isabs(pattern) or os.pardir in pattern.split("/"):
            hint = f"the project is {root}"
            checks.add_value_error(pattern_path, f'"{pattern}" leads out of the project', hint)
            continue
        try:
            names = match_files(root, pattern)
        except PatternTooWideError as error:
            checks.add_value_error(pattern_path, str(error), "name the directory that they are in")
            continue
        if not names:
            hint = "patterns start at the manifest"
            checks.add_value_error(pattern_path, f'no file matches "{pattern}"', hint)
        for name in names:
            if os.path.splitext(name)[1] not in suffixes:
                hint = f"files here end in {', '.join(suffixes)}"
                checks.add_value_error(pattern_path, f'"{name}" has the wrong suffix', hint)
                break  # a pattern that is too wide matches many of them
            if not is_within(os.path.realpath(os.path.join(root, name)), real_root):
                message = f'"{name}" is outside the project, through a symbolic link'
                checks.add_value_error(pattern_path, message)
                break


def _check_link(checks: Checks, path: Path, name: str, library: LibrarySection) -> None:
    """Report a library without objects, and keys that do not fit its kind."""
    if library.library is not None:
        _check_library_name(checks, path, library.library)
        checks.reject_keys(path, _WHOLE_KEYS, "the library itself", "and this is a part of one")
    if library.library is None or not checks.has(*path, "arch"):
        why = "targets have the architectures of the rest"
        checks.reject_keys(path, ("arch", "ptx"), "parts with architectures of their own", why)
    elif library.arch:  # without a mistake in the value
        check_archs(checks, path, TargetSection(arch=library.arch, ptx=library.ptx))
    manifest = checks.manifest
    # Scripts and parts name the library that they make objects for.
    used_names = {script.library for script in manifest.scripts.values()}
    used_names |= {part.library for part in manifest.libraries.values()}
    if not library.sources and not library.objects and name not in used_names:
        checks.add_key_error(
            path,
            f'library "{name}" has no object',
            f'as in: sources = ["src/*.cu"], or library = "{name}" in a script',
        )
    if library.kind == "static":
        keys = ("cudart", *_LINK_KEYS)
        checks.reject_keys(path, keys, 'kind = "shared"', "an archive is not linked")


def _check_library_name(checks: Checks, path: Path, library: str) -> None:
    """Report a name of a library that is unknown, or that is a part of another library."""
    libraries = checks.manifest.libraries
    hint = "a library is declared as [library.NAME]"
    if library not in libraries:
        # A part, which names its library, is not suggested.
        names = [name for name, section in libraries.items() if section.library is None]
        near = did_you_mean(library, names)
        checks.add_value_error((*path, "library"), f'unknown library "{library}"', near or hint)
    elif libraries[library].library is not None:
        checks.add_value_error((*path, "library"), f'"{library}" is a part itself', hint)
