"""Each package taken away in turn: `--help` is no bug, and what is missing has a remedy."""

import subprocess
import sys

import pytest

from tilusbuild.cli.parser import list_verbs
from tilusbuild.rooms import find_missing_package

OPTIONAL = ("grpc", "google", "cryptography", "sigstore", "rfc8785", "rich", "urllib3")
REQUIRED = ("msgspec", "jinja2", "numpy", "zstandard", "watchdog")


_DRIVER = """
import os, sys
package, *verbs = sys.argv[1:]

class Without:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
os.dup2(1, 2)
from tilusbuild.cli.main import main
for verb in verbs:
    try:
        status = main([verb, "--help"])
    except SystemExit as ended:
        status = ended.code or 0
    print(f"\\0{verb} {status}\\0", end="", flush=True)
"""


@pytest.mark.parametrize("package", [*OPTIONAL, *REQUIRED])
def test_help_needs_no_optional_package(package: str) -> None:
    command = [sys.executable, "-c", _DRIVER, package, *list_verbs()]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = output.split("\0")
    # What was printed, with the verb and the status that follow it.
    pairs = zip(parts[::2], parts[1::2], strict=False)
    ended = {part.rpartition(" ")[0]: (part.rpartition(" ")[2], out) for out, part in pairs}
    assert ended.keys() == list_verbs().keys()
    for verb, (status, out) in ended.items():
        assert "this is a bug of" not in out, (verb, out)
        if package in OPTIONAL:
            assert status == "0", (verb, out)
        elif status != "0":
            assert f"{package} is not installed" in out
            assert "python -m pip install 'tilusbuild" in out


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("google.protobuf", "protobuf", "[remote]"),
        ("grpc", "grpcio", "[remote]"),
        ("cryptography", "cryptography", "[sign]"),
        ("tvm_ffi", "apache-tvm-ffi", ""),
        ("somebodys", "somebodys", ""),
    ],
)
def test_the_extra_is_named(module: str, package: str, extra: str) -> None:
    assert find_missing_package(module) == (package, f"python -m pip install 'tilusbuild{extra}'")
