"""What the shared options mean: the project, the cache, the selection, the reporter, the signer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli.arguments import Common, collect_settings
from tilusbuild.report.jsonl import JsonLine, format_json_line
from tilusbuild.report.text import OutputStream
from tilusbuild.rooms import find_contributions, import_value, load_contribution

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.cache.tree import Tree
    from tilusbuild.cli.arguments import LimitArgs, SelectionArgs, SignedArgs
    from tilusbuild.engine.events import Reporter
    from tilusbuild.package.extract import Limits
    from tilusbuild.package.model import Reader
    from tilusbuild.package.pack import Attest
    from tilusbuild.plan.model import PlanSelection
    from tilusbuild.runtime.naming import NamePattern


def open_project(arguments: Common, *, remembered: bool = False) -> Project:
    """Open the project around the current directory, with the settings of the command line.

    With `remembered` its manifest may be decoded from state, which is faster. Raises `InputError`.
    """
    from tilusbuild.builder.project import Project

    overrides = collect_settings(arguments)
    return Project.open(os.getcwd(), overrides, os.environ, remembered=remembered)


def find_cache(cache_dir: str | None) -> Tree:
    """Return the cache of the project around the current directory; outside of a project, the cache
    that the settings name. `cache_dir` overrides both. Raises `InputError` for a broken manifest.
    """
    from tilusbuild.cache.tree import Tree
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import decide_settings, find_project_manifest
    from tilusbuild.manifest.loading import load_manifest

    overrides = {"cache-dir": cache_dir}
    try:
        path = find_project_manifest(os.getcwd())
    except InputError:
        effective_settings = decide_settings(os.getcwd(), overrides, os.environ, None)
    else:
        # With --cache-dir the manifest is not read, so that the cache of a broken one can be seen.
        manifest = None if cache_dir else load_manifest(path)
        effective_settings = decide_settings(os.path.dirname(path), overrides, os.environ, manifest)
    return Tree(effective_settings.cache_dir.value)


def find_named_cache(path: str | None, arguments: Common) -> Tree:
    """Return the cache in a directory that the command line names; without one, the project's.

    Raises `InputError` when the directory is not a cache.
    """
    from tilusbuild.errors import input_error

    tree = find_cache(path or arguments.cache_dir)
    # The project's own cache may be missing yet: it is empty then.
    if path is not None and not tree.exists():
        reason = "is empty" if os.path.isdir(path) else "does not exist"
        hint = "`tilusbuild cache dir` prints where the project's cache is"
        raise input_error(f"{path} is not a cache: it {reason}", hint=hint)
    return tree


def run_foreign_verb(verb: str, path: str | None, arguments: Common) -> int | None:
    """Run a verb of `cache` on the foreign cache in the directory `path`. Return the exit status;
    None when `path` is not a directory, or no optional part (`rooms.py`) knows the cache."""
    if path is not None and os.path.isdir(path):
        # One module may know several systems.
        for name in dict.fromkeys(find_contributions("foreign cache").values()):
            module = import_value(name)
            if module.is_one(path):
                status: int = getattr(module, verb)(path, arguments)
                return status
    return None


def describe_other_cache() -> str:
    """Return the help of an argument that names a cache, with the systems that rooms know."""
    systems = ["tilusbuild", *find_contributions("foreign cache")]
    if len(systems) == 1:
        return "another cache"
    return f"another cache: of {', '.join(systems[:-1])} or {systems[-1]}"


def make_selection(arguments: SelectionArgs, project: Project) -> PlanSelection:
    """Return the selection of scripts, targets and level that the command line names."""
    from tilusbuild.plan.model import PlanSelection

    names = parse_names(arguments.scripts, project)
    targets = tuple(split_values(arguments.targets))
    return PlanSelection(names, targets, project.settings.level.value)


def parse_names(words: Sequence[str], project: Project) -> tuple[NamePattern, ...]:
    """Return the names of scripts, instances and programs in the words of a command line. A word
    that is a target belongs to the name before it. Raises `InputError`."""
    from tilusbuild.plan.model import parse_program_name
    from tilusbuild.runtime.naming import join_targets

    return tuple(map(parse_program_name, join_targets(words, project.manifest.targets)))


def split_values(options: Iterable[str]) -> list[str]:
    """Return the values of a repeated option; each may have several, with commas."""
    return [value for option in options for value in option.split(",") if value]


def choose_reporter(arguments: Common) -> Reporter:
    """Return the reporter that the options and the terminal call for."""
    from tilusbuild.report.choose import make_reporter

    return make_reporter(
        stdout=sys.stdout,
        stderr=sys.stderr,
        env=os.environ,
        json=arguments.json,
        quiet=arguments.quiet,
        verbose=bool(arguments.verbose),
        progress=arguments.progress,
        color=arguments.color,
    )


def parse_limits(arguments: LimitArgs) -> Limits:
    """Return the limits for unpacking a package. Raises `InputError`."""
    from tilusbuild.manifest.values import parse_size
    from tilusbuild.package.extract import Limits

    return Limits(parse_size(arguments.max_size)) if arguments.max_size else Limits()


def requires_signature(arguments: SignedArgs) -> bool:
    """Return whether a package must be signed."""
    return bool(arguments.key or arguments.identity or arguments.issuer)


def check_signature(arguments: SignedArgs, reader: Reader) -> str | None:
    """Check that the signer whom the options name signed a package; return the signer, None where
    no option names one. Raises `PackageError` and `InputError`."""
    if not requires_signature(arguments):
        return None
    check = load_contribution("signing", "check", "signs packages")
    signer = {name: getattr(arguments, name) for name in ("key", "identity", "issuer")}
    check(reader.list_bytes(), reader.attestations(), **signer)
    return arguments.key or arguments.identity


def find_attester(key: str | None) -> Attest:
    """Return the function that attests packages: with a key, or "keyless"; without one there are no
    attestations. Raises `InputError`."""
    if key is None:
        return lambda contents: {}
    attest: Attest = load_contribution("signing", "attester", "signs packages")(key)
    return attest


def write_file(path: str, data: bytes, *, parents: bool = False) -> None:
    """Write a file that an option names; with `parents` make its directories. Raises
    `InputError`."""
    from tilusbuild.errors import input_error
    from tilusbuild.state.files import write_output

    try:
        if parents:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        write_output(path, data)
    except OSError as error:
        raise input_error(f"{path}: {error.strerror}") from None


def print_message(text: str) -> None:
    """Write a message to stderr. Never raises: a lost message changes no exit status."""
    OutputStream(sys.stderr).write(text)


class CountsLine(JsonLine, frozen=True):
    """The last line of a command: counts by name; sizes are in bytes."""

    event: ClassVar[str] = "summary"
    inlined: ClassVar[str] = "counts"
    counts: Mapping[str, int]


def emit_line(line: JsonLine, *, flush: bool = False) -> None:
    """Print one line of `--json` on stdout."""
    # Flushed where a reader waits for the line, as of a tuning.
    print(format_json_line(line), flush=flush)


def show_result(arguments: Common, line: JsonLine, text: object) -> None:
    """Print a result on stdout: a line of `--json`, or a text."""
    if arguments.json:
        emit_line(line)
    else:
        print(text)
