"""Compare the arguments of each script with the declaration of its kernel in the template.

A kernel gets its arguments as bytes in order, so that a wrong type or order computes nonsense and
reads out of bounds. What the text of a template does not say is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tilusbuild.errors import Location, did_you_mean
from tilusbuild.expr import ExprError
from tilusbuild.manifest.arguments import make_argument
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.reading import KernelTemplate
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.table import format_toml
from tilusbuild.runtime.dtypes import DTYPES, FLOATS, POINTER
from tilusbuild.runtime.structs import is_struct
from tilusbuild.signature.model import Argument, SignatureError
from tilusbuild.signature.parsing import C_TYPES
from tilusbuild.signature.reading import DeclaredKernel, KernelParameter

_Difference: TypeAlias = tuple[Path, str, str]
"""The keys of a mistake in `args`, a message, and a hint."""


def check_kernels(checks: Checks) -> None:
    """Report arguments that differ from the declaration of their kernel and, for a cpu target, of
    its function. Report C++ functions that such a target would call."""
    for path, name, script in checks.list_scripts():
        template, targets = checks.templates.get(name), checks.list_known_targets(name)
        cpu_targets = [target for target in targets if checks.manifest.targets[target].is_cpu]
        if cpu_targets and script.kernel is not None:
            _check_linkage(checks, path, script.kernel, template, targets)
        if template is None or script.kernel is None:
            continue
        try:
            arguments = [make_argument(key, arg) for key, arg in script.args.items()]
        except (SignatureError, ExprError):
            continue  # `check_expressions` reports it
        differences: dict[Path, tuple[str, str]] = {}
        agreeing_declarations: list[str] = []
        for is_cpu in {target in cpu_targets for target in targets}:
            passed = [a for a in arguments if (a.tile is None if is_cpu else a.is_parameter)]
            dtypes = {a.name: _list_dtypes(a, script, targets) for a in passed}
            function_differences: list[_Difference] = []
            for function in template.find_functions(script.kernel, is_global=not is_cpu):
                declaration = template.format_declaration(function)
                function_differences = list(
                    _find_differences(function, declaration, passed, dtypes)
                )
                # Which of several declarations counts is only known when it is compiled.
                if not function_differences:
                    agreeing_declarations.append(declaration)
                    break
            for keys, message, hint in function_differences:
                differences.setdefault(keys, (message, hint))
        for keys, (message, hint) in differences.items():
            add_error = checks.add_value_error if "type" in keys[1:] else checks.add_key_error
            # An argument that the manifest does not declare was read from one of these.
            add_error((*path, "args", *keys), message, "\n".join([hint, *agreeing_declarations]))
            checks.unread.add(name)


def _check_linkage(
    checks: Checks,
    path: Path,
    kernel: str,
    template: KernelTemplate | None,
    targets: Sequence[str],
) -> None:
    """Report a kernel with a C++ name for a cpu target, at its functions where the text has all."""
    gpus = [target for target in targets if not checks.manifest.targets[target].is_cpu]
    message = "a script with a cpu target calls functions by C names, and this is a C++ one"
    hint = 'declare it extern "C"'
    hint += f", or leave the cpu out: targets = {format_toml(gpus)}" if gpus else ""
    locations: list[Location] = []
    # A header may have a prototype, and with it the linkage.
    if template and template.is_whole and not checks.manifest.list_include_dirs(str(path[1])):
        for is_global in (True, False):
            declared = template.find_functions(kernel, is_global=is_global)
            if not any(function.is_c for function in declared):
                locations += map(template.locate, declared)
    for location in locations:
        checks.add_error(location, message, hint)
    if not locations and (":" in kernel or "<" in kernel):
        checks.add_value_error((*path, "kernel"), message, hint)


def _list_dtypes(
    argument: Argument, script: ScriptSection, targets: Sequence[str]
) -> tuple[str, ...]:
    """Return the dtypes that an argument may have: its own, or the values of the constant that it
    names."""
    values = {
        C_TYPES.get(str(value), str(value))
        for target in targets
        for parameter in script.list_constants(target)
        for row in parameter.values
        for name, value in zip(parameter.names, row, strict=False)
        if name == argument.dtype
    }
    return tuple(sorted(values)) or (argument.dtype,)


def _find_differences(
    function: DeclaredKernel,
    declaration: str,
    arguments: Sequence[Argument],
    dtypes: dict[str, tuple[str, ...]],
) -> Iterator[_Difference]:
    """Yield the differences between arguments and the parameters of a function; none where these
    are not known. `dtypes` has the dtypes that each argument may have; `declaration` is the
    function's for a hint."""
    parameters = function.parameters
    is_known = all(p.is_plain and "..." not in p.text for p in parameters)
    if not is_known or (function.problem and not function.is_template):
        return
    kernel = function.plain
    names = [parameter.name for parameter in parameters]
    own_names = [argument.name for argument in arguments]
    if len(arguments) != len(parameters):
        # A tensor map is seldom called as its parameter.
        others = [a for a in arguments if a.name not in names and a.tile is None]
        missing_names = [name for name in names if name not in own_names]
        if others and "" not in names:
            name = others[0].name
            message = f'"{kernel}" has no parameter "{name}"'
            # `parameter = false` is of the kernel: the cpu makes no tensor maps of such arguments.
            message += "" if others[0].is_parameter else ", and a cpu function takes all arguments"
            hint = did_you_mean(name, missing_names, max_listed=0)
            yield (name,), message, hint or declaration
        else:
            message = f'"{kernel}" has {len(names)} parameters, and args declares {len(own_names)}'
            yield (), message, declaration
        return
    for argument, parameter in zip(arguments, parameters, strict=True):
        if argument.name != parameter.name and argument.name in names:
            position = names.index(argument.name) + 1
            message = (
                f'"{argument.name}" is in another order: "{kernel}" has it as parameter {position}'
            )
            yield (argument.name,), message, declaration
            return
    for argument, parameter in zip(arguments, parameters, strict=True):
        for dtype in dtypes[argument.name]:
            if difference := _explain_difference(argument, dtype, parameter, kernel):
                yield (argument.name, "type"), difference, declaration
                break


def _explain_difference(
    argument: Argument, dtype: str, parameter: KernelParameter, kernel: str
) -> str | None:
    """Return how an argument, whose dtype is `dtype`, differs from a parameter; None if it does
    not, as far as the text says."""
    if dtype not in (*DTYPES, POINTER) and not is_struct(dtype):
        return None  # `check_expressions` reports it
    is_pointer = argument.is_tensor or argument.dtype == POINTER
    # Of a type that is not known only a `*` says that it is a pointer.
    is_other_kind = parameter.is_pointer != is_pointer and (parameter.is_pointer or parameter.dtype)
    is_other_type = parameter.dtype not in ("", "void") and not _fits(dtype, parameter.dtype)
    text, parameter_text = argument.format_type(), f'and "{kernel}" takes "{parameter.text}"'
    if is_other_kind or (is_other_type and argument.dtype != POINTER):
        right = parameter.dtype or "a pointer"
        if right == "void":
            right = POINTER
        elif parameter.is_pointer and parameter.dtype:
            right += f"*[{text.partition('[')[2] or '...]'}"
        also = "" if dtype == argument.dtype else f', also for "{dtype}"'
        return f'"{argument.name}" is {text}{also}, {parameter_text}, which is {right}'
    if argument.out and parameter.is_pointer and parameter.is_const:
        return f'"{argument.name}" is an output, {parameter_text}'
    return None


def _fits(dtype: str, other: str) -> bool:
    """Return whether two dtypes are the same bits with the same meaning. Signs are the author's,
    and narrow floats may be declared as integers of their size. Unknown ones fit."""
    if dtype == other or dtype not in DTYPES:
        return not is_struct(dtype)
    sizes_fit = DTYPES[dtype].bytes == DTYPES[other].bytes
    floats = [name for name in (dtype, other) if name in FLOATS]
    return sizes_fit and (not floats or (len(floats) == 1 and DTYPES[floats[0]].c == "void"))
