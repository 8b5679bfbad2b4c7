"""`python -m tilusbuild.check PACKAGE`: a package's tests where only the runtime is installed.

It does what `tilusbuild check` does, for a package that is a directory, with the standard library
alone: `pip install --no-deps tilusbuild` is enough, and so is this package's source on the path.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.errors import LoadError
from tilusbuild.tune.bench.check import (
    CheckRequest,
    Row,
    check,
    json_line,
    parse_sizes,
    report,
)


def main(words: Sequence[str]) -> int:
    """Return the exit status: 1 when a program is wrong or nothing serves a script, 2 for a mistake
    on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tilusbuild.check", description=__doc__)
    parser.add_argument("package", metavar="PACKAGE")
    parser.add_argument("names", metavar="SCRIPT", nargs="*")
    parser.add_argument("--chosen", action="store_true")
    parser.add_argument("--device", metavar="N")
    parser.add_argument("--size", metavar="NAME=N[,NAME=N…]")
    parser.add_argument("--time-limit", type=float, default=30.0, metavar="S")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    rows: list[Row] = []

    def take(row: Row) -> None:
        rows.append(row)
        if given.json:
            sys.stdout.write(json_line(row) + "\n")
            sys.stdout.flush()

    try:
        wanted = CheckRequest(
            given.package,
            given.package,
            tuple(given.names),
            parse_sizes(given.size),
            given.chosen,
            given.device,
            given.time_limit,
        )
        _, bad = check(wanted, take)
    except KeyboardInterrupt:
        return 130
    except TilusbuildError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_status
    except (LoadError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if not given.json:
        sys.stdout.write(report(rows))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
