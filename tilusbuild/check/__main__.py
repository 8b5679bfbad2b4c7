"""`python -m tilusbuild.check DIRECTORY`: `tilusbuild check` without the builder's dependencies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tilusbuild.check.checking import CheckRequest, parse_sizes, write_results
from tilusbuild.check.results import count_results
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.errors import LoadError
from tilusbuild.tune.bench.session import Budget


def main(argv: Sequence[str]) -> int:
    """Check a package and print the results. Return the exit status: 1 when a program is wrong or
    a script has no instance for the device, 2 for a mistake on the command line, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m tilusbuild.check", description="Check a package on this machine."
    )
    parser.add_argument("root", metavar="PACKAGE")
    parser.add_argument("names", metavar="SCRIPT", nargs="*")
    parser.add_argument("--chosen", action="store_true")
    parser.add_argument("--device", metavar="N")
    parser.add_argument("--size", metavar="NAME=N[,NAME=N…]", dest="sizes", type=parse_sizes)
    parser.add_argument("--time-limit", type=float, default=30.0, metavar="S", dest="limit")
    parser.add_argument("--measure", metavar="LOG", dest="log")
    parser.add_argument("--budget", metavar="90s|500", type=Budget.parse_budget, default=Budget())
    parser.add_argument("--json", action="store_true")
    try:
        options = vars(parser.parse_args(argv))
        as_json = options.pop("json")
        request = CheckRequest(shown=options["root"], **options)
        _, wrong = count_results(write_results(request, sys.stdout, as_json=as_json))
    except KeyboardInterrupt:
        return 130
    except TilusbuildError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_status
    # Of a damaged package: without the builder there is no `cli/boundary.py`.
    except (LoadError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
