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

from tilusbuild.arch.names import DEVICES, find_local_archs
from tilusbuild.errors import Diagnostic, Place
from tilusbuild.manifest.document import Document, shorten_path
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.table import format_toml
from tilusbuild.runtime.regular import try_read_text
from tilusbuild.signature.reading import (
    DeclaredKernel,
    KernelParameter,
    blank_comments,
    find_kernels,
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
    found: Mapping[str, str] = {}
    """A digest of the values from each template, by its path; of this machine's GPUs by ""."""
    sightings: Mapping[str, DeviceStamp] = {}
    """The stamp of each file, taken before it was read."""
    began: int = 0
    """The start of the reading, by `time.time_ns`."""

    def reread(self) -> TemplateReading | None:
        """Read files again that may have changed. Return None if the values differ."""
        began, seen = time.time_ns(), {path: read_device_stamp(path) for path in self.sightings}
        young = self.began - A_MINUTE
        for path, digest in self.found.items():
            known = self.sightings.get(path)
            is_known = known is not None and known == seen[path] and known.stamp.newest < young
            if (
                not is_known
                and (_KernelTemplate(path).digest if path else _find_machine_archs()) != digest
            ):
                return None
        return TemplateReading(self.notes, self.found, seen, began)


class _KernelTemplate:
    def __init__(self, path: str) -> None:
        self.shown = shorten_path(path)
        self.text = try_read_text(path, "replace") or ""  # `check_files` says what is wrong
        self.kernels = find_kernels(blank_comments(self.text, jinja=True))
        self.has_cpu = has_cpu_branch(self.text)
        said = [(each.name, each.parameters, each.problem) for each in self.kernels]
        self.digest = sha256_text(repr((said, self.has_cpu)))

    def locate_kernel(self, kernel: DeclaredKernel) -> Place:
        before, _, _ = self.text[: kernel.start].rpartition("\n")
        start = len(before) + bool(before)
        line, text = before.count("\n") + 1 + bool(before), self.text[start:].partition("\n")[0]
        return Place(self.shown, line, kernel.start - start + 1, text, len("__global__"))


def _find_machine_archs() -> str:
    return sha256_text(repr(find_local_archs()))


def fill_from_templates(document: Document) -> tuple[TemplateReading, list[Diagnostic]]:
    """Add the values that the manifest omits to `document.data`.

    Return the reading, and a mistake for each value that neither the manifest nor a template
    decides.
    """
    began, data, root = time.time_ns(), document.data, os.path.dirname(document.path)
    notes, problems = list[str](), list[Diagnostic]()
    found, seen = dict[str, str](), dict[str, DeviceStamp]()
    branches = dict[str, bool]()
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
        seen.setdefault(path, read_device_stamp(path))
        template = _KernelTemplate(path)
        found[path], branches[name] = template.digest, template.has_cpu
        if not {"entry", "library", "kernels"} & script.keys():
            problems += _complete_script(f"[script.{name}]", script, template, notes)
    if "target" not in data and ("script" in data or "library" in data):
        found[""] = _find_machine_archs()
        seen |= {path: read_device_stamp(path) for path in DEVICES}
        notes.append(_add_targets(data, branches))
    return TemplateReading(tuple(notes), found, seen, began), problems


def _add_targets(data: dict[str, Any], branches: Mapping[str, bool]) -> str:
    """Add targets to the data: this machine's GPUs, and `cpu` for scripts with a branch for it.

    Return a note about them.
    """
    here = {arch: {"arch": arch} for arch in find_local_archs()}
    gpus: dict[str, Any] = here or _NO_GPU
    cpu = [name for name, has_cpu in branches.items() if has_cpu]
    data["target"] = {**gpus, **({"cpu": {"arch": "cpu"}} if cpu else {})}
    for tables in (data.get("script"), data.get("library")):
        for name, table in tables.items() if isinstance(tables, dict) else ():
            if isinstance(table, dict) and name not in cpu:
                table.setdefault("targets", list(gpus))
    said = f"{', '.join(gpus)} ({'of this machine' if here else 'with PTX: there is no GPU here'})"
    return f"targets: {said}" + (f", cpu for {', '.join(cpu)}" if cpu else "")


def _complete_script(
    table: str, script: dict[str, Any], template: _KernelTemplate, notes: list[str]
) -> Iterator[Diagnostic]:
    """Add the kernel and its arguments from the template to a script. Yield the mistakes."""
    asked, args = script.get("kernel"), script.get("args") or {}
    if not isinstance(asked, str | None) or not isinstance(args, dict):
        return
    plain = (asked or "").partition("<")[0].rpartition("::")[2]
    every = [each for each in template.kernels if asked is None or each.plain == plain]
    if not every:
        return  # `check_targets` asks for a kernel
    kernel, place = every[0], template.locate_kernel(every[0])
    names = {each.name for each in kernel.parameters}
    taken = {name for name, arg in args.items() if _is_parameter(arg)}
    short = {name for name, arg in args.items() if _type_of(arg)[:1] in ("", "[")}
    is_whole = bool(args) and not short and (taken >= names or not taken <= names)
    unknown = [
        each
        for each in kernel.parameters
        if not (is_whole or (each.name and each.dtype) or each.name in args.keys() - short)
    ]
    problem, hint = "" if asked and kernel.template else kernel.problem, f"write args in {table}"
    if len({(each.name, each.parameters) for each in every}) > 1:
        lines = (f'"{each.plain}" in line {template.locate_kernel(each).line}' for each in every)
        problem = f"{len(every)} kernels are declared: {', '.join(lines)}"
    if unknown and not problem:
        each = unknown[0]
        problem = f'the type of the parameter "{each.text}" cannot be read'
        shape = "*[n]" if each.is_pointer else ""
        hint = f'write its type in {table}, as in args.{each.name or "NAME"} = "f32{shape}"'
    elif asked is None:
        hint = f'write kernel = "NAME" in {table}, and its args'
    if problem:
        if asked is None or short or not args:
            yield Diagnostic(problem, place, hint)
        return
    said: dict[str, object] = {} if asked else {"kernel": kernel.name}
    script["kernel"] = asked or kernel.name
    if not is_whole:
        read = {
            each.name: _complete_argument(each, args.get(each.name)) for each in kernel.parameters
        }
        script["args"] = {**read, **{each: arg for each, arg in args.items() if each not in read}}
        said |= {f"args.{each}": arg for each, arg in read.items() if arg != args.get(each)}
    if said:
        notes.append(f"{table}, from {template.shown}:{place.line}:")
        notes += [f"  {key} = {format_toml(value)}" for key, value in said.items()]


def _type_of(arg: object) -> str:
    """Return the type of an argument in the manifest; "" if it has none."""
    if isinstance(arg, dict):
        return str(arg.get("type", "map" if "tensor-map" in arg else ""))
    return arg if isinstance(arg, str) else "?"


def _is_parameter(arg: object) -> bool:
    return not isinstance(arg, dict) or (arg.get("parameter", True) and not arg.get("constant"))


def _complete_argument(parameter: KernelParameter, written: object) -> object:
    """Return an argument's value in the manifest, completed by the template's parameter."""
    own = written if isinstance(written, dict) else {} if written is None else {"type": written}
    if _type_of(own)[:1] not in ("", "["):
        return written
    shape = _type_of(own) or ("[...]" if parameter.dtype != "void" else "")
    type_ = f"{parameter.dtype}*{shape}" if parameter.is_pointer else parameter.dtype
    is_out = shape and parameter.is_pointer and not parameter.is_const and not own.get("optional")
    made = {**({"out": True} if is_out else {}), **own, "type": type_}
    return type_ if made == {"type": type_} else made
