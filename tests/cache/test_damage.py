"""Every byte of every state file flipped, and every file cut at every length.

Nothing crashes, nothing wrong is believed, and verification finds it.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cache_sample import Sample
from tilusbuild.cache import includes
from tilusbuild.cache import verify as verification
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.garbage import collect_garbage
from tilusbuild.cache.index import collect_stats, list_scripts, read_index
from tilusbuild.cache.scripts import publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import repair_cache, verify_cache
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.sealed import CorruptFileError, encode_canonical, seal_json, unseal_json
from tilusbuild.state.files import sha256_file


@pytest.fixture
def full(cache: Tree, sample: Sample):
    """A cache with one of everything; the files that tell its state, by what they are."""
    include = sample.include(a="one")
    record, script = sample.built("a", include=include)
    program = sample.entry("a")
    Path(script, "script.json").write_bytes(seal_json({"hash": record.hash}))
    return {
        "facts": Path(script, "script.json"),
        "meta": Path(program.path, "meta.json"),
        "program": Path(program.path, "program.txt"),
        "options": Path(program.path, "options.txt"),
        "source": Path(program.path, "module/source.cu"),
        "library": Path(program.path, "module/lib.so"),
        "script": Path(script, "script.txt"),
        "manifest": Path(cache.include_path(include), "MANIFEST"),
        "header": Path(cache.include_path(include), "project/a.h"),
        "index": Path(cache.root, "index.json"),
        "tag": Path(cache.root, "CACHEDIR.TAG"),
        "ignore": Path(cache.root, ".gitignore"),
    }


@contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    """The file holds something else during the block."""
    before = path.read_bytes()
    path.write_bytes(content)
    yield
    path.write_bytes(before)


def variants(content: bytes) -> Iterator[bytes]:
    """Each byte changed, and each length, of some two hundred where there are more."""
    for offset in range(0, len(content), 1 + len(content) // 200):
        yield (
            content[:offset] + bytes([content[offset] ^ (1 << offset % 8)]) + content[offset + 1 :]
        )
        yield content[:offset]
    yield content + b"\n"


PROGRAM = ["meta", "program", "options", "source", "library"]
STATE = [*PROGRAM, "script", "facts", "manifest", "header", "index", "tag", "ignore"]


@pytest.mark.parametrize("which", STATE)
def test_verification_finds_every_change(cache: Tree, full, which):
    path = full[which]
    entry = str(path.relative_to(cache.root)).split("/module")[0]
    for content in variants(path.read_bytes()):
        with replaced(path, content):
            problems = verify_cache(cache)
            assert problems, content
            assert any(entry.startswith(p.name) or p.name.startswith(entry) for p in problems)
            assert all(problem.advice for problem in problems)
    assert verify_cache(cache) == []


@pytest.mark.parametrize("which", PROGRAM)
def test_a_damaged_program_is_not_a_cache_hit(cache: Tree, sample: Sample, full, which):
    right = lookup_entry(cache, sample.hash("a"))
    content = full[which].read_bytes()
    for changed in variants(content):
        with replaced(full[which], changed):
            entry = lookup_entry(cache, sample.hash("a"))
            if which == "meta" or len(changed) != len(content):
                assert entry is None
            else:
                assert entry == right
            collect_stats(cache)
            list_scripts(cache)


def test_a_damaged_index_is_never_taken_for_an_empty_one(cache: Tree, full):
    for content in variants(full["index"].read_bytes()):
        with replaced(full["index"], content):
            with pytest.raises(TilusbuildError, match=r"index\.json"):
                collect_garbage(cache)
            with pytest.raises(CorruptFileError):
                read_index(cache)
    assert collect_garbage(cache).removed == ()


def test_a_damaged_script_is_published_again(cache: Tree, sample: Sample, full):
    for content in (b"", b"x", full["script"].read_bytes()[:-1]):
        full["script"].write_bytes(content)
        assert list_scripts(cache) == []
        publish_script(cache, sample.record(["a"]))
        assert verify_cache(cache) == []


@pytest.mark.parametrize("kind", ["program", "header"])
@pytest.mark.parametrize("back", [False, True])
def test_what_is_removed_or_replaced_meanwhile_is_not_reported(
    cache: Tree, full, monkeypatch: pytest.MonkeyPatch, kind: str, back: bool
) -> None:
    """An entry is taken away by one rename while its files are looked at; a build makes another."""
    path = full[kind].parent if kind == "program" else full[kind].parents[1]
    backup = f"{cache.root}.whole"
    shutil.copytree(path, backup)
    if kind == "program" and not back:
        cache.remove_entry(str(full["script"].parent))

    def looked_at(name: str) -> str:
        digest = sha256_file(name)
        if name.startswith(str(path)) and os.path.exists(backup):
            os.rename(path, f"{cache.root}.away")
            os.rename(backup, path if back else f"{cache.root}.another")
        return digest

    monkeypatch.setattr(verification, "sha256_file", looked_at)
    monkeypatch.setattr(includes, "sha256_file", looked_at)
    assert verify_cache(cache) == []
    assert not os.path.exists(backup)


def test_what_is_in_an_entry_and_not_of_it_is_named(cache: Tree, full):
    program = full["meta"].parent
    script = full["script"].parent
    strangers = [
        program / "extra",
        program / "module/lib.so.bak",
        full["header"].parent / "b.h",
        script / "programs/7",
    ]
    for stranger in strangers:
        stranger.write_text("")
    (script / "programs/1").symlink_to("/etc/passwd")
    (script / "failed/0").symlink_to(os.readlink(script / "programs/0"))
    expected = {str(path.relative_to(cache.root)) for path in strangers}
    expected |= {f"{script.relative_to(cache.root)}/{name}" for name in ("programs/1", "failed/0")}
    assert {problem.name for problem in verify_cache(cache)} == expected


def test_links_that_lead_elsewhere_are_found(cache: Tree, sample: Sample, full):
    sample.program("b")
    link = full["script"].parent / "programs/0"
    for target in ("/etc/passwd", f"../../../../programs/{sample.hash('b')}", "nowhere"):
        link.unlink()
        link.symlink_to(target)
        (problem,) = verify_cache(cache)
        assert target in problem.message
    repair_cache(cache, verify_cache(cache))
    assert verify_cache(cache) == []
    publish_script(cache, sample.record(["a"]))
    assert os.readlink(link) == f"../../../../programs/{sample.hash('a')}"


def test_repair_removes_what_is_damaged_and_nothing_else(cache: Tree, sample: Sample, full):
    kept = sample.program("b")
    # Of the same size: the link to it looks right.
    full["library"].write_bytes(b"y" * full["library"].stat().st_size)
    full["header"].write_bytes(b"")
    removed = repair_cache(cache, verify_cache(cache))
    assert {name.split("/")[0] for name in removed} == {"programs", "include", "scripts"}
    assert verify_cache(cache) == []
    assert lookup_entry(cache, sample.hash("a")) is None
    assert lookup_entry(cache, kept.hash) == kept


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip
SEALABLE = st.dictionaries(st.text().filter(lambda key: key != "digest"), JSON, min_size=1)


@given(SEALABLE, st.data())
def test_what_is_sealed_opens_is_canonical_and_breaks_by_one_byte(value, data):
    sealed = bytearray(seal_json(value))
    assert unseal_json(bytes(sealed)) == value
    assert seal_json(dict(reversed(value.items()))) == sealed
    assert encode_canonical(value).endswith(b"\n}\n")
    offset = data.draw(st.integers(0, len(sealed) - 1))
    sealed[offset] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptFileError):
        unseal_json(bytes(sealed))
