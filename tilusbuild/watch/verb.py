"""`tilusbuild watch`: build, then build again on every change, until Ctrl-C."""

from __future__ import annotations

import os
import sys

from tilusbuild.cli import options
from tilusbuild.cli.arguments import STRICT, CompilingArgs, Verb, flag, option


class WatchArgs(CompilingArgs, frozen=True, kw_only=True):
    """Which part of the project, and how."""

    strict: bool = STRICT
    command: str | None = option(
        "--exec", metavar="CMD", help="a shell command to run after each successful build"
    )
    clear: bool = flag("--clear", help="clear the screen at each change, on a terminal")


def run(arguments: WatchArgs) -> int:
    """Build, and build again on every change, until a signal. Return the exit status, 128 plus the
    signal. Raises `InputError`, also for the name of a single program."""
    from tilusbuild.engine.running import BuildConfig
    from tilusbuild.errors import input_error
    from tilusbuild.plan.model import select_script_targets
    from tilusbuild.report.terminal import can_redraw
    from tilusbuild.runtime import naming
    from tilusbuild.watch.screen import Screen
    from tilusbuild.watch.session import Session

    with options.open_project(arguments) as project:
        selection = options.make_selection(arguments, project)
        # This raises for a wrong name: the session would only report it, and wait for an edit.
        list(select_script_targets(project.manifest, selection))
        for name in selection.names:
            if name.program is not None:
                raise input_error(
                    f'"{name}" is one program: `watch` builds scripts and instances',
                    hint=f"`{naming.format_command('watch', name.script)}`",
                )
        screen = Screen(
            reporter=lambda: options.choose_reporter(arguments),
            stderr=sys.stderr,
            json=sys.stdout if arguments.json else None,
            terminal=can_redraw(sys.stderr, os.environ),
            quiet=arguments.quiet,
            verbose=bool(arguments.verbose),
            clear=arguments.clear,
        )
        config = BuildConfig(
            keep_going=arguments.keep_going, strict=arguments.strict, verbose=arguments.verbose
        )
        return Session(project, selection, config, screen, command=arguments.command).run()


VERB = Verb(WatchArgs, run)
