"""Checks of compiler flags: one argument an item, and none that tilusbuild sets itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial

from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.locate import Path
from tilusbuild.manifest.shape import toml_text

_PASSES_ON = frozenset(
    {
        *("-Xcompiler", "--compiler-options", "-Xlinker", "--linker-options", "-Xptxas"),
        *("--ptxas-options", "-Xnvlink", "--nvlink-options", "-Xcudafe", "-Xarchive"),
        *("-Xfatbin", "--archive-options", "-mllvm", "--param"),
    }
)
"""Options whose next argument is for another tool."""

_TARGET = "say it in [target.NAME] with arch and ptx"
_OUTPUT = "tilusbuild decides where outputs go; `--dump-ir` keeps the intermediate files"
_STAGE = "tilusbuild decides what each step makes"
_INCLUDE = "use include-dirs, so that headers are tracked and carried"
_STD = 'use std in [toolchain], as in std = "c++20"'
_HOST = "tilusbuild finds the host compiler that fits nvcc; `tilusbuild doctor` shows which"
_MARCH = "use host-march in [toolchain]; a package must run on other machines"

_OWNED: dict[str, str] = {
    **dict.fromkeys(("-o", "--output-file", "-odir", "--output-directory"), _OUTPUT),
    **dict.fromkeys(("-keep", "--keep", "-keep-dir", "--keep-dir", "-save-temps"), _OUTPUT),
    **dict.fromkeys(("--save-temps", "-dryrun", "--dryrun", "-clean", "--clean-targets"), _OUTPUT),
    **dict.fromkeys(("-c", "--compile", "-shared", "--shared", "-E", "--preprocess"), _STAGE),
    **dict.fromkeys(("-S", "-ptx", "--ptx", "-cubin", "--cubin", "-fatbin", "--fatbin"), _STAGE),
    **dict.fromkeys(("-link", "--link", "-dc", "--device-c", "-dlink", "--device-link"), _STAGE),
    **dict.fromkeys(("-lib", "--lib", "-run", "--run", "-cuda", "--cuda", "-dw"), _STAGE),
    **dict.fromkeys(("-M", "-MM", "-MD", "-MMD", "-MF", "-MP", "-MT", "-MQ"), _STAGE),
    **dict.fromkeys(("-gencode", "--generate-code", "-arch", "--gpu-architecture"), _TARGET),
    **dict.fromkeys(("-code", "--gpu-code"), _TARGET),
    **dict.fromkeys(("-I", "--include-path", "-isystem", "--system-include"), _INCLUDE),
    **dict.fromkeys(("-iquote", "-idirafter"), _INCLUDE),
    **dict.fromkeys(("-include", "--pre-include"), "include the header in the template"),
    **dict.fromkeys(("-std", "--std"), _STD),
    **dict.fromkeys(("-ccbin", "--compiler-bindir"), _HOST),
    **dict.fromkeys(("-march", "-mtune"), _MARCH),
}
_JOINED = ("-I", "-isystem", "-iquote", "-idirafter", "-o")
"""Options whose value may follow with nothing between."""


def check_flags(checks: Checks) -> None:
    """The flags of the build, of each target, and of each script and override."""
    _flags(checks, ("build", "flags"), checks.manifest.build.flags)
    for name, target in checks.manifest.targets.items():
        _flags(checks, ("target", name, "flags"), target.flags)
    for path, _, script in checks.scripts():
        _flags(checks, (*path, "flags"), script.flags)
        for name, override in script.override.items():
            _flags(checks, (*path, "override", name, "flags"), override.flags or ())


def _flags(checks: Checks, path: Path, flags: Sequence[str]) -> None:
    passed_on = False
    for number, flag in enumerate(flags):
        place = partial(checks.document.value, *path, number)
        words = _shell_words(flag)
        if len(words) > 1:
            checks.error(
                "one argument per item: this is a shell string",
                place,
                f"write {', '.join(toml_text(word) for word in words)}",
            )
        elif passed_on:
            if "-march=" in flag:
                checks.error(f'"{flag}" is set by tilusbuild', place, _MARCH)
        elif hint := owned(flag):
            checks.error(f'"{flag}" is set by tilusbuild', place, hint)
        passed_on = flag in _PASSES_ON


def _shell_words(flag: str) -> list[str]:
    """Return the arguments that a shell would make of a flag, where it clearly is a shell
    string."""
    if not flag.startswith("-") or not any(c.isspace() for c in flag):
        return [flag]
    try:
        words = shlex.split(flag)
    except ValueError:
        return [flag]
    separate = words[:1] and (words[0] in _PASSES_ON or words[0] in _OWNED)
    if len(words) > 1 and (separate or words[1].startswith("-")):
        return words
    return [flag]


def owned(flag: str) -> str | None:
    """Return which key to use in place of a flag that tilusbuild sets itself; None for other
    flags."""
    name = flag.split("=", 1)[0]
    if name in _OWNED:
        return _OWNED[name]
    if "-march=" in flag and name in _PASSES_ON:
        return _MARCH
    joined = next(
        (option for option in _JOINED if flag.startswith(option) and option != "-o"), None
    )
    return _OWNED[joined] if joined else None
