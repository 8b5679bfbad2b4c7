"""What a command is given, and what is told of its end."""

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from support.processes import wait_until
from tilusbuild.process.base import Command, CompletedCommand
from tilusbuild.process.local import LocalRunner, name_signal
from tilusbuild.process.warden import CapturedOutput


def test_both_streams_come_in_the_order_written(runner: LocalRunner, sh):
    done = runner.run(sh("echo one; echo two >&2; echo three; exit 7"))
    assert (done.status, done.output, done.ok) == (7, b"one\ntwo\nthree\n", False)


def test_output_is_heard_as_it_comes(runner: LocalRunner, sh, tmp_path: Path):
    pieces: list[bytes] = []

    def hear(piece):
        pieces.append(piece)
        (tmp_path / "heard").touch()

    script = 'echo before; while ! test -e "$0"; do sleep 0.01; done; echo after'
    command = Command(("sh", "-c", script, str(tmp_path / "heard")), "/", on_output=hear)
    assert runner.run(command).output == b"before\nafter\n"
    assert b"".join(pieces) == b"before\nafter\n"


def test_peak_memory_is_that_of_the_largest_process_of_the_command(runner: LocalRunner, sh):
    grab = f"{sys.executable} -S -c 'b = bytearray(150_000_000)'; true"
    assert runner.run(sh(grab)).peak_rss > 150_000_000
    done = runner.run(sh("true"))
    assert done.ok
    assert done.seconds > 0
    assert 100_000 < done.peak_rss < 50_000_000


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_death_by_signal_is_a_negative_status(runner: LocalRunner, number, sh):
    done = runner.run(sh(f"kill -{int(number)} $$"))
    assert done.status == -number
    assert name_signal(done.status) == number.name


def test_the_environment_is_exactly_what_was_given(runner, monkeypatch):
    monkeypatch.setenv("LEAK", "1")
    done = runner.run(Command(("/usr/bin/env",), "/", {"A": "x=y\nz", "Ü": "ß"}))
    assert done.output.decode() == "A=x=y\nz\nÜ=ß\n"
    assert runner.run(Command(("/usr/bin/env",), "/")).output == b""


def test_arguments_may_hold_anything_but_nul(runner: LocalRunner):
    words = ("a b", "", "'\"$x`", "line\nbreak", "\udcff", "Ω")
    done = runner.run(Command(("/usr/bin/printf", "[%s]", *words), "/"))
    assert done.output == os.fsencode("".join(f"[{w}]" for w in words))
    with pytest.raises(ValueError, match="NUL"):
        runner.run(Command(("/bin/echo", "a\0b"), "/"))


def test_a_bare_name_is_found_along_the_commands_own_path(runner: LocalRunner, tmp_path: Path):
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho mine\n")
    tool.chmod(0o755)
    assert runner.run(Command(("tool",), "/", {"PATH": f"/no:{tmp_path}"})).output == b"mine\n"
    with pytest.raises(FileNotFoundError) as caught:
        runner.run(Command(("tool",), "/", {"PATH": "/usr/bin"}))
    assert caught.value.filename == "tool"


def test_what_cannot_start_is_an_os_error_that_names_it(runner: LocalRunner, tmp_path: Path, sh):
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    with pytest.raises(PermissionError) as caught:
        runner.run(Command((str(plain),), "/"))
    assert caught.value.filename == str(plain)
    plain.chmod(0o755)
    with pytest.raises(OSError, match="Exec format error") as unrunnable:
        runner.run(Command((str(plain),), "/"))
    assert unrunnable.value.errno == errno.ENOEXEC
    gone = str(tmp_path / "gone")
    with pytest.raises(FileNotFoundError) as nowhere:
        runner.run(Command(("/bin/true",), gone))
    assert nowhere.value.filename == gone
    with pytest.raises(OSError, match="Argument list too long"):
        runner.run(Command(("/bin/true", "x" * (1 << 20)), "/"))
    assert runner.run(sh("true")).ok


def test_a_command_starts_with_clean_signals_and_no_descriptor_of_ours(runner: LocalRunner, sh):
    status = runner.run(Command(("/bin/cat", "/proc/self/status"), "/")).output.decode()
    masks = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith("Sig"))
    standard = (1 << 31) - 1  # the numbers above are the C library's, or nobody's
    assert int(masks["SigIgn"], 16) & standard == 0
    assert int(masks["SigBlk"], 16) & standard == 0
    listed = runner.run(sh("ls /proc/$$/fd; cat; readlink /proc/$$/fd/0")).output.split()
    assert listed == [b"0", b"1", b"2", b"/dev/null"]


def test_a_command_is_in_a_session_that_the_terminal_does_not_know(runner: LocalRunner):
    stat = runner.run(Command(("/bin/cat", "/proc/self/stat"), "/")).output
    pid, rest = int(stat.split()[0]), stat.rpartition(b")")[2].split()
    group, session, terminal = (int(word) for word in rest[2:5])
    assert group == pid
    assert session not in (pid, os.getsid(0))
    assert terminal == 0


@pytest.mark.parametrize("limit", [0, 1, 7, 20])
def test_output_up_to_the_limit_is_whole(limit):
    for size in (0, limit, limit + 1, 500):
        data = bytes(range(256)) * 2
        output = CapturedOutput(limit)
        for start in range(0, size, 3):
            output.add_data(data[start : min(start + 3, size)])
        kept = output.join_pieces()
        if size <= limit:
            assert kept == data[:size]
        else:
            head, _, tail = kept.partition(f"\n[... {size - limit} bytes left out ...]\n".encode())
            assert head + tail == data[: limit // 2] + data[size - (limit - limit // 2) : size]


def test_a_thousand_commands_leak_nothing(runner: LocalRunner, sh):
    def warden_and_its_descriptors() -> tuple[bytes, list[str]]:
        warden = runner.run(sh("echo $PPID")).output.strip()
        return warden, os.listdir(f"/proc/{int(warden)}/fd")

    before, own = warden_and_its_descriptors(), len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        assert runner.run(Command(("/bin/true",), "/")).ok
    assert warden_and_its_descriptors() == before
    assert len(os.listdir("/proc/self/fd")) == own


def test_threads_get_their_own_answers(runner: LocalRunner, sh):
    def ask(number: int) -> bool:
        return runner.run(sh(f"echo {number}; exit {number % 5}")).output == b"%d\n" % number

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, range(200)))


def test_a_runner_that_runs_nothing_starts_nothing():
    before = set(os.listdir("/proc/self/task"))
    with LocalRunner():
        # A thread of an earlier test may end meanwhile.
        assert set(os.listdir("/proc/self/task")) <= before


def test_a_forked_child_must_make_its_own_runner(runner: LocalRunner, sh):
    runner.run(sh("true"))
    pid = os.fork()
    if pid == 0:
        try:
            runner.run(sh("true"))
        except RuntimeError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_it_works_with_the_standard_descriptors_closed(tmp_path: Path):
    output_path = tmp_path / "said"
    program = f"""
import os
os.closerange(0, 3)
from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner
with LocalRunner() as runner:
    output = runner.run(Command(("/bin/echo", "hello"), "/")).output
open({str(output_path)!r}, "wb").write(output)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert output_path.read_bytes() == b"hello\n"


def test_a_command_can_be_less_urgent_than_we_are(runner: LocalRunner, sh):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for more in (0, 3, 19):
        command = replace(sh("nice"), nice=more)
        assert int(runner.run(command).output) == min(19, own + more)


def test_in_a_pause_commands_stand_still_those_that_begin_in_it_too(
    runner: LocalRunner, tmp_path: Path
):
    script = 'printf $$ > "$0.new"; mv "$0.new" "$0"; while test -e "$0"; do :; done'

    def begin(name: str) -> Future[CompletedCommand]:
        words = ("sh", "-c", script, str(tmp_path / name))
        return pool.submit(runner.run, Command(words, "/", {"PATH": os.defpath}))

    def is_stopped(name: str) -> bool:
        process = (tmp_path / name).read_text()
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "T"

    with ThreadPoolExecutor() as pool:
        commands = [begin("first")]
        wait_until((tmp_path / "first").exists)
        with runner.pause(), runner.pause():
            wait_until(lambda: is_stopped("first"))
            commands.append(begin("second"))
        wait_until((tmp_path / "second").exists)
        with runner.pause():
            wait_until(lambda: is_stopped("first") and is_stopped("second"))
        for name in ("first", "second"):
            (tmp_path / name).unlink()
        assert all(command.result().ok for command in commands)


def test_when_memory_runs_out_the_kernel_kills_a_command_first(runner: LocalRunner, sh):
    with open("/proc/self/oom_score_adj") as file:
        own = int(file.read())
    adjustment = int(runner.run(sh("cat /proc/self/oom_score_adj")).output)
    assert adjustment == min(1000, own + 300)
