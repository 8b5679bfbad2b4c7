"""The place where a walk happens: a project with its cache, commands on it, and a clean double.

    room/project, home, tmp      what the walk changes and builds
    room/remote                  a remote cache, which builds use at times
    clean/project, home          the same sources, built into a new cache: what is right

Everything is compared by content. A clean build is made once for each state of the sources, words
of the command and environment, and only its digests are kept.
"""

import hashlib
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from support.faults.commands import Ended, Running, Server
from support.faults.oracle import of_command
from support.own_gcc import install_gcc
from support.walk.sources import LINK, Sources, header_text

Entry = dict[str, str]
"""The files of an entry of the cache, by their digests; links by where they lead."""
Entries = dict[str, Entry]
PATIENCE = 120.0
_MEASURED = ("dispatch/", "latency/", "dispatch_table.")
_OF_TOOLS = ("CACHEDIR.TAG", "state/digests", "state/launchers")
"""What the first clean build remembers of compilers and launchers, which no step of a walk changes:
half of the time of a clean build."""
SITES = ("a", "b")
"""Directories of Python packages, each with `headers`."""
GCC_OPTIONS = {"plain": "", "other": "-DOTHER"}
"""The installations of g++, by the options in their `specs`."""
OWN_GCC = "gcc/bin"
_PATH = os.environ.get("PATH", os.defpath)


class FoundError(AssertionError):
    """Something is wrong."""


@dataclass
class Surroundings:
    """What commands are run with, besides the project."""

    variables: dict[str, str] = field(default_factory=dict)
    path: str = ""
    """A directory of the room in front of PATH."""
    umask: int = 0o022
    where: str = "."
    """The directory to start in, relative to the project; `link` is a symbolic link to it."""
    remote: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a build says and leaves: what must be as in a clean one."""

    status: int
    said: str
    """The state of each instance, and each failure's message; or the mistakes of the manifest."""
    scripts: tuple[tuple[str, str], ...]
    """What the index says of the project."""
    entries: Entries
    output: Entry
    """Files that the build writes into the project."""


class World:
    """One project's life."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.room, self.clean = directory / "room", directory / "clean"
        self.project = self.room / "project"
        self.cache = self.project / ".cache"
        for part in ("project", "home", "tmp", "remote", "links", "wrapped"):
            (self.room / part).mkdir(parents=True)
        for part in ("home", "tmp"):
            (self.clean / part).mkdir(parents=True)
        for number, site in enumerate(SITES):
            for root in (self.room, self.clean):
                _write_package(root / "sites" / site, number)
        for name, options in GCC_OPTIONS.items():
            install_gcc(self.room / "compilers" / name, options)
        self.turn_gcc("plain")
        (self.room / "link").symlink_to("project")
        for tool in ("g++", "gcc"):
            (self.room / "links" / tool).symlink_to(f"/usr/bin/{tool}")
        self.wrap("first")
        self.around = Surroundings()
        self.installed = False
        """Entries may be as packages bring them: without sources and headers."""
        self.damaged: Entries = {}
        """What was damaged and has not been made again, as it was."""
        self._server = Server({}, directory / "said")
        self._outcomes: dict[str, Outcome] = {}
        self._packages: dict[str, Entry] = {}
        self._digests: dict[tuple[int, ...], str] = {}
        self.counts = Counter[str]()

    def close(self) -> None:
        self._server.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def wrap(self, note: str) -> None:
        """Write the scripts that stand for the compilers in `wrapped`."""
        for tool in ("g++", "gcc"):
            path = self.room / "wrapped" / tool
            path.write_text(f'#!/bin/sh\n# {note}\nexec /usr/bin/{tool} "$@"\n')
            path.chmod(0o755)

    def turn_gcc(self, name: str) -> None:
        """Have the link `gcc` lead to one of the installations of g++, whose drivers are equal."""
        link = self.room / "gcc"
        link.unlink(missing_ok=True)
        link.symlink_to(f"compilers/{name}")

    # Commands.

    def start(self, *words: str) -> Running:
        """Start a command in the project."""
        self.counts["commands"] += 1
        around, project = self.around, self.project
        if around.where == "link":
            project = self.room / "link"
        elif around.where != "." and (self.project / around.where).is_dir():
            project = self.project / around.where
            words = ("-C", str(self.project), *words)
        remote = {}
        if around.remote:
            remote = {
                "TILUSBUILD_REMOTE_CACHE": f"file://{self.room}/remote",
                "TILUSBUILD_REMOTE_WRITE": "1",
            }
        variables = {**self._environment(self.room), **remote}
        return self._server.start(words, project, variables, umask=around.umask)

    def wait(self, running: Running, *, signalled: bool = False) -> Ended:
        """Wait for a command to end; it must end as commands may."""
        return self._sound(self._server.wait(running, PATIENCE), signalled=signalled)

    def run(self, *words: str, status: Sequence[int] | None = None) -> Ended:
        """Run a command to its end, with one of these statuses."""
        ended = self.wait(self.start(*words))
        if status is not None and ended.status not in status:
            raise FoundError(f"{' '.join(words)} ends {ended.status}: {_tail(ended)}")
        return ended

    def _sound(self, ended: Ended, *, signalled: bool) -> Ended:
        for finding in of_command(ended, killed=signalled, stopped=signalled):
            raise FoundError(f"{finding.column}: {_tail(ended)}")
        if ended.status not in (0, 1, 2) and not signalled:
            raise FoundError(f"status {ended.status}: {_tail(ended)}")
        return ended

    def send(self, running: Running, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(running.pid, number)

    def settle(self) -> None:
        """Wait for what a command left running, which is to end soon."""
        if processes := self._server.settle(20.0):
            raise FoundError(f"processes are left over: {processes}")

    def _environment(self, root: Path) -> dict[str, str]:
        front = f"{self.room / self.around.path}:" if self.around.path else ""
        return {
            "PATH": f"{front}{_PATH}",
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",
            **{
                name: value.replace("@", str(root)) for name, value in self.around.variables.items()
            },
        }

    # Files.

    def write(self, texts: dict[str, str], chance: Random | None = None) -> None:
        """Have the project's files be these; `chance` says how they are written."""
        _write(self.project, texts, chance)

    def entries(self) -> Entries:
        """What is published in the cache."""
        return self._entries(self.cache)

    def _entries(self, cache: Path) -> Entries:
        entries: Entries = {}
        for top, depth in (("programs", 1), ("scripts", 2), ("include", 1)):
            for entry in sorted((cache / top).glob("/".join("*" * depth))):
                files = self.below(entry)
                name = str(entry.relative_to(cache))
                entries[name] = {"": "not a directory"} if not entry.is_dir() else files
        return entries

    def below(self, root: Path) -> Entry:
        """The digests of all files below a directory."""
        digest_by_path = {}
        for where, directories, files in os.walk(root):
            for name in (*directories, *files):
                path = os.path.join(where, name)
                key = os.path.relpath(path, root)
                if os.path.islink(path):
                    digest_by_path[key] = "-> " + os.readlink(path)
                elif name in files:
                    digest_by_path[key] = self._digest(path)
        return digest_by_path

    def _digest(self, path: str) -> str:
        stat = os.stat(path)
        key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if key not in self._digests or time.time() - stat.st_ctime < 1:
            with open(path, "rb") as file:
                self._digests[key] = hashlib.sha256(file.read()).hexdigest()
        return self._digests[key]

    # Builds, and what is right.

    def outcome(self, ended: Ended, project: Path | None = None) -> Outcome:
        """What a build has made."""
        project = project or self.project
        scripts: tuple[tuple[str, str], ...] = ()
        with suppress(OSError, ValueError):
            index = json.loads((project / ".cache/index.json").read_text())
            (of_project,) = (
                record for name, record in index["projects"].items() if name.endswith("/tilus.toml")
            )
            scripts = tuple((name, key) for name, key in of_project["scripts"])
        entries = self._entries(project / ".cache")
        summary = _said(ended.out, project)
        return Outcome(ended.status, summary, scripts, entries, self.below(project / "out"))

    def right(self, sources: Sources, words: Sequence[str]) -> Outcome:
        """What the same build of these sources makes in a new cache."""
        around = self.around
        key = repr((sources.key(), words, around.variables, around.path))
        key += (self.room / "wrapped/g++").read_text() if around.path == "wrapped" else ""
        has_own_gcc = around.path == OWN_GCC
        key += os.readlink(self.room / "gcc") if has_own_gcc else ""
        remembered = () if has_own_gcc else _OF_TOOLS
        if key not in self._outcomes:
            self.counts["clean"] += 1
            project = self.clean / "project"
            shutil.rmtree(project, ignore_errors=True)
            _write(project, sources.texts(), None)
            for name in remembered:
                _copy(self.clean / name, project / ".cache" / name)
            ended = self._server.run(
                words, project, self._environment(self.clean), seconds=PATIENCE
            )
            self._sound(ended, signalled=False)
            self._outcomes[key] = self.outcome(ended, project)
            for name in remembered:
                if not (self.clean / name).exists():
                    _copy(project / ".cache" / name, self.clean / name)
        return self._outcomes[key]

    def packaged(self, sources: Sources) -> Entry:
        """The package of a clean build of these sources."""
        key = repr((sources.key(), "package", self.around))
        if key not in self._packages:
            self._outcomes.clear()
            words = ("build", "--json", "-k", "0")
            self.right(sources, words)
            output_directory = self.clean / "made"
            shutil.rmtree(output_directory, ignore_errors=True)
            package = ("package", "--format", "dir", "-o", str(output_directory))
            variables = self._environment(self.clean)
            ended = self._server.run(package, self.clean / "project", variables, seconds=PATIENCE)
            if self._sound(ended, signalled=False).status:
                raise FoundError(f"no package of a clean build: {_tail(ended)}")
            (of_project,) = output_directory.iterdir()
            self._packages[key] = self.below(of_project)
        return self._packages[key]

    def compare(self, sources: Sources, words: Sequence[str], ended: Ended) -> None:
        """Raise `FoundError` where a build's end is other than a clean one's."""
        self.counts[f"builds that end {ended.status}"] += 1
        right, real = self.right(sources, words), self.outcome(ended)
        if ended.status != right.status:
            statuses = f"status {ended.status}, clean {right.status}"
            raise FoundError(f"{statuses}:\n{right.said}\n{_tail(ended)}")
        if real.said != right.said:
            raise FoundError(f"says\n{real.said}\nand a clean build\n{right.said}")
        is_complete = (
            not [word for word in words[1:] if not word.startswith("-")] and "-t" not in words
        )
        if ended.status == 2:
            return
        if (
            (real.scripts != right.scripts)
            if is_complete
            else (set(right.scripts) - set(real.scripts))
        ):
            raise FoundError(f"the index has {real.scripts}, clean {right.scripts}")
        for name, files in right.entries.items():
            self._compare_entry(name, files, real.entries.get(name))
        different = {k for k, v in right.output.items() if real.output.get(k) != v}
        if different and is_complete:
            raise FoundError(f"of the output, other: {different}")

    def _compare_entry(self, name: str, right: Entry, real: Entry | None) -> None:
        if real is None:
            if self.installed and name.startswith("include/"):
                return
            raise FoundError(f"{name} is missing: {sorted(right)}")
        names = {
            path
            for path in right.keys() | real.keys()
            if right.get(path) != real.get(path) and not path.startswith(_MEASURED)
        }
        if self.installed:
            names = {path for path in names if path in real and path != "meta.json"}
        if names:
            raise FoundError(f"{name} is other in {sorted(names)}")

    def keep(self, before: Entries, *, may_go: bool = False) -> None:
        """Raise `FoundError` where something of before is lost or other than it was."""
        now = self.entries()
        damaged = set(self.damaged)
        for name, was in sorted(self.damaged.items()):  # scripts come after their programs
            if _fixed(now.get(name), was) and not any(
                linked_name in self.damaged for linked_name in linked(was)
            ):
                del self.damaged[name]
        for name, was in before.items():
            if name in damaged or (may_go and name not in now):
                continue
            if name not in now:
                raise FoundError(f"{name} is lost")
            files = {k: v for k, v in now[name].items() if not k.startswith(_MEASURED)}
            if not _fixed(files, was):
                other = {k for k in was.keys() | files.keys() if was.get(k) != files.get(k)}
                raise FoundError(f"{name} has changed in {sorted(other)}")
            for path, digest in was.items():
                if path.startswith("latency/") and path not in now[name]:
                    raise FoundError(f"{name} has lost what was measured: {path} {digest}")


def linked(entry: Entry) -> Iterator[str]:
    """The programs that the links of a script lead to."""
    for digest in entry.values():
        if digest.startswith("-> "):
            yield f"programs/{digest.rpartition('/')[2]}"


def _fixed(now: Entry | None, was: Entry) -> bool:
    """Whether an entry has all that it had; headers may have come back."""
    if now is None:
        return False
    kept = {path: digest for path, digest in was.items() if not path.startswith(_MEASURED)}
    return kept == {path: digest for path, digest in now.items() if not path.startswith(_MEASURED)}


def _write(project: Path, texts: dict[str, str], chance: Random | None) -> None:
    tops = ("kernels", "include", "other", "src")
    old = [path for top in tops for path in sorted((project / top).rglob("*"))]
    for path in old:
        if not path.is_dir() and str(path.relative_to(project)) not in texts:
            path.unlink()
    for name, text in sorted(texts.items()):
        path = project / name
        if text.startswith(LINK):
            _write_link(path, os.path.relpath(project / text.removeprefix(LINK), path.parent))
            continue
        if path.is_symlink():
            path.unlink()
        if path.is_file() and path.read_text() == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        ways = ["in place", "replaced", "renamed", "set back"]
        way = chance.choice(ways) if chance else "in place"
        times = path.stat() if path.exists() else None
        if way == "renamed":
            aside = path.with_name(".aside")
            aside.write_text(text)
            os.rename(aside, path)
        else:
            if way == "replaced":
                path.unlink(missing_ok=True)
            path.write_text(text)
        if way == "set back" and times is not None:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for path in reversed(old):
        if path.is_dir() and chance and chance.random() < 0.5:
            with suppress(OSError):
                path.rmdir()


def _write_link(path: Path, target: str) -> None:
    if not path.is_symlink() or os.readlink(path) != target:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def _write_package(site: Path, number: int) -> None:
    """A Python package with a header that the project may have, too."""
    directory = site / "headers/include"
    directory.mkdir(parents=True)
    (directory.parent / "__init__.py").touch()
    (directory / "b.h").write_text(header_text("b.h", 7 + number))


def _copy(source: Path, to: Path) -> None:
    if source.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to)
    elif source.exists():
        shutil.copyfile(source, to)


def _said(out: str, project: Path) -> str:
    """What a build's JSON says of the project, without what differs each time."""
    last: dict[str, Any] = {}
    for line in out.splitlines():
        last = json.loads(line)
    if last.get("event") != "summary":
        return json.dumps(last.get("problems") or last.get("message")).replace(str(project), "@")
    failures = [
        (record["status"], sorted(record["labels"]), record["error"]) for record in last["failures"]
    ]
    instances = [
        {key: record[key] for key in ("label", "built", "failed", "pruned", "ok", "reason")}
        for record in last["scripts"]
    ]
    return "\n".join([*sorted(map(json.dumps, [*instances, *failures])), f"{last['error']}"])


def _tail(ended: Ended) -> str:
    return ended.out[-700:] + ended.err[-1500:]


def interrupted(status: int) -> bool:
    """Whether a status is that of a command that a signal of ours may have ended."""
    return status in (0, 1, 2, 129, 130, 143) or -status in (
        signal.SIGKILL,
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    )


def started(out: str) -> Iterator[str]:
    """The programs that a build compiled."""
    for line in out.splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            if event["event"] == "started":
                yield f"programs/{event['hash']}"
