"""One entry of four is poisoned, in every digest consistently: that program alone is refused, and
the others are fetched.

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
from zstandard import ZstdCompressor

from support.http_cache import HttpCache
from support.poison import path_of, unpack
from support.remote_client import Asked
from support.trees import published
from tilusbuild.remote.archive import include_key, pack_entry, program_key
from tilusbuild.runtime.sealed import encode_canonical, seal_json, unseal_json
from tilusbuild.state.files import sha256_bytes

Ask = Callable[..., Asked]

NAMES = (
    "module/evil.sh",
    ".git/config",
    "-rf",
    "../outside",
    "/tmp/outside",
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
    """An entry of a server, to be changed."""

    def __init__(self, server: HttpCache, program: str) -> None:
        self.server = server
        self.path = path_of(program_key(program))
        self.files = unpack(server.held[self.path])
        self.meta = unseal_json(self.files.pop("meta.json"))
        self.seal: Callable[[Any], bytes] = seal_json

    def add(self, name: str, data: bytes) -> None:
        self.files[name] = data
        self.meta["files"][name] = {"sha256": sha256_bytes(data), "size": len(data)}

    def add_directory(self, files: dict[str, bytes]) -> None:
        """One that is right, and that compile.sh names."""
        lines = "".join(f"{sha256_bytes(data)}  {name}\n" for name, data in files.items()).encode()
        digest = sha256_bytes(lines)
        self.server.held[path_of(include_key(digest))] = pack_entry({**files, "MANIFEST": lines})
        self.name_directory(digest)

    def name_directory(self, digest: str) -> None:
        script = self.files["module/compile.sh"] + f"# include/{digest}\n".encode()
        self.add("module/compile.sh", script)

    def put(self) -> None:
        self.server.held[self.path] = pack_entry({**self.files, "meta.json": self.seal(self.meta)})


def a_file(poison: Poison, random: Random) -> None:
    poison.add(random.choice(NAMES), b"#!/bin/sh\n")


def directories(poison: Poison, random: Random) -> None:
    for number in range(random.choice((1, 5, 100))):
        poison.name_directory(f"{number:064x}")


def a_directory(poison: Poison, random: Random) -> None:
    names = random.sample([name for name in NAMES if name[0] not in "./"], 3)
    poison.add_directory({name: name.encode() for name in names})


def a_number(poison: Poison, random: Random) -> None:
    digits = random.choice((20, 400, 4000))
    poison.meta["dynamic_smem"] = random.choice((10**digits, -1, 1.5, None, [], True))


def a_deep_tree(poison: Poison, random: Random) -> None:
    tree: Any = []
    for _ in range(random.choice((100, 300))):
        tree = random.choice(([tree], {"a": tree}))
    poison.meta[random.choice(("images", "kernels", "dynamic_smem", "more"))] = tree


def another_seal(poison: Poison, random: Random) -> None:
    """None, or that of another value."""
    other = seal_json({"schema": 1}).rpartition(b"\n}\n")[0].rpartition(b",")[2]
    sealed = {
        "none": encode_canonical,
        "cut": lambda meta: seal_json(meta)[: random.randrange(1, 90) * -1],
        "another": lambda meta: encode_canonical(meta).removesuffix(b"\n}\n") + b"," + other + END,
    }
    poison.seal = sealed[random.choice(sorted(sealed))]


END = b"\n}\n"
WAYS = (a_file, directories, a_directory, a_number, a_deep_tree, another_seal)


def held_against(poisons: Sequence[Callable[[Poison, Random], None]], seed: int, held: Any) -> Any:
    server, ask, origin = held
    random = Random(seed)
    expected = published(origin[0])
    before = dict(server.held)
    programs = sorted(item.name for item in (origin[0] / "programs").iterdir())
    victim = random.choice(programs)
    poison = Poison(server, victim)
    for item in poisons:
        item(poison, random)
    poison.put()
    result = ask(server.address)
    server.held.clear()
    server.held.update(before)
    assert (result.hits, result.summary.refused) == (3, 1), result.warnings
    assert result.answers[victim] is None
    assert len(result.warnings) == 1, result.warnings
    assert victim[:12] in result.warnings[0]
    assert result.warnings[0].isprintable()
    for path, data in published(result.cache_path).items():
        assert expected[path] == data
    return result


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_one_poisoned_entry(way: Any, held: HttpCache, ask: Ask, origin: Any) -> None:
    for seed in range(4):
        held_against([way], seed, (held, ask, origin))


def test_poisons_together(held: HttpCache, ask: Ask, origin: Any) -> None:
    for seed in range(int(os.environ.get("POISON_SEEDS", "8"))):
        ways = Random(seed).sample(WAYS, 3)
        held_against(ways, seed, (held, ask, origin))


def first_program(origin: Any) -> str:
    return min(path.name for path in (origin[0] / "programs").iterdir())


def without_end(head: bytes, size: int) -> bytes:
    """An archive of many zeros, of which nothing is ever in memory."""
    frame = ZstdCompressor().compressobj()
    zeros = bytes(1 << 20)
    parts = [frame.compress(head), *(frame.compress(zeros) for _ in range(size >> 20))]
    return b"".join((*parts, frame.flush()))


def test_a_product_without_end_takes_no_memory(held: HttpCache, ask: Ask, origin: Any) -> None:
    """Another one, of 300 MB, that all digests name."""
    size, digest = 300 << 20, hashlib.sha256()
    for _ in range(size >> 20):
        digest.update(bytes(1 << 20))
    poison = Poison(held, first_program(origin))
    del poison.files["module/lib.so"]
    poison.meta["files"]["module/lib.so"] = {"sha256": digest.hexdigest(), "size": size}
    files = {**poison.files, "meta.json": seal_json(poison.meta)}
    sizes = {**{name: len(data) for name, data in files.items()}, "module/lib.so": size}
    head = json.dumps({"files": sizes}).encode() + b"\n" + b"".join(files.values())
    held.held[poison.path] = without_end(head, size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = ask(held.address, timeout=60.0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (result.hits, result.summary.refused) == (3, 1)
    assert "is not a library" in result.warnings[0]
    assert after - before < 100 << 10


def test_an_entry_without_end_is_not_unpacked(held: HttpCache, ask: Ask, origin: Any) -> None:
    """Its first line asks for more than any program has."""
    head = b'{"files":{"meta.json":%d,"module/lib.so":%d}}\n' % (1 << 30, 1 << 30)
    path = path_of(program_key(first_program(origin)))
    held.held[path] = without_end(head, 64 << 20)
    result = ask(held.address)
    assert (result.hits, result.summary.refused) == (3, 1)
    assert "more than 1024 MiB" in result.warnings[0]


def test_an_archive_of_headers_that_are_not_those_of_its_name(held, ask, origin) -> None:
    (digest,) = (directory.name for directory in (origin[0] / "include").iterdir())
    path = path_of(include_key(digest))
    files = unpack(held.held[path])
    held.held[path] = pack_entry({**files, "launcher.c": b"int x;\n"})
    result = ask(held.address)
    assert (result.hits, result.summary.refused) == (0, 4)
    assert f"include/{digest}" in result.warnings[0]
    assert list(Path(result.cache.root).glob("include/*")) == []
