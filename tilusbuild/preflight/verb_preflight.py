"""`tilusbuild preflight PATH --device ARCH`: whether a package would run on a given machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import LimitArgs, Verb, option, positional, repeated
from tilusbuild.cli.options import CountsLine, emit_line
from tilusbuild.preflight.prediction import PreflightLine
from tilusbuild.report.jsonl import ProblemLine

if TYPE_CHECKING:
    from tilusbuild.preflight.prediction import DescribedHost, PreflightReport

_ARCH = re.compile(r"sm_\d{2,3}[af]?", re.ASCII)
_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){0,2}(\.post\d+)?", re.ASCII)


class PreflightArgs(LimitArgs, frozen=True, kw_only=True):
    path: str = positional("PATH", help="a package in any format")
    devices: tuple[str, ...] = repeated(
        *("-d", "--device"),
        metavar="ARCH",
        required=True,
        help='the architecture of a GPU, as in sm_103, or "cpu"; can be repeated',
    )
    gpu_name: str | None = option(
        "--gpu-name",
        metavar="NAME",
        help="the GPU's name in the driver: use only tables that were measured on it",
    )
    driver: str | None = option(
        "--driver", metavar="VERSION", help="the CUDA version that the driver supports, as in 12.8"
    )
    glibc: str | None = option("--glibc", metavar="VERSION", help="the host's glibc, as in 2.28")
    libstdcxx: str | None = option(
        "--libstdcxx",
        metavar="VERSION",
        help="the newest GLIBCXX symbol version on the host, as in 3.4.30",
    )
    cpu: str | None = option(
        "--cpu", metavar="LEVEL", help="the host's instruction set, as in x86-64-v2"
    )
    tvm_ffi: str | None = option(
        "--tvm-ffi", metavar="VERSION", help="the host's apache-tvm-ffi, as in 0.1.9"
    )
    machine: str | None = option(
        "--machine", help="the host's machine type, as in `uname -m` (default: this one's)"
    )


def run(arguments: PreflightArgs) -> int:
    """Print the instance that each device would get. Return 1 if a device would lack something."""
    from tilusbuild.errors import TilusbuildError
    from tilusbuild.package.read import select_first_libraries, unpack_package
    from tilusbuild.preflight.prediction import predict_run
    from tilusbuild.runtime.errors import LoadError

    hosts = [_describe_host(arguments, device) for device in arguments.devices]
    with unpack_package(
        arguments.path, select_first_libraries, options.parse_limits(arguments)
    ) as (
        listing,
        directory,
    ):
        try:
            results = [predict_run(listing, directory, host, arguments.path) for host in hosts]
        except LoadError as error:
            # The package was unpacked to a directory that is gone when this is read.
            raise TilusbuildError(str(error).replace(f"{directory}/", "")) from None
    if not arguments.json:
        _print_answers(results, verbose=bool(arguments.verbose))
    else:
        for result in results:
            for answer in result.instances:
                emit_line(answer)
            for problem in result.problems:
                emit_line(ProblemLine(problem, of=result.host.device.arch))
        missing = sum(len(_list_problems(result)) for result in results)
        emit_line(CountsLine({"devices": len(results), "missing": missing}))
    return 0 if all(result.ok for result in results) else 1


def _describe_host(arguments: PreflightArgs, device: str) -> DescribedHost:
    """Return the machine that the options describe. Raises `InputError`."""
    from tilusbuild.errors import input_error
    from tilusbuild.package.model import parse_version
    from tilusbuild.preflight.prediction import ANY_GPU, NEWEST_DRIVER, DescribedHost
    from tilusbuild.runtime.device import Device

    if device != "cpu" and not _ARCH.fullmatch(device):
        raise input_error(
            f"--device {device}: unknown architecture", hint='write it as in "sm_103", or "cpu"'
        )
    for name in ("driver", "glibc", "libstdcxx", "tvm_ffi"):
        value = getattr(arguments, name)
        if value is not None and not _VERSION.fullmatch(value):
            flag = name.replace("_", "-")
            raise input_error(f"--{flag} {value}: not a version", hint="write it as in 12.8")
    kind = "cpu" if device == "cpu" else "cuda"
    driver = NEWEST_DRIVER
    if arguments.driver is not None:
        # "12.8" is 12080 in CUDA's API; of "12" the minor number is the 0 that is appended.
        major, minor = (*parse_version(arguments.driver), 0)[:2]
        driver = 1000 * major + 10 * minor
    name = arguments.gpu_name or ANY_GPU
    return DescribedHost(
        Device(kind, ordinal=0, name=name, arch=device.rstrip("af"), driver=driver),
        arguments.machine or os.uname().machine,
        arguments.glibc,
        arguments.libstdcxx,
        arguments.cpu,
        arguments.tvm_ffi,
    )


def _print_answers(results: Sequence[PreflightReport], *, verbose: bool) -> None:
    """Print the instance that each device gets, its tables, the refused ones, and problems."""
    from tilusbuild.table import format_table

    rows = [
        (
            result.host.device.arch,
            answer.script,
            answer.target or "nothing",
            answer.why,
        )
        for result in results
        for answer in result.instances
    ]
    print(format_table(("device", "script", "target", "why"), rows), end="")
    for result in results:
        arch = result.host.device.arch
        for answer in result.instances:
            if answer.tables:
                print(f"{arch}: {answer.script}: tables measured on {', '.join(answer.tables)}")
            for candidate in answer.candidates if verbose or answer.target is None else ():
                verdict = "suits" if candidate.suits else "refused"
                print(f"{arch}: {answer.script} {candidate.target}: {verdict}: {candidate.why}")
        for problem in _list_problems(result):
            print(f"{arch}: missing: {problem}")


def _list_problems(result: PreflightReport) -> list[str]:
    script_problems = [
        f"{answer.script}: {problem}" for answer in result.instances for problem in answer.problems
    ]
    return [*result.problems, *script_problems]


VERB = Verb(PreflightArgs, run, (PreflightLine, ProblemLine, CountsLine))
