"""A client of GNU make's jobserver.

`make -jN` puts N-1 bytes, its tokens, into a pipe that all its children share. A child of make may
run one job. For each further job it reads a byte first, and writes the same byte back afterwards.
Invariants:

- The first job needs no token: one compile may always run.
- A token is read only if a compile is ready to run with it, and only by the build's own thread. It
  is written back once. `close` writes back all remaining ones.
- Before a token is used, and before one is written back, `note` gets the tokens that are held then:
  the warden writes them back if this process is killed.
- Nothing polls: a thread sleeps until there may be a token.
- Reading never blocks, and changes nothing for other clients.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tilusbuild.process.base import start_thread

if TYPE_CHECKING:
    from typing_extensions import Self

Note = Callable[[str, bytes], None]
"""A function of the path to write tokens back to, and all tokens that are held."""

_AUTH = ("--jobserver-auth=", "--jobserver-fds=")
"""The jobserver's option in MAKEFLAGS; make 4.1 and older write the second form."""


class JobserverError(Exception):
    """Make's jobserver cannot be used. The text is the reason, with a remedy."""


def find_jobserver(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the paths of the jobserver in MAKEFLAGS, to read from and to write to; else None.

    A fifo has one path for both. Raises `JobserverError`.
    """
    auth = None
    for word in environment.get("MAKEFLAGS", "").split():
        # Make's variables follow.
        if word == "--":
            break
        # The last option is of the innermost make.
        if word.startswith(_AUTH):
            auth = word.partition("=")[2]
    if auth is None:
        return None
    if auth.startswith("fifo:"):
        path = auth.removeprefix("fifo:")
        return path, path
    ends = auth.split(",")
    if len(ends) != 2 or not all(end.lstrip("-").isdecimal() for end in ends):
        raise JobserverError(f"make's jobserver is of an unknown kind: {auth}")
    reading, writing = map(int, ends)
    if not (_is_pipe_end(reading, os.O_RDONLY) and _is_pipe_end(writing, os.O_WRONLY)):
        raise JobserverError(
            "make does not share its jobserver with this recipe, so more may run at once than its "
            "-j allows: begin the recipe's line with +"
        )
    return f"/proc/self/fd/{reading}", f"/proc/self/fd/{writing}"


def _is_pipe_end(number: int, mode: int) -> bool:
    """Return whether a descriptor is an end of a pipe with this access mode."""
    # A recipe without "+" does not inherit the pipe, but MAKEFLAGS has its numbers all the same,
    # which may be another file by now.
    import fcntl

    try:
        if not stat.S_ISFIFO(os.fstat(number).st_mode):
            return False
        return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE in (mode, os.O_RDWR)
    except (OSError, OverflowError):
        return False


class Jobserver:
    """A client of one jobserver, for use by one thread. A context manager, which closes it."""

    def __init__(self, address: tuple[str, str], note: Note = lambda _path, _held: None) -> None:
        """`address` is what `find_jobserver` returns. Raises `JobserverError`."""
        reading, writing = address
        self._tokens = b""
        self._note = note
        self._read = self._write = -1
        try:
            # Opened again by its path: O_NONBLOCK belongs to the open file, and set on make's own
            # it would make every other client's blocking read fail with EAGAIN.
            self._read = os.open(reading, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._write = os.open(writing, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if not stat.S_ISFIFO(os.fstat(self._read).st_mode):
                raise OSError(errno.EINVAL, "not a pipe")
            # Non-blocking until here only: to open a fifo that has no reader would block.
            os.set_blocking(self._write, True)
        except OSError as error:
            self._close_ends()
            raise JobserverError(
                f"make's jobserver cannot be opened: {reading}: {error.strerror}"
            ) from None
        self._sleeper: threading.Thread | None = None
        self._asleep = False
        self._wake_read_end, self._wake_write_end = os.pipe()

    @property
    def _path(self) -> str:
        """The path of the write end for other processes of this user, while it is open."""
        return f"/proc/{os.getpid()}/fd/{self._write}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def try_acquire(self) -> bool:
        """Read one more token, without waiting, and call `note` with all tokens that are held then.
        Return whether there was one."""
        try:
            token = os.read(self._read, 1)
        except BlockingIOError:
            return False
        if not token:
            return False
        # If this process is killed in between, the token is lost, which make reports. Noted before
        # the read, a token that was never read would be written back: it would exist twice, and
        # make would start more jobs than its -j.
        self._tokens += token
        self._note(self._path, self._tokens)
        return True

    def release(self) -> None:
        """Write one token back."""
        token, self._tokens = self._tokens[-1:], self._tokens[:-1]
        # Noted before it is written, for the same reason as in `try_acquire`.
        self._note(self._path, self._tokens)
        os.write(self._write, token)

    def notify_when_available(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from another thread, when there may be a token.

        No effect while an earlier callback is still waiting.
        """
        if not self._asleep:
            self._asleep = True
            self._sleeper = start_thread(self._wait_for_token, callback)

    def _wait_for_token(self, callback: Callable[[], None]) -> None:
        """Sleep until the pipe has a token or `close` wakes this thread. Call `callback` unless it
        was `close`."""
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        poller.register(self._wake_read_end, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll()]
        self._asleep = False
        if self._wake_read_end not in ready:
            callback()

    def close(self) -> None:
        """End the sleeping thread, without its callback, and write back all tokens. May be called
        again."""
        if self._write < 0:
            return
        os.close(self._wake_write_end)  # wakes the sleeping thread
        if self._sleeper is not None:
            self._sleeper.join()
        os.close(self._wake_read_end)
        while self._tokens:
            self.release()
        self._close_ends()

    def _close_ends(self) -> None:
        for end in (self._read, self._write):
            if end >= 0:
                os.close(end)
        self._read = self._write = -1
