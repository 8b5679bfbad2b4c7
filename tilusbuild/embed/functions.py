"""Writes the header and the C source of a CMake target's kernels: a function for each script.

A function opens the C dispatcher of its script, which is packed beside the library, and calls it.
Of several GPU targets, the choice of `runtime.choose` serves each device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tilusbuild.compile.launcher_tables import format_c_string
from tilusbuild.embed.csource import to_c_symbol
from tilusbuild.embed.dispatcher import name_library
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime import choose
from tilusbuild.runtime.device import KNOWN_ARCHS, Device, parse_arch_number
from tilusbuild.runtime.dtypes import get_scalar_type
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import format_instance_name
from tilusbuild.runtime.regular import read_text
from tilusbuild.runtime.script import Script, ScriptArgument
from tilusbuild.runtime.structs import is_struct

# Newer than every toolkit: the driver of a user is not known when the table is written.
_ANY_DRIVER = 1 << 30
_OPEN_C = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cmake", "open.c")
_EXPORT = '__attribute__((visibility("default")))'


class _Function(NamedTuple):
    """A C function: its name without the prefix of the library, and its scripts, one a target."""

    name: str
    scripts: list[Script]

    @property
    def arguments(self) -> tuple[ScriptArgument, ...]:
        return self.scripts[0].arguments

    def write_parameters(self) -> str:
        """Return the parameters in C, each followed by a comma."""
        return "".join(f"{_to_c_type(a)}{a.name}, " for a in self.arguments)

    def write_comment(self, description: str | None) -> str:
        """Return the comment of the function in the header: description, targets, types of the
        arguments."""
        script = self.scripts[0]
        name = format_instance_name(script.name, script.params)
        targets = ", ".join(instance.target for instance in self.scripts)
        lines = [*(description or name).splitlines(), f"Script {name}, for {targets}."]
        for argument in self.arguments:
            access = ", written" if argument.out else ""
            if argument.inout:
                access = ", read and written"
            lines.append(f"  {argument.name}: {argument.type}{access}")
        # A cpu function has the parameter, too, because the signature is the same for both kinds.
        if script.kind == "cpu":
            lines.append("On the host: `stream` is ignored.")
        return "/* " + "\n   ".join(lines).replace("*/", "* /") + " */"


def write_library_sources(
    name: str, scripts: Iterable[Script], descriptions: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the header and the C source of the library `name`, by file name.

    They have a function for each instance of a script. `descriptions` has those of the manifest, by
    script. Raises `TilusbuildError` for two functions of one name.
    """
    prefix = _to_identifier(name)
    declarations, wrappers, definitions = [], [], []
    for function in _group_functions(scripts):
        comment = function.write_comment(descriptions.get(function.scripts[0].name))
        full_name = f"{prefix}_{function.name}"
        argument_names = "".join(f"{a.name}, " for a in function.arguments)
        parameters = function.write_parameters()
        declarations.append(f"{comment}\n{_EXPORT} int {full_name}({parameters}void *stream);")
        wrappers.append(
            f"inline void {function.name}({parameters}void *stream = nullptr) {{\n"
            f"  if ({full_name}({argument_names}stream))"
            f" throw std::runtime_error({prefix}_error());\n}}"
        )
        types = "".join(f"{_to_c_type(a).strip()}, " for a in function.arguments)
        calls = [("", "launch", "void *", "stream")]
        if names := function.scripts[0].workspaces:
            calls.append(("_workspace", "workspace", "int64_t *", "bytes"))
            declarations.append(
                f"/* Store the bytes that such a call needs of {', '.join(names)}. Pointers may be"
                f" null. */\n{_EXPORT} int {full_name}_workspace({parameters}int64_t *bytes);"
            )
        definitions.append(_write_tables(function))
        definitions += [
            f"int {full_name}{suffix}({parameters}{kind}{last}) {{\n"
            f"  int (*call)({types}{kind});\n"
            f"  const tk_opened *opened = tk_open(&tk_{function.name});\n"
            "  if (!opened) return -1;\n"
            f"  memcpy(&call, &opened->{field}, sizeof call);\n"
            f"  return tk_done(opened, call({argument_names}{last}));\n}}\n"
            for suffix, field, kind, last in calls
        ]
    head = f"/* Written by tilusbuild: the kernels of {name}. */\n"
    guard = f"TILUSBUILD_{prefix.upper()}_H"
    header = (
        f"{head}#ifndef {guard}\n#define {guard}\n#include <stdbool.h>\n#include <stdint.h>\n"
        '#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
        "/* Each function returns 0, or another number: this is then the text, of this thread's"
        f" last such call. */\n{_EXPORT} const char *{prefix}_error(void);\n\n"
        + "\n\n".join(declarations)
        + "\n\n#ifdef __cplusplus\n}\n#endif\n#ifdef __cpp_exceptions\n#include <stdexcept>\n"
        f"/* The same; an error is thrown. */\nnamespace {prefix} {{\n"
        + "\n".join(wrappers)
        + f"\n}} // namespace {prefix}\n#endif\n#endif\n"
    )
    source = (
        f"{head}#define TK_DIRECTORY {format_c_string(name + '.tilus')}\n{read_text(_OPEN_C)}\n"
        f'#include "{name}.h"\n\nconst char *{prefix}_error(void) {{ return tk_message; }}\n\n'
        + "\n".join(definitions)
    )
    return {f"{name}.h": header, f"{name}.c": source}


def _group_functions(scripts: Iterable[Script]) -> list[_Function]:
    """Return one function for each instance, and a second one, `…_cpu`, for an instance with
    targets of both kinds. Raises `TilusbuildError` for two functions of one name."""
    scripts_by_label: dict[tuple[str, str], list[Script]] = {}
    for script in scripts:
        label = format_instance_name(script.name, script.params)
        scripts_by_label.setdefault((label, script.kind), []).append(script)
    label_by_name: dict[str, str] = {}
    functions = []
    for (label, kind), serving_scripts in scripts_by_label.items():
        script = serving_scripts[0]
        constants = (_to_identifier(str(value)) for value in script.params.values())
        name = "_".join([to_c_symbol(script), *constants])
        # One C function cannot serve both kinds: a cpu function takes pointers to host memory.
        if kind == "cpu" and (label, "cuda") in scripts_by_label:
            name += "_cpu"
        if label_by_name.setdefault(name, label) != label:
            labels = f"{label} and {label_by_name[name]}"
            raise TilusbuildError(f"{labels} would both be the function {name}")
        functions.append(_Function(name, serving_scripts))
    return functions


def _write_tables(function: _Function) -> str:
    """Return the C tables of a function: the paths of its dispatchers, one a target, and, if there
    are several, the index of the dispatcher for each GPU architecture."""
    scripts, name = function.scripts, function.name
    code_rows = []
    for script in scripts:
        file = f"{os.path.relpath(script.path, script.root)}/dispatch/{name_library(script)}"
        code_rows.append(f"{{{format_c_string(file)}, {format_c_string(to_c_symbol(script))}}}")
    text = f"static const tk_code tk_codes_{name}[] = {{{', '.join(code_rows)}}};\n"
    devices = "NULL"
    # A single dispatcher needs no such index: it refuses a device that cannot run its code.
    if len(scripts) > 1:
        device_rows = "".join(f"{{{cc}, {code}}}, " for cc, code in _rank_scripts(scripts))
        devices = f"tk_devices_{name}"
        text += f"static const tk_device {devices}[] = {{{device_rows}{{0, 0}}}};\n"
    label = format_c_string(format_instance_name(scripts[0].name, scripts[0].params))
    fields = f"{label}, tk_codes_{name}, {devices}, {{{{0, 0, 0}}}}"
    return f"{text}static tk_kernel tk_{name} = {{{fields}}};\n"


def _rank_scripts(scripts: Sequence[Script]) -> Iterable[tuple[int, int]]:
    """Yield (compute capability, index in `scripts`) for each known GPU architecture: 90 and the
    script that the runtime chooses for it. An architecture that no script serves is left out."""
    # A device has no suffix: "sm_90a" is a kind of code, not of GPU.
    for arch in sorted(name for name in KNOWN_ARCHS if name[-1].isdigit()):
        try:
            best, _ = choose.choose_instance(scripts, Device("cuda", 0, arch, arch, _ANY_DRIVER))
        except LoadError:
            continue
        yield parse_arch_number(arch), scripts.index(best)


def _to_c_type(argument: ScriptArgument) -> str:
    """Return an argument's C type, with the blank or `*` that separates it from the name. A
    struct is passed by its address, as `const void *`."""
    if argument.dims is None and is_struct(argument.dtype):
        return "const void *"
    c_type = get_scalar_type(argument.dtype).c.replace("_Bool", "bool")
    if argument.dims is None:
        return c_type if c_type.endswith("*") else f"{c_type} "
    return f"{c_type} *" if argument.out or argument.inout else f"const {c_type} *"


def _to_identifier(text: str) -> str:
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return f"_{identifier}" if identifier[:1].isdigit() else identifier
