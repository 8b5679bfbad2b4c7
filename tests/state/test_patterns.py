"""Given a tree and a pattern, the matches are those of Python's `glob`, and looking has an end."""

import glob
import os
import random
from pathlib import Path

import pytest

from tilusbuild.state import patterns
from tilusbuild.state.patterns import PatternTooWideError, find_matches


def plant(top: Path, rng: random.Random) -> None:
    """A tree of few names, so that patterns match, with links that do not lead back."""
    directories = [top]
    for _ in range(25):
        path = rng.choice(directories) / rng.choice(("a", "b", "c.h", ".d", "[e]"))
        if path.exists() or path.is_symlink():
            continue
        kind = rng.random()
        if kind < 0.5:
            path.mkdir()
            directories.append(path)
        elif kind < 0.9:
            path.write_text("")
        else:
            path.symlink_to("/nowhere")


def pattern(rng: random.Random) -> str:
    words = ("a", "b", "*", "**", "**", "?", "*.h", "[ab]", ".*", ".d", "[[]e]", "c.h", "..", ".")
    return "/".join(rng.choice(words) for _ in range(rng.randint(1, 4)))


def test_what_matches_is_what_glob_finds(tmp_path: Path) -> None:
    for seed in range(15):
        rng = random.Random(seed)
        top = tmp_path / str(seed)
        top.mkdir()
        plant(top, rng)
        for glob_pattern in (pattern(rng) for _ in range(25)):
            wanted = set(glob.glob(glob_pattern, root_dir=top, recursive=True))
            # `glob` says of `a/**` that it matches `a/`, too, be it a directory or a file.
            files = {n for n in wanted if not n.endswith("/") and not (top / n).is_dir()}
            names = find_matches(str(top), glob_pattern).names
            assert len(names) == len(set(names))
            assert {n for n in names if not (top / n).is_dir()} == files, (seed, glob_pattern)


def test_a_new_match_is_in_a_directory_that_was_looked_into(tmp_path: Path) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        top = tmp_path / str(seed)
        top.mkdir()
        plant(top, rng)
        glob_pattern = pattern(rng)
        before = find_matches(str(top), glob_pattern)
        every = [top, *(path for path in top.rglob("*") if path.is_dir())]
        new = rng.choice(every) / "n" / "c.h"
        new.parent.mkdir(exist_ok=True)
        new.write_text("")
        if find_matches(str(top), glob_pattern).names != before.names:
            assert str(new.parent.parent) in before.directories, (seed, glob_pattern)


def test_links_that_lead_back_are_not_followed_around(tmp_path: Path) -> None:
    for name, other in (("x", "y"), ("y", "x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.h").write_text("")
        (tmp_path / name / "over").symlink_to(f"../{other}")
        (tmp_path / name / "up").symlink_to("..")
    names = find_matches(str(tmp_path), "**/*.h").names
    assert names == ["x/f.h", "x/over/f.h", "y/f.h", "y/over/f.h"]


def test_a_directory_is_read_once_whatever_the_pattern(tmp_path, monkeypatch) -> None:
    deep = tmp_path / "/".join("abcdefgh" * 4)
    deep.mkdir(parents=True)
    (deep / "v.h").write_text("")
    read: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> object:
        read.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert len(find_matches(str(tmp_path), "/".join(["**"] * 30 + ["*.h"])).names) == 1
    assert len(read) == 33


def test_too_many_names_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_NAMES", 10)
    for number in range(11):
        (tmp_path / f"{number}").write_text("")
    with pytest.raises(PatternTooWideError, match="looks at more than 10 names in /"):
        find_matches(str(tmp_path), "*")
    assert find_matches(str(tmp_path), "3").names == ["3"]
