"""Checks of what is built for which target, and of the compiler flags.

Architectures, references to targets, scripts and toolchains, pipelines, groups; flags are one
argument an item, and none is one that tilusbuild sets itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilusbuild.arch import ArchError, format_gencode, parse_arch
from tilusbuild.errors import did_you_mean
from tilusbuild.expr import ExprError
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.denied_flags import find_denied_flags, names_flag_file
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script_sections import has_values, list_expressions, parse_cached
from tilusbuild.manifest.table import format_toml

if TYPE_CHECKING:
    from tilusbuild.manifest.script import ScriptSection
    from tilusbuild.manifest.sections import TargetSection


NAMED = ("toolchain", "named")


def check_targets(checks: Checks) -> None:
    """Check that architectures are known, and that every target or script named exists."""
    if not checks.value_in_file("script") and not checks.value_in_file("library"):
        checks.add_error(
            "the manifest has no script",
            checks.document.locate_key(),
            'add one, such as:\n[script.saxpy]\ntemplate = "kernels/saxpy.cu.j2"',
        )
    for name, target in checks.manifest.targets.items():
        _check_archs(checks, name, target)
        check_toolchain(checks, ("target", name), target.toolchain)
    for path, name, script in checks.list_scripts():
        check_references(checks, (*path, "targets"), script.targets, "target")
        _check_override_targets(checks, path, name, script)
        check_toolchain(checks, path, script.toolchain)
        _check_pipeline(checks, path, name, script)
        if script.group is not None:
            _check_group(checks, path, script, script.group)
    for name, package in checks.manifest.packages.items():
        check_references(checks, ("package", name, "targets"), package.targets, "target")
        scripts = ("package", name, "scripts")
        check_references(checks, scripts, package.scripts, "script", "library")


def _check_archs(checks: Checks, name: str, target: TargetSection) -> None:
    found, known = [], True
    for number, arch in enumerate(target.arch):
        place = partial(checks.document.locate_value, "target", name, "arch", number)
        if isinstance(checks.value_in_file("target", name, "arch"), str):
            place = partial(checks.document.locate_value, "target", name, "arch")
        try:
            found.append(parse_arch(arch))
        except ArchError as error:
            known = False
            checks.add_error(str(error), place, error.hint)
            continue
        if arch in target.arch[:number]:
            checks.add_error(f'"{arch}" is listed twice', place)
    archs = partial(checks.document.locate_value, "target", name, "arch")
    if "cpu" in target.arch and len(target.arch) > 1:
        checks.add_error(
            "cpu cannot share a binary with a GPU", archs, "make it a target of its own"
        )
    elif target.ptx and known:
        ptx = partial(checks.document.locate_key, "target", name, "ptx")
        if target.is_cpu:
            checks.add_error("a cpu target has no PTX", ptx, "leave ptx out")
            return
        try:
            format_gencode(found, ptx=True)
        except ArchError as error:
            checks.add_error(str(error), ptx, error.hint)


def check_references(
    checks: Checks, path: Path, names: Sequence[str] | None, kind: str, *also: str
) -> None:
    """Check that what `path` lists is declared, as one of these kinds, once each."""
    known = [name for each in (kind, *also) for name in checks.list_keys(each)]
    _check_listed_names(
        checks, path, names or (), known, kind, f"a {kind} is declared as [{kind}.NAME]"
    )


def _check_listed_names(
    checks: Checks, path: Path, names: Sequence[str], known: Collection[str], kind: str, hint: str
) -> None:
    for number, name in enumerate(names):
        place = partial(checks.document.locate_value, *path, number)
        if name not in known:
            checks.add_error(f'unknown {kind} "{name}"', place, did_you_mean(name, known) or hint)
        elif name in names[:number]:
            checks.add_error(f'"{name}" is listed twice', place)


def _check_override_targets(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    known = checks.list_keys("target")
    for target in checks.list_names(*path, "override"):
        place = partial(checks.document.locate_key, *path, "override", target)
        if target not in known:
            hint = did_you_mean(target, known) or "a target is declared as [target.NAME]"
            checks.add_error(f'override for an unknown target "{target}"', place, hint)
        elif script.targets is not None and target not in script.targets:
            checks.add_error(
                f'script "{name}" is not built for "{target}"',
                place,
                f'add "{target}" to its targets, or remove the override',
            )


def _check_pipeline(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    place = partial(checks.document.locate_key, *path)
    if checks.value_in_file(*path, "library") is not None:
        return  # `check_libraries` has it
    if checks.value_in_file(*path, "kernels") is not None:
        _check_kernels(checks, path)
        return
    has_kernel = checks.value_in_file(*path, "kernel") is not None
    has_entry = checks.value_in_file(*path, "entry") is not None
    if has_kernel and has_entry:
        checks.add_error(
            'both "kernel" and "entry" are set',
            checks.document.locate_key(*path, "entry"),
            "kernel: tilusbuild writes the launcher; entry: the template holds it. Keep one.",
        )
    elif not has_kernel and not has_entry:
        checks.add_error(
            f'script "{name}" sets neither "kernel" nor "entry", and its template has no '
            "__global__ function to read",
            place,
            'kernel = "NAME" for an extern "C" __global__ function, entry = "NAME" for a host '
            'launch function, library = "NAME" for an object of [library.NAME]',
        )
    elif has_entry:
        why = "with entry, the template's own function launches"
        checks.reject_keys(path, ("launch",), "scripts with a kernel", why)
    if not has_entry:
        why = "a kernel is launched through the driver: its library has no CUDA runtime"
        checks.reject_keys(path, ("cudart",), "scripts with an entry", why)
    if has_kernel and not has_entry:
        _check_cpu_names(checks, path, name, script)
        _check_geometry(checks, path, name, script)


def _check_cpu_names(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    kernel = script.kernel or ""
    cpu = [each for each in checks.list_known_targets(name) if checks.manifest.targets[each].is_cpu]
    if cpu and (":" in kernel or "<" in kernel):
        checks.add_error(
            f'target "{cpu[0]}" calls a function by its C name, and this is a C++ one',
            checks.document.locate_value(*path, "kernel"),
            'declare it extern "C", or say which targets it is for: targets = […]',
        )


def _check_geometry(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    """Report GPU kernels without a grid or a block."""
    for target in checks.list_known_targets(name):
        if checks.manifest.targets[target].is_cpu:
            continue
        written = [(*path, "launch"), (*path, "override", target, "launch")]
        for key in ("grid", "block"):
            if not any(checks.value_in_file(*table, key) is not None for table in written):
                has_table = checks.value_in_file(*path, "launch") is not None
                checks.add_error(
                    f'script "{name}" is missing launch.{key}, which GPU targets need',
                    checks.document.locate_key(*path, *(["launch"] if has_table else [])),
                    f'as in:\n[script.{name}.launch]\ngrid = ["cdiv(n, 256)"]\nblock = [256]',
                )
                if not has_table:
                    return


def _check_kernels(checks: Checks, path: Path) -> None:
    """Report kernels that could not be taken for scripts."""
    place = partial(checks.document.locate_key, *path, "kernels")
    beside = [
        key
        for key in ("kernel", "entry", "library")
        if checks.value_in_file(*path, key) is not None
    ]
    if beside:
        checks.add_error(f'both "{beside[0]}" and "kernels" are set', place, "keep one of them")
    elif not checks.list_keys(*path, "kernels"):
        checks.add_error(
            "there is no kernel in kernels", place, "as in: kernels.forward.args = { … }"
        )
    for kernel in checks.list_keys(*path, "kernels"):
        if (full := f"{path[1]}.{kernel}") in checks.list_keys("script"):
            where = partial(checks.document.locate_key, *path, "kernels", kernel)
            checks.add_error(f'there is a script "{full}" already', where, "rename one of them")


def _check_group(checks: Checks, path: Path, script: ScriptSection, group: tuple[str, ...]) -> None:
    if checks.value_in_file(*path, "kernel") is None:
        why = "host functions and objects are compiled separately"
        checks.reject_keys(path, ("group",), "scripts with a kernel", why)
    known = {
        name
        for section in ("params", "space")
        for table in ((), *(("override", target) for target in script.override))
        for name in checks.list_names(*path, *table, section)
    }
    if script.space_file is not None:
        known.update(group)
    hint = "group names parameters of space or params"
    _check_listed_names(checks, (*path, "group"), group, sorted(known), "parameter", hint)


def check_toolchain(checks: Checks, path: Path, name: str | None) -> None:
    """Check that a toolchain is declared where it is asked for."""
    known = checks.list_keys(*NAMED)
    if name is not None and name not in known:
        checks.add_error(
            f'unknown toolchain "{name}"',
            partial(checks.document.locate_value, *path, "toolchain"),
            did_you_mean(name, known) or f"a toolchain is declared as [toolchain.named.{name}]",
        )


_PASSES_ON = frozenset(
    {
        *("-Xcompiler", "--compiler-options", "-Xlinker", "--linker-options", "-Xptxas"),
        *("--ptxas-options", "-Xnvlink", "--nvlink-options", "-Xcudafe", "-Xarchive"),
        *("-Xfatbin", "--archive-options", "-mllvm", "--param"),
    }
)
"""Options whose next argument is for another tool."""

_TARGET = "set arch and ptx in [target.NAME]"
_OUTPUT = "tilusbuild decides where outputs go; `--dump-ir` keeps the intermediate files"
_STAGE = "tilusbuild decides what each step makes"
_INCLUDE = "use include-dirs, so that headers are tracked and carried"
_STD = 'use std in [toolchain], as in std = "c++20"'
_FLAG_FILE = "write its flags here: a hash covers the words of a manifest, and not that file"
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
    **dict.fromkeys(("-optf", "--options-file"), _FLAG_FILE),
}
_ALLOW = "unsafe-flags = true in [build] or in the script allows it"
_JOINED = ("-I", "-isystem", "-iquote", "-idirafter")
"""Options whose value may follow with nothing between."""


def check_flags(checks: Checks) -> None:
    """Check the flags of the build, of each target, and of each script and override."""
    unsafe = checks.manifest.build.unsafe_flags
    targets = checks.manifest.targets
    check_flag_list(checks, ("build", "flags"), checks.manifest.build.flags, unsafe)
    for name, target in targets.items():
        check_flag_list(checks, ("target", name, "flags"), target.flags, unsafe, target.is_cpu)
    for path, _, script in checks.list_scripts():
        allowed = unsafe or script.unsafe_flags
        check_flag_list(checks, (*path, "flags"), script.flags, allowed)
        for name, override in script.override.items():
            cpu = name in targets and targets[name].is_cpu
            own = (*path, "override", name, "flags")
            check_flag_list(checks, own, override.flags or (), allowed, cpu)


def check_flag_list(
    checks: Checks, path: Path, flags: Sequence[str], unsafe: bool, cpu: bool = False
) -> None:
    """Check that each flag is one argument, not denied unless `unsafe`, and not set by
    tilusbuild."""
    if any(map(has_values, flags)):
        _valued(checks, path, flags)
        return
    for number, message, hint in flag_problems(flags, unsafe=unsafe, cpu=cpu):
        checks.add_error(message, partial(checks.document.locate_value, *path, number), hint)


def _valued(checks: Checks, path: Path, flags: Sequence[str]) -> None:
    """Check the expressions in flags; what the flags become is checked of each program."""
    for number, flag in enumerate(flags):
        try:
            for source in list_expressions(flag):
                parse_cached(source)
        except ExprError as error:
            checks.add_error(
                error.message, checks.document.locate_inside((*path, number), error.column)
            )


def flag_problems(
    flags: Sequence[str], *, unsafe: bool, cpu: bool
) -> Iterator[tuple[int, str, str]]:
    """Yield what is wrong with flags: the number, a message, and a hint."""
    denied = {} if unsafe else {each.position: each for each in find_denied_flags(flags, cpu=cpu)}
    passed_on = False
    for number, flag in enumerate(flags):
        words = _shell_words(flag)
        if len(words) > 1:
            message = "one argument per item: this is a shell string"
            yield number, message, f"write {', '.join(format_toml(word) for word in words)}"
        elif passed_on and "-march=" in flag:
            yield number, f'"{flag}" is set by tilusbuild', _MARCH
        elif not passed_on and (hint := owned(flag)):
            yield number, f'"{flag}" is set by tilusbuild', hint
        elif unsafe and names_flag_file(flag):
            yield number, f'"{flag}" names a file of flags', _FLAG_FILE
        elif (found := denied.get(number)) is not None:
            hint = f"{found.remedy}; {_ALLOW}" if found.remedy else _ALLOW
            yield number, f'"{found.words}" {found.reason}', hint
        passed_on = flag in _PASSES_ON


def _shell_words(flag: str) -> list[str]:
    """Return the arguments that a shell would make of a flag that clearly is a shell string."""
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
    """Return which key to use in place of a flag that tilusbuild sets itself; or None."""
    name = flag.split("=", 1)[0]
    if name in _OWNED:
        return _OWNED[name]
    if "-march=" in flag and name in _PASSES_ON:
        return _MARCH
    joined = next(filter(flag.startswith, _JOINED), None)
    return _OWNED[joined] if joined else None
