"""Packages in every format: directories changed with a knowledge of what is in them, archives in
their bytes. What is inside of archives is changed by `package_read/test_reading_fuzz.py`."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from support.hostile.manifests import EVIL, damaged
from support.hostile.trial import Trial

_VALUES: tuple[Any, ...] = (*EVIL, 0, -1, 2**63, 1e999, None, True, [], {}, "", "a" * 70000, [[]])


def _odd_json(rng: random.Random, data: bytes) -> bytes:
    """Return JSON with one value changed; damaged bytes of what is not JSON."""
    try:
        value = json.loads(data)
    except ValueError:
        return damaged(rng, data)
    at, steps = value, rng.randint(1, 6)
    for _ in range(steps):
        if not isinstance(at, dict | list) or not at:
            break
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        if _ == steps - 1 or not isinstance(at[key], dict | list) or not at[key]:
            at[key] = rng.choice(_VALUES)
            break
        at = at[key]
    return json.dumps(value).encode()


def _content(rng: random.Random, name: str, data: bytes) -> bytes:
    if name.endswith((".json", "RECORD", "METADATA")) or rng.random() < 0.3:
        return _odd_json(rng, data)
    return damaged(rng, data)


def _directory(rng: random.Random, path: Path) -> None:
    files = sorted(each for each in path.rglob("*") if each.is_file() and not each.is_symlink())
    chosen = rng.choice(files)
    kind = rng.random()
    if kind < 0.6:
        chosen.write_bytes(_content(rng, chosen.name, chosen.read_bytes()))
    elif kind < 0.75:
        chosen.unlink()
        chosen.symlink_to(rng.choice(("/etc/passwd", "..", "/dev/zero", chosen.name)))
    elif kind < 0.85:
        chosen.unlink()
        os.mkfifo(chosen)
    elif kind < 0.95:
        (chosen.parent / rng.choice(("x.pth", "evil.py", "\x1b[31m", "é"))).write_bytes(b"x")
    else:
        chosen.unlink()


def trial(rng: random.Random, samples: Path) -> Trial:
    """Return a command on a package that was changed."""
    chosen = rng.choice(sorted(samples.iterdir()))
    name = f"project/{chosen.name}"

    def prepare(box: Path) -> None:
        path = box / name
        if chosen.is_dir():
            shutil.copytree(chosen, path, symlinks=True)
            _directory(rng, path)
        else:
            path.write_bytes(damaged(rng, chosen.read_bytes()))

    cache = ("--cache-dir", ".cache")
    words = rng.choice(
        (
            ("verify", chosen.name),
            ("install", chosen.name, *cache),
            ("preflight", chosen.name, "-d", "sm_80"),
            ("diff", chosen.name, chosen.name),
            ("verify", "--json", chosen.name),
            ("cache", "export", "--layout", "tilus", "out", "--cache-dir", chosen.name),
        )
    )
    return Trial(words, prepare=prepare, writes=("project/out",))
