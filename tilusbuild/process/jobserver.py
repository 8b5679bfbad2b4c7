"""GNU make's jobserver: a client.

`make -jN` puts N-1 bytes, its tokens, into a pipe that everything it starts shares. Who was started
by make may do one thing at a time; for each further one it reads a byte first, and writes the same
byte back afterwards. What is kept here:

- The token that we were started with is never read and never written: one compile may always run.
- A byte is read only when a compile is there to run with it, and only by the build's own thread; it
  is written back once. `close` writes back what is left.
- Before a byte is used, and before one is written back, `note` is called with the bytes held then:
  the warden writes them back if this process is killed. A byte can be lost in between, but never be
  there twice: make would start more jobs than its -j.
- Nothing polls: a thread sleeps until there may be a byte.
- Reading never blocks, and changes nothing for others: whether a read waits belongs to an open
  file, so we open the pipe again.
"""

from __future__ import annotations

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
"""Called with the path to write to and the bytes that are held."""

_AUTH = ("--jobserver-auth=", "--jobserver-fds=")
"""How MAKEFLAGS names it; make 4.1 and older write the second."""


class JobserverError(Exception):
    """Make offers a jobserver that cannot be used; the text is the reason and a remedy."""


def announced_jobserver(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the paths to read and to write that are the jobserver which MAKEFLAGS names, one and
    the same for a fifo; or None. Raises `JobserverError`."""
    auth = None
    for word in environment.get("MAKEFLAGS", "").split():
        if word == "--":  # what follows are make's variables
            break
        for option in _AUTH:
            if word.startswith(option):
                auth = word[len(option) :]  # the last one is of the innermost make
    if auth is None:
        return None
    if auth.startswith("fifo:"):
        path = auth.removeprefix("fifo:")
        return path, path
    ends = auth.split(",")
    if len(ends) != 2 or not all(end.lstrip("-").isdecimal() for end in ends):
        raise JobserverError(f"make's jobserver is of an unknown kind: {auth}")
    reading, writing = map(int, ends)
    if not (_is_end(reading, os.O_RDONLY) and _is_end(writing, os.O_WRONLY)):
        raise JobserverError(
            "make does not share its jobserver with this recipe, so more may run at once than its "
            "-j allows: begin the recipe's line with +"
        )
    return f"/proc/self/fd/{reading}", f"/proc/self/fd/{writing}"


def _is_end(number: int, mode: int) -> bool:
    """Return whether a descriptor is that end of a pipe."""
    # Make does not pass the pipe on to a recipe without "+", but MAKEFLAGS still has the numbers,
    # which may be another file's by now.
    import fcntl

    try:
        if not stat.S_ISFIFO(os.fstat(number).st_mode):
            return False
        return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE in (mode, os.O_RDWR)
    except (OSError, OverflowError):
        return False


class Jobserver:
    """A client. Used by one thread; close it, or use it as a context manager."""

    def __init__(self, address: tuple[str, str], note: Note = lambda _path, _held: None) -> None:
        """`address` is what `announced_jobserver` returns. Raises `JobserverError`."""
        reading, writing = address
        self._held = b""
        self._note = note
        self._read = self._write = -1
        try:
            # Opened again by its path: O_NONBLOCK belongs to the open file, and set on make's own
            # it would make every other client's blocking read fail with EAGAIN.
            self._read = os.open(reading, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._write = os.open(writing, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if not stat.S_ISFIFO(os.fstat(self._read).st_mode):
                raise JobserverError(f"make's jobserver is not a pipe: {reading}")
            os.set_blocking(self._write, True)
        except OSError as error:
            self._close_ends()
            raise JobserverError(
                f"make's jobserver cannot be opened: {reading}: {error.strerror}"
            ) from None
        except JobserverError:
            self._close_ends()
            raise
        self._sleeper: threading.Thread | None = None
        self._asleep = False
        self._over, self._end = os.pipe()

    @property
    def _path(self) -> str:
        """The path for other processes of this user, while it is open."""
        return f"/proc/{os.getpid()}/fd/{self._write}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def try_acquire(self) -> bool:
        """Take one more token if there is one now. Return whether it did."""
        try:
            token = os.read(self._read, 1)
        except BlockingIOError:
            return False
        if not token:
            return False
        # Noted after it was read: killed in between we lose a token, which make reports. Noted
        # before, a token that we never got would be "given back", and make would run one job more
        # than it was asked to.
        self._held += token
        self._note(self._path, self._held)
        return True

    def release(self) -> None:
        """Give one token back."""
        token, self._held = self._held[-1:], self._held[:-1]
        # Noted before it is written, for the same reason as in `try_acquire`.
        self._note(self._path, self._held)
        os.write(self._write, token)

    def notify_when_available(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, once and from another thread, when a token may be there; no
        effect while another one waits."""
        if not self._asleep:
            self._asleep = True
            self._sleeper = start_thread(self._sleep, callback)

    def _sleep(self, callback: Callable[[], None]) -> None:
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        poller.register(self._over, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll()]
        self._asleep = False
        if self._over not in ready:
            callback()

    def close(self) -> None:
        """Give back all tokens. May be called again."""
        if self._write < 0:
            return
        os.close(self._end)  # wakes who sleeps
        if self._sleeper is not None:
            self._sleeper.join()
        os.close(self._over)
        while self._held:
            self.release()
        self._close_ends()

    def _close_ends(self) -> None:
        for end in (self._read, self._write):
            if end >= 0:
                os.close(end)
        self._read = self._write = -1
