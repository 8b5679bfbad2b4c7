"""Each carrier, read by the tools that it is for: tar, pip, and what registries check."""

import base64
import csv
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import zstandard

from support.dlpack import FLOATS
from support.paths import ROOT
from support.processes import run_python, run_to_end
from tilusbuild.package.listing import parse_list, split_layers
from tilusbuild.state.files import sha256_bytes

STEM = "Marks-1.2"


def unpacked(path: Path) -> bytes:
    with open(path, "rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return reader.read()


def test_the_directory_is_loaded_from_in_place(packed: Path) -> None:
    load = f"tilusbuild.load('mark', target='host', where={str(packed / STEM)!r})"
    code = f"import tilusbuild; print({load})"
    done = run_python(code, status=None)
    assert done.stdout == "<Kernel mark host>\n", done.stderr


# ---- the archive -------------------------------------------------------------------------------


def test_the_archive_is_a_plain_tar_of_the_directory_in_layers(packed: Path) -> None:
    data = unpacked(packed / f"{STEM}.tar.zst")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        assert members[0].name == "tilus-package.json"
        for member in members:
            file = archive.extractfile(member)
            assert file is not None
            assert file.read() == (packed / STEM / member.name).read_bytes()
            mode = 0o755 if member.name.endswith(".so") else 0o644
            assert (member.mode, member.mtime, member.uid, member.gid) == (mode, 0, 0, 0)
            assert (member.uname, member.gname) == ("", "")
    paths = {str(p.relative_to(packed / STEM)) for p in (packed / STEM).rglob("*") if p.is_file()}
    assert {member.name for member in members} == paths
    file_list = parse_list((packed / STEM / "tilus-package.json").read_bytes())
    assert [m.name for m in members[1:]] == [
        path for layer in split_layers(file_list).values() for path in layer
    ]
    assert [len(layer) for layer in split_layers(file_list).values()] == [
        18,
        24,
        8,
    ]  # DoubleIt; mark: host, spare


def test_the_requested_date_is_in_the_files_and_not_in_the_list(project: Any, packed: Path) -> None:
    directory = project.package("--format", "tar.zst,wheel,oci", SOURCE_DATE_EPOCH="1700000000")
    with tarfile.open(fileobj=io.BytesIO(unpacked(directory / f"{STEM}.tar.zst"))) as archive:
        assert {member.mtime for member in archive.getmembers()} == {1700000000}
        file = archive.extractfile("tilus-package.json")
        assert file is not None
        assert file.read() == (packed / STEM / "tilus-package.json").read_bytes()
    with zipfile.ZipFile(next(directory.glob("*.whl"))) as wheel:
        assert {info.date_time for info in wheel.infolist()} == {(2023, 11, 14, 22, 13, 20)}


# ---- wheels ------------------------------------------------------------------------------------

CALL = """\
import sys
from importlib.abc import MetaPathFinder

class Nothing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ("tilusbuild", "numpy", "pydantic"):
            raise ImportError(name + " is not there")

sys.meta_path.insert(0, Nothing())
sys.path.insert(0, sys.argv[1])
import marks
from floats import Floats

x, y = Floats(1, 2, 3), Floats(0, 0, 0)
marks.load("mark", target="host")(x, y)
marks.load("DoubleIt", bias=1)
print(list(y.data), marks.load("mark", target="host").select(n=3).why)
"""


def test_the_wheel_holds_the_package_and_a_record(packed: Path) -> None:
    (path,) = packed.glob("*.whl")
    assert path.name.startswith("marks-1.2-py3-none-manylinux")
    with zipfile.ZipFile(path) as wheel:
        check_record(wheel, "marks-1.2.dist-info")
        metadata = wheel.read("marks-1.2.dist-info/METADATA").decode()
        assert "tilusbuild" not in metadata
        # `preflight` accepts the versions that pip does, and our own builder needs one of them.
        (requirement,) = re.findall("Requires-Dist: (.*)", metadata)
        needs = parse_list(wheel.read("marks/tilus/tilus-package.json")).needs
        assert requirement == f"apache-tvm-ffi~={needs.tvm_ffi}"
        assert f'"{requirement}"' in (ROOT / "pyproject.toml").read_text()
        data = wheel.read("marks/tilus/tilus-package.json")
    assert data == (packed / STEM / "tilus-package.json").read_bytes()


def check_record(wheel: zipfile.ZipFile, about: str) -> None:
    rows = list(csv.reader(io.StringIO(wheel.read(f"{about}/RECORD").decode())))
    assert [row[0] for row in rows] == wheel.namelist()
    assert rows[-1] == [f"{about}/RECORD", "", ""]
    for name, digest, size in rows[:-1]:
        data = wheel.read(name)
        encoded = base64.urlsafe_b64encode(bytes.fromhex(sha256_bytes(data))).rstrip(b"=")
        assert (digest, int(size)) == (f"sha256={encoded.decode()}", len(data))


def installed(wheels: list[Path], directory: Path) -> Path:
    """The wheels as pip installs them, less what they need."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", directory, *wheels], check=True)
    return directory


def read_only(directory: Path) -> list[str]:
    """What a command begins with that shall not be able to write in a directory."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    words = ["unshare", "-m", "sh", "-c", mount, str(directory)]
    probe = [*words, "sh", "-c", f"! touch {directory}/probe"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return words
    for path in [*directory.rglob("*"), directory]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return []


def call(site: Path, tmp_path: Path) -> str:
    (tmp_path / "floats.py").write_text(f"import ctypes\n{FLOATS}")
    (tmp_path / "call.py").write_text(CALL)
    command = [*read_only(site), sys.executable, "call.py", str(site)]
    done = run_to_end(command, cwd=tmp_path)
    return done.stdout.strip()


def test_what_pip_installed_is_verified_and_a_wheel_says_so(packed, project, tmp_path) -> None:
    (path,) = packed.glob("*.whl")
    site = installed([path], tmp_path / "site")
    assert "no problems" in project.run("verify", str(site / "marks" / "tilus")).out
    (site / "marks" / "tilus" / "evil").write_text("evil")
    assert "UnsafeName" in project.run("verify", str(site / "marks" / "tilus"), status=1).out
    refused = project.run("install", str(path), status=1).err
    assert "a wheel is for pip, and is not read" in refused
    assert "import marks; print(marks.path)" in refused


def test_python_tvm_ffi_and_the_wheel_are_enough_and_tilusbuild_finds_it(packed, tmp_path) -> None:
    site = installed(sorted(packed.glob("*.whl")), tmp_path / "site")
    assert call(site, tmp_path) == "[12.0, 22.0, 32.0] rule: n <= 4"
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import tilusbuild, marks\n"
        "found = tilusbuild.load('mark', target='spare')\n"
        "print(found, found.programs[0].status, tilusbuild.load('DoubleIt', where=marks, bias=0))\n"
    )
    done = run_python(code, status=None, cwd=tmp_path)
    assert done.stdout.split("\n")[0] == (
        "<Kernel mark spare> built <Kernel DoubleIt[bias=0] host>"
    ), done.stderr
