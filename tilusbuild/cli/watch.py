"""`tilusbuild watch`: build, then build again on every change, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.build.project import Project
    from tilusbuild.watch.session import How


def configure(parser: argparse.ArgumentParser) -> None:
    """Which part of the project, and how."""
    options.selection(parser)
    options.compiling(parser)
    parser.add_argument(
        "--strict", action="store_true", help="count a build as failed when any schedule fails"
    )
    parser.add_argument(
        "--exec",
        dest="command",
        metavar="CMD",
        help="a shell command to run after each successful build",
    )
    parser.add_argument(
        "--on-busy",
        choices=("restart", "queue"),
        default="restart",
        help="what a change does to a build that runs: end what it does in vain (the default), or "
        "wait for it",
    )
    parser.add_argument(
        "--poll", action="store_true", help="look at the files in turn instead of awaiting events"
    )
    parser.add_argument(
        "--clear", action="store_true", help="clear the screen at each change, on a terminal"
    )


def run(arguments: argparse.Namespace) -> int:
    """Watch until a signal; the exit status is 128 plus its number."""
    from tilusbuild.manifest import find
    from tilusbuild.plan.selection import chosen_pairs
    from tilusbuild.report.choose import can_redraw
    from tilusbuild.watch.keys import unheard
    from tilusbuild.watch.opening import opened
    from tilusbuild.watch.screen import Screen
    from tilusbuild.watch.session import Session

    def open_project() -> Project:
        project = options.project(arguments)
        # A name that is not there is a mistake of the command line, and ends the watch.
        list(chosen_pairs(project.manifest, options.selected(arguments, project)))
        return project

    screen = Screen(
        reporter=lambda: options.reporter(arguments),
        stderr=sys.stderr,
        json=sys.stdout if arguments.json else None,
        terminal=can_redraw(sys.stderr, os.environ),
        quiet=arguments.quiet,
        verbose=arguments.verbose,
        clear=arguments.clear,
    )
    with unheard(0):
        project = opened(open_project, find(os.getcwd()), screen, poll=arguments.poll)
        if isinstance(project, int):
            screen.close()
            return 128 + project
        with project:
            selection = options.selected(arguments, project)
            return Session(project, selection, _how(arguments), screen).run()


def _how(arguments: argparse.Namespace) -> How:
    from tilusbuild.watch.session import How

    return How(
        command=arguments.command,
        restart=arguments.on_busy == "restart",
        poll=arguments.poll,
        keep_going=arguments.keep_going,
        strict=arguments.strict,
    )
