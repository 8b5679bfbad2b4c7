"""Predict how a package would run on a machine: the chosen targets, and missing requirements.

The rules are the runtime's own, applied to a device that is only described. Nothing of the package
is run and no driver is called. Facts of the machine that are not known are not compared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from tilusbuild.report.jsonl import JsonLine
from tilusbuild.runtime import choose, library
from tilusbuild.runtime.choose import Chooser, Evaluation
from tilusbuild.runtime.device import Device, explain_cpu_refusal
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import format_instance_name
from tilusbuild.runtime.script import SHARED, Script, read_script
from tilusbuild.runtime.table_file import explain_refusals
from tilusbuild.runtime.tables import DeviceTable, read_dispatch_table

if TYPE_CHECKING:
    from tilusbuild.package.listing import FileList, HostNeeds

ANY_GPU = "any GPU"
"""The name of a device of which only the architecture is known."""
NEWEST_DRIVER = 99_990
"""A driver that supports every CUDA version: the one of a machine whose driver is not named."""
_LEVEL = re.compile(r"x86-64(?:-v([234]))?", re.ASCII)


class PreflightCandidate(Struct, frozen=True):
    """A target, and why it does or does not suit the device."""

    target: str
    suits: bool
    why: str


class PreflightLine(JsonLine, frozen=True):
    """What would be chosen for a script on a device."""

    event: ClassVar[str] = "preflight"
    device: str
    script: str
    params: Mapping[str, Any]
    target: str | None
    why: str
    candidates: tuple[PreflightCandidate, ...]
    tables: tuple[str, ...]
    problems: tuple[str, ...]


class DescribedHost(Struct, frozen=True):
    """A machine that a package is to run on. None: not known, and not compared."""

    device: Device
    machine: str
    glibc: str | None = None
    libstdcxx: str | None = None
    isa: str | None = None
    tvm_ffi: str | None = None

    @property
    def is_this_machine(self) -> bool:
        """Whether nothing about the host's system is described."""
        facts = (self.glibc, self.libstdcxx, self.isa, self.tvm_ffi)
        return not any(facts) and self.machine == os.uname().machine


class PreflightReport(Struct, frozen=True):
    """The prediction for one machine: a line for each instance, and the problems of the host."""

    host: DescribedHost
    instances: tuple[PreflightLine, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing would be missing."""
        return not self.problems and not any(instance.problems for instance in self.instances)


def predict_run(
    listing: FileList, directory: str, host: DescribedHost, path: str = ""
) -> PreflightReport:
    """Predict how the package at `path` runs on one machine. `directory` holds the scripts of the
    package, and the libraries that are to be examined.

    Raises `LoadError` for scripts that the runtime would not read.
    """
    packed = {entry.hash: frozenset(entry.programs) for entry in listing.scripts}
    scripts_by_instance: dict[tuple[str, str], list[Script]] = {}
    for entry in listing.scripts:
        script = read_script(os.path.join(directory, entry.root))
        instance_key = (script.name, repr(sorted(script.params.items())))
        scripts_by_instance.setdefault(instance_key, []).append(script)
    lines = tuple(
        _predict_instance(listing, scripts, packed, host)
        for scripts in scripts_by_instance.values()
    )
    problems: tuple[str, ...] = ()
    # If the machine has no script at all, the missing libraries would be noise.
    if any(line.target for line in lines):
        problems = tuple(list_host_problems(listing.needs, host))
        if host.is_this_machine:
            from tilusbuild.cache.verify import list_loading_problems

            problems += tuple(list_loading_problems(path, directory))
    return PreflightReport(host, lines, problems)


# One instance.


def _predict_instance(
    listing: FileList,
    scripts: Sequence[Script],
    packed: Mapping[str, frozenset[str]],
    host: DescribedHost,
) -> PreflightLine:
    """Predict how an instance, a script with its constants, runs on the host: its target, its
    tables and its problems. `scripts` holds its script for each target of the package; `packed` has
    the packed programs, by the hash of the script."""
    try:
        chosen, evaluations = choose.choose_instance(scripts, host.device, host.machine)
    except LoadError as error:
        evaluations = tuple(
            choose.evaluate_instance(script, host.device, host.machine) for script in scripts
        )
        # The first line only: the others list the candidates, which `_make_line` adds.
        problem = str(error).splitlines()[0]
        return _make_line(host, scripts[0], None, evaluations, tables=(), problems=[problem])
    packed_programs = packed[chosen.hash]
    packed_numbers = frozenset(i for i, p in chosen.programs.items() if p in packed_programs)
    problems = list(_list_code_problems(listing, chosen, packed_numbers, host))
    dispatch = read_dispatch_table(chosen)
    tables = _select_tables(chosen, dispatch.tables, host)
    table = tables[0] if tables else None
    try:
        refused = explain_refusals(chosen.programs, dispatch.refused)
        # Both calls are made for their errors: a script that dispatch could not serve.
        chooser = Chooser(chosen, table, packed_numbers, refused)
        if table is None or not table.programs:
            chooser.choose_default()
    except LoadError as error:
        problems.append(str(error))
    measured_on = tuple(table.fingerprint["device"] for table in tables)
    return _make_line(host, chosen, chosen, evaluations, tables=measured_on, problems=problems)


def _make_line(
    host: DescribedHost,
    script: Script,
    chosen: Script | None,
    evaluations: Sequence[Evaluation],
    *,
    tables: tuple[str, ...],
    problems: Sequence[str],
) -> PreflightLine:
    """Return the line of an instance. `chosen` is None if the machine has no script; then `script`
    is any of the instance's scripts. `tables` names the devices that were measured."""
    return PreflightLine(
        device=host.device.arch,
        script=format_instance_name(script.name, script.params),
        params=dict(script.params),
        target=chosen.target if chosen else None,
        why=next((e.reason for e in evaluations if e.script is chosen), ""),
        candidates=tuple(
            PreflightCandidate(e.script.target, e.rank is not None, e.reason) for e in evaluations
        ),
        tables=tables,
        problems=tuple(problems),
    )


def _list_code_problems(
    listing: FileList, script: Script, packed_numbers: frozenset[int], host: DescribedHost
) -> Iterator[str]:
    """Yield a problem for each program whose code in the binary does not run on the device."""
    if not packed_numbers:
        yield f"none of the programs of {script.label} is in the package"
    # Without --cpu the host has the CPU of this machine, as it has its machine type.
    if host.isa is None and host.machine == os.uname().machine:
        refusal = explain_cpu_refusal(script.code.isa)
        if refusal is not None:
            yield f"{script.label} is {refusal}"
    if host.device.kind != "cuda":
        return
    for number in sorted(packed_numbers):
        images = listing.programs[script.programs[number]].images
        if script.form == SHARED and not images:
            # A library of host code runs beside any device.
            continue
        meta = {"images": [{"kind": image.kind, "arch": image.arch} for image in images]}
        try:
            library.check_images(script, number, meta, host.device)
        except LoadError as error:
            yield str(error)


def _select_tables(
    script: Script, tables: Sequence[DeviceTable], host: DescribedHost
) -> list[DeviceTable]:
    """Return the tables that the device takes. A device of which only the architecture is known
    takes those of all devices of the architecture."""
    fingerprint = host.device.make_fingerprint(script.hash)
    fitting = []
    for table in tables:
        any_name = {"device": table.fingerprint["device"]} if host.device.name == ANY_GPU else {}
        if not table.explain_mismatch({**fingerprint, **any_name}):
            fitting.append(table)
    return fitting


# The host.


def list_host_problems(needs: HostNeeds, host: DescribedHost) -> Iterator[str]:
    """Yield a problem for each requirement of the libraries that the host does not meet."""
    from tilusbuild.package.model import parse_version

    if needs.machine != host.machine:
        yield f"the libraries are for {needs.machine}, and the host is {host.machine}"
    versions = (
        ("glibc", needs.glibc, host.glibc),
        ("libstdc++ symbols GLIBCXX", needs.libstdcxx, host.libstdcxx),
    )
    for name, needed, available in versions:
        if needed and available and parse_version(available) < parse_version(needed):
            yield f"the libraries need {name} {needed}, and the host has {available}"
    # A series has one ABI: a later one is not known to take these libraries. This is `~=`, which a
    # wheel of the package requires of pip.
    if needs.tvm_ffi and host.tvm_ffi:
        oldest, installed = parse_version(needs.tvm_ffi), parse_version(host.tvm_ffi)
        if installed < oldest or installed[:2] != oldest[:2]:
            yield f"the libraries need tvm-ffi ~={needs.tvm_ffi}, and the host has {host.tvm_ffi}"
    if needs.isa and host.isa:
        yield from _list_isa_problems(needs.isa, host.isa)


def _list_isa_problems(needed: str, available: str) -> Iterator[str]:
    """Yield a problem unless a CPU with `available` runs code for `needed`: x86-64 levels, or
    names as of `-march`."""
    if needed == available:
        return
    needed_level, available_level = _parse_level(needed), _parse_level(available)
    # Names that are not levels are in no order: only the very same CPU is known to do.
    if needed_level is None or available_level is None or needed_level > available_level:
        yield f"the libraries need a CPU with {needed}, and the host's has {available}"


def _parse_level(name: str) -> int | None:
    """Return 3 for "x86-64-v3", 1 for "x86-64", and None for any other name."""
    match = _LEVEL.fullmatch(name)
    return None if match is None else int(match[1] or 1)
