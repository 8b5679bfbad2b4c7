"""Packages in every format, changed with a knowledge of their structure, or in their bytes."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.hostile.manifests import EVIL, damaged
from support.hostile.trial import Trial

_NAMES = (*EVIL, "/abs", "a/../../b", "x.pth", "evil.py", ".", "a" * 300, "é", "A", "a/", "")
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


def _zip(rng: random.Random, path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    for _ in range(rng.randint(1, 2)):
        number = rng.randrange(len(members))
        info, data = members[number]
        kind = rng.random()
        if kind < 0.5:
            members[number] = (info, _content(rng, info.filename, data))
        elif kind < 0.7:
            fresh = zipfile.ZipInfo(rng.choice(_NAMES).replace("\0", "") or "n")
            fresh.external_attr = rng.choice((0, 0o120777 << 16, 0o10644 << 16, 0x10))
            members.insert(number, (fresh, rng.choice((b"", b"/etc/passwd", data))))
        elif kind < 0.8:
            members.append(members[number])
        elif kind < 0.9:
            bomb = zipfile.ZipInfo("bomb")
            bomb.compress_type = zipfile.ZIP_DEFLATED
            members.append((bomb, b"\0" * (64 << 20)))
        else:
            del members[number]
    with _quiet(), zipfile.ZipFile(path, "w") as archive:
        for info, data in members:
            archive.writestr(info, data)


def _quiet() -> Any:
    import warnings

    quiet = warnings.catch_warnings()
    warnings.simplefilter("ignore", UserWarning)
    return quiet


def _tar(rng: random.Random, path: Path) -> None:
    import zstandard

    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(plain)) as archive,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as changed,
    ):
        members = archive.getmembers()
        chosen = rng.randrange(len(members))
        for number, member in enumerate(members):
            file = archive.extractfile(member) if member.isfile() else None
            data = file.read() if file else b""
            if number == chosen:
                data = _member(rng, member, data)
            changed.addfile(member, io.BytesIO(data) if member.isreg() else None)
    data = out.getvalue()
    data = damaged(rng, data) if rng.random() < 0.2 else data
    path.write_bytes(zstandard.ZstdCompressor().compress(data))


def _member(rng: random.Random, member: tarfile.TarInfo, data: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.5:
        data = _content(rng, member.name, data)
    elif kind < 0.7:
        member.name = rng.choice(_NAMES).replace("\0", "") or "n"
    elif kind < 0.9:
        types = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"9")
        member.type, member.linkname = rng.choice(types), rng.choice(("/etc/passwd", "..", "a"))
        data = b""
    else:
        member.mode, member.uid, member.mtime = 0o7777, 2**20, 2**40
    member.size = len(data)
    return data


_CHANGES: dict[str, Callable[[random.Random, Path], None]] = {".whl": _zip, ".zst": _tar}


def trial(rng: random.Random, samples: Path) -> Trial:
    """Return a command on a package that was changed."""
    chosen = rng.choice(sorted(samples.iterdir()))
    name = f"project/{chosen.name}"

    def prepare(box: Path) -> None:
        path = box / name
        if chosen.is_dir():
            shutil.copytree(chosen, path, symlinks=True)
            _directory(rng, path)
        elif rng.random() < 0.3:
            path.write_bytes(damaged(rng, chosen.read_bytes()))
        else:
            shutil.copy(chosen, path)
            _CHANGES.get(chosen.suffix, _raw)(rng, path)

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


def _raw(rng: random.Random, path: Path) -> None:
    path.write_bytes(damaged(rng, path.read_bytes()))
