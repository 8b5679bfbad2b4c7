"""Start a thread, or say in an `OSError` that there can be none: a limit on processes counts
threads too, and Python's `RuntimeError` would be taken for a bug of ours."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def start_thread(name: str, run: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a thread that does not keep the process alive. Raises `OSError`."""
    thread = threading.Thread(target=run, name=name, args=arguments, daemon=True)
    with starting_threads():
        thread.start()
    return thread


@contextmanager
def starting_threads() -> Iterator[None]:
    """Start threads in a block, by whatever library. Raises `OSError`."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread can be started ({error})") from None
