"""A client of a jobserver, with pipes that the test holds the other end of.

Real GNU make stands in tests/e2e.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.jobserver import Fifo
from support.processes import no_thread_left
from tilusbuild.process.jobserver import Jobserver, JobserverError, find_jobserver


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Fifo]:
    fifo = Fifo(tmp_path / "fifo", b"abc")
    yield fifo
    assert sorted(os.read(fifo.end, 100)) == sorted(fifo.tokens), "tokens were lost or changed"
    os.close(fifo.end)


def test_tokens_are_taken_while_there_are_some_and_go_back_as_they_came(server: Fifo) -> None:
    with Jobserver((server.path, server.path)) as client:
        assert [client.try_acquire() for _ in range(5)] == [True, True, True, False, False]
        client.release()
        assert server.count == 1
        assert client.try_acquire()
    assert server.count == 3


def test_a_token_is_recorded_before_it_is_used_and_before_it_is_returned(server: Fifo) -> None:
    noted: list[tuple[bytes, int]] = []
    address = (server.path, server.path)
    with Jobserver(address, lambda path, held: noted.append((held, server.count))) as client:
        client.try_acquire()
        client.try_acquire()
        client.release()
    assert noted == [(b"a", 2), (b"ab", 1), (b"a", 1), (b"", 2)]


def test_a_sleeper_is_woken_by_a_token_and_by_the_end(server: Fifo) -> None:
    woken = threading.Event()
    with no_thread_left(), Jobserver((server.path, server.path)) as client:
        while client.try_acquire():
            pass
        client.notify_when_available(woken.set)
        client.notify_when_available(woken.set)
        assert not woken.is_set()
        client.release()
        assert woken.wait(60)
        client.try_acquire()
        client.notify_when_available(woken.set)


def test_a_pipe_that_make_hands_down_is_read_without_blocking_others() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x")
    address = find_jobserver({"MAKEFLAGS": f"k -j2 --jobserver-auth={reading},{writing}"})
    assert address is not None
    with Jobserver(address) as client:
        assert (client.try_acquire(), client.try_acquire()) == (True, False)
        assert os.get_blocking(reading)
    assert os.read(reading, 2) == b"x"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    "flags", ["", "k", "-j", "-j8", "--jobserver-style=fifo", "k -- X=--jobserver-auth=fifo:/x"]
)
def test_no_client_without_a_jobserver(flags: str) -> None:
    assert find_jobserver({"MAKEFLAGS": flags}) is None
    assert find_jobserver({}) is None


def test_the_innermost_jobserver_counts_and_old_make_names_it_otherwise() -> None:
    flags = " -j4 --jobserver-auth=fifo:/outer --jobserver-auth=fifo:/inner"
    assert find_jobserver({"MAKEFLAGS": flags}) == ("/inner", "/inner")
    reading, writing = os.pipe()
    assert find_jobserver({"MAKEFLAGS": f"--jobserver-fds={reading},{writing} -j"}) is not None
    os.close(reading)
    os.close(writing)


def test_a_recipe_without_the_plus_sign_gets_a_hint(tmp_path: Path) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    reading, writing = os.pipe()
    for ends in ("-2,-2", "9998,9999", f"{file},{file}", f"{writing},{reading}", "9" * 20 + ",4"):
        with pytest.raises(JobserverError, match=r"begin the recipe's line with \+"):
            find_jobserver({"MAKEFLAGS": f"-j2 --jobserver-auth={ends}"})
    for end in (file, reading, writing):
        os.close(end)


def test_an_unknown_kind_and_an_invalid_fifo_are_refused(tmp_path: Path) -> None:
    for auth in ("3", "3,4,5", "a,b", "", "sem:x"):
        with pytest.raises(JobserverError, match="unknown kind"):
            find_jobserver({"MAKEFLAGS": f"--jobserver-auth={auth}"})
    (tmp_path / "file").touch()
    for name, why in (("none", "No such file"), ("file", "not a pipe")):
        path = str(tmp_path / name)
        with pytest.raises(JobserverError, match=f"cannot be opened: .*{why}"):
            Jobserver((path, path))


CLIENT = """
import sys, time
from tilusbuild.process.jobserver import Jobserver
from tilusbuild.process.local import LocalRunner
runner = LocalRunner()
client = Jobserver((sys.argv[1], sys.argv[1]), runner.deposit_tokens)
client.try_acquire(), client.try_acquire(), client.try_acquire()
client.release()
print("held", flush=True)
time.sleep(600)
"""


def test_tokens_of_a_build_that_is_killed_are_given_back(server: Fifo) -> None:
    command = [sys.executable, "-c", CLIENT, server.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "held\n"
        assert server.count == 1
        client.send_signal(signal.SIGKILL)
    woken = threading.Event()
    with Jobserver((server.path, server.path)) as waiting:
        for _ in range(3):
            while not waiting.try_acquire():
                woken.clear()
                waiting.notify_when_available(woken.set)
                assert woken.wait(60)
