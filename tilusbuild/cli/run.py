"""`tilusbuild run SCRIPT`: call a kernel on generated inputs, check it, time it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.expr import Value
    from tilusbuild.tune.run import CallResult


def configure(parser: argparse.ArgumentParser) -> None:
    """Which program, at which sizes."""
    options.device_compiler(parser)
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument(
        "-t", "--target", metavar="NAME", help="without it: the script's cpu target, else its first"
    )
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="choose the instance with this constant",
    )
    parser.add_argument(
        "--schedule", type=int, metavar="I", help="without it: the default schedule"
    )
    parser.add_argument(
        "--size",
        metavar="NAME=N[,NAME=N…]",
        action="append",
        default=[],
        help="one call at these sizes, in place of the manifest's; may be given several times",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the generated inputs")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each size; 1 when a result is wrong."""
    from tilusbuild.tune.run import RunRequest, build, choose, run

    wanted = RunRequest(
        script=arguments.script,
        target=arguments.target,
        params=dict(_pair(word) for word in arguments.param),
        schedule=arguments.schedule,
        sizes=_sizes(arguments.size),
        seed=arguments.seed,
    )
    with options.project(arguments) as project:
        plan, selection, job = choose(project, wanted)
        quiet = argparse.Namespace(**{**vars(arguments), "json": False, "quiet": True})
        chosen = build(project, plan, selection, job, options.reporter(quiet))
        results = run(project, wanted, chosen)
        tune = project.manifest.scripts[wanted.script].tune
    wrong = [each for each in results if each.wrong]
    if arguments.json:
        for each in results:
            print(json.dumps({"event": "call", "program": job.hash, **_as_json(each)}))
        summary = {"event": "summary", "calls": len(results), "wrong": len(wrong)}
        print(json.dumps(summary))
        return 1 if wrong else 0
    schedule = ", ".join(f"{name}={value}" for name, value in chosen.schedule.items())
    print(f"{job.label}: {schedule or 'no parameters'}")
    _print(results)
    for each in wrong:
        print(f"wrong at {_size_text(each.sizes)}: {each.wrong}")
    if tune is None or tune.ref is None:
        print(f"not checked: [script.{wanted.script}.tune] has no `ref`")
    elif not wrong:
        print(f"all {len(results)} sizes agree with {tune.ref}")
    return 1 if wrong else 0


def _print(results: Sequence[CallResult]) -> None:
    from tilusbuild.table import table

    names = list(results[0].sizes)
    rows = [
        (
            *(each.sizes.get(name) for name in names),
            f"{each.seconds * 1e6:.1f}",
            f"{each.bytes / each.seconds / 1e9:.2f}",
            "" if each.max_error is None else f"{each.max_error:.2e}",
            "wrong" if each.wrong else "" if each.max_error is None else "ok",
        )
        for each in results
    ]
    print(table((*names, "µs", "GB/s", "max error", "check"), rows), end="")


def _as_json(each: CallResult) -> dict[str, Any]:
    return {
        "sizes": dict(each.sizes),
        "seconds": each.seconds,
        "calls": each.calls,
        "bytes": each.bytes,
        "checked": each.max_error is not None or each.wrong is not None,
        "max_error": each.max_error,
        "mismatch": each.wrong,
    }


def _size_text(sizes: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _pair(word: str) -> tuple[str, str]:
    from tilusbuild.errors import input_error

    name, equals, value = word.partition("=")
    if not equals or not name or not value:
        raise input_error(f'"{word}" is not NAME=VALUE')
    return name, value


def _sizes(words: Sequence[str]) -> list[dict[str, Value]]:
    from tilusbuild.errors import input_error

    found: list[dict[str, Value]] = []
    for word in words:
        sizes: dict[str, Value] = {}
        for part in word.split(","):
            name, text = _pair(part)
            try:
                sizes[name] = int(text)
            except ValueError:
                try:
                    sizes[name] = float(text)
                except ValueError:
                    raise input_error(f"--size {word}: {text} is no number") from None
        found.append(sizes)
    return found
