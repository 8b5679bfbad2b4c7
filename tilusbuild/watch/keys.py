"""Keys that are typed while watching: neither shown amid the display nor left for the shell.

Ctrl-C and its kin work as ever. Nothing is done where the terminal is not ours: in the background
a change of its settings would stop the process.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOCAL = 3
"""Where `tcgetattr` has the flags of which ECHO is one."""


@contextmanager
def unheard(terminal: int) -> Iterator[None]:
    """Within the block, what is typed on this terminal, a file descriptor, goes nowhere."""
    before = None
    with suppress(OSError, termios.error):
        if _is_ours(terminal):
            before = termios.tcgetattr(terminal)
            silent = [*before]
            silent[_LOCAL] = before[_LOCAL] & ~termios.ECHO
            termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        with suppress(OSError, termios.error):
            if before is not None and _is_ours(terminal):
                termios.tcflush(terminal, termios.TCIFLUSH)
                termios.tcsetattr(terminal, termios.TCSANOW, before)


def _is_ours(terminal: int) -> bool:
    return os.isatty(terminal) and os.tcgetpgrp(terminal) == os.getpgrp()
