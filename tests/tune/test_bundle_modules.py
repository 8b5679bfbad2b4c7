"""What a bundle carries needs the standard library and what it carries, nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import tilusbuild
from tilusbuild.tune import bundle

PACKAGE = Path(tilusbuild.__file__).parent
CARRIED = [
    path
    for name in (*bundle._CARRIED, *bundle._CARRIED_TUNE)
    for path in (
        [PACKAGE / name] if name.endswith(".py") else sorted((PACKAGE / name).glob("*.py"))
    )
]
HAVE_REASON = {"numpy": "where it is installed, comparisons are faster"}


def modules() -> set[str]:
    """The dotted names of what is carried, packages included."""
    found = set()
    for path in CARRIED:
        parts = ["tilusbuild", *path.relative_to(PACKAGE).with_suffix("").parts]
        found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def imported(tree: ast.AST) -> set[str]:
    """Every module that code imports wherever it is run; not what only type checkers see."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        waiting += ast.iter_child_nodes(node)
    return found


def test_imports() -> None:
    strangers = [
        (path, name)
        for path in CARRIED
        for name in imported(ast.parse(path.read_text())) - modules()
        if name.split(".")[0] not in sys.stdlib_module_names and name not in HAVE_REASON
    ]
    # The `load` of the package is for who has the whole of it.
    assert {*strangers} <= {(PACKAGE / "__init__.py", "tilusbuild")}
