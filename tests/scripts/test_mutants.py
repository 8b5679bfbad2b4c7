"""`scripts/mutants.py` changes one thing at a time, where the program would run differently."""

from __future__ import annotations

import ast
import importlib.util
import sys

from support.paths import ROOT

TEXT = b"""\
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

def ends(sizes: "tuple[int, 2]", at: int = 1) -> bool:
    text = "1 < 2"
    while at in sizes and at * 2 <= 10:
        at += 1
    return True if not sizes else at is None
"""


def test_operators_conditions_and_constants_are_changed_and_types_are_not() -> None:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    mutants = list(module.mutants("a.py", TEXT))
    texts = [mutant.of(TEXT) for mutant in mutants]
    assert all(ast.dump(ast.parse(text)) != ast.dump(ast.parse(TEXT)) for text in texts)
    changes = sorted((m.line, TEXT[m.begin : m.end].decode(), m.new) for m in mutants)
    assert changes == [
        (6, "1", "2"),
        (8, "*", "//"),
        (8, "10", "11"),
        (8, "2", "3"),
        (8, "<=", "<"),
        (8, "and", "or"),
        (8, "at in sizes and at * 2 <= 10", "(not (at in sizes and at * 2 <= 10))"),
        (8, "in", "not in"),
        (9, "1", "2"),
        (10, "True", "False"),
        (10, "is", "is not"),
        (10, "not sizes", "(not (not sizes))"),
    ]
