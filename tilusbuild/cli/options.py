"""The options that several verbs share, what they mean as values, and how events are printed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilusbuild.build.project import Project
    from tilusbuild.cache.cache import Cache
    from tilusbuild.engine.config import BuildConfig
    from tilusbuild.engine.events import Reporter
    from tilusbuild.package.arriving import Limits
    from tilusbuild.package.signing import Policy
    from tilusbuild.plan.selection import Selection


def common(parser: argparse.ArgumentParser, *, defaults: bool) -> None:
    """The options that every verb takes, before its name (with their defaults) or after it."""
    none = None if defaults else argparse.SUPPRESS
    off = False if defaults else argparse.SUPPRESS
    group = parser.add_argument_group("every verb")
    group.add_argument(
        "-C", dest="directory", metavar="DIR", default=none, help="run as if started in DIR"
    )
    group.add_argument("--cache-dir", metavar="DIR", default=none, help="the cache tree's folder")
    for names, text in (
        (("--json",), "print one JSON object a line"),
        (("-q", "--quiet"), "print errors only"),
        (("-v", "--verbose"), "print more"),
    ):
        group.add_argument(*names, action="store_true", default=off, help=text)


def selection(parser: argparse.ArgumentParser) -> None:
    """Scripts, targets and level."""
    parser.add_argument("scripts", metavar="SCRIPT", nargs="*", help="all scripts without one")
    parser.add_argument(
        "-t",
        "--target",
        dest="targets",
        metavar="NAME",
        action="append",
        default=[],
        help="build for this target only; may be given several times",
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=(0, 1, 2),
        help="how much of each space: 0 the default schedule, 1 a sample, 2 all",
    )
    device_compiler(parser)


def device_compiler(parser: argparse.ArgumentParser) -> None:
    """What compiles device code: the programs of the two are different ones."""
    parser.add_argument(
        "--device-compiler",
        metavar="NAME",
        help="nvcc or nvrtc; in the manifest: device-compiler in [toolchain]",
    )


def compiling(parser: argparse.ArgumentParser) -> None:
    """How many at once, and when to stop."""
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="compilers at once")
    parser.add_argument(
        "-l",
        "--load-average",
        metavar="N",
        help="start no compiler beside another while the load average is N or more",
    )
    parser.add_argument(
        "--nice", type=int, metavar="N", help="run compilers with this niceness, 0 to 19"
    )
    parser.add_argument(
        "-k",
        "--keep-going",
        type=int,
        metavar="N",
        default=0,
        help="stop after N programs that do not build; 0, the default, never stops",
    )


def package_limits(parser: argparse.ArgumentParser) -> None:
    """How much a package may ask for."""
    parser.add_argument(
        "--max-size", metavar="SIZE", help="refuse packages that unpack to more, as in 10GB (64GB)"
    )


def limits(arguments: argparse.Namespace) -> Limits:
    """What a package may ask for. Raises `InputError`."""
    from tilusbuild.manifest.table import parse_size
    from tilusbuild.package.arriving import Limits

    return Limits(parse_size(arguments.max_size)) if arguments.max_size else Limits()


def project(arguments: argparse.Namespace) -> Project:
    """The project around the current folder, with the command line's settings."""
    from tilusbuild.build.project import Project

    given = {
        "cache-dir": arguments.cache_dir,
        "jobs": getattr(arguments, "jobs", None),
        "load-average": getattr(arguments, "load_average", None),
        "nice": getattr(arguments, "nice", None),
        "level": getattr(arguments, "level", None),
        "device-compiler": getattr(arguments, "device_compiler", None),
        "bench-warmup": getattr(arguments, "warmup", None),
        "bench-repeat": getattr(arguments, "repeat", None),
        "dump-ir": getattr(arguments, "dump_ir", None) or None,
    }
    return Project.open(os.getcwd(), given, os.environ)


def cache(arguments: argparse.Namespace) -> Cache:
    """The cache of the project around the current folder, or of the settings alone."""
    from tilusbuild.cache.cache import Cache
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import find, load, settings

    given = {"cache-dir": arguments.cache_dir}
    try:
        path = find(os.getcwd())
    except InputError:
        chosen = settings(os.getcwd(), given, os.environ, None)
    else:
        said = None if arguments.cache_dir else load(path)
        chosen = settings(os.path.dirname(path), given, os.environ, said)
    return Cache(chosen.cache_dir.value)


def selected(
    arguments: argparse.Namespace, project: Project, scripts: Iterable[str] | None = None
) -> Selection:
    """Which part of the project the command line names; `scripts` when its words say more."""
    from tilusbuild.plan.selection import Selection

    targets = tuple(name for word in arguments.targets for name in word.split(",") if name)
    names = arguments.scripts if scripts is None else scripts
    return Selection(tuple(names), targets, project.settings.level.value)


def engine_options(arguments: argparse.Namespace, project: Project) -> BuildConfig:
    """How the engine is to build."""
    from tilusbuild.engine.config import BuildConfig

    return BuildConfig(
        jobs=project.settings.jobs.value,
        keep_going=arguments.keep_going,
        strict=arguments.strict,
        dry_run=arguments.dry_run,
    )


def reporter(arguments: argparse.Namespace) -> Reporter:
    """The display that suits the terminal and the options."""
    from tilusbuild.report.choose import choose

    return choose(
        stdout=sys.stdout,
        stderr=sys.stderr,
        env=os.environ,
        json=arguments.json,
        quiet=arguments.quiet,
        verbose=arguments.verbose,
    )


def signer(parser: argparse.ArgumentParser) -> None:
    """Whose signature a package must have."""
    for name, metavar, text in (
        ("--key", "PEM", "it must be signed by this public key"),
        ("--identity", "WHO", "it must be signed by this identity, through Sigstore"),
        ("--issuer", "URL", "who vouches for --identity"),
    ):
        parser.add_argument(name, metavar=metavar, help=text)


def policy(arguments: argparse.Namespace) -> Policy | None:
    """Whose signature is asked for; None when nobody's."""
    from tilusbuild.package.signing import Policy

    asked = Policy(arguments.key, arguments.identity, arguments.issuer)
    return None if asked == Policy() else asked


def emit(event: str, **fields: Any) -> None:
    """One line of `--json` on stdout."""
    import json

    print(json.dumps({"event": event, **fields}, ensure_ascii=False))
