"""A kernel whose template stands in the program: a script without a project.

It becomes a project of its own in the cache's state folder, named by what is in it, so that
everything after it is as for any other script.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tilusbuild.errors import input_error
from tilusbuild.state.files import write_atomic
from tilusbuild.state.hashing import sha256_text

TEMPLATE = "kernel.cu.j2"
SOURCES = "sources"
"""The directory of their projects, in the cache's directory for state."""


class Source:
    """A Jinja2 template of CUDA, and the keys of a `[script.NAME]` table of `tilus.toml`.

    `Source(text, kernel="scale", args={…}, launch={…}, space={…})`: the keywords are the table's
    keys, with `_` for `-`. `name` is what the script is called; without it as its kernel is. What
    is wrong with them is told, as an `InputError`, when a kernel is made.
    """

    __slots__ = ("name", "table", "text")

    def __init__(self, text: str, *, name: str | None = None, **table: Any) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a template is a str, not {type(text).__name__}")
        if "template" in table or "targets" in table:
            raise TypeError("a Source has its template as text, and its targets from its caller")
        self.text = text
        self.table = {key.replace("_", "-"): value for key, value in table.items()}
        self.name = name or str(table.get("kernel") or table.get("entry") or "kernel")

    def __repr__(self) -> str:
        return f"<Source {self.name}>"

    def manifest(self, target: str, declared: Mapping[str, Any]) -> str:
        """The text of a `tilus.toml` that has this script for one target. Raises `InputError`."""
        tables = {
            "project": {"name": "kernel-cache", "version": "0"},
            f"target.{_text(target)}": declared,
            f"script.{_text(self.name)}": {"template": TEMPLATE, **self.table},
        }
        lines = ["edition = 1"]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{_text(k)} = {_text(v)}" for k, v in table.items())]
        return "\n".join(lines) + "\n"

    def project(self, above: str, target: str, declared: Mapping[str, Any]) -> str:
        """Write the project below a folder, unless it is there; its path. Raises `InputError`."""
        manifest = self.manifest(target, declared)
        folder = os.path.join(above, sha256_text(f"{manifest}\0{self.text}"))
        files = {"tilus.toml": manifest, TEMPLATE: self.text}
        try:
            os.makedirs(folder, exist_ok=True)
            for name, text in files.items():
                _write(os.path.join(folder, name), text.encode())
        except OSError as error:
            raise input_error(f"{folder} cannot be written: {error.strerror}") from None
        return folder


def _write(path: str, data: bytes) -> None:
    try:
        with open(path, "rb") as file:
            if file.read() == data:
                return
    except FileNotFoundError:
        pass
    write_atomic(path, data)


def _text(value: object) -> str:
    """A value as TOML in one line, which keeps the order of tables as writers of TOML do not, and
    a kernel's arguments have one. Raises `InputError`."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_text(str(k))} = {_text(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, bool | int | float | str):
        # JSON's strings, numbers and booleans are TOML's.
        return json.dumps(value, ensure_ascii=False)
    raise input_error(f"a Source holds numbers, words, lists and tables, not {value!r:.80}")
