"""Header directories: what a compile sees besides the toolkit."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.closures import closure
from support.processes import run_to_end
from support.trees import snapshot
from tilusbuild.cache.disk import Disk, InputChangedError
from tilusbuild.cache.includes import parse_manifest, publish_include
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache
from tilusbuild.render.closure import Closure, Root
from tilusbuild.render.closure import map_layout as files_of
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.state.files import sha256_bytes


@pytest.fixture
def project(tmp_path: Path):
    """A project's header directory with names that are hard to write down."""
    directory = tmp_path / "project"
    (directory / "sub").mkdir(parents=True)
    (directory / "a.h").write_text('#include "sub/b c.h"\n')
    (directory / "sub/b c.h").write_text('#include "ü\\".h"\n#include "back\\slash.h"\n')
    (directory / "sub/back\\slash.h").write_text("// strange\n")
    return directory


@pytest.fixture
def headers(project) -> Closure:
    return closure('#include "a.h"\n', [Root("project", str(project))])


def test_a_header_directory_checks_with_standard_tools_and_is_written_once(cache: Tree, headers):
    path = Path(publish_include(cache, headers.digest, files_of(headers)))
    printed = run_to_end(["sha256sum", "MANIFEST"], status=None, cwd=path)
    assert printed.stdout.split()[0] == path.name == headers.digest
    subprocess.run(["sha256sum", "-c", "--strict", "MANIFEST"], cwd=path, check=True)
    assert (path / "project/sub/back\\slash.h").read_text() == "// strange\n"
    assert verify_cache(cache) == []
    before = snapshot(cache.root)
    publish_include(cache, headers.digest, files_of(headers))
    assert snapshot(cache.root) == before


def test_a_header_that_changes_during_the_read_is_noticed(cache: Tree, headers, project):
    (project / "a.h").write_text("// edited\n")
    with pytest.raises(InputChangedError, match=r"a\.h changed while the build ran"):
        publish_include(cache, headers.digest, files_of(headers))
    (project / "a.h").unlink()
    with pytest.raises(InputChangedError):
        publish_include(cache, headers.digest, files_of(headers))
    assert os.listdir(cache.path("include")) == []
    assert os.listdir(cache.path("staging")) == []


@pytest.mark.parametrize("damage", ["edited", "missing", "extra", "link", "gone"])
def test_a_damaged_directory_is_never_compiled_against(cache: Tree, headers, damage):
    path = Path(publish_include(cache, headers.digest, files_of(headers)))
    header = path / "project/a.h"
    if damage == "edited":
        header.write_text(header.read_text().replace("include", "exclude"))
    elif damage == "extra":
        (path / "project/new.h").write_text("")
    elif damage == "gone":
        subprocess.run(["rm", "-r", str(path)], check=True)
    else:
        header.unlink()
        if damage == "link":
            header.symlink_to("sub/b c.h")
    publish_include(cache, headers.digest, files_of(headers))
    assert '#include "sub/b c.h"' in header.read_text()
    assert verify_cache(cache) == []


def test_what_the_manifest_does_not_say_is_refused(cache: Tree):
    manifest = f"{sha256_bytes(b'x')}  a.h\n".encode()
    digest = sha256_bytes(manifest)
    with pytest.raises(ValueError, match="digest of this manifest"):
        publish_include(cache, "0" * 64, {"MANIFEST": manifest, "a.h": b"x"})
    with pytest.raises(ValueError, match="does not list these files"):
        publish_include(cache, digest, {"MANIFEST": manifest, "b.h": b"x"})
    for name in ("../a.h", "/a.h", "a//b.h", "./a.h"):
        evil = f"{sha256_bytes(b'x')}  {name}\n".encode()
        with pytest.raises(ValueError, match="names"):
            publish_include(cache, sha256_bytes(evil), {"MANIFEST": evil, name: b"x"})
    assert not os.path.exists(cache.root)


NAMES = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(NAMES.filter(lambda name: name not in (".", "..")), st.just("0" * 64)))
def test_any_names_survive_the_manifest(names):
    lines = []
    for name, digest in names.items():
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        mark = "\\" if escaped != name else ""
        lines.append(f"{mark}{digest}  {escaped}\n".encode())
    assert parse_manifest(b"".join(lines)) == names


@given(st.binary())
def test_any_bytes_are_a_manifest_or_broken(data):
    try:
        assert all(not name.startswith("/") for name in parse_manifest(data))
    except CorruptFileError:
        assert data


def closure_of(number: int, common: int) -> tuple[str, dict[str, bytes | str]]:
    """A header directory with a file of its own and `common` ones that every other has too."""
    contents = {f"c/{i}.h": f"// common {i}\n".encode() * 100 for i in range(common)}
    contents["own.h"] = f"// {number}\n".encode()
    lines = [f"{sha256_bytes(data)}  {name}\n" for name, data in sorted(contents.items())]
    manifest = "".join(lines).encode()
    return sha256_bytes(manifest), {"MANIFEST": manifest, **contents}


def test_large_directories_share_equal_files(cache: Tree):
    paths = [Path(publish_include(cache, *closure_of(number, 40))) for number in range(3)]
    for name in ("c/0.h", "c/39.h"):
        assert len({os.stat(path / name).st_ino for path in paths}) == 1
    assert len({os.stat(path / "own.h").st_ino for path in paths}) == 3
    cache.disk.remove_tree(str(paths[0]))
    assert verify_cache(cache) == []


@pytest.mark.parametrize(("common", "names"), [(15, 2), (14, 1)])
def test_a_directory_of_less_than_16_files_shares_none(cache: Tree, common: int, names: int):
    first, _ = (Path(publish_include(cache, *closure_of(number, common))) for number in range(2))
    assert os.stat(first / "c/0.h").st_nlink == names


def test_only_files_that_are_not_shared_are_synced(tmp_path):
    synced: list[str] = []

    class NotedDisk(Disk):
        def sync_files(self, paths: Sequence[str]) -> None:
            synced.extend(map(os.path.basename, paths))

    cache = Tree(str(tmp_path / "cache"), disk=NotedDisk())
    publish_include(cache, *closure_of(1, 40))
    assert "0.h" in synced
    synced.clear()
    publish_include(cache, *closure_of(2, 40))
    assert sorted(synced) == ["MANIFEST", "own.h"]


@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_shared_file_that_was_written_to_is_made_again_in_each_directory(cache: Tree, again):
    closures = [closure_of(number, 40) for number in range(3)]
    paths = [Path(publish_include(cache, *closure)) for closure in closures]
    with open(paths[2] / "c/7.h", "r+b") as file:
        file.write(b"!")
    (paths[2] / "c/8.h").unlink()
    (paths[2] / "c/8.h").symlink_to("../own.h")
    assert len(verify_cache(cache)) == 4
    order = [again, *({0, 1, 2} - {again})]
    for number in order:
        publish_include(cache, *closures[number])
    assert verify_cache(cache) == []
    assert len({os.stat(path / "c/7.h").st_ino for path in paths}) == 1


def test_a_directory_is_written_where_files_cannot_have_two_names(tmp_path):
    class OneName(Disk):
        def make_hard_link(self, existing: str, path: str) -> None:
            raise PermissionError(1, "Operation not permitted", path)

    cache = Tree(str(tmp_path / "cache"), disk=OneName())
    paths = [Path(publish_include(cache, *closure_of(number, 40))) for number in range(2)]
    assert os.stat(paths[0] / "c/0.h").st_nlink == 1
    assert verify_cache(cache) == []
