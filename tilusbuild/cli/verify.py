"""`tilusbuild verify PATH`: is a package, or a cache tree, what it says?"""

from __future__ import annotations

from tilusbuild.cli import options
from tilusbuild.cli.arguments import SignedArgs, Verb, option, optional
from tilusbuild.cli.options import CountsLine, emit_line, print_message, show_result
from tilusbuild.report.jsonl import ProblemLine, declare_line
from tilusbuild.report.text import format_count
from tilusbuild.rooms import load_contribution


class VerifyArgs(SignedArgs, frozen=True, kw_only=True):
    path: str | None = optional(
        "PATH", help="a package in any format, or a cache; with --rebuild, by default the project's"
    )
    rebuild: str | None = option(
        "--rebuild",
        metavar="SAMPLE%",
        nargs="?",
        const="100%",
        help="compile all programs, or a sample, again and compare the bytes; without PATH,"
        " call the generators again and compare the sources, too",
    )


RebuiltProgramLine = declare_line(
    "rebuilt", program=str, same=bool, recorded=str, made=str | None, trouble=str
)
"""With `--rebuild`: a program that was compiled again, and the digests of its libraries."""


def run(arguments: VerifyArgs) -> int:
    """Print the problems of a package or a cache, and with --rebuild the programs that differ.
    Return 1 if there are any, else 0. Raises `InputError`."""
    from tilusbuild.errors import input_error
    from tilusbuild.package.read import is_cache

    sample = arguments.rebuild
    path = arguments.path
    # In `verify --rebuild PATH` argparse takes the path for the value of --rebuild.
    if path is None and sample is not None and not sample.endswith("%"):
        path, sample = sample, "100%"
    if path is None and sample is None:
        raise input_error("missing argument: PATH", hint="name a package or a cache")
    share = _parse_share(sample)
    unsteady: list[str] = []
    if path is None:
        path, unsteady = _generate_again(arguments)
    # A signature is one of a package's file list, and a cache has no such list.
    if is_cache(path) and options.requires_signature(arguments):
        raise input_error(f"{path} is a cache: only packages are signed")
    if is_cache(path):
        problems, success_text = _verify_cache(path)
    else:
        problems, success_text = _verify_package(path, arguments)
    problems += [
        ("NotReproduced", f"{script} returns another source for the same inputs, as of a clock")
        for script in unsteady
    ]
    for kind, message in problems:
        show_result(arguments, ProblemLine(message, kind=kind), f"{kind}: {message}")
    counts = {"problems": len(problems)}
    differing = 0
    # With problems nothing is compiled: a damaged program differs in any case.
    if share is not None and not problems:
        rebuilt, differing = _rebuild_programs(path, arguments, share)
        counts |= {"rebuilt": rebuilt, "not_reproduced": differing}
        success_text += (
            f"; {format_count(rebuilt, 'program')} compiled again, {differing} not reproduced"
        )
    if arguments.json:
        emit_line(CountsLine(counts))
    elif not problems:
        print(success_text)
    else:
        print_message(format_count(len(problems), "problem") + "\n")
    return 1 if problems or differing else 0


def _generate_again(arguments: VerifyArgs) -> tuple[str, list[str]]:
    """Return the root of the project's cache, and the scripts whose generators return another
    source when they are called again. Raises `InputError`."""
    with options.open_project(arguments) as project:
        find_unsteady = load_contribution("rebuild", "generators", "calls generators again")
        return project.cache.root, list(find_unsteady(project))


def _parse_share(word: str | None) -> float | None:
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


def _verify_package(path: str, arguments: VerifyArgs) -> tuple[list[tuple[str, str]], str]:
    """Return the problems of a package as (kind, message), and the text to print if there are
    none. Raises `InputError`."""
    from tilusbuild.package.check import verify_package
    from tilusbuild.package.errors import PackageError
    from tilusbuild.package.read import open_package

    try:
        with open_package(path) as reader:
            listing, errors = verify_package(reader, options.parse_limits(arguments))
            kind, signer = reader.kind, options.check_signature(arguments, reader)
    except PackageError as error:
        return [(error.kind, str(error))], ""
    problems = [(error.kind, str(error)) for error in errors]
    if listing is None:
        return problems, ""
    signed = f"\nsigned by {signer}" if signer else ""
    return problems, (
        f"{listing.title} {listing.version} ({kind}): {listing.summary},"
        f" {format_count(len(listing.files), 'file')}, {listing.size} bytes: no problems"
        f"\nsha256 {listing.digest}{signed}"
    )


def _verify_cache(path: str) -> tuple[list[tuple[str, str]], str]:
    """Return the problems of a cache as (kind, message), and the text to print if there are none.
    Print the names of foreign files to stderr."""
    from tilusbuild.cache.tree import Tree
    from tilusbuild.cache.verify import list_loading_problems, verify_cache
    from tilusbuild.cli.cache import report_foreign_files

    cache = Tree(path)
    problems = [("CacheDamaged", f"{p.name}: {p.message}") for p in verify_cache(cache)]
    problems += [("NotLoadable", message) for message in list_loading_problems(cache.root)]
    report_foreign_files(cache)
    return problems, f"{cache.root}: no problems found"


def _rebuild_programs(path: str, arguments: VerifyArgs, share: float) -> tuple[int, int]:
    """Compile a share of the programs again, and print those that differ. Return how many were
    compiled, and how many of them differ."""
    rebuild_share = load_contribution("rebuild", "share", "compiles programs again")
    rebuilt = differing = 0
    for result in rebuild_share(path, share, options.parse_limits(arguments)):
        rebuilt += 1
        if not result.same:
            differing += 1
        if arguments.json:
            digests = (result.recorded_sha256, result.rebuilt_sha256)
            emit_line(RebuiltProgramLine(result.program, result.same, *digests, result.error))
        elif not result.same:
            print(f"NotReproduced: {result}")
        elif arguments.verbose:
            print(result)
    return rebuilt, differing


VERB = Verb(VerifyArgs, run, (ProblemLine, RebuiltProgramLine, CountsLine))
