"""Checks of what is built for which target.

Architectures, references to targets, scripts and toolchains, pipelines, groups, compiler flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilusbuild.arch import ArchError, format_gencode, list_known_names, parse_arch
from tilusbuild.errors import did_you_mean
from tilusbuild.expr import ExprError
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.denied_flags import list_flag_problems
from tilusbuild.manifest.reading import FORMS_HINT
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.script_sections import (
    has_values,
    list_expressions,
    parse_cached,
)
from tilusbuild.manifest.sections import TargetSection
from tilusbuild.rooms import find_contributions

NAMED = ("toolchain", "named")
_FORM_KEYS = ("kernel", "entry", "library", "kernels")


def check_targets(checks: Checks) -> None:
    """Report a manifest without scripts, mistakes in targets, and the scripts and packages whose
    targets, overrides, forms, groups or toolchains do not exist or do not suit them."""
    if not (checks.has("script") or checks.has("library") or checks.diagnostics):
        checks.add_key_error(
            (),
            "the manifest has no script",
            'add one, such as:\n[script.saxpy]\ntemplate = "kernels/saxpy.cu.j2"',
        )
    for name, target in checks.manifest.targets.items():
        check_archs(checks, ("target", name), target)
        check_toolchain(checks, ("target", name), target.toolchain)
    for path, name, script in checks.list_scripts():
        check_declared(checks, (*path, "targets"), script.targets, "target")
        _check_override_targets(checks, path, name, script)
        check_toolchain(checks, path, script.toolchain)
        _check_form(checks, path, name, script)
        if script.group is not None:
            _check_group(checks, path, script, script.group)
    for name, package in checks.manifest.packages.items():
        path = ("package", name)
        check_declared(checks, (*path, "targets"), package.targets, "target")
        check_declared(checks, (*path, "scripts"), package.scripts, "script", "library")


def check_archs(checks: Checks, path: Path, target: TargetSection) -> None:
    """Report unknown and repeated architectures, and PTX that none of them can have."""
    all_known = True
    for number, arch in enumerate(target.arch):
        is_array = isinstance(checks.get_file_value(*path, "arch"), list)
        # A single name in the file is an array in the model: its mistake has no index in the file.
        arch_path = (*path, "arch", number) if is_array else (*path, "arch")
        try:
            parse_arch(arch)
        except ArchError as error:
            all_known = False
            checks.add_value_error(arch_path, str(error), error.hint)
            continue
        if arch in target.arch[:number]:
            checks.add_value_error(arch_path, f'"{arch}" is listed twice')
    if target.limits and all_known and all(name in list_known_names() for name in target.arch):
        message = f"the limits of {', '.join(target.arch)} are known"
        checks.add_key_error((*path, "limits"), message, "leave limits out")
    if "cpu" in target.arch and len(target.arch) > 1:
        message, hint = "cpu cannot share a binary with a GPU", "make it a target of its own"
        checks.add_value_error((*path, "arch"), message, hint)
    elif target.ptx and target.is_cpu:
        checks.add_key_error((*path, "ptx"), "a cpu target has no PTX", "leave ptx out")
    elif target.compress and target.is_cpu:
        message = "a cpu target has no device code to compress"
        checks.add_key_error((*path, "compress"), message, "leave compress out")
    elif target.ptx and all_known:
        try:
            format_gencode(target.list_archs(), ptx=True)
        except ArchError as error:
            checks.add_key_error((*path, "ptx"), str(error), error.hint)


def check_declared(
    checks: Checks, path: Path, names: Sequence[str] | None, kind: str, *also: str
) -> None:
    """Report names at a path that are not declared, as `kind` or as one of the kinds `also`, and
    names that come twice."""
    declared_names = [name for section in (kind, *also) for name in checks.list_keys(section)]
    hint = f"a {kind} is declared as [{kind}.NAME]"
    checks.check_references(path, names or (), declared_names, kind, hint)


def _check_override_targets(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    """Report overrides for an unknown target, or for one that the script is not built for."""
    declared_targets = checks.list_keys("target")
    for target in checks.list_keys(*path, "override"):
        override_path = (*path, "override", target)
        if target not in declared_targets:
            hint = did_you_mean(target, declared_targets) or "a target is declared as [target.NAME]"
            checks.add_key_error(override_path, f'override for an unknown target "{target}"', hint)
        elif script.targets is not None and target not in script.targets:
            hint = f'add "{target}" to its targets, or remove the override'
            checks.add_key_error(
                override_path, f'script "{name}" is not built for "{target}"', hint
            )


def _check_form(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    """Report a script that is of no form or of two, and keys that its form does not have."""
    if script.language and script.language not in (languages := find_contributions("language")):
        hint = did_you_mean(script.language, languages, max_listed=9)
        message = f'the language "{script.language}" is not installed'
        checks.add_value_error((*path, "language"), message, hint)
    # By the keys of the file: a key whose value is wrong says the form all the same.
    has_kernel, has_entry, has_library, has_kernels = (
        checks.has(*path, form) for form in _FORM_KEYS
    )
    if has_kernels:
        _check_kernels(checks, path)
        return
    if has_library:
        return  # `check_libraries` reports what an object cannot have
    if has_kernel and has_entry:
        checks.add_key_error(
            (*path, "entry"),
            'both "kernel" and "entry" are set',
            "kernel: tilusbuild writes the launcher; entry: the template holds it. Keep one.",
        )
    elif not has_kernel and not has_entry:
        checks.add_key_error(
            path,
            f'script "{name}" sets neither "kernel" nor "entry"',
            FORMS_HINT,
        )
    elif has_entry:
        why = "with entry, the template's own function launches"
        checks.reject_keys(path, ("launch",), "scripts with a kernel", why)
    if not has_entry:
        why = "a kernel is launched through the driver: its library has no CUDA runtime"
        checks.reject_keys(path, ("cudart",), "scripts with an entry", why)
        if has_kernel and not script.generator:
            _check_launch(checks, path, name)


def _check_launch(checks: Checks, path: Path, name: str) -> None:
    """Report kernels for a GPU target without a grid or a block."""
    launch = checks.get_file_value(*path, "launch")
    if not isinstance(launch, dict | None):
        return  # `validate_structure` reports it
    for target in checks.list_known_targets(name):
        if checks.manifest.targets[target].is_cpu:
            continue
        # An override may set one of the two keys, and the script the other.
        tables = [(*path, "launch"), (*path, "override", target, "launch")]
        missing = [
            key for key in ("grid", "block") if not any(checks.has(*table, key) for table in tables)
        ]
        if missing:
            example = {"grid": 'grid = "cdiv(n, 256)"', "block": "block = 256"}
            text = ", ".join(example[key] for key in missing)
            checks.add_key_error(
                tables[0],
                f'script "{name}" is missing launch.{missing[0]}, which GPU targets need',
                f"as in: {text}" if launch else f"as in: launch = {{ {text} }}",
            )


def _check_kernels(checks: Checks, path: Path) -> None:
    """Report a table `kernels` beside a key of another form, an empty one, and kernels whose script
    `NAME.KERNEL` exists already."""
    kernels_path = (*path, "kernels")
    other_forms = [key for key in _FORM_KEYS if key != "kernels" and checks.has(*path, key)]
    if other_forms:
        message = f'both "{other_forms[0]}" and "kernels" are set'
        checks.add_key_error(kernels_path, message, "keep one of them")
    elif not checks.list_keys(*kernels_path):
        hint = "as in: kernels.forward.args = { … }"
        checks.add_key_error(kernels_path, "there is no kernel in kernels", hint)
    for kernel in checks.list_keys(*kernels_path):
        script = f"{path[1]}.{kernel}"
        if script in checks.list_keys("script"):
            message = f'there is a script "{script}" already'
            checks.add_key_error((*kernels_path, kernel), message, "rename one of them")


def _check_group(checks: Checks, path: Path, script: ScriptSection, group: tuple[str, ...]) -> None:
    """Report a group beside another form than `kernel`, and unknown parameters in it."""
    if not checks.has(*path, "kernel"):
        why = "host functions and objects are compiled separately"
        checks.reject_keys(path, ("group",), "scripts with a kernel", why)
    # A file's space is read by the planner, which knows its parameters.
    if script.space_file is None:
        tables = [path, *((*path, "override", target) for target in script.override)]
        known = {
            name
            for table in tables
            for section in ("params", "space")
            for name in checks.list_names(*table, section)
        }
        hint = "group names parameters of space or params"
        checks.check_references((*path, "group"), group, known, "parameter", hint)


def check_toolchain(checks: Checks, path: Path, name: str | None) -> None:
    """Check that a toolchain is declared where it is asked for."""
    toolchain_names = checks.list_keys(*NAMED)
    # A table [toolchain.NAME] is reported as an unknown key.
    is_misplaced = name not in NAMED and checks.list_keys("toolchain", name or "")
    if name is not None and name not in toolchain_names and not is_misplaced:
        hint = (
            did_you_mean(name, toolchain_names)
            or f"a toolchain is declared as [toolchain.named.{name}]"
        )
        checks.add_value_error((*path, "toolchain"), f'unknown toolchain "{name}"', hint)


def check_flags(checks: Checks) -> None:
    """Check the flags of the build, of each target, and of each script and override."""
    unsafe = checks.manifest.build.unsafe_flags
    targets = checks.manifest.targets
    check_flag_list(checks, ("build", "flags"), checks.manifest.build.flags, unsafe=unsafe)
    for name, target in targets.items():
        check_flag_list(
            checks, ("target", name, "flags"), target.flags, unsafe=unsafe, cpu=target.is_cpu
        )
    for path, _, script in checks.list_scripts():
        allows_all = unsafe or script.unsafe_flags
        check_flag_list(checks, (*path, "flags"), script.flags, unsafe=allows_all)
        _check_values(checks, (*path, "defines"), script.defines.items())
        for name, override in script.override.items():
            _check_values(checks, (*path, "override", name, "defines"), override.defines.items())
            # The override of an unknown target is checked too; `check_targets` reports its name.
            is_cpu = name in targets and targets[name].is_cpu
            flags_path = (*path, "override", name, "flags")
            check_flag_list(checks, flags_path, override.flags or (), unsafe=allows_all, cpu=is_cpu)


def check_flag_list(
    checks: Checks, path: Path, flags: Sequence[str], *, unsafe: bool, cpu: bool = False
) -> None:
    """Report flags that are not one argument, that tilusbuild sets, or that are denied, unless
    `unsafe`. With `cpu` they are for the host compiler.

    If one has an expression (`{{ … }}`), only the syntax of the expressions is checked.
    """
    if not any(map(has_values, flags)):
        for number, message, hint in list_flag_problems(flags, unsafe=unsafe, cpu=cpu):
            checks.add_value_error((*path, number), message, hint)
        return
    # The flags with their values are checked for each program (`plan/valued.py`).
    _check_values(checks, path, enumerate(flags))


def _check_values(checks: Checks, path: Path, texts: Iterable[tuple[str | int, object]]) -> None:
    """Report mistakes of syntax in the expressions of texts, which stand at keys below `path`."""
    for key, text in texts:
        try:
            for source in list_expressions(str(text)):
                parse_cached(source)
        except ExprError as error:
            location = checks.document.locate_inside((*path, key), error.column)
            checks.add_error(location, error.message)
