"""The header and the C source that a CMake project gets of its kernels: a function for each script.

A function opens the C dispatcher of its script, which is packed beside the library, and calls it.
Of several GPU targets, the one that `runtime.choose` would take serves each device.
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

_ANY_DRIVER = 1 << 30


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
        name = format_instance_name(script.name, script.params, "").strip()
        served = ", ".join(each.target for each in self.scripts)
        lines = [
            *(description or name).splitlines(),
            f"Script {name}, for {served}.",
            *(f"  {a.name}: {a.type}{_describe_use(a)}" for a in self.arguments),
            *(["On the host: `stream` is ignored."] if script.kind == "cpu" else []),
        ]
        return "/* " + "\n   ".join(lines).replace("*/", "* /") + " */"


def write_library_sources(
    name: str, scripts: Iterable[Script], descriptions: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the header and the C source of the library `name`, by file name. `descriptions` has
    the manifest's, by script. Raises `TilusbuildError` for two functions of one name."""
    prefix = _to_identifier(name)
    functions = _group_functions(scripts)
    declarations, wrappers, definitions = [], [], []
    for each in functions:
        comment = each.write_comment(descriptions.get(each.scripts[0].name))
        full_name, argument_names = (
            f"{prefix}_{each.name}",
            "".join(f"{a.name}, " for a in each.arguments),
        )
        parameters = each.write_parameters()
        declarations.append(f"{comment}\n{_EXPORT} int {full_name}({parameters}void *stream);")
        wrappers.append(
            f"inline void {each.name}({parameters}void *stream = nullptr) {{\n"
            f"  if ({full_name}({argument_names}stream))"
            f" throw std::runtime_error({prefix}_error());\n}}"
        )
        types = "".join(f"{_to_c_type(a).strip()}, " for a in each.arguments)
        definitions.append(
            f"{_write_tables(each)}"
            f"int {full_name}({parameters}void *stream) {{\n"
            f"  int (*launch)({types}void *);\n"
            f"  const tk_opened *opened = tk_open(&tk_{each.name});\n"
            "  if (!opened) return -1;\n"
            "  memcpy(&launch, &opened->launch, sizeof launch);\n"
            f"  return tk_done(opened, launch({argument_names}stream));\n}}\n"
        )
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
        f"{head}#define TK_DIRECTORY {format_c_string(name + '.tilus')}\n{_read_open_c()}\n"
        f'#include "{name}.h"\n\nconst char *{prefix}_error(void) {{ return tk_message; }}\n\n'
        + "\n".join(definitions)
    )
    return {f"{name}.h": header, f"{name}.c": source}


_EXPORT = '__attribute__((visibility("default")))'


def _group_functions(scripts: Iterable[Script]) -> list[_Function]:
    """Return one function for each instance, and a second one, `…_cpu`, for an instance with
    targets of both kinds. Raises `TilusbuildError` for two functions of one name."""
    scripts_by_label: dict[tuple[str, str], list[Script]] = {}
    for each in scripts:
        label = format_instance_name(each.name, each.params, "").strip()
        scripts_by_label.setdefault((label, each.kind), []).append(each)
    label_by_name: dict[str, str] = {}
    functions = []
    for (label, kind), serving_scripts in scripts_by_label.items():
        script = serving_scripts[0]
        name = "_".join(
            [to_c_symbol(script), *(_to_identifier(str(v)) for v in script.params.values())]
        )
        if kind == "cpu" and (label, "cuda") in scripts_by_label:
            name += "_cpu"
        if label_by_name.setdefault(name, label) != label:
            raise TilusbuildError(
                f"{label} and {label_by_name[name]} would both be the function {name}"
            )
        functions.append(_Function(name, serving_scripts))
    return functions


def _write_tables(function: _Function) -> str:
    """Return the C tables of a function: paths of its dispatchers, and the dispatcher of each GPU
    architecture."""
    scripts, name = function.scripts, function.name
    files = (f"scripts/{os.path.relpath(each.path, each.root + '/scripts')}" for each in scripts)
    rows = ", ".join(
        f"{{{format_c_string(f'{file}/dispatch/{name_library(each)}')},"
        f" {format_c_string(to_c_symbol(each))}}}"
        for file, each in zip(files, scripts, strict=True)
    )
    text = f"static const tk_code tk_codes_{name}[] = {{{rows}}};\n"
    devices = "NULL"
    if len(scripts) > 1:
        device_rows = "".join(f"{{{cc}, {code}}}, " for cc, code in _rank_scripts(scripts))
        devices = f"tk_devices_{name}"
        text += f"static const tk_device {devices}[] = {{{device_rows}{{0, 0}}}};\n"
    label = format_c_string(format_instance_name(scripts[0].name, scripts[0].params, "").strip())
    fields = f"{label}, tk_codes_{name}, {devices}, {{{{0, 0}}}}"
    return f"{text}static tk_kernel tk_{name} = {{{fields}}};\n"


def _rank_scripts(scripts: Sequence[Script]) -> Iterable[tuple[int, int]]:
    """Yield (compute capability, index of the script that serves it) for each known architecture
    that some script serves."""
    for arch in sorted(each for each in KNOWN_ARCHS if each[-1].isdigit()):
        try:
            best, _ = choose.choose_instance(scripts, Device("cuda", 0, arch, arch, _ANY_DRIVER))
        except LoadError:
            continue
        yield parse_arch_number(arch), scripts.index(best)


def _to_c_type(argument: ScriptArgument) -> str:
    """Return an argument's C type, with the blank or `*` that separates it from the name."""
    if argument.dims is None and is_struct(argument.dtype):
        return "const void *"
    c = get_scalar_type(argument.dtype).c.replace("_Bool", "bool")
    if argument.dims is None:
        return c if c.endswith("*") else f"{c} "
    return f"{c} *" if argument.out or argument.inout else f"const {c} *"


def _describe_use(argument: ScriptArgument) -> str:
    """Return whether the function writes an argument, for the comment."""
    return ", read and written" if argument.inout else ", written" if argument.out else ""


def _to_identifier(text: str) -> str:
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return f"_{identifier}" if identifier[:1].isdigit() else identifier


def _read_open_c() -> str:
    return read_text(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cmake", "open.c"))
