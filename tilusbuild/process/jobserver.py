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

from tilusbuild.process.base import start_thread

Note = Callable[[str, bytes], None]
"""A function of the path to write tokens back to, and all tokens that are held."""

_AUTH_OPTIONS = ("--jobserver-auth=", "--jobserver-fds=")
"""The jobserver's option in MAKEFLAGS; make 4.1 and older write the second form."""


class JobserverError(Exception):
    """Make's jobserver cannot be used. The text is the reason, with a remedy."""


def find_jobserver(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the paths of the jobserver in MAKEFLAGS, to read from and to write to; else None.

    A fifo has one path for both. Raises `JobserverError`.
    """
    # MAKEFLAGS is such as " -j4 --jobserver-auth=3,4 -- NAME=value", or has
    # "--jobserver-auth=fifo:/tmp/GMfifo123".
    address = None
    for word in environment.get("MAKEFLAGS", "").split():
        # What follows are make's variables, whose values may look like options.
        if word == "--":
            break
        # Of several options the last one counts: the innermost make has added it.
        if word.startswith(_AUTH_OPTIONS):
            address = word.partition("=")[2]
    if address is None:
        return None
    if address.startswith("fifo:"):
        path = address.removeprefix("fifo:")
        return path, path
    descriptors = address.split(",")
    if len(descriptors) != 2 or not all(text.lstrip("-").isdecimal() for text in descriptors):
        raise JobserverError(f"make's jobserver is of an unknown kind: {address}")
    reading, writing = map(int, descriptors)
    if not (_is_pipe_end(reading, os.O_RDONLY) and _is_pipe_end(writing, os.O_WRONLY)):
        raise JobserverError(
            "make does not share its jobserver with this recipe, so more may run at once than its "
            "-j allows: begin the recipe's line with +"
        )
    return f"/proc/self/fd/{reading}", f"/proc/self/fd/{writing}"


def _is_pipe_end(number: int, mode: int) -> bool:
    """Return whether a descriptor is an end of a pipe with this access mode."""
    # A recipe without "+" does not inherit the pipe. MAKEFLAGS has the pipe's numbers all the same,
    # and by now another file may have such a number.
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
            # The pipe is opened again by its path, because O_NONBLOCK belongs to the open file:
            # set on make's, it would have every other client's blocking read fail with EAGAIN.
            self._read = os.open(reading, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._write = os.open(writing, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if not stat.S_ISFIFO(os.fstat(self._read).st_mode):
                raise OSError(errno.EINVAL, "not a pipe")
            # The write end was opened as non-blocking only because to open a fifo that has no
            # reader would block.
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

    def __enter__(self) -> Jobserver:
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
        # An empty result is the end of the pipe: make has ended.
        if not token:
            return False
        # The tokens are noted after the read. If this process is killed between the two, the token
        # is lost, and make reports that. If they were noted before it, a token that was never read
        # might be written back: it would exist twice, and make would start more jobs than its -j.
        self._tokens += token
        self._note(self._path, self._tokens)
        return True

    def release(self) -> None:
        """Write one token back."""
        token, self._tokens = self._tokens[-1:], self._tokens[:-1]
        # The rest is noted before the token is written: if this process is killed between the two,
        # the token is lost, and is not written back twice.
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
        ready_descriptors = [descriptor for descriptor, _ in poller.poll()]
        self._asleep = False
        if self._wake_read_end not in ready_descriptors:
            callback()

    def close(self) -> None:
        """End the sleeping thread, without its callback, and write back all tokens. May be called
        again."""
        if self._write < 0:
            return
        # The read end becomes readable when this end is closed, which wakes the sleeping thread.
        os.close(self._wake_write_end)
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
