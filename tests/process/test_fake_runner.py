import pytest

from support.fake_runner import FakeRunner, finished
from tilusbuild.process.base import CancelledError, Command


def test_rules_answer_and_the_journal_remembers():
    runner = FakeRunner()
    runner.on("nvcc", finished("release 13.0"))
    runner.on(lambda c: "-cubin" in c.argv, lambda c: finished(status=255, output=c.argv[-1]))
    version = Command(("/opt/cuda/bin/nvcc", "--version"), "/", {"LANG": "C"})
    compile_ = Command(("nvcc", "-cubin", "x.cu"), "/w")
    assert runner.run(version).output == b"release 13.0"
    assert runner.run(compile_) == finished("x.cu", status=255)
    assert runner.journal == [version, compile_]
    assert runner.argvs[1] == ("nvcc", "-cubin", "x.cu")


def test_what_it_prints_is_heard():
    runner = FakeRunner()
    runner.on("sh", finished("one\ntwo\n"))
    pieces: list[bytes] = []
    runner.run(Command(("sh",), "/", on_output=pieces.append))
    assert b"".join(pieces) == b"one\ntwo\n"


def test_an_unknown_program_is_not_installed_and_exceptions_are_raised():
    runner = FakeRunner()
    with pytest.raises(FileNotFoundError):
        runner.run(Command(("ptxas",), "/"))
    runner.on("ptxas", PermissionError(13, "Permission denied"))
    with pytest.raises(PermissionError):
        runner.run(Command(("ptxas",), "/"))
    runner.close()
    with pytest.raises(CancelledError):
        runner.run(Command(("ptxas",), "/"))
