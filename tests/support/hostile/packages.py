"""Packages in every format: directories changed with a knowledge of what is in them, archives in
their bytes. What is inside of archives is changed by `package_read/test_reading_fuzz.py`."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from support.hostile.manifests import EVIL, damaged
from support.hostile.trees import disturb
from support.hostile.trial import Trial

_VALUES: tuple[Any, ...] = (*EVIL, 0, -1, 2**63, 1e999, None, True, [], {}, "", "a" * 70000, [[]])


def _odd_json(rng: random.Random, data: bytes) -> bytes:
    """Return JSON with one value changed; damaged bytes of what is not JSON."""
    try:
        value = json.loads(data)
    except ValueError:
        return damaged(rng, data)
    node, steps = value, rng.randint(1, 6)
    for _ in range(steps):
        if not isinstance(node, dict | list) or not node:
            break
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if _ == steps - 1 or not isinstance(node[key], dict | list) or not node[key]:
            node[key] = rng.choice(_VALUES)
            break
        node = node[key]
    return json.dumps(value).encode()


def _changed(rng: random.Random, box: Path, root: Path) -> None:
    """Change the content of a file, or what there is at a place."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    if rng.random() < 0.6:
        chosen = rng.choice(files)
        chosen.write_bytes(_odd_json(rng, chosen.read_bytes()))
    else:
        disturb(rng, box, root)


def trial(rng: random.Random, samples: Path) -> Trial:
    """Return a command on a package that was changed."""
    chosen = rng.choice(sorted(samples.iterdir()))
    name = f"project/{chosen.name}"

    def prepare(box: Path) -> None:
        path = box / name
        if chosen.is_dir():
            shutil.copytree(chosen, path, symlinks=True)
            _changed(rng, box, path)
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
