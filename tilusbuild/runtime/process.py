"""The state of the runtime for a whole process, in one object, and its reset after a fork.

A process has one CUDA driver, opens each library once, and has one set of options; all else is
passed as arguments. The modules that use this state are not imported here, so the values have the
type `Any`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any


class Process:
    """The state of this process."""

    def __init__(self) -> None:
        self._make_locks()
        self.options: dict[str, str | int | bool] = {}
        """The settings that `tilusbuild.option` chose, by name."""
        self.devices: dict[tuple[int, int], Any] = {}
        """GPUs by process id and number, as the driver described them."""
        self.kernels: weakref.WeakSet[Any] = weakref.WeakSet()
        self.libraries: dict[tuple[str, str], Callable[..., Any]] = {}
        """Packed functions of the libraries that are open, by path and digest."""
        self.lock_files: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        """Files of locks that are held, by path."""
        self.recorder: Any = None
        """The `Recorder` that counts the process's calls; None: they are not counted."""

    def _make_locks(self) -> None:
        # Several: opening a library, or starting the driver, takes long, and must delay no others.
        self.option_lock = threading.Lock()
        self.device_lock = threading.Lock()
        self.library_lock = threading.Lock()
        self.reader_lock = threading.Lock()

    def reset_after_fork(self) -> None:
        """Make new locks in a child, where the thread that held one does not exist, and forget
        the devices: a child cannot use the parent's CUDA driver. Reset the recorder and each
        kernel, too. Libraries stay open."""
        self._make_locks()
        self.devices.clear()
        if self.recorder is not None:
            self.recorder.reset_after_fork()
        for kernel in list(self.kernels):
            kernel.reset_after_fork()


process = Process()
os.register_at_fork(after_in_child=process.reset_after_fork)
