"""What a command in a sandbox can open, and what its children can."""

from pathlib import Path

import pytest

from tilusbuild.process import landlock
from tilusbuild.process.base import Command, PrefixRunner, Sandbox
from tilusbuild.process.local import LocalRunner

pytestmark = pytest.mark.skipif(not landlock.find_version(), reason="no Landlock")
SYSTEM = ("/bin", "/usr/bin", "/lib", "/lib64", "/usr/lib", "/etc/ld.so.cache")


@pytest.fixture
def places(tmp_path: Path) -> Path:
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


def run_script(runner: LocalRunner | PrefixRunner, places: Path, script: str) -> str:
    write = (str(places / "write"), "/dev/null")
    held = Sandbox((*SYSTEM, str(places / "read"), "/no/such/place"), write)
    argv = ("/bin/sh", "-c", script)
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    command = Command(argv, str(places / "write"), environment, sandbox=held)
    return runner.run(command).output.decode()


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("cat ../read/file", "read"),
        ("cat file", "write"),
        ("echo more > file && cat /proc/self/cwd/file", "more"),
        ("cat ../other/file", "Permission denied"),
        ("cat /proc/self/cwd/../other/file", "Permission denied"),
        ("cat /proc/self/root/etc/passwd", "Permission denied"),
        ("sh -c 'exec cat ../other/file'", "Permission denied"),
        ("ln -s ../other/file link && cat link", "Permission denied"),
        ("echo x > ../read/file", "Permission denied"),
        ("echo x > ../other/new", "Permission denied"),
        ("rm ../other/file", "Permission denied"),
        ("mv ../other/file .", "mv:"),
        ("cp /bin/true . && ./true", "Permission denied"),
        ("echo x > /dev/null && echo done", "done"),
    ],
)
def test_what_it_opens(runner, places, script, answer):
    assert answer in run_script(runner, places, script)
    assert (places / "other/file").read_text() == "other"
    assert (places / "read/file").read_text() == "read"


def test_the_next_command_is_not_held(runner, places):
    run_script(runner, places, "true")
    argv = ("/bin/cat", str(places / "other/file"))
    assert runner.run(Command(argv, "/")).output == b"other"


def test_a_prefix_is_not_held(runner, places):
    assert (
        run_script(PrefixRunner(("/usr/bin/env",), runner), places, "cat ../other/file") == "other"
    )
