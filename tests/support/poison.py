"""Another library under a program's name, listed as it should be: only a compile can tell."""

from pathlib import Path

from support.http_cache import HttpCache
from support.project import Project
from tilusbuild.remote.archive import Unpacker, key_digest, pack_entry, program_key
from tilusbuild.runtime.sealed import seal_json, unseal_json
from tilusbuild.state.files import sha256_bytes


def path_of(key: str) -> str:
    """Where a server of /ac keeps the file of a key."""
    return f"/ac/{key_digest(key)}"


def unpack(data: bytes) -> dict[str, bytes]:
    """The files in a small archive."""
    files = Unpacker("/nonexistent").unpack_entry([data]).files
    return {name: content for name, content in files.items() if isinstance(content, bytes)}


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of a program's directory."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def poison(
    server: HttpCache,
    user: Project,
    program: str,
    product: str = "module/lib.so",
    more: bytes = b"\0",
) -> None:
    """Have the server keep another product, with `more` bytes, in which all digests hold."""
    files = files_of(user.programs[program])
    files[product] += more
    meta = unseal_json(files["meta.json"])
    data = files[product]
    meta["files"][product] = {"size": len(data), "sha256": sha256_bytes(data)}
    files["meta.json"] = seal_json(meta)
    server.held[path_of(program_key(program))] = pack_entry(files, 1.0)
