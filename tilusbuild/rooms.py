"""The registry of optional rooms: directories of tilusbuild/ that the core does not know.

A room is optional if it has a `room.py`. That module imports nothing, and its `BRINGS` says what
the room adds: `{point: {name: value}}`. A value names a module or "module:attribute", which is
imported at its first use. Without the directory everything else works as before, and what the
room brings is unknown. The points, each read by one place of the core:

verb            name → (summary, group of `--help`, example, module)         cli/parser.py
cache action    name of an action of `cache` → module:attribute, a `Verb`    cli/cache.py
language        key of a script → module with `DEFAULTS`, `generate`       generate/worker.py
foreign cache   system → module: `is_one`, `ls`, `stats`, `verify`, `gc`       cli/options.py
dispatcher      "c" → module: `build_if_outdated`, `is_current_dispatcher` dispatch/refresh.py
package kind    key of the list → (root directory, module)                   package/names.py
package format  name → module:attribute, a `package.formats.PackageFormat`     package/formats/
report          form → module:attribute, lines of JSON to a file's bytes  the room of `report`
package tests   "write" → module:attribute, writes the cases of instances     cli/package.py
signing         "attester", "check" → module:attribute                   cli/options.py
rebuild         "programs" → class, "share" → function     builder/resources.py, cli/verify.py
benches         "ray" → class of an address, a `tune.benches.BenchSource`    the room of `tune`
public name     name in `tilusbuild` → module:attribute               tilusbuild/__init__.py
lines           verb → module:attribute, classes of its lines of `--json`    the schema of `--json`
module for kernels  name → module, put beside the runtime        the room of the format `kernels`
remote backend  scheme of an address → class, a `remote.backend.Backend`     remote/backend.py
remote address  scheme → function of the parts: what is wrong, a hint  manifest/remote_section.py
remote executor scheme of an address → class, a `remote.lazy.Executors`      remote/lazy.py

Price: the first question imports one small file of each room, 2 to 7 ms for four of them. A build
asks none of these questions, unless another machine has a part in it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from tilusbuild.errors import input_error

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


@cache
def list_rooms() -> tuple[str, ...]:
    """Return the names of the optional rooms that are installed."""
    # Sorted, so that what two rooms bring has one order on every file system.
    names = sorted(os.listdir(_PACKAGE))
    return tuple(n for n in names if os.path.isfile(os.path.join(_PACKAGE, n, "room.py")))


# What the core itself has of a point.
_CORE: dict[str, dict[str, str]] = {
    "package format": {
        "dir": "tilusbuild.package.formats.directory:FORMAT",
        "tar.zst": "tilusbuild.package.formats.archive:FORMAT",
    },
    "remote address": {
        "file": "tilusbuild.manifest.remote_section:find_directory_problem",
        **dict.fromkeys(("http", "https"), "tilusbuild.manifest.remote_section:find_host_problem"),
    },
    "remote backend": {
        "file": "tilusbuild.remote.files:FileBackend",
        **dict.fromkeys(("http", "https"), "tilusbuild.remote.http:HttpBackend"),
    },
}


@cache
def find_contributions(point: str) -> dict[str, Any]:
    """Return the contributions of the core and of all rooms to a point, by name. A room of which
    one in its `NEEDS` is missing contributes none."""
    contributions: dict[str, Any] = dict(_CORE.get(point, {}))
    rooms = list_rooms()
    for room in rooms:
        module = importlib.import_module(f"tilusbuild.{room}.room")
        if {*getattr(module, "NEEDS", ())} <= {*rooms}:
            contributions |= module.BRINGS.get(point, {})
    return contributions


def find_contribution(point: str, name: str) -> Any:
    """Return the contribution `name` to a point, or None. The rooms are asked only if the core has
    none of that name."""
    core_contribution = _CORE.get(point, {}).get(name)
    return core_contribution or find_contributions(point).get(name)


def import_value(name: str) -> Any:
    """Import and return the module "module", or the attribute "module:attribute"."""
    module, _, attribute = name.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, attribute) if attribute else imported


def load_contribution(point: str, name: str, purpose: str) -> Callable[..., Any]:
    """Return the function `name` that an optional part contributes at `point`. Raises `InputError`
    if the part is not installed; `purpose` ends the message."""
    functions = find_contributions(point)
    if name not in functions:
        raise input_error(f"this tilusbuild was installed without the part that {purpose}")
    function: Callable[..., Any] = import_value(functions[name])
    return function


# Packages whose modules have another name.
_DISTRIBUTIONS = {
    "google": "protobuf",
    "grpc": "grpcio",
    "tvm_ffi": "apache-tvm-ffi",
}


def find_missing_package(module: str | None) -> tuple[str, str]:
    """Return the distribution of a module that is not installed, and the command that installs it
    with tilusbuild's requirements or extra."""
    import re
    from importlib import metadata

    top = (module or "").partition(".")[0]
    package = _DISTRIBUTIONS.get(top, top).lower().replace("_", "-")
    try:
        declared = metadata.requires("tilusbuild") or []
    except metadata.PackageNotFoundError:
        declared = []
    extra = ""
    # The extra of developers has every package: it would be named before the one that users need.
    for line in (line for line in declared if "'dev'" not in line.replace('"', "'")):
        name = re.split(r"[^\w.-]", line)[0].lower().replace("_", "-")
        if name == package:
            marked = re.search(r"extra == ['\"](\w+)", line)
            extra = f"[{marked[1]}]" if marked else ""
            break
    return package, f"python -m pip install 'tilusbuild{extra}'"
