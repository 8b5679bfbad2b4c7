"""Complete a manifest: read what it omits from the templates and from this machine.

The kernel and its arguments come from the `__global__` function in the text of the template, so
that they are the same for all schedules. Targets come from this machine's GPUs. The manifest takes
precedence. Completed values are put into the document before the checks. Code that keeps a manifest
(`memo`, the no-op record, `watch`) keeps its `TemplateReading`, which knows whether it still holds.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.arch.names import DEVICES, find_local_archs
from tilusbuild.arch.table import ARCHS
from tilusbuild.errors import Diagnostic, Location, did_you_mean, find_nearest_word
from tilusbuild.manifest.document import Document, shorten_path
from tilusbuild.manifest.names import MAX_NAME, PACKAGE
from tilusbuild.manifest.script_sections import PYTHON_FUNCTION, split_function
from tilusbuild.manifest.table import format_toml
from tilusbuild.rooms import find_contributions, import_value
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.runtime.regular import try_read_text
from tilusbuild.signature.parsing import C_TYPES, format_struct_hint
from tilusbuild.signature.reading import (
    DeclaredKernel,
    KernelParameter,
    KernelSource,
    TemplateTags,
    bind_template,
    read_tags,
)
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import DeviceStamp, read_device_stamp

A_MINUTE = 60_000_000_000
"""Nanoseconds. A file that changed within this time may change again with an equal stamp."""
FORMS_HINT = (
    'kernel = "NAME" for an extern "C" __global__ function, entry = "NAME" for a host launch '
    'function, library = "NAME" for an object of [library.NAME]'
)
_NO_GPU = {"sm_80": {"arch": "sm_80", "ptx": True}}


class TemplateReading(Struct, frozen=True):
    """The values that were read for a manifest, and the files they depend on."""

    notes: tuple[str, ...] = ()
    """Lines for `plan -v`."""
    digests: Mapping[str, str] = {}
    """A digest of the values from each template, by its path; of this machine's GPUs by ""."""
    plain_digests: Mapping[str, str] = {}
    """The same of each source that is not rendered."""
    first_stamps: Mapping[str, DeviceStamp] = {}
    """The stamp of each file, taken before it was read."""
    began: int = 0
    """The start of the reading, by `time.time_ns`."""

    def reread(self) -> TemplateReading | None:
        """Read files again that may have changed. Return the reading with new stamps; None if one
        of the values differs."""
        began = time.time_ns()
        new_stamps = {path: read_device_stamp(path) for path in self.first_stamps}
        files = [(path, True, digest) for path, digest in self.digests.items()]
        files += [(path, False, digest) for path, digest in self.plain_digests.items()]
        for path, jinja, digest in files:
            stamp = self.first_stamps.get(path)
            # A file that was written just before the reading may change again with an equal stamp.
            is_unchanged = (
                stamp is not None
                and stamp == new_stamps[path]
                and stamp.stamp.newest < self.began - A_MINUTE
            )
            if is_unchanged:
                continue
            # An edit of a template rarely changes its kernels and arguments: those are compared.
            if (KernelTemplate(path, jinja).digest if path else _digest_machine_archs()) != digest:
                return None
        return replace(self, first_stamps=new_stamps, began=began)


class KernelTemplate:
    """A template, and what a manifest reads of it: its kernels and functions of C linkage, and
    whether it has code for cpu targets. `digest` is of these values."""

    def __init__(self, path: str, jinja: bool) -> None:
        self.shown = shorten_path(path)
        text = try_read_text(path, "replace") or ""  # `check_files` says what is wrong
        self.lines = text.split("\n")
        source = KernelSource(text, jinja=jinja)
        tags = read_tags(text) if jinja else TemplateTags()
        self.functions, self.has_cpu = source.functions, tags.has_cpu
        self.mistake = tags.mistake
        # A macro can make a name of two.
        has_other_text = source.is_open or tags.has_imports or "##" in text
        self.is_whole = not has_other_text and all(function.name for function in self.functions)
        """Whether the names of all its functions stand in its text."""
        values = [
            (f.name, f.parameters, f.problem, f.is_global, f.template_names) for f in self.functions
        ]
        self.digest = sha256_text(repr((values, self.has_cpu, self.is_whole)))

    def find_functions(self, kernel: str | None, *, is_global: bool) -> list[DeclaredKernel]:
        """Return the functions that `kernel` of a manifest may mean: those of this name, else those
        of this name in a namespace; without a name all kernels."""
        functions = [function for function in self.functions if function.is_global == is_global]
        if kernel is None:
            return functions
        # Such as "ns::kernel<4>" or "::kernel".
        name = kernel.partition("<")[0].removeprefix("::")
        plain_name = name.rpartition("::")[2]
        return [function for function in functions if function.name.removeprefix("::") == name] or [
            function for function in functions if function.plain == plain_name
        ]

    def format_declaration(self, function: DeclaredKernel) -> str:
        """Return the place of a function with its parameters, for a hint."""
        texts = ", ".join(parameter.text for parameter in function.parameters)
        return f"{self.shown}:{function.line}: {function.plain}({texts})"

    def locate(self, function: DeclaredKernel) -> Location:
        """Return the place in the template of a kernel's `__global__`, or of a host function's
        name."""
        text = self.lines[function.line - 1]
        width = len(re.split(r"\W", text[function.column - 1 :], maxsplit=1)[0])
        return Location(self.shown, function.line, function.column, text, width=width)


def _digest_machine_archs() -> str:
    return sha256_text(repr(find_local_archs()))


class FilledScripts(Struct):
    """What `fill_from_templates` found out of the scripts."""

    templates: dict[str, KernelTemplate] = {}
    """The template of each script of the project's, by the script's name."""
    mistakes: dict[str, list[Diagnostic]] = {}
    """By the script's name one for each value that neither the manifest nor a template decides."""
    unread: set[str] = set()
    """The names of scripts that have such a mistake, or a template that is not there."""


_FORMS = frozenset(("kernel", "entry", "library", "kernels"))
"""The keys that say what a script's source defines."""


def fill_from_templates(document: Document) -> tuple[TemplateReading, FilledScripts]:
    """Add the values that the manifest omits to `document.data`: the project, the kernels and
    arguments of scripts, and targets. Return the reading, and what it says of the scripts."""
    began = time.time_ns()
    data = document.data
    root = os.path.dirname(document.path)
    notes: list[str] = []
    filled = FilledScripts()
    templates: dict[tuple[str, bool], KernelTemplate] = {}
    digests: dict[str, str] = {}
    plain_digests: dict[str, str] = {}
    stamps: dict[str, DeviceStamp] = {}
    has_cpu_branch_by_script: dict[str, bool] = {}
    if "project" not in data:
        name = (
            re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(root))[:MAX_NAME].strip("-._")
            or "kernels"
        )
        data["project"] = {"name": name, "version": "0.1.0"}
        notes.append(f"project: {name}, as its directory is called")
    scripts = data.get("script")
    for name, script in scripts.items() if isinstance(scripts, dict) else ():
        _expand_language(document, name, script)
        generator = script.get("generator") if isinstance(script, dict) else None
        if isinstance(generator, str) and re.match(PYTHON_FUNCTION, generator):
            # Headers are looked for beside the file of a script's template.
            source_file = split_function(generator)[0]
            if script.setdefault("template", source_file) != source_file:
                message, hint = 'both "template" and "generator" are set', "keep one of them"
                location = document.locate_key("script", name, "generator")
            elif not _FORMS & script.keys():
                message, hint = f'script "{name}" sets neither "kernel" nor "entry"', FORMS_HINT
                location = document.locate_key("script", name)
            else:
                continue
            filled.unread.add(name)
            # `check_files` reports a file that is missing.
            if os.path.isfile(os.path.join(root, source_file)):
                filled.mistakes[name] = [Diagnostic(message, location, hint)]
            continue
        file = script.get("template") if isinstance(script, dict) else None
        if not isinstance(file, str) or file.startswith(PACKAGE):
            continue
        path = os.path.join(root, file)
        # The stamp is taken before the file is read: an edit in between shows as another stamp.
        stamps.setdefault(path, read_device_stamp(path))
        is_rendered = script.get("render") is not False
        key = path, is_rendered
        template = templates[key] = templates.get(key) or KernelTemplate(path, is_rendered)
        filled.templates[name] = template
        (digests if is_rendered else plain_digests)[path] = template.digest
        has_cpu_branch_by_script[name] = template.has_cpu
        mistakes = []
        # `check_files` reports any other path.
        is_inside = not os.path.isabs(file) and os.path.normpath(file).split("/")[0] != ".."
        exists = os.path.isfile(path) and is_inside
        if exists and not (_FORMS - {"kernel"}) & script.keys():
            mistakes = list(_complete_script(document, name, script, template, notes))
            if mistakes and template.mistake:
                # Behind a mistake of Jinja's syntax, kernels are not read.
                line, message = template.mistake
                location = Location(template.shown, line, None, template.lines[line - 1])
                mistakes = [Diagnostic(message, location)]
            filled.mistakes[name] = mistakes
        if mistakes or not exists:
            filled.unread.add(name)
    if "target" not in data and ("script" in data or "library" in data):
        digests[""] = _digest_machine_archs()
        stamps |= {path: read_device_stamp(path) for path in DEVICES}
        notes.append(_add_targets(data, has_cpu_branch_by_script))
    return TemplateReading(tuple(notes), digests, plain_digests, stamps, began), filled


def _add_targets(data: dict[str, Any], has_cpu_branch_by_script: Mapping[str, bool]) -> str:
    """Add targets to the data: this machine's GPUs, and `cpu` for scripts with a branch for it.
    Other scripts, and libraries, get a list of the GPUs as their `targets` if they have none.

    Return a note about the targets.
    """
    local_archs = find_local_archs()
    unknown = [arch for arch in local_archs if arch not in ARCHS]
    local = {arch: {"arch": arch} for arch in local_archs if arch in ARCHS}
    gpus: dict[str, Any] = local or _NO_GPU
    cpu_scripts = [name for name, has_cpu in has_cpu_branch_by_script.items() if has_cpu]
    data["target"] = {**gpus, **({"cpu": {"arch": "cpu"}} if cpu_scripts else {})}
    for tables in (data.get("script"), data.get("library")):
        for name, table in tables.items() if isinstance(tables, dict) else ():
            # Without `targets` a script would be built for the cpu, too.
            if isinstance(table, dict) and name not in cpu_scripts:
                table.setdefault("targets", list(gpus))
    source = "of this machine" if local else "with PTX: there is no known GPU here"
    if unknown:
        source += f"; unknown GPU: {', '.join(unknown)}"
    note = f"targets: {', '.join(gpus)} ({source})"
    if cpu_scripts:
        note += f", cpu for {', '.join(cpu_scripts)}"
    return note


def _expand_language(document: Document, name: str, script: Any) -> None:
    """Replace the key of a kernel language, as in `triton = "FILE.py:FUNCTION"`, by the keys that
    it is short for."""
    # Few scripts have neither key: the rooms are asked for those only.
    if not isinstance(script, dict) or {"template", "generator"} & script.keys():
        return
    for language, module in find_contributions("language").items():
        if (text := script.pop(language, None)) is not None:
            document.other_keys["script", name, "generator"] = ("script", name, language)
            defaults = {"kernel": split_function(str(text))[1], **import_value(module).DEFAULTS}
            script |= {"generator": text, "language": language, **defaults, **script}


def _complete_script(
    document: Document,
    name: str,
    script: dict[str, Any],
    template: KernelTemplate,
    notes: list[str],
) -> Iterator[Diagnostic]:
    """Add the kernel and its arguments from the template to a script, and lines about that to
    `notes`. Yield the mistakes; with one, nothing is added.

    The kernel is the one that the script names, else the one of its own name, else the template's
    only one. Its arguments are added unless those of the manifest are complete: all have an element
    type, and they are either at least the kernel's parameters, or have a name that is none of them.
    """
    kernel_name, args = script.get("kernel"), script.get("args") or {}
    if not isinstance(kernel_name, str | None) or not isinstance(args, dict):
        return  # `validate_structure` reports it
    table = f"[script.{name}]"
    # Without an element type are "[m, k]" and a table without `type`.
    untyped_names = {name for name, arg in args.items() if _read_type(arg)[:1] in ("", "[")}
    kernels = template.find_functions(kernel_name, is_global=True)
    if kernel_name is None:
        kernels = [function for function in kernels if function.plain == name] or kernels
    if not kernels and _has_only_cpu_targets(document.data, script):
        functions = template.find_functions(kernel_name, is_global=False)
        kernels = [function for function in functions if function.is_c] or functions
    if not kernels:
        yield from _explain_missing_kernel(document, name, kernel_name, template, untyped_names)
        return
    constants = script.get("params")
    names = constants if isinstance(constants, dict) else ()
    kernels = [bind_template(kernel, kernel_name or "", names) for kernel in kernels]
    kernel, location = kernels[0], template.locate(kernels[0])
    parameter_names = {parameter.name for parameter in kernel.parameters}
    declared_names = {name for name, arg in args.items() if _is_parameter(arg)}
    has_all_names = declared_names >= parameter_names or not declared_names <= parameter_names
    is_complete = bool(args) and not untyped_names and has_all_names
    unreadable_parameters = [
        parameter
        for parameter in kernel.parameters
        if not is_complete
        and not (parameter.name and parameter.dtype)
        and parameter.name not in args.keys() - untyped_names
    ]
    problem, hint = _explain_unread_kernel(
        kernels, kernel_name, table, template, unreadable_parameters
    )
    if problem:
        # With the kernel and all arguments in the manifest, the template's text is not needed.
        if kernel_name is None or untyped_names or not args:
            yield Diagnostic(problem, location, hint)
        return
    if other_names := untyped_names & declared_names - parameter_names:
        key = min(other_names)
        near = did_you_mean(key, parameter_names, max_listed=0)
        location = document.locate_key("script", name, "args", key)
        message = f'"{kernel.plain}" has no parameter "{key}"'
        yield Diagnostic(message, location, near or template.format_declaration(kernel))
        return
    has_cpu = template.has_cpu or not kernel.is_global
    additions = _add_kernel(script, kernel, has_cpu=has_cpu, with_args=not is_complete)
    if additions:
        notes.append(f"{table}, from {template.shown}:{location.line}:")
        notes += [f"  {key} = {format_toml(value)}" for key, value in additions.items()]


def _has_only_cpu_targets(data: Mapping[str, Any], script: Mapping[str, Any]) -> bool:
    """Return whether the manifest declares the targets of a script, all of them for the cpu."""
    targets = data.get("target")
    names = script.get("targets", targets)
    if not isinstance(targets, dict) or not isinstance(names, list | dict) or not names:
        return False
    tables = [targets.get(str(name)) for name in names]
    return all(isinstance(table, dict) and table.get("arch") == "cpu" for table in tables)


def _explain_unread_kernel(
    kernels: Sequence[DeclaredKernel],
    kernel_name: str | None,
    table: str,
    template: KernelTemplate,
    unreadable_parameters: Sequence[KernelParameter],
) -> tuple[str, str]:
    """Return why the declarations of a kernel do not say how it is called, and a hint; the reason
    is "" if they do. `table` is the header of the script in the manifest."""
    kernel = kernels[0]
    # A name with template arguments says which instance of a C++ template is meant.
    problem = "" if kernel_name and kernel.is_template else kernel.problem
    hint = f"write args in {table}"
    if len({(declaration.name, declaration.parameters) for declaration in kernels}) > 1:
        lines = (f'"{item.plain}" in line {template.locate(item).line}' for item in kernels)
        problem = f"{len(kernels)} kernels are declared: {', '.join(lines)}"
        if kernel_name is None:
            hint = f'write kernel = "{kernel.name}" in {table}, or another one'
    if unreadable_parameters and not problem:
        first = unreadable_parameters[0]
        problem = f'the type of the parameter "{first.text}" cannot be read'
        hint = f"write its type in {table}, as in args.{first.name or 'NAME'} = "
        hint += format_toml(_suggest_type(first))
        if not first.is_pointer:
            hint += f"\n{format_struct_hint(first.type_name)}"
    elif kernel_name is None and kernel.problem:
        name_hint = f"{kernel.plain}<…>" if kernel.is_template else "NAME"
        hint = f'write kernel = "{name_hint}" in {table}, and its args'
    return problem, hint


def _suggest_type(parameter: KernelParameter) -> object:
    """Return an argument for a parameter whose type the text does not decide: an example."""
    name = parameter.type_name
    if not parameter.is_pointer:
        return "f32"
    if parameter.text.count("*") > 1:
        return "u64*[n]"  # an array of addresses
    dtype, width = C_TYPES.get(name[:-1], ""), name[-1:]
    if not dtype or width not in ("2", "3", "4"):
        return "f32*[n]"
    # CUDA's vectors of 2 and 4 elements are loaded at once.
    type_ = f"{dtype}*[n, {width}]"
    return type_ if width == "3" else {"type": type_, "align": DTYPES[dtype].bytes * int(width)}


def _add_kernel(
    script: dict[str, Any], kernel: DeclaredKernel, *, has_cpu: bool, with_args: bool
) -> dict[str, object]:
    """Add a kernel, and with `with_args` its arguments, to a script. Return the new values, by the
    names of their keys."""
    kernel_name, args = script.get("kernel"), script.get("args") or {}
    # "k" of `__global__ void k(…)` in C++ is `::k`. A function for the cpu is called by its C name.
    is_plain = kernel_name == kernel.plain and not kernel.is_template and not has_cpu
    script["kernel"] = kernel.name if is_plain else kernel_name or kernel.name
    is_added = script["kernel"] != kernel_name
    additions: dict[str, object] = {"kernel": kernel.name} if is_added else {}
    if with_args:
        shapes = [_read_type(arg).partition("[")[2] for arg in args.values()]
        shapes += [str(arg.get("strides")) for arg in args.values() if isinstance(arg, dict)]
        size_names = set(re.findall(r"\w+", " ".join(shapes)))
        completed_args = {
            parameter.name: _complete_argument(
                parameter, args.get(parameter.name), is_size=parameter.name in size_names
            )
            for parameter in kernel.parameters
        }
        other_args = {key: arg for key, arg in args.items() if key not in completed_args}
        script["args"] = {**completed_args, **other_args}
        additions |= {
            f"args.{key}": arg for key, arg in completed_args.items() if arg != args.get(key)
        }
    return additions


def _explain_missing_kernel(
    document: Document,
    name: str,
    kernel: str | None,
    template: KernelTemplate,
    untyped_names: Collection[str],
) -> Iterator[Diagnostic]:
    """Yield the mistake of a script `name` whose kernel its template does not declare; none where
    another file may declare it. `untyped_names` are arguments whose types are to be read there."""
    path = ("script", name)
    if kernel is None:
        message = f'script "{name}" sets neither "kernel" nor "entry", and {template.shown} has no'
        location = document.locate_key(*path)
        yield Diagnostic(f"{message} __global__ function to read", location, FORMS_HINT)
        return
    names = [f.plain for f in template.functions if f.is_global or f.is_c]
    plain_name = kernel.partition("<")[0].rpartition("::")[2]
    words = re.findall(r"\w+", "\n".join(template.lines))
    kernel_names = [f.plain for f in template.functions if f.is_global]
    host_functions = template.find_functions(kernel, is_global=False)
    # A macro may stand for `__global__`, so that a kernel is read as a function of the host.
    if not kernel_names or words.count("__global__") != len(kernel_names):
        host_functions = []
    # A name with an expression, and one behind a macro, may be meant.
    is_written = words.count(plain_name) > len(host_functions) or "{" in kernel
    # A header of another project has its kernels in a namespace.
    is_own = "::" not in kernel or find_nearest_word(plain_name, names) is not None
    if names and template.is_whole and is_own and not is_written:
        message = f'{template.shown} has no kernel "{kernel}"'
        hint = did_you_mean(plain_name, names, max_listed=len(names))
        if host_functions:
            message = f'"{kernel}" is not a __global__ function in {template.shown}'
            hint = did_you_mean(plain_name, kernel_names)
        yield Diagnostic(message, document.locate_value(*path, "kernel"), hint)
    elif untyped_names:
        message = f'{template.shown} does not declare "{kernel}": its args need types'
        location = document.locate_value(*path, "args", min(untyped_names))
        yield Diagnostic(message, location, 'as in: x = "f32*[n]"')


def _read_type(arg: object) -> str:
    """Return the type of an argument in the manifest; "" if it has none.

    Of a tensor map, and of a mistake, the result is a word that is not a type: it is not completed.
    """
    if isinstance(arg, dict):
        return str(arg.get("type", "map" if "tensor-map" in arg else ""))
    return arg if isinstance(arg, str) else "?"


def _is_parameter(arg: object) -> bool:
    return not isinstance(arg, dict) or (arg.get("parameter", True) and not arg.get("constant"))


def _complete_argument(
    parameter: KernelParameter, written: object, *, is_size: bool = False
) -> object:
    """Return an argument as the manifest would have it, a type or a table. Its type, and `out` for
    a tensor that is neither const nor optional, are taken from the template's parameter where the
    manifest leaves them open. An argument with an element type is returned as written.

    The size of a shape (`is_size`) has a sign, whatever the kernel declares: `i64` for `size_t`.
    """
    argument_table: dict[str, Any] = {}
    if isinstance(written, dict):
        argument_table = written
    elif written is not None:
        argument_table = {"type": written}
    shape = _read_type(argument_table)
    if shape and not shape.startswith("["):
        return written  # it begins with an element type
    # `check_kernels` refuses the shape of a value.
    is_tensor = parameter.is_pointer or shape != ""
    # An opaque pointer has no elements, and so no shape.
    if not shape and parameter.dtype != "void":
        shape = "[...]"
    dtype = parameter.dtype
    if is_size and not is_tensor:
        dtype = {"u32": "i32", "u64": "i64"}.get(dtype, dtype)
    type_ = f"{dtype}*{shape}" if is_tensor else dtype
    # An output cannot be optional, so that an optional tensor is an input.
    is_out = (
        shape != ""
        and parameter.is_pointer
        and not parameter.is_const
        and not argument_table.get("optional")
    )
    completed = {**({"out": True} if is_out else {}), **argument_table, "type": type_}
    return type_ if completed == {"type": type_} else completed
