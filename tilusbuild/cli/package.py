"""`tilusbuild package [NAME]`: carry a cache away."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.build.project import Project
    from tilusbuild.package.contents import Contents
    from tilusbuild.package.pack import Attest, Made, Order

_FORMATS = ("dir", "tar.zst", "wheel", "oci")


def configure(parser: argparse.ArgumentParser) -> None:
    """Which packages, as what, where to."""
    options.device_compiler(parser)
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="of [package.NAME]; all of them without"
    )
    parser.add_argument(
        "--format",
        dest="formats",
        metavar="F",
        action="append",
        default=[],
        help=f"{', '.join(_FORMATS)}; may be given several times; else `formats` of the manifest",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", default="dist", help="the folder to write to: dist"
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=(0, 1, 2),
        help="how much of each space was built, as `build --level` has it",
    )
    parser.add_argument(
        "--as-built",
        action="store_true",
        help="pack what the last build made, without asking whether anything has changed since",
    )
    parser.add_argument(
        "--sign",
        metavar="KEY",
        help="attest and sign it: the PEM file of a private key, or `keyless`",
    )
    parser.add_argument(
        "--size",
        action="store_true",
        help="write nothing; show who takes the space, by script, target and schedule",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the packages, and print the path of each carrier."""
    from tilusbuild.package import pack

    formats = _formats(arguments)
    attest = _attest(arguments)
    with options.project(arguments) as project:
        orders = pack.orders(project.manifest, arguments.name)
        level = project.settings.level.value
        for order in orders:
            with _kept(project):
                contents = pack.gather(project, order, level=level, unchecked=arguments.as_built)
                if arguments.size:
                    _show_sizes(arguments, order, contents)
                    continue
                chosen = formats or order.package.formats
                made = pack.write(order, contents, chosen, arguments.output, attest=attest)
            _show_made(arguments, order, contents, made)
    return 0


def _kept(project: Project) -> AbstractContextManager[None]:
    """Keeps what is packed in the cache; where there is none, none is made."""
    return project.cache.in_use() if project.cache.tree.exists() else nullcontext()


def _attest(arguments: argparse.Namespace) -> Attest:
    """What attests the packages: nothing, unless they are to be signed."""
    if arguments.sign is None:
        return lambda contents: {}
    from tilusbuild.package.signing import attester

    return attester(arguments.sign)


def _formats(arguments: argparse.Namespace) -> list[str]:
    from tilusbuild.errors import did_you_mean, input_error

    named = [name for word in arguments.formats for name in word.split(",") if name]
    for name in named:
        if name not in _FORMATS:
            raise input_error(f'--format: no format "{name}"', hint=did_you_mean(name, _FORMATS))
    return list(dict.fromkeys(named))


def _show_made(
    arguments: argparse.Namespace, order: Order, contents: Contents, made: list[Made]
) -> None:
    if arguments.json:
        for each in made:
            options.emit(
                "carrier", format=each.format, path=each.path, size=each.size, digest=each.digest
            )
        listed = contents.listed
        options.emit(
            "package",
            name=order.name,
            version=order.version,
            digest=contents.digest,
            programs=len(listed.programs),
            files=len(listed.files),
            size=listed.size,
        )
        return
    for each in made:
        print(each.path)
        if not arguments.quiet:
            named = f", sha256 {each.digest}" if each.digest else ""
            sys.stderr.write(f"  {each.format}, {each.size} bytes{named}\n")


def _show_sizes(arguments: argparse.Namespace, order: Order, contents: Contents) -> None:
    from tilusbuild.package.sizes import layer_sizes, layer_table, program_sizes, program_table

    layers, programs = layer_sizes(contents), program_sizes(contents)
    if not arguments.json:
        most = None if arguments.verbose else 10
        shown = f"the largest {most} of {len(programs)}" if most else "all"
        print(f"{order.title} {order.version}\n\n{layer_table(layers)}")
        print(f"programs, {shown}\n\n{program_table(programs, most)}", end="")
        return
    for layer in layers:
        options.emit(
            "layer",
            script=layer.layer.script,
            target=layer.layer.target,
            programs=layer.programs,
            size=layer.files,
            packed=layer.packed,
        )
    for program in programs:
        options.emit(
            "program",
            hash=program.hash,
            script=program.script,
            target=program.target,
            size=program.files,
            schedule=dict(program.schedule),
        )
