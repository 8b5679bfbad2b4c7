"""No mistake in the user's settings shows what is in them: broken in every way, with a canary in
the place of each secret, and held against all that is written anywhere.

`SECRET_SEEDS=5000` tries so many files; each tenth is given to a verb.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from support.project import NewProject
from tilusbuild.cli.main import main
from tilusbuild.errors import InputError
from tilusbuild.remote.user_settings import choose_remote

CANARY = "c4n4ry"
TEXT = (
    f"""\
[remote]
cache = "http://127.0.0.1:9/kernels"
timeout = "1s"
headers = {{ Authorization = "Bearer {CANARY}A==", "X-Key" = '{CANARY}B' }}
credential-helper = "/{CANARY}C"
tls-key = """
    f"""'''
-----BEGIN {CANARY}D
{CANARY}E
'''
tls-certificate = "{CANARY}F"
instance = "ours"
jobs = 8
"""
)
WORDS = ("headers", "cache", "timeout", "credential-helper", "[remote]", "remote", "Bearer")


def cut(text: str, random: Random) -> str:
    return text[: random.randrange(len(text))]


def without_a_character(text: str, random: Random) -> str:
    index = random.choice([n for n, letter in enumerate(text) if not letter.isdigit()])
    return text[:index] + text[index + 1 :]


def with_a_character(text: str, random: Random) -> str:
    index = random.randrange(len(text))
    return text[:index] + random.choice("\"'{}[]=,\n\\#\0\x1b\u00e9x7") + text[index:]


def with_pieces_exchanged(text: str, random: Random) -> str:
    """Keys become values, and secrets keys."""
    pieces = [f"{CANARY}{letter}" for letter in "ABCDEF"] + ["ours", "8", "1s", *WORDS]
    first, second = random.sample(pieces, 2)
    return text.replace(first, "\0").replace(second, first).replace("\0", second, 1)


def of_another_kind(text: str, random: Random) -> str:
    deep = "[" * 2000 + f'"{CANARY}"' + "]" * 2000
    value = random.choice(("3", "true", "[1]", f'{{ a = "{CANARY}" }}', "2020-01-01", deep))
    return re.sub(r'"[^"\n]*"', lambda match: random.choice((match[0], match[0], value)), text)


WAYS = (cut, without_a_character, with_a_character, with_pieces_exchanged, of_another_kind)


def broken(seed: int) -> bytes:
    random = Random(seed)
    text = TEXT
    for _ in range(random.choice((1, 1, 2, 3))):
        with suppress(IndexError, ValueError):  # there is not enough left to break
            text = random.choice(WAYS)(text, random)
    encoding = random.choice(("utf-8",) * 6 + ("utf-16", "latin-1"))
    return text.encode(encoding, "replace")


def home_with(root: Path, content: bytes) -> str:
    path = root / ".config" / "tilusbuild" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(root)


def test_what_is_said_of_a_mistake(tmp_path: Path) -> None:
    mistakes = 0
    for seed in range(int(os.environ.get("SECRET_SEEDS", "600"))):
        content = broken(seed)
        try:
            choose_remote(None, {"HOME": home_with(tmp_path, content)})
        except InputError as error:
            mistakes += 1
            message = f"{error} {error.args!r} {error.diagnostics!r} {error.__cause__!r}"
            assert CANARY not in message, (seed, message)
            assert "config.toml" in message
    assert mistakes > 300


def test_each_key_in_the_environment(tmp_path: Path) -> None:
    for name in (
        "WRITE",
        "TIMEOUT",
        "JOBS",
        "VERIFY",
        "HEADERS",
        "PROPERTIES",
        "CACHE",
        "EXECUTOR",
    ):
        for value in (CANARY, f"http://h:{CANARY}", f"https://u:{CANARY}@h", f"https://[{CANARY}"):
            if name == "HEADERS" and value != CANARY:
                continue  # these are some
            with pytest.raises(InputError) as caught:
                choose_remote(None, {f"TILUSBUILD_REMOTE_{name}": value, "HOME": str(tmp_path)})
            assert CANARY not in f"{caught.value} {caught.value.diagnostics!r}", (name, value)
            assert f"TILUSBUILD_REMOTE_{name}" in str(caught.value)


VERBS = (
    ("plan",),
    ("build", "-v"),
    ("build", "--json"),
    ("doctor", "-v"),
    ("doctor", "--json"),
    ("cache", "pull"),
    ("explain", "--json"),
)


def test_what_verbs_write(
    new_user: NewProject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    user = new_user("off")
    home = tmp_path / "home"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith("TILUSBUILD_REMOTE")]:
        monkeypatch.delenv(name)
    failed = 0
    for number, seed in enumerate(range(0, int(os.environ.get("SECRET_SEEDS", "210")), 10)):
        home_with(home, broken(seed) if number else TEXT.encode())
        verb = VERBS[(number + 1) % len(VERBS)]
        failed += main(["-C", str(user.directory), *verb]) != 0
        output = capfd.readouterr()
        assert CANARY not in output.out + output.err, (seed, verb, output)
        assert "bug of tilusbuild" not in output.err, (seed, verb, output)
        if "--json" in verb:
            assert all(isinstance(json.loads(line), dict) for line in output.out.splitlines())
    assert failed
    written = [path for path in tmp_path.rglob("*") if path.is_file() and home not in path.parents]
    assert any(user.cache in path.parents for path in written)
    for path in written:
        assert CANARY.encode() not in path.read_bytes(), path


def test_a_manifest_with_a_secret_names_the_users_settings(new_user: NewProject) -> None:
    user = new_user("off")
    path = user.directory / "tilus.toml"
    for key, value in (("headers", f'{{ A = "{CANARY}" }}'), ("tls-key", f'"{CANARY}"')):
        path.write_text(f"{path.read_text().partition('[remote]')[0]}[remote]\n{key} = {value}\n")
        stderr = user.run("plan", status=2).err
        assert f'a manifest cannot hold "{key}"' in stderr
        assert "~/.config/tilusbuild/config.toml" in stderr
        assert CANARY not in stderr
