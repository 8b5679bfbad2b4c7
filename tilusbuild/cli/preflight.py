"""`tilusbuild preflight PATH --device ARCH`: what a package would do on a machine elsewhere."""

from __future__ import annotations

import argparse
import json
import os
import re
from typing import TYPE_CHECKING

from tilusbuild.cli import adopt, options

if TYPE_CHECKING:
    from tilusbuild.package.preflight import Answer, Host, Preflight

_ARCH = re.compile(r"sm_\d{2,3}[af]?", re.ASCII)
_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){0,2}", re.ASCII)


def configure(parser: argparse.ArgumentParser) -> None:
    """The package, and what is known of the machine."""
    parser.add_argument("path", metavar="PATH", help="a folder, a .tar.zst, a wheel, an OCI layout")
    parser.add_argument(
        "-d",
        "--device",
        dest="devices",
        metavar="ARCH",
        action="append",
        required=True,
        help='a GPU\'s architecture, as in sm_103, or "cpu"; may be given several times',
    )
    for name, metavar, text in (
        ("--gpu-name", "NAME", "as the driver says it: only tables that were measured on it count"),
        ("--driver", "VERSION", "the CUDA version that the driver supports, as in 12.8"),
        ("--glibc", "VERSION", "the host's, as in 2.28"),
        ("--libstdcxx", "VERSION", "the newest GLIBCXX symbol of the host, as in 3.4.30"),
        ("--cpu", "LEVEL", "the host's instruction set, as in x86-64-v2"),
        ("--tvm-ffi", "VERSION", "the host's, as in 0.1.9"),
    ):
        parser.add_argument(name, metavar=metavar, help=text)
    parser.add_argument("--machine", help="as `uname -m` says it; this one's without it")
    options.package_limits(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what would be chosen for each device; 1 when something would be missing."""
    from tilusbuild.errors import TilusbuildError
    from tilusbuild.package.kinds import other_kind
    from tilusbuild.package.opening import opened
    from tilusbuild.package.preflight import preflight
    from tilusbuild.package.unpack import of_scripts, unpacked
    from tilusbuild.runtime.errors import LoadError

    hosts = [_host(arguments, device) for device in arguments.devices]
    with opened(arguments.path) as reader:
        if other_kind(reader.list_bytes()):
            return adopt.preflight(reader, arguments, hosts)
    with unpacked(arguments.path, of_scripts, options.limits(arguments)) as found:
        try:
            results = [preflight(found.listing, found.folder, host) for host in hosts]
        except LoadError as error:
            raise TilusbuildError(str(error).replace(f"{found.folder}/", "")) from None
        if arguments.json:
            _print_json(results)
        else:
            _print(results, verbose=arguments.verbose)
    return 0 if all(result.ok for result in results) else 1


def _host(arguments: argparse.Namespace, device: str) -> Host:
    from tilusbuild.errors import input_error
    from tilusbuild.package.preflight import ANY_GPU, NEWEST_DRIVER, Host
    from tilusbuild.runtime.device import Device

    if device != "cpu" and not _ARCH.fullmatch(device):
        raise input_error(
            f"--device {device}: no architecture is called so", hint='write "sm_103", or "cpu"'
        )
    for name in ("driver", "glibc", "libstdcxx", "tvm_ffi"):
        value = getattr(arguments, name)
        if value is not None and not _VERSION.fullmatch(value):
            option = name.replace("_", "-")
            raise input_error(f"--{option} {value}: no version", hint="write numbers, as in 12.8")
    kind = "cpu" if device == "cpu" else "cuda"
    driver = NEWEST_DRIVER
    if arguments.driver is not None:
        major, minor = (int(word) for word in f"{arguments.driver}.0".split(".")[:2])
        driver = 1000 * major + 10 * minor
    return Host(
        Device(kind, 0, arguments.gpu_name or ANY_GPU, device.rstrip("af"), driver),
        arguments.machine or os.uname().machine,
        arguments.glibc,
        arguments.libstdcxx,
        arguments.cpu,
        arguments.tvm_ffi,
    )


def _print(results: list[Preflight], *, verbose: bool) -> None:
    from tilusbuild.table import table

    rows = [
        (
            result.host.device.arch,
            answer.label,
            answer.chosen.target if answer.chosen else "nothing",
            answer.why,
            str(answer.coverage or ""),
        )
        for result in results
        for answer in result.answers
    ]
    print(table(("device", "script", "target", "why", "sizes"), rows), end="")
    for result in results:
        arch = result.host.device.arch
        for answer in result.answers:
            if answer.tables:
                print(f"{arch}: {answer.label}: tables measured on {', '.join(answer.tables)}")
            for judged in answer.judged if verbose or answer.chosen is None else ():
                print(f"{arch}: {judged}")
        for problem in _problems(result):
            print(f"{arch}: missing: {problem}")


def _problems(result: Preflight) -> list[str]:
    of_scripts = [f"{a.label}: {what}" for a in result.answers for what in a.problems]
    return [*result.problems, *of_scripts]


def _print_json(results: list[Preflight]) -> None:
    for result in results:
        device = result.host.device.arch
        for answer in result.answers:
            line = {"event": "preflight", "device": device, **_as_json(answer)}
            print(json.dumps(line, ensure_ascii=False))
        for problem in result.problems:
            line = {"event": "problem", "device": device, "what": problem}
            print(json.dumps(line, ensure_ascii=False))
    missing = sum(len(_problems(result)) for result in results)
    print(json.dumps({"event": "summary", "devices": len(results), "missing": missing}))


def _as_json(answer: Answer) -> dict[str, object]:
    coverage = answer.coverage
    return {
        "script": answer.label,
        "params": dict(answer.params),
        "target": answer.chosen.target if answer.chosen else None,
        "why": answer.why,
        "candidates": [
            {"target": j.script.target, "suits": j.suits is not None, "why": j.reason}
            for j in answer.judged
        ],
        "tables": list(answer.tables),
        "sizes": None
        if coverage is None
        else {
            "range": {key: sizes and list(sizes) for key, sizes in coverage.sizes.items()},
            "buckets": coverage.buckets,
            "judged": coverage.judged,
            "sources": dict(coverage.sources),
        },
        "problems": list(answer.problems),
    }
