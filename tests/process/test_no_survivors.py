"""However a build ends, nothing that it started goes on."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from support.processes import Marker
from tilusbuild.process.base import CancelledError, Command, RunnerLostError
from tilusbuild.process.local import LocalRunner

TREE = "sleep {0} & (sleep {0} & sleep {0}) & sh -c 'sleep {0}; true' & wait"
"""Four sleepers of one process group, at several depths."""

DAEMON = "setsid sh -c 'sleep {0} & sleep {0}' </dev/null >/dev/null 2>&1 &"
"""Two sleepers that left the group and the session."""

STUBBORN = "trap '' INT TERM HUP; sleep {0}; sleep {0}"


def start(runner: LocalRunner, command: Command) -> tuple[threading.Thread, list[object]]:
    """Run in a thread; the list receives the result or the exception."""
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(runner.run(command))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def test_a_late_command_dies_with_its_group(runner: LocalRunner, marker: Marker, sh):
    done = runner.run(sh("echo begun; " + TREE.format(marker.seconds), timeout=0.5))
    assert done.timed_out
    assert not done.ok
    assert done.status == -signal.SIGKILL
    assert done.output == b"begun\n"
    marker.wait_for(0)


def test_what_a_command_leaves_in_the_background_ends_with_it(runner, marker, sh):
    done = runner.run(sh(f"sleep {marker.seconds} & echo left; exit 3"))
    assert (done.status, done.output) == (3, b"left\n")
    marker.wait_for(0)


def test_a_daemon_ends_when_no_command_runs(runner: LocalRunner, marker: Marker, sh):
    busy, _ = start(runner, sh("sleep 600"))
    thread, _ = start(runner, sh(DAEMON.format(marker.seconds) + STUBBORN.format(600)))
    marker.wait_for(2)
    runner.run(sh("true"))
    assert len(marker.sleepers()) == 2
    runner.cancel()
    busy.join()
    thread.join()
    marker.wait_for(0)


def test_a_daemon_that_holds_the_output_delays_nothing(runner: LocalRunner, marker: Marker, sh):
    done = runner.run(sh(f"setsid sleep {marker.seconds} & echo done"))
    assert done.output == b"done\n"
    marker.wait_for(0)


def test_cancel_ends_all_and_the_runner_goes_on(runner: LocalRunner, marker: Marker, sh):
    runs = [start(runner, sh(TREE.format(marker.seconds))) for _ in range(3)]
    marker.wait_for(12)
    runner.cancel()
    for thread, outcome in runs:
        thread.join()
        assert isinstance(outcome[0], CancelledError)
    marker.wait_for(0)
    assert runner.run(sh("echo on")).output == b"on\n"


def test_close_ends_all_for_good(marker: Marker, sh):
    runner = LocalRunner()
    thread, outcome = start(runner, sh(DAEMON.format(marker.seconds) + TREE.format(marker.seconds)))
    marker.wait_for(6)
    runner.close()
    assert marker.sleepers() == []
    thread.join()
    assert isinstance(outcome[0], CancelledError)
    with pytest.raises(CancelledError):
        runner.run(sh("true"))
    runner.close()


def test_a_killed_warden_takes_its_processes_along_and_is_reported(runner, marker, sh):
    warden = int(runner.run(sh("echo $PPID")).output)
    thread, outcome = start(runner, sh(TREE.format(marker.seconds)))
    marker.wait_for(4)
    os.kill(warden, signal.SIGKILL)
    thread.join()
    assert isinstance(outcome[0], RunnerLostError)
    assert "signal 9" in str(outcome[0])
    marker.wait_for(0)
    with pytest.raises(RunnerLostError):
        runner.run(sh("true"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE])
def test_the_warden_lives_as_long_as_its_socket(runner: LocalRunner, number, sh):
    warden = int(runner.run(sh("echo $PPID")).output)
    os.kill(warden, number)
    assert int(runner.run(sh("echo $PPID")).output) == warden


CLIENT = """
import os, signal, sys, threading, time
from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner
runner = LocalRunner()
script, fork = sys.argv[1], sys.argv[2] == "fork"
for _ in range(2):
    command = Command(("sh", "-c", script), "/", {"PATH": "/usr/bin:/bin"})
    threading.Thread(target=runner.run, args=(command,), daemon=True).start()
if fork:
    time.sleep(0.5)
    if os.fork() == 0:
        time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("script", "sleepers"),
    [(TREE, 8), (DAEMON + TREE, 12), (STUBBORN, 2)],
    ids=["tree", "daemon", "stubborn"],
)
@pytest.mark.parametrize("how", ["process", "group", "fork"])
def test_a_killed_parent_leaves_nobody(marker: Marker, script, sleepers, how):
    client = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CLIENT, script.format(marker.seconds), how],
        start_new_session=True,
    )
    try:
        marker.wait_for(sleepers)
        while how == "fork" and len(_children(client.pid)) != 2:
            time.sleep(0.01)
        (os.killpg if how == "group" else os.kill)(client.pid, signal.SIGKILL)
        client.wait()
        marker.wait_for(0)
    finally:
        if how == "fork":
            os.killpg(client.pid, signal.SIGKILL)


def _children(pid: int) -> list[str]:
    process_ids = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            process_ids += file.read().split()
    return process_ids


def test_both_killed_at_once_still_ends_the_leaders(marker: Marker):
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, f"exec sleep {marker.seconds}", "no"], start_new_session=True
    )
    marker.wait_for(2)
    (warden,) = _children(client.pid)
    os.kill(client.pid, signal.SIGSTOP)
    os.kill(int(warden), signal.SIGKILL)
    marker.wait_for(0)
    os.kill(client.pid, signal.SIGKILL)
    client.wait()


def test_an_interrupt_of_a_waiting_run_kills_its_command(runner: LocalRunner, marker: Marker, sh):
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        marker.wait_for(1)
        signal.pthread_kill(main, signal.SIGINT)

    timer = threading.Thread(target=interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        runner.run(sh(f"exec sleep {marker.seconds}"))
    timer.join()
    marker.wait_for(0)
    assert runner.run(sh("true")).ok
