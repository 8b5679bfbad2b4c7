"""What is kept for the process: reset for tests, and given up in the child of a fork."""

from __future__ import annotations

import os

from tilusbuild import option
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.process import Process, process

GPU = Device("cuda", 0, "Some GPU", "sm_90", 13000)


def test_reset_forgets_what_was_chosen_and_found() -> None:
    with option.context():
        option.parallel_workers(3)
        process.devices[os.getpid(), 0] = GPU
        process.reset()
        assert dict(option.chosen()) == {}
        assert process.devices == {}
        assert process.libraries == {}


def test_the_child_of_a_fork_has_locks_of_its_own() -> None:
    """A thread of the parent that holds a lock does not exist in the child."""
    mine = Process()
    mine.devices[os.getpid(), 0] = GPU
    held = (mine.option_lock, mine.device_lock, mine.library_lock)
    for lock in held:
        lock.acquire()
    mine.after_fork()
    assert mine.devices == {}
    for lock in (mine.option_lock, mine.device_lock, mine.library_lock):
        assert lock.acquire(blocking=False)


def test_a_fork_while_a_library_is_opened() -> None:
    with process.library_lock:
        child = os.fork()
        if not child:
            os._exit(0 if process.library_lock.acquire(blocking=False) else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
