"""A package as Hugging Face's `kernels` loads one: `build/<variant>`, from the Hub or a directory.

Nothing here is compiled against torch: a library is called through tvm-ffi. So the variants are
those of tvm-ffi, one for the CPU, and one for CUDA by the toolkit that made the code; `kernels`
compares machine, tvm-ffi's series and torch's CUDA with their names. Each holds the whole package,
tilusbuild's runtime, and a module in which every script is a function of tensors: where there is
torch, an op of it. A module is imported under any name, so that its imports are relative.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from tilusbuild import rooms
from tilusbuild.embed.wheel import (
    INSIDE,
    RUNTIME,
    list_runtime_code,
    normalize_name,
    rewrite_imports,
)
from tilusbuild.package import names
from tilusbuild.package.contents import TVM_FFI, Contents
from tilusbuild.package.errors import cannot_pack, no_package
from tilusbuild.package.formats import PackageFormat
from tilusbuild.package.formats.directory import list_files, write_tree
from tilusbuild.package.listing import FileList
from tilusbuild.package.model import Reader, parse_version
from tilusbuild.runtime.naming import name_functions
from tilusbuild.runtime.regular import try_list
from tilusbuild.runtime.script import CALLED, FILE, parse_description
from tilusbuild.runtime.sealed import unseal_json

_METADATA = "metadata.json"
_CODE = '''\
"""Kernels of {title}: each is a function of tensors. Where torch is installed, it is an op of
`torch.ops.{id}`, which `torch.compile` sees through."""

import os
from importlib.util import find_spec

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{inside}")
_KERNELS = {functions}


def load(script, *, target=None, strict=False, **params):
    """The kernel of a script, as `tilusbuild.load` gives it, from this package."""
    from .{runtime}.loading import load

    return load(script, where=path, target=target, strict=strict, **params)


def __getattr__(name):
    if name not in _KERNELS:
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    globals()[name] = load(_KERNELS[name])
    return globals()[name]


def _register():
    from . import _ops

    made = getattr(_ops.torch.ops, "{id}")
    for name, script in _KERNELS.items():
        try:
            if not hasattr(made, name):
                _ops.register("{id}", path, {{name: script}})
            globals()[name] = getattr(made, name)
        except TypeError:  # no op takes an address or a struct: a function, then
            pass


if {with_ops} and find_spec("torch") is not None:
    _register()
__all__ = ["load", "path", *sorted(_KERNELS)]
'''


def write_kernels(contents: Contents, path: str, *, time: int) -> None:
    """Write the layout as a new directory. `time` is the modification time of every file, in
    seconds since 1970. Raises `PackageError` and `OSError`."""
    write_tree(path, _list_files(contents), time=time)


def _is_kernels(path: str, start: bytes) -> bool:
    """Return whether a directory has a package in each of its variants, and at least one variant.
    `start` is b"" for a directory."""
    if start:
        return False
    variants = try_list(os.path.join(path, "build"))
    list_paths = (os.path.join(path, "build", variant, INSIDE, names.LIST) for variant in variants)
    # A directory in this format is replaced as a whole, so every variant must be a package.
    return bool(variants) and all(map(os.path.isfile, list_paths))


def _list_files(contents: Contents) -> Iterator[tuple[str, bytes]]:
    """Yield the path and bytes of every file of the layout. Raises `PackageError`."""
    name = normalize_name(contents.listed.title)
    if not re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", name):
        raise cannot_pack(
            f'"{contents.listed.title}" is not a name that kernels takes',
            hint="`name` in [project] begins with a letter, and has two characters or more",
        )
    for variant, backend in _list_variants(contents.listed).items():
        # `kernels` may load two versions in one process: their ops need different namespaces.
        # An op's namespace is an identifier, and `name` may hold `-`.
        identifier = f"_{name.replace('-', '_')}_{backend['type']}_{contents.digest[:12]}"
        digests = {}
        for file, data in _list_members(contents, identifier):
            digests[file] = base64.b64encode(hashlib.sha256(data).digest()).decode()
            yield f"build/{variant}/{file}", data
        # `kernels` takes a whole number. The manifest's `version` begins with a digit.
        major = re.match(r"\d+", contents.listed.version)[0]  # type: ignore[index]
        metadata = {
            "name": name,
            "id": identifier,
            "version": int(major),
            "license": "other",
            # tvm-ffi is in the name of the variant, by which `kernels` requires it.
            "python-depends": [],
            "backend": backend,
            "digest": {"algorithm": "sha256", "files": digests},
        }
        yield f"build/{variant}/{_METADATA}", (json.dumps(metadata, indent=2) + "\n").encode()


def _list_variants(listing: FileList) -> dict[str, dict[str, object]]:
    """Return the `backend` metadata of each variant that a package serves, by its name."""
    series = "{}{}".format(*parse_version(TVM_FFI))
    platform = f"{listing.needs.machine}-linux"
    variants: dict[str, dict[str, object]] = {}
    if any(target.kind == "cpu" for target in listing.targets.values()):
        variants[f"tvm-ffi{series}-cpu-{platform}"] = {"type": "cpu"}
    toolkits = [t.toolkit for t in listing.targets.values() if t.kind == "cuda" and t.toolkit]
    if toolkits:
        # The newest toolkit counts: a torch for an older CUDA may be on a driver that does not run
        # the code of the newest.
        major, minor = max(map(parse_version, toolkits))[:2]
        images = {image for program in listing.programs.values() for image in program.images}
        archs = {
            _to_capability(image.arch) + ("+PTX" if image.kind == "ptx" else "") for image in images
        }
        variants[f"tvm-ffi{series}-cu{major}{minor}-{platform}"] = {
            "type": "cuda",
            "archs": sorted(archs),
        }
    return variants


def _to_capability(arch: str) -> str:
    """Return an architecture as `kernels` writes it: `9.0a` for `sm_90a`."""
    digits, suffix = re.fullmatch(r"\w+_(\d+)([af]?)", arch).groups()  # type: ignore[union-attr]
    return f"{digits[:-1]}.{digits[-1]}{suffix}"


def _list_members(contents: Contents, identifier: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of one variant, except its metadata. Raises `PackageError`."""
    room_modules = rooms.find_contributions("module for kernels")
    yield (
        "__init__.py",
        _CODE.format(
            title=contents.listed.title,
            id=identifier,
            inside=INSIDE,
            runtime=RUNTIME,
            functions=_name_functions(contents),
            with_ops="_ops" in room_modules,
        ).encode(),
    )
    # A room's module is copied beside the runtime: the deployment has no tilusbuild.
    for name, module in room_modules.items():
        origin = find_spec(module).origin  # type: ignore[union-attr]
        yield f"{name}.py", rewrite_imports(str(origin), f".{RUNTIME}")
    yield from list_runtime_code()
    yield from ((f"{INSIDE}/{name}", data) for name, data in list_files(contents))


def _name_functions(contents: Contents) -> Mapping[str, str]:
    """Return the scripts that can be called, by the name of their function. Raises `PackageError`
    if two functions would have one name."""
    scripts = [
        parse_description("", unseal_json(contents.read_listed(path)))
        for path in contents.listed.files
        if path.endswith(f"/{FILE}")
    ]
    try:
        return name_functions([(s.name, s.params) for s in scripts if s.form == CALLED])
    except ValueError as error:
        raise cannot_pack(str(error), hint="rename one of the scripts") from None


def _refuse_to_read(path: str) -> Reader:
    """Raise `PackageError`: each variant holds a directory package, which can be read."""
    raise no_package(f"it holds a package for each variant, in build/*/{INSIDE}")


FORMAT = PackageFormat(
    title="a directory of `kernels`",
    file_name=lambda stem, _: f"{stem}.kernels",
    write=write_kernels,
    recognize=_is_kernels,
    read=_refuse_to_read,
    is_readable=False,
    holds_kinds=False,
)
