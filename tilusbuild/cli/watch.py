"""`tilusbuild watch`: build, then build again on every change, until Ctrl-C."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import STRICT, CompilingArgs, Verb, flag, option

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project


class WatchArgs(CompilingArgs, frozen=True, kw_only=True):
    """Which part of the project, and how."""

    strict: bool = STRICT
    command: str | None = option(
        "--exec", metavar="CMD", help="a shell command to run after each successful build"
    )
    clear: bool = flag("--clear", help="clear the screen at each change, on a terminal")


def run(arguments: WatchArgs) -> int:
    """Watch until a signal; the exit status is 128 plus its number."""
    from tilusbuild.engine.running import BuildConfig
    from tilusbuild.errors import input_error
    from tilusbuild.manifest import find
    from tilusbuild.plan.model import chosen_pairs
    from tilusbuild.report.terminal import can_redraw
    from tilusbuild.runtime import naming
    from tilusbuild.watch.change_detector import wait_for_manifest
    from tilusbuild.watch.screen import Screen
    from tilusbuild.watch.session import Session

    def open_project() -> Project:
        project = options.project(arguments)
        # An unknown name is a mistake of the command line and ends the watch, unlike a mistake in
        # the manifest, which an edit can mend.
        selection = options.selected(arguments, project)
        list(chosen_pairs(project.manifest, selection))
        if single := next((name for name in selection.names if name.program is not None), None):
            raise input_error(
                f'"{single}" is one program: `watch` builds scripts and instances',
                hint=f"`{naming.command('watch', single.script)}`",
            )
        return project

    screen = Screen(
        reporter=lambda: options.reporter(arguments),
        stderr=sys.stderr,
        json=sys.stdout if arguments.json else None,
        terminal=can_redraw(sys.stderr, os.environ),
        quiet=arguments.quiet,
        verbose=bool(arguments.verbose),
        clear=arguments.clear,
    )
    project = wait_for_manifest(open_project, find(os.getcwd()), screen)
    if isinstance(project, int):
        screen.close()
        return 128 + project
    with project:
        selection = options.selected(arguments, project)
        config = BuildConfig(
            keep_going=arguments.keep_going, strict=arguments.strict, verbose=arguments.verbose
        )
        return Session(project, selection, config, screen, command=arguments.command).run()


VERB = Verb(WatchArgs, run)
