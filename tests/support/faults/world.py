"""One world for trials, in memory: a toolkit, a project with its caches, and a server for commands.

Every trial starts from a copy of a *base*, a state of cache, home and output that was made once:

    bare      nothing at all
    seeded    what a builder remembers of its compilers, and nothing built
    built     the first edition of the project, built
    garbage   an edition before it, too, that nothing needs any more
    host      as seeded, for the edition for the cpu
    on-host   that edition, built

`library` is a second project, whose cache is merged and whose packages are installed. Paths are the
same in each trial, so that what is published can be compared byte for byte with a clean build's.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import scale
from support.faults import injector
from support.faults.commands import Ended, Server
from support.nvcc_journal import UNHELD, make_host, make_toolkit, read_journal
from support.trees import published

Tree = Mapping[str, bytes | str]
Entries = Mapping[str, Tree]
"""Files by the names of the entries that have them."""


@dataclass(frozen=True)
class Edition:
    """A state of the project's sources."""

    schedules: int = 2
    note: str = ""
    other: str = ""
    """A note in the template of a second script, which there is then."""
    host: bool = False
    """It is for the cpu: the machine's own g++ compiles it, in the sandbox, and it can be tuned."""

    def write(self, directory: Path) -> None:
        """Write it where it is not there already."""
        scripts = [scale.script(target="gpu", schedules=self.schedules)]
        if self.host:
            scripts = [scale.script(schedules=self.schedules, more=_TUNE)]
        if self.other:
            scripts.append(scale.script("other", target="gpu", schedules=1))
        manifest = scale.manifest(*scripts, build="timeout = '5s'")
        files = {"tilus.toml": manifest, "kernels/scale.cu.j2": _template(self.note)}
        if self.host:
            files["ref.py"] = scale.REFERENCE
        if self.other:
            files["kernels/other.cu.j2"] = _template(self.other)
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(text)
            elif path.read_text() != text:
                _overwrite(path, text.encode())


def _overwrite(path: Path, data: bytes) -> None:
    """Write a file anew in its place. With as many bytes as before, a build that reads meanwhile
    has the old text or the new one: emptied first, it would be a third edition."""
    with path.open("r+b", buffering=0) as file:
        file.write(data)
        file.truncate(len(data))


_TUNE = """
[script.scale.tune]
ref = "ref.py:scale"
sizes = [{ n = 100 }]
"""


def _template(note: str) -> str:
    return scale.TEMPLATE + (f"// {note}\n" if note else "")


FIRST = Edition()
MORE = Edition(schedules=3)
OLD = Edition(note="as it was before")
EDITIONS = (FIRST, MORE, OLD)
HOST = Edition(host=True)
BEFORE = Edition(other="1")
"""Of the editions for trials that edit two scripts; the notes are of the same length. The sources
of all programs differ, as equal ones are compiled once."""
AFTER = Edition(note="2", other="3")
BETWEEN = Edition(note="2", other="1")


def make_equipment(directory: Path) -> Path:
    """Build what all worlds share: a toolkit, a host compiler, the injector."""
    directory.mkdir(parents=True)
    make_toolkit(str(directory / "toolkit"))
    make_host(str(directory / "toolkit/host"))
    (directory / "toolkit/misbehave").mkdir()
    injector.build(str(directory))
    return directory


class World:
    """A directory of its own, in which one trial at a time runs."""

    def __init__(self, directory: Path, equipment: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.room = directory / "room"
        """Everything that a trial may write; a disk can be mounted here."""
        self.project = self.room / "project"
        self.cache = self.project / ".cache"
        self.home = self.room / "home"
        self.temporary = self.room / "tmp"
        self.output = self.room / "out"
        self.library = directory / "library"
        self.toolkit = directory / "toolkit"
        self._bases = directory / "bases"
        shutil.copytree(equipment / "toolkit", self.toolkit)
        self.nvcc = str(self.toolkit / "bin/nvcc")
        self.page = injector.Page(str(directory / "page"))
        self.injection = injector.environment(str(equipment / "injector.so"), self.page)
        self.server = Server(self.injection, directory / "said")
        self.roots = [str(p) for p in (self.cache, self.home, self.temporary, self.output)]
        self._hash_of: dict[str, str] = {}
        self._on_host = False
        self.references: dict[Edition, Entries] = {}
        """What a clean build of each edition publishes."""
        self.forms: dict[str, list[Tree]] = {}
        """Every form that an entry may have: as it is built, and as packages bring it."""
        self.packages: dict[str, Tree] = {}
        """What `package_words` leave in the output, by format."""
        self.calls: dict[str, list[str]] = {}
        """The calls of scenarios in which nothing fails, for `groups.calls`."""
        self._made = False

    def close(self) -> None:
        self.server.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # What a trial starts from.

    def reset(self, base: str, edition: Edition = FIRST) -> None:
        """Go back to a base, with the sources of an edition and an obedient compiler."""
        self._make()
        for path in (self.cache, self.home, self.temporary, self.output):
            if path.exists():
                shutil.rmtree(path)
            path.parent.mkdir(parents=True, exist_ok=True)
        for name, path in (("cache", self.cache), ("home", self.home)):
            saved = self._bases / base / name
            if saved.exists():
                shutil.copytree(saved, path, symlinks=True)
        for path in (self.home, self.temporary, self.output):
            path.mkdir(exist_ok=True)
        edition.write(self.project)
        self._on_host = edition.host
        self.obey()
        self.forget_journal()

    def obey(self) -> None:
        """Let compilers and host tools go well from now on."""
        for directory in ("misbehave", "host/misbehave"):
            for path in (self.toolkit / directory).iterdir():
                path.unlink()

    def forget_journal(self) -> None:
        for name in ("journal", "spans"):
            (self.toolkit / name).unlink(missing_ok=True)

    def journal(self) -> list[str]:
        """The programs that compilers were started for since the last reset, by the hashes that
        they have in a clean build; the key where they have none."""
        return [self._hash_of.get(key, key) for _, key, _ in read_journal(self.nvcc)]

    def empty(self) -> None:
        """Have nothing in the room, for trials with a project of their own."""
        shutil.rmtree(self.room, ignore_errors=True)
        for path in (self.project, self.home, self.temporary):
            path.mkdir(parents=True)
        self._on_host = False
        self.obey()

    def _make(self) -> None:
        if not self._made:
            self._made = True
            self._make_bases()
            self._make_references()

    def _save(self, base: str) -> None:
        for name, path in (("cache", self.cache), ("home", self.home)):
            if path.exists():
                shutil.copytree(path, self._bases / base / name, symlinks=True)

    def _make_bases(self) -> None:
        self.reset("bare")
        self.must("build", "-j1")
        self._save("built")
        self._unbuild()
        self._save("seeded")
        self.reset("bare", HOST)
        self.must("build", "-j1")
        self._save("on-host")
        self._unbuild()
        self._save("host")
        self.reset("seeded", OLD)
        self.must("build", "-j1")
        FIRST.write(self.project)
        self.must("build", "-j1")
        self._save("garbage")
        MORE.write(self.library)
        self.must("build", "-j1", cwd=self.library)
        for kind in WRITTEN:
            self.must("package", "--format", kind, "-o", f"dist-{kind}", cwd=self.library)

    def _unbuild(self) -> None:
        states = (f"state/{name}" for name in ("plans", "launchers", "code"))
        for name in ("programs", "scripts", "include", *states):
            shutil.rmtree(self.cache / name, ignore_errors=True)
        for name in ("index.json", "state/published", "state/history"):
            (self.cache / name).unlink(missing_ok=True)

    def _make_references(self) -> None:
        for edition in (*EDITIONS, BEFORE, BETWEEN, AFTER):
            self.reset("seeded", edition)
            out = self.must("build", "--json", "-j1").out
            events = [json.loads(line) for line in out.splitlines()]
            started = [event["hash"] for event in events if event["event"] == "started"]
            keys = [key for _, key, _ in read_journal(self.nvcc)]
            self._hash_of.update(zip(keys, started, strict=True))
            self.references[edition] = self._learn()
        self.reset("on-host", HOST)
        self.references[HOST] = self._learn()
        for kind in FORMATS:
            self.reset("seeded", MORE)
            self.must("install", str(self.package(kind)))
            self._learn()
        for kind in WRITTEN:
            self.reset("built")
            self.must(*self.package_words(kind))
            self.packages[kind] = below(self.output)
        self.reset("built", MORE)
        self.must("cache", "merge", str(self.library / ".cache"))
        self._learn()
        self.must("build", "-j1")
        self._learn()

    def _learn(self) -> Entries:
        """Take the entries that are there now for right ones."""
        files_by_entry = entries(self.cache)
        for name, files in files_by_entry.items():
            known = self.forms.setdefault(name, [])
            if files not in known:
                known.append(files)
        return files_by_entry

    def key_of(self, program: str) -> str:
        """The journal's key of a program."""
        return next(key for key, program_hash in self._hash_of.items() if program_hash == program)

    def programs_of(self, edition: Edition) -> set[str]:
        """The hashes of its programs."""
        self._make()
        return programs_in(self.references[edition])

    def whole_programs(self, files_by_entry: Entries, *, logs: bool = True) -> set[str]:
        """The programs among entries that are as they should be; without `logs`, but for what the
        tools said."""
        seen = without_log if not logs else lambda files: files
        return {
            name.partition("/")[2]
            for name, files in files_by_entry.items()
            if name.startswith("programs/")
            and seen(files) in [seen(known) for known in self.forms.get(name, [])]
        }

    def package(self, kind: str) -> Path:
        """The library, packaged."""
        self._make()
        (package,) = (self.library / f"dist-{kind}").iterdir()
        return package

    def package_words(self, kind: str) -> tuple[str, ...]:
        """The command that packages the project into the output."""
        return ("package", "--format", kind, "-o", str(self.output / "dist"))

    # Commands.

    def environment(self, *, join: bool = False) -> dict[str, str]:
        """The whole environment of a command."""
        path = "/usr/local/bin:/usr/bin:/bin"
        stand_ins = {"PATH": f"{self.toolkit}/host:{path}", **UNHELD}
        variables = {
            "PATH": path,
            "CUDA_HOME": str(self.toolkit),
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "LANG": "C.UTF-8",
            "LANGUAGE": "C",  # or argparse looks for a translation of each of its words
            "OPENBLAS_NUM_THREADS": "1",
            **({} if self._on_host else stand_ins),
        }
        return {**variables, **self.injection, "FAULTS_JOIN": "1"} if join else variables

    def run(self, *words: str, cwd: Path | None = None, join: bool = False, **how: Any) -> Ended:
        """Run a command to its end; `join` lets the page's faults reach it."""
        variables = self.environment(join=join)
        return self.server.run(words, cwd or self.project, variables, join=join, **how)

    def must(
        self, *words: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Ended:
        """Run a command that has to succeed, in the server itself: it makes what trials start
        from."""
        ended = self.server.warm(words, cwd or self.project, environment or self.environment())
        assert ended.status == 0, (words, ended)
        return ended

    def start_sleeper(self) -> int:
        """Start a process that a command could have left behind; returns its number."""
        words = ("watch",)
        return self.server.start(words, self.library, self.environment()).pid

    def build(self) -> tuple[Ended, dict[str, Any]]:
        """An ordinary build, and its summary."""
        ended = self.run("build", "--json", "-j2")
        lines = ended.out.splitlines()
        summary = json.loads(lines[-1]) if lines and lines[-1].endswith("}") else {}
        return ended, summary


FORMATS: Sequence[str] = ("dir", "tar.zst", "oci")
WRITTEN: Sequence[str] = (*FORMATS, "wheel")
"""A wheel is never installed by us."""


def entries(cache: Path) -> Entries:
    """What a cache publishes: the files of each program, script and directory of headers."""
    files_by_entry: dict[str, dict[str, bytes | str]] = {}
    for path, data in published(cache).items():
        parts = path.split("/")
        depth = 3 if parts[0] == "scripts" else 2
        files_by_entry.setdefault("/".join(parts[:depth]), {})["/".join(parts[depth:])] = data
    return files_by_entry


def programs_in(files_by_entry: Entries) -> set[str]:
    """The hashes of the programs among entries, whole or not."""
    return {name.partition("/")[2] for name in files_by_entry if name.startswith("programs/")}


def without_log(program: Tree) -> Tree:
    """A program's files without those in which there is what the tools said."""
    log_paths = ("meta.json", "module/nvcc_output.txt")
    return {path: data for path, data in program.items() if path not in log_paths}


def below(root: Path) -> Tree:
    """Everything below a directory by its relative name; what is not a file is ""."""
    content_by_name: dict[str, bytes | str] = {}
    for where, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(where, name)
            regular = path.is_file() and not path.is_symlink()
            content_by_name[str(path.relative_to(root))] = path.read_bytes() if regular else ""
    return content_by_name
