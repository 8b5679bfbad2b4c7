"""Three users of one project, each with a path and a cache of their own, and a server between.

The first builds and writes. The second compiles nothing, has every file byte for byte, and is
compared with the first in processor time. Then every library and object in the server is exchanged
for one with another last byte, as whoever may write could: the third refuses these by name,
compiles them, and has the first's bytes all the same.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _bench
from _bench import WorkNotDoneError
from remote_trouble import Nginx

sys.path.insert(0, str(_bench.ROOT / "tests"))

from support.trees import published
from tilusbuild.remote.archive import Unpacker, pack_entry


@dataclass
class User:
    """Of an example, in a directory of their own."""

    directory: Path
    address: str
    environment: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    cpu: float = 0.0
    wall: float = 0.0

    @property
    def cache(self) -> Path:
        return self.directory / ".cache"

    def build(self, *words: str) -> None:
        home = self.directory.parent / f"home-{self.directory.name}"
        environment = {
            **os.environ,
            **self.environment,
            "HOME": str(home),
            "TILUSBUILD_REMOTE_CACHE": self.address,
        }
        command = (*_bench.TILUSBUILD, "build", "--json", "--cache-dir", ".cache", *words)
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        ran = subprocess.run(
            command,
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.wall = time.monotonic() - began
        self.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if ran.returncode:
            raise WorkNotDoneError(ran.stdout[-2000:] + ran.stderr[-2000:])
        events = [json.loads(line) for line in ran.stdout.splitlines()]
        self.summary = events[-1]
        self.warnings = [event["message"] for event in events if event["event"] == "warning"]


def poison(server: Nginx) -> int:
    """Give every library and object another last byte; return how many there are."""
    poisoned = 0
    for path in server.blobs():
        archive = Unpacker(str(server.directory)).unpack_entry([path.read_bytes()])
        files = {
            name: content if isinstance(content, bytes) else Path(content).read_bytes()
            for name, content in archive.files.items()
        }
        products = [name for name in files if name in ("module/lib.so", "module/object.o")]
        for name in products:
            files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
        path.write_bytes(pack_entry(files, archive.seconds))
        poisoned += len(products)
    return poisoned


def print_user(name: str, user: User, first: User) -> None:
    remote = user.summary["remote"]
    print(
        f"  {name:28}{user.summary['compiled']:10}{remote['hits']:10}{remote['refused']:10}"
        f"{user.cpu:10.1f} s{first.cpu / user.cpu:8.1f}x{user.wall:10.1f} s",
        flush=True,
    )


def _outputs(user: User) -> list[Path]:
    """What the project's libraries are written to."""
    return [path for path in (user.directory / "build").glob("**/*") if path.is_file()]


def need(true: bool, what: str) -> None:
    if not true:
        raise WorkNotDoneError(what)


def main() -> None:
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else ["quickstart"]
    sys.argv = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    asked = _bench.arguments(__doc__)
    example, *which = words
    which += ["--target", "cpu"] if asked.small else []
    with _bench.workshop() as directory:
        server = Nginx(directory / "nginx")
        try:
            users = []
            for number in range(3):
                own = directory / ("deep/" * number) / f"user-{number}"
                ignored = shutil.ignore_patterns(".cache", "dist", "build", "__pycache__")
                shutil.copytree(_bench.ROOT / "examples" / example, own, ignore=ignored)
                users.append(User(own, f"http://127.0.0.1:{server.port}"))
            first, second, third = users
            print(f"\nthree users of examples/{example} {' '.join(which)}, nginx between")
            print(f"  {'':28}" + "".join(f"{head:>10}" for head in _HEADS))
            first.environment["TILUSBUILD_REMOTE_WRITE"] = "1"
            first.build(*which)
            print_user("builds and writes", first, first)
            programs = first.summary["remote"]["sent"]
            second.build(*which)
            print_user("fetches", second, first)
            files = published(first.cache)
            need(second.summary["compiled"] == 0, "the second compiled")
            need(second.summary["remote"]["hits"] == programs, "the second fetched less")
            need(published(second.cache) == files, "the second has other bytes")
            poisoned = poison(server)
            third.environment["TILUSBUILD_REMOTE_PATIENCE"] = "100s"
            third.build(*which)
            print_user(f"{poisoned} products poisoned", third, first)
            need(third.summary["remote"]["hits"] == 0, "the third believed a poisoned product")
            need(published(third.cache) == files, "the third has other bytes")
            for warning in third.warnings:
                print(f"    {warning}")
            named = [text for text in third.warnings if "was modified" in text]
            need(
                any("module/lib.so" in text or "module/object.o" in text for text in named), "name"
            )
            outputs = [{p.name: p.read_bytes() for p in _outputs(user)} for user in users]
            need(outputs[0] == outputs[1] == outputs[2], "a product has other bytes")
        finally:
            server.kill()
        print(f"  {len(files)} files of {programs} programs, byte for byte the same with all three")
    result = {
        "programs": programs,
        "cpu": [user.cpu for user in users],
        "compiled": [user.summary["compiled"] for user in users],
    }
    _bench.finish(asked, [result])


_HEADS = ("compiled", "fetched", "refused", "CPU", "by it", "elapsed")


if __name__ == "__main__":
    main()
