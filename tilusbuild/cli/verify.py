"""`tilusbuild verify PATH`: is a package, or a cache tree, what it says?"""

from __future__ import annotations

from tilusbuild.cli import options
from tilusbuild.cli.arguments import SignedArgs, Verb, option, optional
from tilusbuild.cli.options import CountsLine, emit, say, show
from tilusbuild.report.jsonl import ProblemLine, declare_line
from tilusbuild.report.text import counted


class VerifyArgs(SignedArgs, frozen=True, kw_only=True):
    """The path, and whether to compile again."""

    path: str | None = optional("PATH", help="a package in any format, or a cache")
    rebuild: str | None = option(
        "--rebuild",
        metavar="SAMPLE%",
        nargs="?",
        const="100%",
        help="compile all programs, or a sample, again and compare the bytes",
    )


RebuiltProgramLine = declare_line(
    "rebuilt", program=str, same=bool, recorded=str, made=str | None, trouble=str
)
"""With `--rebuild`: a program that was compiled again, and the digests of its libraries."""


def run(arguments: VerifyArgs) -> int:
    """Print what is wrong; 1 when anything is."""
    from tilusbuild.errors import input_error
    from tilusbuild.package.read import is_cache

    sample = arguments.rebuild
    path = arguments.path
    # In `verify --rebuild PATH` argparse takes the path for the value of --rebuild.
    if path is None and sample is not None:
        path, sample = sample, "100%"
    if path is None:
        raise input_error("missing argument: PATH", hint="name a package or a cache")
    share = _share(sample)
    if is_cache(path) and options.requires_signature(arguments):
        raise input_error(f"{path} is a cache: only packages are signed")
    problems, words = _cache(path) if is_cache(path) else _package(path, arguments)
    for kind, what in problems:
        show(arguments, ProblemLine(what, kind=kind), f"{kind}: {what}")
    counts = {"problems": len(problems)}
    failed = 0
    if share is not None and not problems:
        made, failed = _rebuild(path, arguments, share)
        counts |= {"rebuilt": made, "not_reproduced": failed}
        words += f"; {counted(made, 'program')} compiled again, {failed} not reproduced"
    if arguments.json:
        emit(CountsLine(counts))
    elif not problems:
        print(words)
    else:
        say(counted(len(problems), "problem") + "\n")
    return 1 if problems or failed else 0


def _share(word: str | None) -> float | None:
    """Return the share of the programs to compile again, 0 to 1. Raises `InputError`."""
    from tilusbuild.errors import input_error

    if word is None:
        return None
    try:
        share = float(word.removesuffix("%")) / 100
    except ValueError:
        share = -1
    if not 0 < share <= 1:
        raise input_error(f"--rebuild {word}: not a percentage", hint='write it as in "5%"')
    return share


def _package(path: str, arguments: VerifyArgs) -> tuple[list[tuple[str, str]], str]:
    from tilusbuild.package.check import verify
    from tilusbuild.package.errors import PackageError
    from tilusbuild.package.read import opened

    try:
        with opened(path) as reader:
            found = verify(reader, options.limits(arguments))
            kind, signer = reader.kind, options.check_signature(arguments, reader)
    except PackageError as error:
        return [(error.kind, str(error))], ""
    problems = [(error.kind, str(error)) for error in found.problems]
    listing = found.listing
    if listing is None:
        return problems, ""
    signed = f"\nsigned by {signer}" if signer else ""
    return problems, (
        f"{listing.title} {listing.version} ({kind}): {listing.summary},"
        f" {counted(len(listing.files), 'file')}, {listing.size} bytes: no problems"
        f"\nsha256 {listing.digest}{signed}"
    )


def _cache(path: str) -> tuple[list[tuple[str, str]], str]:
    from tilusbuild.cache.tree import Tree
    from tilusbuild.cache.verify import verify_cache
    from tilusbuild.cli.cache import say_strangers

    cache = Tree(path)
    problems = [("CacheDamaged", f"{p.name}: {p.what}") for p in verify_cache(cache)]
    say_strangers(cache)
    return problems, f"{cache.root}: no problems found"


def _rebuild(path: str, arguments: VerifyArgs, share: float) -> tuple[int, int]:
    from tilusbuild.package.rebuild import rebuild

    made = failed = 0
    for result in rebuild(path, share, options.limits(arguments)):
        made += 1
        failed += not result.same
        if arguments.json:
            digests = (result.recorded_sha256, result.rebuilt_sha256)
            emit(RebuiltProgramLine(result.program, result.same, *digests, result.error))
        elif not result.same:
            print(f"NotReproduced: {result}")
        elif arguments.verbose:
            print(result)
    return made, failed


VERB = Verb(VerifyArgs, run, (ProblemLine, RebuiltProgramLine, CountsLine))
