"""Programs, headers and scripts to publish in a cache."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT
from tilusbuild.cache.disk import Disk
from tilusbuild.cache.entries import Entry, Stage, lookup_entry
from tilusbuild.cache.includes import publish_include
from tilusbuild.cache.index import record_build
from tilusbuild.cache.scripts import ScriptRecord, publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.state.files import sha256_bytes, sha256_text

MANIFEST = os.fspath(ROOT / "tilus.toml.example")
"""Of the project that built a sample: it exists, else `gc` would take the project for gone."""
OPTIONS = "tilusbuild options 1\npipeline = kernel\n"


@dataclass(frozen=True)
class Sample:
    """Makes the things that tests publish. Equal names make equal things."""

    cache: Tree

    @staticmethod
    def program_txt(name: str) -> str:
        return f"tilusbuild program 1\nscript = {name!r}\n"

    def hash(self, name: str) -> str:
        return sha256_text(self.program_txt(name) + OPTIONS)

    def program(
        self, name: str, status: str = "built", *, include: str = "", size: int = 100
    ) -> Entry:
        stage = Stage(self.cache)
        module = os.path.join(stage.path, "module")
        os.mkdir(module)
        files = {
            "source.cu": "// " + name,
            "compile.sh": f'ln -s "../../../include/{include}"\n' if include else "true\n",
            "nvcc_output.txt": f"log of {name}\n",
            **({"lib.so": "x" * size} if status == "built" else {}),
        }
        for file, text in files.items():
            Path(module, file).write_text(text)
        meta = {"status": status} | ({} if status == "built" else {"reason": f"{name} is wrong"})
        return stage.publish_program(self.hash(name), self.program_txt(name), OPTIONS, meta)

    def entry(self, name: str) -> Entry:
        """The entry that the cache has of a program."""
        cache_entry = lookup_entry(self.cache, self.hash(name))
        assert cache_entry is not None, f"there is no entry of {name}"
        return cache_entry

    def include(self, **headers: str) -> str:
        files = {f"project/{name}.h": text.encode() for name, text in headers.items()}
        manifest = "".join(f"{sha256_bytes(d)}  {n}\n" for n, d in sorted(files.items())).encode()
        digest = sha256_bytes(manifest)
        publish_include(self.cache, digest, {**files, "MANIFEST": manifest})
        return digest

    def record(self, names: Sequence[str], directory: str = "matmul") -> ScriptRecord:
        lines = [f"{index} {self.hash(name)}\n" for index, name in enumerate(names)]
        text = 'tilusbuild script 1\nscript = "Matmul"\ntarget = "h100"\n\n[programs]\n'
        return ScriptRecord(
            directory, text + "".join(lines), columns=("index", "name"), rows=list(enumerate(names))
        )

    def built(self, *names: str, include: str = "") -> tuple[ScriptRecord, Path]:
        """The script that a build of a project made of programs, and its directory."""
        for name in names:
            self.program(name, include=include)
        record = self.record(names)
        path = publish_script(self.cache, record)
        record_build(self.cache, MANIFEST, "p", [(record.directory, record.hash)])
        return record, Path(path)


def sample_at(root: str, disk: Disk | None = None) -> Sample:
    """Samples for a cache at a path, written through a disk."""
    return Sample(Tree(root, disk))
