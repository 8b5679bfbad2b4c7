"""`tilusbuild explain [PROGRAM…]`: why something is out of date."""

from __future__ import annotations

from collections.abc import Sequence

from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb
from tilusbuild.cli.options import emit_line
from tilusbuild.diff.explain import ExplanationLine, explain_plan
from tilusbuild.report.text import format_count
from tilusbuild.status import Status

_MAX_NAMED_PROGRAMS = 3
_WORDS_OF_STATUS: dict[str, str] = {Status.MISSING: "to be compiled", Status.BUILT: "up to date"}


def run(arguments: SelectionArgs) -> int:
    """Print an explanation for each group of programs that share it. Reads only."""
    from tilusbuild.remote.user_settings import choose_remote

    with options.open_project(arguments) as project:
        selection = options.make_selection(arguments, project)
        section, environment = project.manifest.remote, project.environment
        cache, executor = (
            choose_remote(section, environment, key) for key in ("cache", "executor")
        )
        explanations = explain_plan(
            project.make_plan(selection),
            project.manifest.path,
            project.cache,
            remote=cache is not None or executor is not None,
            elsewhere=executor is not None,
        )
    if not arguments.json:
        _print_groups(explanations, every=bool(arguments.verbose))
        return 0
    for explanation in explanations:
        emit_line(explanation)
    return 0


def _print_groups(explanations: Sequence[ExplanationLine], *, every: bool) -> None:
    """Print programs with the same reasons together; with `every`, also those up to date."""
    groups: dict[tuple[str, ...], list[ExplanationLine]] = {}
    for explanation in explanations:
        groups.setdefault((explanation.state, *explanation.reasons), []).append(explanation)
    for (state, *reasons), members in groups.items():
        # A single program was asked for by its name: it is shown as any other.
        if state == Status.BUILT and not every and len(members) > 1:
            why = f": {reasons[0]}" if reasons else ""
            print(f"{format_count(len(members), 'program')} are up to date{why}")
            continue
        names = ", ".join(explanation.program for explanation in members[:_MAX_NAMED_PROGRAMS])
        unnamed_count = len(members) - _MAX_NAMED_PROGRAMS
        more = f" and {unnamed_count} more" if unnamed_count > 0 else ""
        print(f"{names}{more}: {_WORDS_OF_STATUS.get(state, state)}")
        for reason in reasons:
            print(f"  {reason}")


VERB = Verb(SelectionArgs, run, (ExplanationLine,))
