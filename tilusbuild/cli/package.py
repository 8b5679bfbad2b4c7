"""`tilusbuild package [PACKAGE]`: package the cache for distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import (
    DIST,
    LEVEL,
    SIGN,
    Common,
    DeviceCompilerArgs,
    Verb,
    flag,
    optional,
    repeated,
)
from tilusbuild.cli.options import emit_line, print_message
from tilusbuild.report.jsonl import declare_line
from tilusbuild.rooms import find_contributions, load_contribution

if TYPE_CHECKING:
    from tilusbuild.package.collect import PackageOrder
    from tilusbuild.package.contents import Contents
    from tilusbuild.package.pack import WrittenPackage

_FORMATS = tuple(find_contributions("package format"))


class PackageArgs(DeviceCompilerArgs, frozen=True, kw_only=True):
    name: str | None = optional("PACKAGE", help="a [package.NAME] of the manifest (default: all)")
    formats: tuple[str, ...] = repeated(
        "--format",
        metavar="F",
        help=f"{', '.join(_FORMATS)}; can be repeated (default: `formats` in the manifest)",
    )
    output: str = DIST
    level: int | None = LEVEL
    as_built: bool = flag(
        "--as-built",
        help="package what the last build made, without checking that it is up to date",
    )
    with_tests: bool = flag(
        "--with-tests",
        help="add a case for each of the manifest's `sizes`, for `tilusbuild check`",
    )
    large_tests: bool = flag(
        "--large-tests",
        help="as --with-tests, also for sizes with more than 2 MiB of outputs",
    )
    strict: bool = flag(
        "--strict",
        help="refuse scripts of several programs without measurements of these",
    )
    fitted: bool = flag(
        "--fitted",
        help="pack only the programs of `dispatch fit`, of rules by hand and the defaults",
    )
    sign: str | None = SIGN


PackageFileLine = declare_line("carrier", format=str, path=str, size=int, digest=str)
"""A package in one format."""


PackageLine = declare_line(
    "package", name=str, version=str, digest=str, programs=int, files=int, size=int
)
"""What is in a package."""


def run(arguments: PackageArgs) -> int:
    """Write the packages, and print the path of each file or directory. Return 0. Sizes without a
    test and scripts without measurements are reported on stderr. Raises `InputError`."""
    from tilusbuild.errors import input_error
    from tilusbuild.package import pack
    from tilusbuild.package.collect import describe_unmeasured
    from tilusbuild.state.temporary import TemporaryDirectory

    with_tests = arguments.with_tests or arguments.large_tests
    if arguments.as_built and with_tests:
        raise input_error(
            "--with-tests makes inputs from the manifest, and --as-built does not read it",
            hint="leave one out",
        )
    write_tests: Callable[..., Mapping[str, str]] | None = None
    if with_tests:
        write_tests = load_contribution("package tests", "write", "makes tests")
        report_missing = lambda case: print_message(f"no test of {case}\n")  # noqa: E731
        write_tests = partial(write_tests, report=report_missing, large=arguments.large_tests)
    formats_of_options = parse_formats(arguments.formats, _FORMATS)
    attest = options.find_attester(arguments.sign)
    with options.open_project(arguments) as project:
        orders = pack.list_orders(project.manifest, arguments.name, fitted=arguments.fitted)
        level = project.settings.level.value
        for order in orders:
            with project.cache.hold_use_if_exists(), TemporaryDirectory("tests") as directory:
                tests = write_tests and partial(write_tests, project, directory.path)
                contents = pack.gather_contents(
                    project, order, level=level, unchecked=arguments.as_built, tests=tests
                )
                for text in describe_unmeasured(project.cache, contents.listed):
                    if arguments.strict:
                        raise input_error(f"--strict: {text}")
                    if not arguments.quiet:
                        print_message(f"note: {text}\n")
                requested_formats = formats_of_options or order.package.formats
                files = pack.write_formats(
                    order, contents, requested_formats, arguments.output, attest=attest
                )
            _show_package(arguments, order, contents, files)
    return 0


def parse_formats(values: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the formats of --format, each once. Raises `InputError` for an unknown one."""
    from tilusbuild.errors import did_you_mean, input_error

    names = options.split_values(values)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise input_error(f'--format: unknown format "{name}"', hint=hint)
    return list(dict.fromkeys(names))


def show_files(arguments: Common, files: Sequence[WrittenPackage], digest: str) -> None:
    """Print the format, path and size of each written file; `digest` is the file list's."""
    for format_name, path, size in files:
        if arguments.json:
            emit_line(PackageFileLine(format_name, path, size, digest))
            continue
        print(path)
        if not arguments.quiet:
            print_message(f"  {format_name}, {size} bytes, sha256 {digest}\n")


def _show_package(
    arguments: PackageArgs,
    order: PackageOrder,
    contents: Contents,
    files: list[WrittenPackage],
) -> None:
    """Print a package's files, and with `--json` its counts."""
    show_files(arguments, files, contents.digest)
    if arguments.json:
        listed = contents.listed
        counts = (len(listed.programs), len(listed.files), listed.size)
        emit_line(PackageLine(order.name, order.version, contents.digest, *counts))


VERB = Verb(PackageArgs, run, (PackageFileLine, PackageLine))
