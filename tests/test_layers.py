"""The data flows one way: no module imports from a layer that comes after its own. That no imports
go in a circle, lazy ones too, is counted by `make lint`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tilusbuild

LAYERS = [
    "runtime", "option", "_version",
    "errors", "rooms", "state", "noop", "table",
    "process", "expr", "arch", "binary", "status", "signature",
    "space", "manifest", "toolchain", "generate", "render", "compile", "plan",
    "cache", "engine", "remote", "report", "dispatch", "builder", "package",
    "cli", "tune", "check", "ray",
    "watch", "jit", "signing", "oci", "embed", "kernels", "interop", "intake", "reapi", "page",
    "rebuild", "diff", "compdb", "preflight", "overview", "languages",
    "torch",
]  # fmt: skip

PACKAGE = Path(tilusbuild.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer(module: str) -> str | None:
    """The layer that a dotted module name belongs to; None outside tilusbuild."""
    parts = module.split(".")
    return parts[1] if parts[0] == "tilusbuild" and len(parts) > 1 else None


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every layer that a file imports from, also inside functions, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module:
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if (layer_name := layer(name)) in LAYERS:
                yield node.lineno, layer_name


def test_imports_point_backwards() -> None:
    places = {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert {*places.values()} == {*LAYERS, "__init__", "__main__"}, "each has a place in the order"
    late = [
        f"{path}:{line}: {other} is later than {own}"
        for path, own in places.items()
        if own in LAYERS
        for line, other in imported(path)
        if LAYERS.index(other) > LAYERS.index(own)
    ]
    assert not late
