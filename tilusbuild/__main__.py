"""`tilusbuild` and `python -m tilusbuild`: where a process begins that is the command.

Imports are a third of a short command's time, and a Ctrl-C in them ends it as any other does.
"""

import sys


def main() -> int:
    """Run the command that the process was started for; return its exit status."""
    try:
        from tilusbuild.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
