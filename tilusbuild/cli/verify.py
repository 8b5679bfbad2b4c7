"""`tilusbuild verify PATH`: is a package, or a cache tree, what it says?"""

from __future__ import annotations

import argparse
import json
import sys

from tilusbuild.cli import options


def configure(parser: argparse.ArgumentParser) -> None:
    """The path, and whether to compile again."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a package in any carrier, or a cache tree"
    )
    parser.add_argument(
        "--rebuild",
        metavar="SAMPLE%",
        nargs="?",
        const="100%",
        help="compile programs again with their compile.sh and compare the bytes; all, or a sample",
    )
    options.signer(parser)
    options.package_limits(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what is wrong; 1 when anything is."""
    from tilusbuild.errors import input_error
    from tilusbuild.package.opening import is_cache

    if arguments.path is None and arguments.rebuild is not None:  # `verify --rebuild PATH`
        arguments.path, arguments.rebuild = arguments.rebuild, "100%"
    if arguments.path is None:
        raise input_error("verify what?", hint="name a package or a cache tree")
    share = _share(arguments.rebuild)
    if is_cache(arguments.path) and options.policy(arguments) is not None:
        raise input_error(f"{arguments.path} is a cache tree, and only packages are signed")
    problems, words = (_cache if is_cache(arguments.path) else _package)(arguments)
    for kind, what in problems:
        if arguments.json:
            print(json.dumps({"event": "problem", "kind": kind, "what": what}, ensure_ascii=False))
        else:
            print(f"{kind}: {what}")
    summary: dict[str, object] = {"problems": len(problems)}
    if share is not None and not problems:
        made, failed = _rebuild(arguments, share)
        summary |= {"rebuilt": made, "not_reproduced": failed}
        words += f"; {made} programs compiled again, {failed} gave other bytes"
    if arguments.json:
        print(json.dumps({"event": "summary", **summary}))
    elif not problems:
        print(words)
    else:
        sys.stderr.write(f"{len(problems)} problems\n")
    return 1 if problems or summary.get("not_reproduced") else 0


def _share(word: str | None) -> float | None:
    """The share of the programs to compile again, 0 to 1. Raises `InputError`."""
    from tilusbuild.errors import input_error

    if word is None:
        return None
    try:
        share = float(word.removesuffix("%")) / 100
    except ValueError:
        share = -1
    if not 0 < share <= 1:
        raise input_error(f"--rebuild {word}: no share", hint='write a percentage, as in "5%"')
    return share


def _package(arguments: argparse.Namespace) -> tuple[list[tuple[str, str]], str]:
    from tilusbuild.package.check import verify
    from tilusbuild.package.errors import PackageError
    from tilusbuild.package.opening import opened

    try:
        with opened(arguments.path) as reader:
            found = verify(reader, options.limits(arguments))
            kind, policy, signed = reader.kind, options.policy(arguments), ""
            if policy is not None:
                from tilusbuild.package.signing import check_signature

                by = check_signature(reader.list_bytes(), reader.attestations(), policy).by
                signed = f"\nsigned by {by}"
    except PackageError as error:
        return [(type(error).__name__, str(error))], ""
    problems = [(type(error).__name__, str(error)) for error in found.problems]
    listing = found.listing
    if listing is None:
        return problems, ""
    return problems, (
        f"{listing.title} {listing.version} ({kind}): {listing.summary},"
        f" {len(listing.files)} files, {listing.size} bytes: no problems"
        f"\nsha256 {listing.digest}{signed}"
    )


def _cache(arguments: argparse.Namespace) -> tuple[list[tuple[str, str]], str]:
    from tilusbuild.cache.cache import Cache
    from tilusbuild.package.check_cache import code_problems

    cache = Cache(arguments.path)
    problems = [("CacheDamaged", f"{p.name}: {p.what}") for p in cache.verify()]
    problems += [("CodeMismatch", what) for what in code_problems(cache)]
    return problems, f"{cache.root}: no problems found"


def _rebuild(arguments: argparse.Namespace, share: float) -> tuple[int, int]:
    from tilusbuild.package.rebuild import rebuild

    made = failed = 0
    for result in rebuild(arguments.path, share, options.limits(arguments)):
        made += 1
        failed += not result.same
        if arguments.json:
            print(json.dumps({"event": "rebuilt", **result.as_json()}, ensure_ascii=False))
        elif not result.same:
            print(f"NotReproduced: {result}")
        elif arguments.verbose:
            print(result)
    return made, failed
