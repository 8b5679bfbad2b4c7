"""What a manifest leaves out and can be read: put where it would be written, before the checks.

A kernel and its arguments come from the `__global__` function of the template as it is written, so
they are those of every schedule; targets from this machine. What is written wins. `Reading` says
what was read, and whether it still holds: whoever keeps a manifest (`memo`, the no-op record,
`watch`) keeps that with it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from tilusbuild.arch.here import DEVICES, archs_here
from tilusbuild.errors import Diagnostic, Place
from tilusbuild.manifest.document import Document, shown_path
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.table import toml_text
from tilusbuild.runtime.regular import read_text
from tilusbuild.signature.reading import Kernel, Parameter, has_cpu_branch, kernels, readable
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import Sighting, sighting

A_MINUTE = 60_000_000_000
"""Nanoseconds. What changed so lately may have changed again without another stamp."""
_NO_GPU = "sm_80"
_OTHERS = ("entry", "library", "kernels")


class Reading(Struct, frozen=True):
    """What was read for a manifest."""

    notes: tuple[str, ...] = ()
    """In words."""
    found: Mapping[str, str] = {}
    """Digests of what each template says, by its path; of this machine's GPUs by ""."""
    sightings: Mapping[str, Sighting] = {}
    """Each file as it was before it was read."""
    began: int = 0
    """By `time.time_ns`."""

    def again(self) -> Reading | None:
        """Return the same, as far as it may be another read again; None where it is another."""
        began, seen = time.time_ns(), {path: sighting(path) for path in self.sightings}

        def is_same(path: str) -> bool:
            known, now = self.sightings.get(path), seen.get(path)
            old = known is not None and known.stamp.newest < self.began - A_MINUTE
            return (old and known == now) or _digest(path) == self.found[path]

        if not all(map(is_same, self.found)):
            return None
        return Reading(self.notes, self.found, seen, began)


class _Template(Struct, frozen=True):
    path: str
    text: str
    kernels: list[Kernel]
    has_cpu: bool

    @property
    def digest(self) -> str:
        said = [(each.name, each.parameters, each.problem, each.template) for each in self.kernels]
        return sha256_text(repr((said, self.has_cpu)))

    def line(self, kernel: Kernel) -> int:
        return self.text.count("\n", 0, kernel.start) + 1

    def place(self, kernel: Kernel) -> Place:
        first = self.text.rfind("\n", 0, kernel.start) + 1
        text, column = self.text[first:].partition("\n")[0], kernel.start - first + 1
        return Place(shown_path(self.path), self.line(kernel), column, text, len("__global__"))


def _template(path: str) -> _Template | None:
    try:
        text = read_text(path, "replace")
    except (OSError, ValueError):
        return None  # `check_files` says what is wrong
    return _Template(path, text, kernels(readable(text, jinja=True)), has_cpu_branch(text))


def _digest(path: str) -> str:
    if not path:
        return sha256_text(repr(archs_here()))
    template = _template(path)
    return template.digest if template else ""


def fill(document: Document) -> tuple[Reading, list[Diagnostic]]:
    """Put what can be read into a document's values. Return what it was, and what is wrong: what
    the manifest does not say, and the files do not say for sure."""
    began, data, root = time.time_ns(), document.data, os.path.dirname(document.path)
    notes, problems = list[str](), list[Diagnostic]()
    found, seen = dict[str, str](), dict[str, Sighting]()
    branches: dict[str, bool] = {}
    if "project" not in data:
        data["project"] = {"name": project_name(root), "version": "0"}
        notes.append(f"project: {project_name(root)}, as the directory is called")
    scripts = data.get("script")
    for name, script in scripts.items() if isinstance(scripts, dict) else ():
        file = script.get("template") if isinstance(script, dict) else None
        if not isinstance(file, str) or file.startswith(PACKAGE) or {*_OTHERS} & script.keys():
            continue
        path = os.path.join(root, file)
        seen.setdefault(path, sighting(path))
        template = _template(path)
        found[path] = template.digest if template else ""
        branches[name] = template is not None and template.has_cpu
        if template is not None:
            problems += _complete(name, script, template, notes)
    if "target" not in data and ("script" in data or "library" in data):
        found[""] = _digest("")
        seen |= {path: sighting(path) for path in DEVICES}
        notes.append(_targets(data, branches))
    return Reading(tuple(notes), found, seen, began), problems


def project_name(directory: str) -> str:
    """Return the name of a project that has none."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(os.path.abspath(directory)))
    return name.strip("-._") or "kernels"


def _targets(data: dict[str, Any], branches: Mapping[str, bool]) -> str:
    """Add the targets: GPUs for every script, the cpu for those with a branch for it."""
    gpus: dict[str, Any] = {arch: {"arch": arch} for arch in archs_here()}
    where = "this machine's GPUs" if gpus else "no GPU here"
    gpus = gpus or {_NO_GPU: {"arch": _NO_GPU, "ptx": True}}
    data["target"] = {**gpus, **({"cpu": {"arch": "cpu"}} if any(branches.values()) else {})}
    for kind in ("script", "library"):
        tables = data.get(kind)
        for name, table in tables.items() if isinstance(tables, dict) else ():
            if isinstance(table, dict) and not branches.get(name):
                table.setdefault("targets", list(gpus))
    names = ", ".join(f"{gpu} with PTX" if "ptx" in of else gpu for gpu, of in gpus.items())
    cpu = [name for name, has_cpu in branches.items() if has_cpu]
    return f"targets: {names} ({where})" + f", cpu for {', '.join(cpu)}" * bool(cpu)


def _complete(
    name: str, script: dict[str, Any], template: _Template, notes: list[str]
) -> Iterator[Diagnostic]:
    """Add the kernel and the arguments of a script that its template has. Yield what is wrong."""
    asked, written = script.get("kernel"), script.get("args") or {}
    if not isinstance(asked, str | None) or not isinstance(written, dict):
        return
    plain = (asked or "").partition("<")[0].rpartition("::")[2]
    every = [each for each in template.kernels if asked is None or each.plain == plain]
    ways = {(each.name, each.parameters, each.problem) for each in every}
    shown = shown_path(template.path)
    kernel = every[0] if every else None
    if kernel is None:
        return
    names = [each.name for each in kernel.parameters]
    own = {each for each, arg in written.items() if _is_parameter(arg)}
    short = [each for each, arg in written.items() if _type(arg)[:1] in ("", "[")]
    is_short = asked is None or not written or bool(short)
    if not is_short and (own >= {*names} or not own <= {*names}):
        return
    problem = kernel.problem if asked is None or not kernel.template else ""
    if len(ways) > 1:
        lines = ", ".join(f'"{each.plain}" in line {template.line(each)}' for each in every)
        problem = f"{len(every)} kernels are declared: {lines}"
    unknown = [
        each
        for each in kernel.parameters
        if not (each.name and each.dtype) and (each.name not in written or each.name in short)
    ]
    if problem or unknown:
        if is_short:
            yield _unsure(name, problem, template.place(kernel), unknown, asked)
        return
    script["kernel"] = asked or kernel.name
    read = {each.name: _argument(each, written.get(each.name)) for each in kernel.parameters}
    script["args"] = {**read, **{each: arg for each, arg in written.items() if each not in read}}
    said = {"kernel": script["kernel"]} if asked is None else {}
    said |= {f"args.{each}": arg for each, arg in read.items() if arg != written.get(each)}
    notes.append(f"{name}, from {shown}:{template.line(kernel)}:")
    notes += [f"  {key} = {toml_text(value)}" for key, value in said.items()]


def _unsure(
    name: str, problem: str, place: Place, unknown: list[Parameter], asked: str | None
) -> Diagnostic:
    """Return why what a script does not say cannot be read."""
    table = f"[script.{name}]"
    if not problem:
        first = unknown[0]
        problem = f'the type of the parameter "{first.text}" cannot be read'
        shape = "*[n]" if first.is_pointer else ""
        hint = f'write its type in {table}, as in args.{first.name or "NAME"} = "f32{shape}"'
        return Diagnostic(problem, place, hint)
    hint = f'write kernel = "NAME" in {table}' if asked is None else ""
    hint = f"{hint or f'write its args in {table}'}{', and its args' * bool(hint)}"
    return Diagnostic(problem, place, hint)


def _type(arg: object) -> str:
    """Return the type that is written of an argument; "" for none."""
    if isinstance(arg, dict):
        return str(arg.get("type", "map" if "tensor-map" in arg else ""))
    return arg if isinstance(arg, str) else "?"


def _is_parameter(arg: object) -> bool:
    return not isinstance(arg, dict) or (arg.get("parameter", True) and not arg.get("constant"))


def _argument(parameter: Parameter, written: object) -> object:
    """Return an argument as a manifest has it: what is written, and what it leaves out."""
    own = written if isinstance(written, dict) else {} if written is None else {"type": written}
    if _type(own)[:1] not in ("", "["):
        return written
    shape = _type(own) or ("" if parameter.dtype == "void" else "[...]")
    type_ = f"{parameter.dtype}*{shape}" if parameter.is_pointer else parameter.dtype
    is_out = parameter.is_pointer and not parameter.is_const and parameter.dtype != "void"
    out = {"out": True} if is_out and not own.get("optional") else {}
    made = {**out, **own, "type": type_}
    return type_ if made == {"type": type_} else made
