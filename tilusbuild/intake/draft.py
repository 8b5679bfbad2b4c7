"""A draft of a manifest: the libraries and kernels of a foreign project, and notes on the rest.

Readers fill a `ManifestDraft` and write nothing. Each thing that they cannot carry over is a note
that names its source, so that nothing is lost in silence.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, get_args

from msgspec import Struct, field

from tilusbuild.expr import Value
from tilusbuild.manifest.sections import Standard
from tilusbuild.manifest.table import format_toml, format_toml_key

DEFAULT_ARCH = "sm_80"
STANDARDS: tuple[str, ...] = get_args(Standard)
"""From the oldest to the newest."""
_YEARS = {"1y": "14", "1z": "17", "2a": "20", "2b": "23"}
"""The years of standards by their names as drafts, which compilers still take."""
_LINE = 100


Archs: TypeAlias = tuple[tuple[str, ...], bool]
"""Architectures, and whether PTX is kept."""


class LibraryDraft(Struct):
    """Sources that are compiled with the same arguments: a `[library.NAME]`, or a part of one."""

    name: str
    sources: list[str] = field(default_factory=list)
    include_dirs: list[object] = field(default_factory=list)
    """As in a manifest: paths, or tables with a package."""
    defines: dict[str, Value] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    keys: dict[str, object] = field(default_factory=dict)
    """The other keys of its table."""
    arch: Archs | None = None
    """`None`: of host code, those of any target."""
    std: str | None = None
    march: str | None = None


class KernelDraft(Struct):
    """A `[script.NAME]` with one kernel and its tuning space."""

    name: str
    template: str
    """"" for a kernel that `keys` name."""
    kernel: str
    keys: dict[str, object] = field(default_factory=dict)
    """The other keys of its table."""
    flags: list[str] = field(default_factory=list)
    args: dict[str, object] = field(default_factory=dict)
    space: dict[str, list[Any]] = field(default_factory=dict)
    restrict: dict[str, str] = field(default_factory=dict)
    grid: list[Value] = field(default_factory=list)
    block: list[Value] = field(default_factory=list)
    smem: Value | None = None


class ManifestDraft(Struct):
    """The content of a `tilus.toml`, with notes."""

    project: str
    targets: dict[str, Archs] = field(default_factory=dict)
    toolchain: dict[str, str | None] = field(default_factory=dict)
    toolchains: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """Those with a name."""
    level: int | None = None
    """The level of the spaces that is built; None for all of them."""
    libraries: list[LibraryDraft] = field(default_factory=list)
    kernels: list[KernelDraft] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    """Texts on omissions and assumptions, in order. A dictionary holds each once."""

    def add_note(self, text: str) -> None:
        """Add a note, once. Control characters become U+FFFD: names of foreign files must not reach
        the terminal or end the comment."""
        self.notes["".join(c if c.isprintable() else "\ufffd" for c in text)] = None


def format_manifest(draft: ManifestDraft) -> str:
    """Return the text of `tilus.toml`, with the notes as comments at the top."""
    lines = [f"# {note}" for note in draft.notes]
    if draft.notes:
        lines.append("")
    lines += [
        "edition = 1",
        "",
        *_format_table("project", {"name": draft.project, "version": "0.1.0"}),
    ]
    # Torch's headers compile slowly, for up to ten architectures, and its own build has no limit.
    timeout = "2h" if any(library.keys.get("torch") for library in draft.libraries) else None
    lines += _format_table("build", {"level": draft.level, "timeout": timeout})
    lines += _format_table("toolchain", draft.toolchain)
    for name, keys in draft.toolchains.items():
        lines += _format_table(f"toolchain.named.{format_toml_key(name)}", keys)
    for name, (archs, ptx) in (draft.targets or {"gpu": ((DEFAULT_ARCH,), False)}).items():
        arch = archs[0] if len(archs) == 1 else [*archs]
        lines += _format_table(f"target.{name}", {"arch": arch, "ptx": ptx or None})
    for library in draft.libraries:
        lines += _format_table(f"library.{library.name}", _list_library_keys(library))
    for kernel in draft.kernels:
        lines += _format_kernel(kernel)
    return "\n".join(lines).rstrip("\n") + "\n"


def _list_library_keys(library: LibraryDraft) -> Mapping[str, object]:
    """Return the keys and values of a `[library.NAME]`. Empty values are among them."""
    return {
        # The manifest has patterns: a name with `[` in it would name other files.
        "sources": [glob.escape(name) for name in library.sources],
        "include-dirs": library.include_dirs,
        "defines": library.defines,
        "flags": library.flags,
        **library.keys,
    }


def _format_kernel(kernel: KernelDraft) -> list[str]:
    """Return the lines of a kernel's table in `tilus.toml`, and of the tables below it."""
    name = f"script.{kernel.name}"
    template_keys = {"template": kernel.template, "render": False, "kernel": kernel.kernel}
    script_keys = {
        **(template_keys if kernel.template else {}),
        **kernel.keys,
        "flags": kernel.flags,
    }
    return [
        *_format_table(name, script_keys),
        *_format_table(f"{name}.args", kernel.args),
        *_format_table(f"{name}.space", kernel.space),
        *_format_table(f"{name}.restrict", kernel.restrict),
        *_format_table(
            f"{name}.launch", {"grid": kernel.grid, "block": kernel.block, "smem": kernel.smem}
        ),
    ]


def _format_table(name: str, values: Mapping[str, object]) -> list[str]:
    """Return the lines of a table without its empty values; no lines for an empty table."""
    lines = [
        f"{format_toml_key(key)} = {_format_value(value)}"
        for key, value in values.items()
        if value not in (None, [], {})
    ]
    return [f"[{name}]", *lines, ""] if lines else []


def _format_value(value: object) -> str:
    """Return a value in TOML. A long list has an item a line."""
    text = format_toml(value)
    if not isinstance(value, list) or len(text) <= _LINE:
        return text
    return "[\n" + "".join(f"    {format_toml(item)},\n" for item in value) + "]"


def to_standard(written: str) -> str | None:
    """Return the C++ standard of a `-std`, as a manifest spells it: "c++17" of "gnu++1z". Return
    None for an unknown one."""
    name = written.replace("gnu++", "c++")
    year = name.removeprefix("c++")
    standard_name = f"c++{_YEARS.get(year, year)}"
    return standard_name if name.startswith("c++") and standard_name in STANDARDS else None


def make_table_name(text: str, used_names: Iterable[str] = ()) -> str:
    """Return a name for a table, made of `text`: lower case, digits and `_`, as "my_lib" of
    "My-lib". A name in `used_names` gets a number: "my_lib_2"."""
    words = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").lower() or "kernels"
    name = words if words[0].isalpha() else f"k{words}"  # a digit cannot come first
    number, free_name = 1, name
    while free_name in used_names:
        number += 1
        free_name = f"{name}_{number}"
    return free_name
