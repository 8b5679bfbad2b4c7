"""`tilusbuild watch`: build, then build again on every change, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys

from tilusbuild.cli import options


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
    from tilusbuild.report.choose import can_redraw
    from tilusbuild.watch.screen import Screen
    from tilusbuild.watch.session import How, Session

    with options.project(arguments) as project:
        screen = Screen(
            reporter=lambda: options.reporter(arguments),
            stderr=sys.stderr,
            json=sys.stdout if arguments.json else None,
            terminal=can_redraw(sys.stderr, os.environ),
            quiet=arguments.quiet,
            verbose=arguments.verbose,
            clear=arguments.clear,
        )
        how = How(
            command=arguments.command,
            restart=arguments.on_busy == "restart",
            poll=arguments.poll,
            keep_going=arguments.keep_going,
            strict=arguments.strict,
        )
        return Session(project, options.selected(arguments, project), how, screen).run()
