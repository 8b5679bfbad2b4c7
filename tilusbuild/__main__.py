"""`tilusbuild` and `python -m tilusbuild`: where a process begins that is the command.

Until the command has something in hand, a Ctrl-C ends the process by the signal itself, as SIGTERM
does: an exception that comes up while a module is imported may go no further, and be printed.
"""

import _signal  # type: ignore[import-not-found]
import sys


def main() -> int:
    """Run the command that the process was started for; return its exit status."""
    # Not `signal`, which imports enum. What a parent ignores (`nohup`) stays ignored.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

    from tilusbuild.cli.main import main as run

    return run()


if __name__ == "__main__":
    # `python -m` searches the working directory first, where a project's module must not be
    # taken for an installed one. Python 3.11's `-P` leaves it out.
    if not sys.flags.isolated and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    sys.exit(main())
