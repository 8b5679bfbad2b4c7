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
from tilusbuild.embed.csource import symbol
from tilusbuild.embed.dispatcher import library_name
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
    """A function: its name without the library's, and the scripts that serve it."""

    name: str
    scripts: list[Script]

    @property
    def taken(self) -> tuple[ScriptArgument, ...]:
        return self.scripts[0].arguments

    def parameters(self) -> str:
        """Return what it takes, in C."""
        return "".join(f"{_type(a)}{a.name}, " for a in self.taken)

    def comment(self, description: str | None) -> str:
        """Return what a reader of the header must know."""
        script = self.scripts[0]
        name = format_instance_name(script.name, script.params, "").strip()
        served = ", ".join(each.target for each in self.scripts)
        lines = [
            *(description or name).splitlines(),
            f"Script {name}, for {served}.",
            *(f"  {a.name}: {a.type}{_use(a)}" for a in self.taken),
            *(["On the host: `stream` is ignored."] if script.kind == "cpu" else []),
        ]
        return "/* " + "\n   ".join(lines).replace("*/", "* /") + " */"


def texts(
    name: str, scripts: Iterable[Script], descriptions: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the header and the source of the library `name`, by file name; `descriptions` are of
    scripts. Raises `TilusbuildError` for two functions of one name."""
    prefix = _identifier(name)
    functions = _functions(scripts)
    declared, wrapped, defined = [], [], []
    for each in functions:
        said = each.comment(descriptions.get(each.scripts[0].name))
        full, given = f"{prefix}_{each.name}", "".join(f"{a.name}, " for a in each.taken)
        parameters = each.parameters()
        declared.append(f"{said}\n{_EXPORT} int {full}({parameters}void *stream);")
        wrapped.append(
            f"inline void {each.name}({parameters}void *stream = nullptr) {{\n"
            f"  if ({full}({given}stream)) throw std::runtime_error({prefix}_error());\n}}"
        )
        types = "".join(f"{_type(a).strip()}, " for a in each.taken)
        defined.append(
            f"{_tables(each)}"
            f"int {full}({parameters}void *stream) {{\n"
            f"  int (*launch)({types}void *);\n"
            f"  const tk_opened *opened = tk_open(&tk_{each.name});\n"
            "  if (!opened) return -1;\n"
            "  memcpy(&launch, &opened->launch, sizeof launch);\n"
            f"  return tk_done(opened, launch({given}stream));\n}}\n"
        )
    head = f"/* Written by tilusbuild: the kernels of {name}. */\n"
    guard = f"TILUSBUILD_{prefix.upper()}_H"
    header = (
        f"{head}#ifndef {guard}\n#define {guard}\n#include <stdbool.h>\n#include <stdint.h>\n"
        '#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
        "/* Each function returns 0, or another number: this is then the text, of this thread's"
        f" last such call. */\n{_EXPORT} const char *{prefix}_error(void);\n\n"
        + "\n\n".join(declared)
        + "\n\n#ifdef __cplusplus\n}\n#endif\n#ifdef __cpp_exceptions\n#include <stdexcept>\n"
        f"/* The same; an error is thrown. */\nnamespace {prefix} {{\n"
        + "\n".join(wrapped)
        + f"\n}} // namespace {prefix}\n#endif\n#endif\n"
    )
    source = (
        f"{head}#define TK_DIRECTORY {format_c_string(name + '.tilus')}\n{_open()}\n"
        f'#include "{name}.h"\n\nconst char *{prefix}_error(void) {{ return tk_message; }}\n\n'
        + "\n".join(defined)
    )
    return {f"{name}.h": header, f"{name}.c": source}


_EXPORT = '__attribute__((visibility("default")))'


def _functions(scripts: Iterable[Script]) -> list[_Function]:
    """Return the functions: one an instance, and one more where it has both kinds of targets."""
    found: dict[tuple[str, str], list[Script]] = {}
    for each in scripts:
        label = format_instance_name(each.name, each.params, "").strip()
        found.setdefault((label, each.kind), []).append(each)
    named: dict[str, str] = {}
    made = []
    for (label, kind), served in found.items():
        script = served[0]
        name = "_".join([symbol(script), *(_identifier(str(v)) for v in script.params.values())])
        if kind == "cpu" and (label, "cuda") in found:
            name += "_cpu"
        if named.setdefault(name, label) != label:
            raise TilusbuildError(f"{label} and {named[name]} would both be the function {name}")
        made.append(_Function(name, served))
    return made


def _tables(function: _Function) -> str:
    """Return the tables of a function's code, in C."""
    scripts, name = function.scripts, function.name
    files = (f"scripts/{os.path.relpath(each.path, each.root + '/scripts')}" for each in scripts)
    rows = ", ".join(
        f"{{{format_c_string(f'{file}/dispatch/{library_name(each)}')}, "
        f"{format_c_string(symbol(each))}}}"
        for file, each in zip(files, scripts, strict=True)
    )
    text = f"static const tk_code tk_codes_{name}[] = {{{rows}}};\n"
    devices = "NULL"
    if len(scripts) > 1:
        listed = "".join(f"{{{cc}, {code}}}, " for cc, code in _served(scripts))
        devices = f"tk_devices_{name}"
        text += f"static const tk_device {devices}[] = {{{listed}{{0, 0}}}};\n"
    label = format_c_string(format_instance_name(scripts[0].name, scripts[0].params, "").strip())
    fields = f"{label}, tk_codes_{name}, {devices}, {{{{0, 0}}}}"
    return f"{text}static tk_kernel tk_{name} = {{{fields}}};\n"


def _served(scripts: Sequence[Script]) -> Iterable[tuple[int, int]]:
    """Yield compute capabilities, each with the number of the script that serves it."""
    for arch in sorted(each for each in KNOWN_ARCHS if each[-1].isdigit()):
        try:
            best, _ = choose.choose_instance(scripts, Device("cuda", 0, arch, arch, _ANY_DRIVER))
        except LoadError:
            continue
        yield parse_arch_number(arch), scripts.index(best)


def _type(argument: ScriptArgument) -> str:
    """Return an argument's C type, with what separates it from the name."""
    if argument.dims is None and is_struct(argument.dtype):
        return "const void *"
    c = get_scalar_type(argument.dtype).c.replace("_Bool", "bool")
    if argument.dims is None:
        return c if c.endswith("*") else f"{c} "
    return f"{c} *" if argument.out or argument.inout else f"const {c} *"


def _use(argument: ScriptArgument) -> str:
    return ", read and written" if argument.inout else ", written" if argument.out else ""


def _identifier(text: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return f"_{found}" if found[:1].isdigit() else found


def _open() -> str:
    return read_text(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cmake", "open.c"))
