"""Where templates come from: the project's directory, and the shipped ones under `tilusbuild/`.

A name is relative, with `/` between its parts, and never leads outside: not by `..`, not by a
symbolic link. Each template is read once in the life of a loader, so one plan sees one content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from jinja2 import BaseLoader, TemplateNotFound

from tilusbuild.render import templates_directory

SHIPPED = "tilusbuild/"


class BadTemplateError(TemplateNotFound):
    """A template that cannot be used; the message says why."""

    def __init__(self, name: str, message: str, line: int | None = None) -> None:
        super().__init__(name, message)
        self.bad_line = line


class ProjectLoader(BaseLoader):
    """Finds templates below `root` and in the shipped directory."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.shipped = os.path.realpath(templates_directory())
        self._texts: dict[str, str] = {}

    def path(self, name: str) -> str:
        """Return the file of a template, whether it exists or not. Raises `BadTemplateError`."""
        if not name or name.startswith("/") or "\0" in name:
            raise BadTemplateError(
                name, f'the template "{name}" is not a path relative to the project'
            )
        if ".." in name.split("/"):
            raise BadTemplateError(name, f'the template "{name}" leads out of the project')
        base = self.shipped if name.startswith(SHIPPED) else self.root
        path = os.path.join(base, name)
        real = os.path.realpath(path)
        if real != base and not real.startswith(base.rstrip("/") + "/"):
            raise BadTemplateError(
                name, f'the template "{name}" is a link that leads out of the project'
            )
        return path

    def text(self, name: str) -> str:
        """Return the content of a template. Raises `TemplateNotFound`; `BadTemplateError` for no
        text."""
        if (known := self._texts.get(name)) is not None:
            return known
        path = self.path(name)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            raise TemplateNotFound(name) from None
        except OSError as error:
            raise BadTemplateError(name, f'the template "{name}": {error.strerror}') from None
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise BadTemplateError(name, f'the template "{name}" is not UTF-8', line) from None
        return self._texts.setdefault(name, re.sub(r"\r\n?", "\n", text))

    def get_source(
        self, environment: Any, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        return self.text(template), self.path(template), lambda: True

    def list_templates(self) -> list[str]:
        """Return names that could be meant, for suggestions."""
        names = []
        for base, top in ((self.root, ""), (self.shipped, SHIPPED)):
            for directory, directories, files in os.walk(os.path.join(base, top)):
                directories[:] = sorted(f for f in directories if not f.startswith("."))
                names += [
                    os.path.relpath(os.path.join(directory, file), base)
                    for file in sorted(files)
                    if file.endswith((".j2", ".jinja", ".cu", ".cuh", ".h"))
                ]
                if len(names) > 10_000:
                    break
        return names
