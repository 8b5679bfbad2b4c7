"""The check of an entry: a built one is right whatever its origin, and each change of it is not."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.marks import MARK
from support.project import Project, head
from tilusbuild.cache import layout
from tilusbuild.cache.checks import Content, FileFacts, Origin, check_directory, check_entry
from tilusbuild.runtime.sealed import seal_json, unseal_json
from tilusbuild.state.files import sha256_bytes

MANIFEST = f"""{head()}
[script.mark]
template = "mark.cu.j2"
kernel = "mark"
targets = ["cpu"]
args = {{ x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i64" }}
params = {{ variant = [1] }}
include-dirs = ["include"]
"""
Files = dict[str, Content]


class Parts:
    """An entry in memory, to be changed."""

    def __init__(self, program: str, files: Files, directories: dict[str, Files]) -> None:
        self.program = program
        self.files = dict(files)
        self.directories = {digest: dict(members) for digest, members in directories.items()}

    def change_meta(self, **values: Any) -> None:
        meta = {**self.meta, **values}
        self.files[layout.META] = seal_json(meta)

    @property
    def meta(self) -> dict[str, Any]:
        data = self.files[layout.META]
        assert isinstance(data, bytes)
        return unseal_json(data)

    def put(self, name: str, data: bytes) -> None:
        """Add a file, which meta.json lists."""
        self.files[name] = data
        facts = {"size": len(data), "sha256": sha256_bytes(data)}
        self.change_meta(files={**self.meta["files"], name: facts})

    def remove(self, name: str) -> None:
        del self.files[name]
        self.change_meta(files={n: f for n, f in self.meta["files"].items() if n != name})

    def problems(self, origin: Origin) -> list[str]:
        if origin is not Origin.REMOTE:
            return list(map(str, check_entry(self.program, self.files, origin=origin)))
        for digest, members in self.directories.items():
            if directory_problems := check_directory(digest, members):
                return list(map(str, directory_problems))
        manifests: Any = {d: members["MANIFEST"] for d, members in self.directories.items()}
        return list(map(str, check_entry(self.program, self.files, manifests, origin=origin)))


def contents(directory: Path) -> Files:
    names = layout.list_files_below(str(directory))
    return {name: (directory / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """An entry with a header, a launcher and a library, as a build made it."""
    source = '#include "ten.h"\n' + MARK
    files = {"tilus.toml": MANIFEST, "mark.cu.j2": source, "include/ten.h": "#define TEN 10\n"}
    project = Project.built(tmp_path_factory.mktemp("entry"), files)
    ((program, path),) = project.programs.items()
    directories = {
        directory.name: contents(directory) for directory in (project.cache / "include").iterdir()
    }
    assert len(directories) == 2
    return Parts(program, contents(path), directories)


@pytest.fixture
def parts(built: Parts) -> Parts:
    return Parts(built.program, built.files, built.directories)


@pytest.mark.parametrize("origin", Origin)
def test_what_a_build_made_is_right(parts: Parts, origin: Origin) -> None:
    assert parts.problems(origin) == []


def test_contents_may_be_hashed_before(parts: Parts) -> None:
    data = parts.files["module/source.cu"]
    assert isinstance(data, bytes)
    parts.files["module/source.cu"] = FileFacts(len(data), sha256_bytes(data))
    assert parts.problems(Origin.REMOTE) == []
    parts.files["module/source.cu"] = FileFacts(len(data), "0" * 64)
    assert parts.problems(Origin.CACHE) == ["module/source.cu: was modified"]


def test_what_has_to_be_read_is_given_as_bytes(parts: Parts) -> None:
    facts = parts.meta["files"]["module/lib.so"]
    parts.files["module/lib.so"] = FileFacts(facts["size"], facts["sha256"])
    assert parts.problems(Origin.CACHE) == []
    with pytest.raises(ValueError, match=r"module/lib\.so is to be given as bytes"):
        parts.problems(Origin.REMOTE)


def move_boundary(parts: Parts) -> None:
    """Together they have the program's hash all the same."""
    program_txt, options_txt = (parts.files[f"{name}.txt"] for name in ("program", "options"))
    assert isinstance(program_txt, bytes)
    assert isinstance(options_txt, bytes)
    parts.put("program.txt", program_txt[:-9])
    parts.put("options.txt", program_txt[-9:] + options_txt)


CHANGES: dict[str, tuple[str, Callable[[Parts], Any]]] = {
    "no meta.json": ("CRP", lambda p: p.files.pop("meta.json")),
    "damaged meta.json": ("CRP", lambda p: p.files.update({"meta.json": b"{}"})),
    "of another program": ("CRP", lambda p: p.change_meta(program="0" * 64)),
    "another key": ("R", lambda p: p.change_meta(more=1)),
    "a number without end": ("R", lambda p: p.change_meta(dynamic_smem=10**400)),
    "not listed": ("CRP", lambda p: p.files.update({"module/x": b""})),
    "removed": ("CRP", lambda p: p.files.pop("module/lib.so")),
    "longer": ("CRP", lambda p: p.files.update({"module/lib.so": b"x"})),
    "modified": ("CRP", lambda p: p.files.update({"module/source.cu": b"x"})),
    "other texts": ("CRP", lambda p: p.put("program.txt", b"tilusbuild program 1\n")),
    "another file": ("RP", lambda p: p.put("module/evil.sh", b"")),
    "a file outside": ("CRP", lambda p: p.put("../x", b"")),
    "another source": ("RP", lambda p: p.put("module/source.cu", b"int x;\n")),
    "no source": ("R", lambda p: p.remove("module/source.cu")),
    "no compile.sh": ("R", lambda p: p.remove("module/compile.sh")),
    "texts that are cut elsewhere": ("CRP", lambda p: move_boundary(p)),
    "another library": ("R", lambda p: p.put("module/lib.so", b"\x7fELF")),
    "a fatbin": ("R", lambda p: p.put("module/lib.so", b"\x50\xed\x55\xba\1\0\x10\0" + bytes(8))),
    "other kernels": ("R", lambda p: p.change_meta(kernels={"f": {"sm_90": {"registers": 1}}})),
    "other code": ("R", lambda p: p.change_meta(images=[{"kind": "ptx", "arch": "sm_90"}])),
    "it failed": ("R", lambda p: p.change_meta(status="failed")),
    "no headers": ("R", lambda p: p.directories.clear()),
    "another directory": ("R", lambda p: p.put("module/compile.sh", b"include/" + b"0" * 64)),
    "an edited header": ("R", lambda p: p.directories.update(
        {d: m | dict.fromkeys(m.keys() - {"MANIFEST"}, b"") for d, m in p.directories.items()}
    )),
    "one header more": ("R", lambda p: [m.update(x=b"") for m in p.directories.values()]),
    "no manifest": ("R", lambda p: [m.pop("MANIFEST") for m in p.directories.values()]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(parts: Parts, name: str) -> None:
    noticed, change = CHANGES[name]
    change(parts)
    for origin in Origin:
        assert bool(parts.problems(origin)) == (origin.name[0] in noticed), origin


def test_a_directory_that_no_text_names_is_refused(parts: Parts) -> None:
    """It is whole, and compile.sh names it."""
    manifest = f"{sha256_bytes(b'x')}  evil.h\n".encode()
    digest = sha256_bytes(manifest)
    parts.directories[digest] = {"MANIFEST": manifest, "evil.h": b"x"}
    script = parts.files["module/compile.sh"]
    assert isinstance(script, bytes)
    parts.put("module/compile.sh", script + f"# include/{digest}\n".encode())
    (problem,) = parts.problems(Origin.REMOTE)
    assert problem.endswith("is not a directory that it can have")


def test_no_byte_makes_it_raise(built: Parts) -> None:
    """Whatever the files are: a sealed meta.json of odd values, texts and directories of noise."""
    random = Random(46)
    odd: list[Any] = [None, 7, -1, "", "x" * 70_000, [], {}, [[[]]], {"a": {"b": 2**70}}, 1.5, True]
    for _ in range(300):
        parts = Parts(built.program, built.files, built.directories)
        key = random.choice([*parts.meta, "files/x", "product"])
        if random.random() < 0.5:
            parts.change_meta(**{key: random.choice(odd)})
        else:
            texts = [b"a = 1\n[generated]\n", b"\xff\x00", b"[headers]\n..=1\n", b""]
            program_txt, options_txt = random.choice(texts), random.choice(texts)
            parts.program = sha256_bytes(program_txt + options_txt)
            parts.change_meta(program=parts.program)
            parts.put("program.txt", program_txt)
            parts.put("options.txt", options_txt)
        for origin in Origin:
            parts.problems(origin)
