"""One record of four is poisoned, in every digest consistently: that program alone is refused, what
it has besides is not even asked for, and the others are fetched.

`POISON_SEEDS=500` tries so many compositions of these.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.http_cache import HttpCache
from support.remote_client import Asked
from support.trees import published
from tilusbuild.remote.record import key
from tilusbuild.runtime.sealed import seal

Ask = Callable[..., Asked]
Files = dict[str, list[Any]]

NAMES = (
    "module/evil.sh",
    ".git/config",
    "-rf",
    "module/\x1b[31mred",
    "module/" + "deep/" * 60 + "x",
    "module/" + "n" * 300,
    "module/lib.a",
    "ir/x",
    "module/libcudart.so.13",
    "module/launcher.c",
    "meta.json/x",
    "module/\u202egnp.so",
    "module/source.cu ",
    "MODULE/lib.so",
)


class Poison:
    """A record, its meta.json and the blobs beside it, to be changed."""

    def __init__(self, server: HttpCache, path: str) -> None:
        self.server = server
        self.path = path
        self.record = json.loads(server.held[path])
        self.meta = json.loads(self.record["texts"]["meta.json"])
        del self.meta["digest"]

    def blob(self, data: bytes) -> list[Any]:
        digest = hashlib.sha256(data).hexdigest()
        self.server.held[f"/cas/{digest}"] = data
        return [digest, len(data)]

    def add(self, name: str, blob: list[Any]) -> None:
        self.record["files"][name] = blob
        self.meta["files"][name] = {"sha256": blob[0], "size": blob[1]}

    def add_directory(self, files: Files) -> None:
        """One that is whole, and that compile.sh names."""
        lines = "".join(f"{blob[0]}  {name}\n" for name, blob in files.items()).encode()
        manifest = self.blob(lines)
        listing = json.dumps({**files, "MANIFEST": manifest}).encode()
        self.name_directory(manifest[0], self.blob(listing))

    def name_directory(self, digest: str, listing: list[Any]) -> None:
        script = self.record["texts"]["module/compile.sh"] + f"# include/{digest}\n"
        self.record["texts"]["module/compile.sh"] = script
        self.add("module/compile.sh", self.blob(script.encode()))
        self.record["directories"][digest] = listing

    def put(self) -> None:
        text = seal(self.meta)
        self.record["files"]["meta.json"] = self.blob(text)
        self.record["texts"]["meta.json"] = text.decode()
        self.server.held[self.path] = json.dumps(self.record).encode()


def a_file(poison: Poison, random: Random) -> None:
    poison.add(random.choice(NAMES), poison.blob(b"#!/bin/sh\n"))


def large_files(poison: Poison, random: Random) -> None:
    """That are not there, so that who asks for them is seen."""
    for number in range(random.choice((1, 7))):
        poison.add(f"module/large{number}", [f"{number:064x}", 1 << 28])


def directories(poison: Poison, random: Random) -> None:
    for number in range(random.choice((1, 5, 100))):
        poison.name_directory(f"{number:064x}", [f"{number + 7:064x}", 1 << 30])


def a_directory(poison: Poison, random: Random) -> None:
    names = random.sample(NAMES, 3)
    poison.add_directory({name: poison.blob(name.encode()) for name in names})


def a_number(poison: Poison, random: Random) -> None:
    digits = random.choice((20, 400, 4000))
    poison.meta["dynamic_smem"] = random.choice((10**digits, -1, 1.5, None, [], True))


def a_deep_tree(poison: Poison, random: Random) -> None:
    tree: Any = []
    for _ in range(random.choice((100, 300))):
        tree = random.choice(([tree], {"a": tree}))
    poison.meta[random.choice(("images", "kernels", "dynamic_smem", "more"))] = tree


def a_fact(poison: Poison, random: Random) -> None:
    said = random.choice(("images", "kernels", "reason", "schema", "status", "product"))
    poison.meta[said] = random.choice((7, "x", {"a": 1}, [1], {"a": {"b": {"c": 2**70}}}, None))


def a_source(poison: Poison, random: Random) -> None:
    poison.record["texts"].pop("module/source.cu", None)
    poison.add("module/source.cu", poison.blob(b'extern "C" void other() {}\n'))


def exports(poison: Poison, random: Random) -> None:
    poison.record["texts"].pop("module/exports.map", None)
    poison.add("module/exports.map", poison.blob(b"{ global: *; };\n"))


WAYS = (
    a_file,
    large_files,
    directories,
    a_directory,
    a_number,
    a_deep_tree,
    a_fact,
    a_source,
    exports,
)


def held_against(poisons: Sequence[Callable[[Poison, Random], None]], seed: int, held: Any) -> Any:
    server, ask, origin = held
    random = Random(seed)
    whole = published(origin[0])
    before = dict(server.held)
    programs = sorted(each.name for each in (origin[0] / "programs").iterdir())
    victim = random.choice(programs)
    poison = Poison(server, f"/ac/{key(victim).digest}")
    for each in poisons:
        each(poison, random)
    poison.put()
    new = server.held.keys() - before.keys()
    server.requests.clear()
    found = ask(server.address)
    server.held.clear()
    server.held.update(before)
    assert (found.hits, found.summary.refused) == (3, 1), found.warnings
    assert found.answers[victim] is None
    assert len(found.warnings) == 1, found.warnings
    assert victim[:12] in found.warnings[0]
    assert found.warnings[0].isprintable()
    assert not any(path in new for _, path, _ in server.requests if "/cas/" in path)
    for path, data in published(found.cache_path).items():
        assert whole[path] == data
    return found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_one_poisoned_record(way: Any, held: HttpCache, ask: Ask, origin: Any) -> None:
    for seed in range(4):
        held_against([way], seed, (held, ask, origin))


def test_poisons_together(held: HttpCache, ask: Ask, origin: Any) -> None:
    for seed in range(int(os.environ.get("POISON_SEEDS", "8"))):
        ways = Random(seed).sample(WAYS, 3)
        held_against(ways, seed, (held, ask, origin))


def test_a_product_without_end_takes_no_memory(
    held: HttpCache, ask: Ask, origin: Any, tmp_path: Path
) -> None:
    """Another one, of 300 MB, that all digests name."""
    data = bytes(300 << 20)
    program = min(each.name for each in (origin[0] / "programs").iterdir())
    poison = Poison(held, f"/ac/{key(program).digest}")
    poison.record["texts"].pop("module/lib.so", None)
    poison.add("module/lib.so", poison.blob(data))
    poison.put()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = ask(held.address, timeout=60.0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (found.hits, found.summary.refused) == (3, 1)
    assert "is not a library" in found.warnings[0]
    assert after - before < 100 << 10


def test_a_product_that_is_a_fatbin(held: HttpCache, ask: Ask, origin: Any) -> None:
    """Its first bytes are those of the other kind of file with code."""
    program = min(each.name for each in (origin[0] / "programs").iterdir())
    poison = Poison(held, f"/ac/{key(program).digest}")
    poison.record["texts"].pop("module/lib.so", None)
    poison.add("module/lib.so", poison.blob(bytes.fromhex("50ed55ba01001000") + bytes(8)))
    poison.put()
    found = ask(held.address)
    assert (found.hits, found.summary.refused) == (3, 1), found.warnings
