"""Another library under a program's name, listed as it should be: only a compile can tell."""

from msgspec.structs import replace

from support.http_cache import HttpCache
from support.project import Project
from tilusbuild.remote.record import blob_for, decode, encode, key
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
    found = decode(server.held[path])
    meta = unseal((user.programs[program] / "meta.json").read_bytes())
    blob = blob_for(data)
    meta["files"][product] = {"size": blob.size, "sha256": blob.digest}
    sealed = seal(meta)
    files = {**found.files, product: blob, "meta.json": blob_for(sealed)}
    server.held[f"/cas/{blob.digest}"] = data
    texts = {**found.texts, "meta.json": sealed.decode()}
    texts.pop(product, None)
    server.held[path] = encode(replace(found, files=files, texts=texts))
