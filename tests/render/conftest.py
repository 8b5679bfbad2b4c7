"""A project of templates in a directory of the test's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.render.linemap import LineMap
from tilusbuild.render.renderer import Renderer

CPU = {
    "target": {"kind": "cpu", "name": "host", "arch": "cpu"},
    "arch": {"number": 0},
    "script": {"name": "gemm"},
}
AMPERE = {
    "target": {"kind": "cuda", "name": "ampere", "arch": "sm_80"},
    "arch": {"number": 80},
    "script": {"name": "gemm"},
}
HOPPER = {
    "target": {"kind": "cuda", "name": "h100", "arch": "sm_90a"},
    "arch": {"number": 90},
    "script": {"name": "gemm"},
}


class Project:
    """Templates below a directory, and what becomes of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def render(self, text: str, around: Mapping[str, Any] = AMPERE, **values: Any) -> str:
        """The rendering of a template of this text."""
        self.write({"k.cu.j2": text})
        return Renderer(str(self.directory)).render("k.cu.j2", {**around, **values}).text

    def refusal(self, text: str, around: Mapping[str, Any] = AMPERE, **values: Any) -> Diagnostic:
        """What is wrong with a template of this text."""
        with pytest.raises(InputError) as caught:
            self.render(text, around, **values)
        (diagnostic,) = caught.value.diagnostics
        return diagnostic

    def mapped(
        self, text: str, around: Mapping[str, Any] = AMPERE, **values: Any
    ) -> tuple[str, LineMap]:
        """The rendering of a template of this text, and its line map."""
        self.write({"k.cu.j2": text})
        renderer = Renderer(str(self.directory))
        context = {**around, **values}
        rendered = renderer.render("k.cu.j2", context).text
        return rendered, renderer.map_lines("k.cu.j2", context, rendered)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def cpu() -> dict[str, Any]:
    return dict(CPU)


@pytest.fixture
def ampere() -> dict[str, Any]:
    return dict(AMPERE)


@pytest.fixture
def hopper() -> dict[str, Any]:
    return dict(HOPPER)
