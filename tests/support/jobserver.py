"""A fifo with the tokens of a jobserver, as newer GNU makes have it."""

import array
import fcntl
import os
import termios
from pathlib import Path


class Fifo:
    """The tokens that wait in it are `count`."""

    def __init__(self, path: Path, tokens: bytes) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self.tokens = tokens
        self.end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        os.write(self.end, tokens)
        flags = f" -j{len(tokens) + 1} --jobserver-auth=fifo:{path}"
        self.environment = {"MAKEFLAGS": flags}

    @property
    def count(self) -> int:
        waiting = array.array("i", [0])
        fcntl.ioctl(self.end, termios.FIONREAD, waiting)
        return waiting[0]
