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
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.arch.names import DEVICES, find_local_archs
from tilusbuild.errors import Diagnostic, Place
from tilusbuild.manifest.document import Document, shorten_path
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.table import format_toml
from tilusbuild.runtime.regular import try_read_text
from tilusbuild.signature.reading import (
    DeclaredKernel,
    KernelParameter,
    KernelSource,
    has_cpu_branch,
)
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import DeviceStamp, read_device_stamp

A_MINUTE = 60_000_000_000
"""Nanoseconds. A file that changed within this time may change again with an equal stamp."""
_NO_GPU = {"sm_80": {"arch": "sm_80", "ptx": True}}


class TemplateReading(Struct, frozen=True):
    """The values that were read for a manifest, and the files they depend on."""

    notes: tuple[str, ...] = ()
    """Lines for `plan -v`."""
    digests: Mapping[str, str] = {}
    """A digest of the values from each template, by its path; of this machine's GPUs by ""."""
    plain_digests: Mapping[str, str] = {}
    """The same of each source that is not rendered."""
    sightings: Mapping[str, DeviceStamp] = {}
    """The stamp of each file, taken before it was read."""
    began: int = 0
    """The start of the reading, by `time.time_ns`."""

    def reread(self) -> TemplateReading | None:
        """Read files again that may have changed. Return the reading with new stamps; None if one
        of the values differs."""
        began = time.time_ns()
        new_stamps = {path: read_device_stamp(path) for path in self.sightings}
        files = [(path, True, digest) for path, digest in self.digests.items()]
        files += [(path, False, digest) for path, digest in self.plain_digests.items()]
        for path, jinja, digest in files:
            stamp = self.sightings.get(path)
            # A file that was written just before the reading may change again with an equal stamp.
            is_unchanged = (
                stamp is not None
                and stamp == new_stamps[path]
                and stamp.stamp.newest < self.began - A_MINUTE
            )
            if is_unchanged:
                continue
            # An edit of a template rarely changes its kernels and arguments: those are compared.
            if (_KernelTemplate(path, jinja).digest if path else _digest_machine_archs()) != digest:
                return None
        return replace(self, sightings=new_stamps, began=began)


class _KernelTemplate:
    """A template, and what a manifest reads of it: its kernels, and whether it has code for cpu
    targets. `digest` is of these values."""

    def __init__(self, path: str, jinja: bool) -> None:
        self.shown = shorten_path(path)
        text = try_read_text(path, "replace") or ""  # `check_files` says what is wrong
        self.lines = text.split("\n")
        self.kernels = KernelSource(text, jinja=jinja).kernels
        self.has_cpu = jinja and has_cpu_branch(text)
        values = [(kernel.name, kernel.parameters, kernel.problem) for kernel in self.kernels]
        self.digest = sha256_text(repr((values, self.has_cpu)))

    def locate_kernel(self, kernel: DeclaredKernel) -> Place:
        """Return the place of a kernel's `__global__` in the template."""
        text = self.lines[kernel.line - 1]
        return Place(self.shown, kernel.line, kernel.column, text, width=len("__global__"))


def _digest_machine_archs() -> str:
    return sha256_text(repr(find_local_archs()))


def fill_from_templates(document: Document) -> tuple[TemplateReading, list[Diagnostic]]:
    """Add the values that the manifest omits to `document.data`: the project, the kernels and
    arguments of scripts, and targets.

    Return the reading, and a mistake for each value that neither the manifest nor a template
    decides.
    """
    began = time.time_ns()
    data = document.data
    root = os.path.dirname(document.path)
    notes: list[str] = []
    problems: list[Diagnostic] = []
    digests: dict[str, str] = {}
    plain_digests: dict[str, str] = {}
    stamps: dict[str, DeviceStamp] = {}
    has_cpu_branch_by_script: dict[str, bool] = {}
    if "project" not in data:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(root)).strip("-._") or "kernels"
        data["project"] = {"name": name, "version": "0.1.0"}
        notes.append(f"project: {name}, as its directory is called")
    scripts = data.get("script")
    for name, script in scripts.items() if isinstance(scripts, dict) else ():
        file = script.get("template") if isinstance(script, dict) else None
        if not isinstance(file, str) or file.startswith(PACKAGE):
            continue
        path = os.path.join(root, file)
        # The stamp is taken before the file is read: an edit in between shows as another stamp.
        stamps.setdefault(path, read_device_stamp(path))
        is_rendered = script.get("render") is not False
        template = _KernelTemplate(path, is_rendered)
        (digests if is_rendered else plain_digests)[path] = template.digest
        has_cpu_branch_by_script[name] = template.has_cpu
        if not {"entry", "library", "kernels"} & script.keys():
            problems += _complete_script(f"[script.{name}]", script, template, notes)
    if "target" not in data and ("script" in data or "library" in data):
        digests[""] = _digest_machine_archs()
        stamps |= {path: read_device_stamp(path) for path in DEVICES}
        notes.append(_add_targets(data, has_cpu_branch_by_script))
    return TemplateReading(tuple(notes), digests, plain_digests, stamps, began), problems


def _add_targets(data: dict[str, Any], has_cpu_branch_by_script: Mapping[str, bool]) -> str:
    """Add targets to the data: this machine's GPUs, and `cpu` for scripts with a branch for it.
    Other scripts, and libraries, get a list of the GPUs as their `targets` if they have none.

    Return a note about the targets.
    """
    local = {arch: {"arch": arch} for arch in find_local_archs()}
    gpus: dict[str, Any] = local or _NO_GPU
    cpu_scripts = [name for name, has_cpu in has_cpu_branch_by_script.items() if has_cpu]
    data["target"] = {**gpus, **({"cpu": {"arch": "cpu"}} if cpu_scripts else {})}
    for tables in (data.get("script"), data.get("library")):
        for name, table in tables.items() if isinstance(tables, dict) else ():
            # Without `targets` a script would be built for the cpu, too.
            if isinstance(table, dict) and name not in cpu_scripts:
                table.setdefault("targets", list(gpus))
    source = "of this machine" if local else "with PTX: there is no GPU here"
    note = f"targets: {', '.join(gpus)} ({source})"
    if cpu_scripts:
        note += f", cpu for {', '.join(cpu_scripts)}"
    return note


def _complete_script(
    table: str, script: dict[str, Any], template: _KernelTemplate, notes: list[str]
) -> Iterator[Diagnostic]:
    """Add the kernel and its arguments from the template to a script, and lines about that to
    `notes`. Yield the mistakes; with one, nothing is added. `table` is the script's header.

    The kernel is the one that the script names, else the template's only one. Its arguments are
    added unless those of the manifest are complete: all have an element type, and they are either
    at least the kernel's parameters, or have a name that is none of them.
    """
    kernel_name, args = script.get("kernel"), script.get("args") or {}
    if not isinstance(kernel_name, str | None) or not isinstance(args, dict):
        return  # `validate_structure` reports it
    # `kernel` of "ns::kernel<4>".
    plain_name = (kernel_name or "").partition("<")[0].rpartition("::")[2]
    kernels = [
        kernel for kernel in template.kernels if kernel_name is None or kernel.plain == plain_name
    ]
    if not kernels:
        return  # `check_targets` asks for a kernel
    kernel, place = kernels[0], template.locate_kernel(kernels[0])
    parameter_names = {parameter.name for parameter in kernel.parameters}
    declared_names = {name for name, arg in args.items() if _is_parameter(arg)}
    # Without an element type are "[m, k]" and a table without `type`.
    untyped_names = {name for name, arg in args.items() if _type_of(arg)[:1] in ("", "[")}
    has_all_names = declared_names >= parameter_names or not declared_names <= parameter_names
    is_complete = bool(args) and not untyped_names and has_all_names
    unreadable_parameters = [
        parameter
        for parameter in kernel.parameters
        if not is_complete
        and not (parameter.name and parameter.dtype)
        and parameter.name not in args.keys() - untyped_names
    ]
    # A name with template arguments says which instance of a C++ template is meant.
    problem = "" if kernel_name and kernel.is_template else kernel.problem
    hint = f"write args in {table}"
    if len({(declaration.name, declaration.parameters) for declaration in kernels}) > 1:
        lines = (f'"{item.plain}" in line {template.locate_kernel(item).line}' for item in kernels)
        problem = f"{len(kernels)} kernels are declared: {', '.join(lines)}"
    if unreadable_parameters and not problem:
        first = unreadable_parameters[0]
        problem = f'the type of the parameter "{first.text}" cannot be read'
        shape = "*[n]" if first.is_pointer else ""
        hint = f'write its type in {table}, as in args.{first.name or "NAME"} = "f32{shape}"'
    elif kernel_name is None:
        hint = f'write kernel = "NAME" in {table}, and its args'
    if problem:
        # With the kernel and all arguments in the manifest, the template's text is not needed.
        if kernel_name is None or untyped_names or not args:
            yield Diagnostic(problem, place, hint)
        return
    additions: dict[str, object] = {} if kernel_name else {"kernel": kernel.name}
    script["kernel"] = kernel_name or kernel.name
    if not is_complete:
        completed_args = {
            parameter.name: _complete_argument(parameter, args.get(parameter.name))
            for parameter in kernel.parameters
        }
        other_args = {key: arg for key, arg in args.items() if key not in completed_args}
        script["args"] = {**completed_args, **other_args}
        additions |= {
            f"args.{key}": arg for key, arg in completed_args.items() if arg != args.get(key)
        }
    if additions:
        notes.append(f"{table}, from {template.shown}:{place.line}:")
        notes += [f"  {key} = {format_toml(value)}" for key, value in additions.items()]


def _type_of(arg: object) -> str:
    """Return the type of an argument in the manifest; "" if it has none.

    Of a tensor map, and of a mistake, the result is a word that is not a type: it is not completed.
    """
    if isinstance(arg, dict):
        return str(arg.get("type", "map" if "tensor-map" in arg else ""))
    return arg if isinstance(arg, str) else "?"


def _is_parameter(arg: object) -> bool:
    return not isinstance(arg, dict) or (arg.get("parameter", True) and not arg.get("constant"))


def _complete_argument(parameter: KernelParameter, written: object) -> object:
    """Return an argument's value in the manifest, completed by the template's parameter: a type, or
    a table with further keys. One that has an element type is returned as written."""
    argument_table: dict[str, Any] = {}
    if isinstance(written, dict):
        argument_table = written
    elif written is not None:
        argument_table = {"type": written}
    if _type_of(argument_table)[:1] not in ("", "["):
        return written
    # An opaque pointer has no elements, and so no shape.
    shape = _type_of(argument_table) or ("[...]" if parameter.dtype != "void" else "")
    type_ = f"{parameter.dtype}*{shape}" if parameter.is_pointer else parameter.dtype
    # An output cannot be optional, so that an optional tensor is an input.
    is_out = (
        shape
        and parameter.is_pointer
        and not parameter.is_const
        and not argument_table.get("optional")
    )
    completed = {**({"out": True} if is_out else {}), **argument_table, "type": type_}
    return type_ if completed == {"type": type_} else completed
