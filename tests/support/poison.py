"""Another library under a program's name, listed as it should be: only a compile can tell."""

from __future__ import annotations

from support.http_cache import HttpCache
from support.project import Project
from tilusbuild.remote import reapi_pb2 as reapi
from tilusbuild.remote.record import blob_for, key
from tilusbuild.runtime.sealed import seal, unseal


def poison(
    server: HttpCache,
    user: Project,
    program: str,
    product: str = "module/lib.so",
    more: bytes = b"\0",
) -> None:
    """Have the server keep another product, with `more` bytes, in which all digests hold."""
    data = (user.programs[program] / product).read_bytes() + more
    path = f"/ac/{key(program).digest}"
    found = reapi.ActionResult.FromString(server.held[path])
    meta = unseal((user.programs[program] / "meta.json").read_bytes())
    blob = blob_for(data)
    meta["files"][product] = {"size": blob.size, "sha256": blob.digest}
    sealed = seal(meta)
    for name, content in ((product, data), ("meta.json", sealed)):
        digest = next(each.digest for each in found.output_files if each.path == name)
        now = blob_for(content)
        digest.hash, digest.size_bytes = now.digest, now.size
        server.held[f"/cas/{now.digest}"] = content
    server.held[path] = found.SerializeToString()
