"""Would the tests notice? One operator, constant or condition of the product is changed at a time.

    python scripts/mutants.py --number 150 --seed 1           of the working tree
    python scripts/mutants.py --seed 1 --only 17              one again, with what pytest says

Mutants are drawn at random, with the seed, over the packages where a mistake costs most. Each runs
in a copy of the tree against the tests of its own package, then, while none fails, against those
that build whole projects. The first failure kills it; so does a time-out, as an endless loop would.
The price: the slow tests and those that run nvcc do not run, so that the share is a lower bound, to
be compared with that of another revision under the same seed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PACKAGES = ("cache", "engine", "plan", "compile", "runtime", "package")
WHOLE = ("tests/builder",)
# What stands for an operator, and what takes its place.
_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"), ast.BitOr: ("|", "&"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file's text in which the characters `begin` to `end` are replaced."""

    path: str
    line: int
    begin: int
    end: int
    new: str

    def of(self, text: bytes) -> bytes:
        return text[: self.begin] + self.new.encode() + text[self.end :]


def mutants(path: str, text: bytes) -> Iterator[Mutant]:
    """Every mutant of a file: one change of an operator, a constant or a condition."""
    starts = [0]
    for line in text.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    tree = ast.parse(text)
    left_out = {id(part) for node in ast.walk(tree) for part in _no_code(node)}

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr) -> int:
        return starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)

    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        operator = _operator(node)
        if operator is not None:
            left, kind, right = operator
            old, new = _OPERATORS.get(kind, ("", ""))
            at = text.find(old.encode(), end(left), begin(right)) if old else -1
            if at >= 0:
                yield Mutant(path, left.end_lineno or left.lineno, at, at + len(old), new)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            where = (node.test.lineno, begin(node.test), end(node.test))
            condition = text[where[1] : where[2]].decode()
            if condition != "TYPE_CHECKING":
                yield Mutant(path, *where, f"(not ({condition}))")
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            # True and False are flipped, a number is one more.
            new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            yield Mutant(path, node.lineno, begin(node), end(node), new)


def _operator(node: ast.AST) -> tuple[ast.expr, type[ast.AST], ast.expr] | None:
    """Return an operator between the two expressions beside it."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return node.left, type(node.ops[0]), node.comparators[0]
    if isinstance(node, ast.BoolOp):
        return node.values[0], type(node.op), node.values[1]
    if isinstance(node, ast.BinOp):
        return node.left, type(node.op), node.right
    return None


def _no_code(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that are types and say nothing when the program runs."""
    if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation:
        yield from ast.walk(node.annotation)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
        yield from ast.walk(node.returns)
    if isinstance(node, ast.ClassDef):  # `frozen=True` and the like: who would notice?
        for part in (*node.keywords, *node.decorator_list):
            yield from ast.walk(part)


def draw(root: str, number: int, seed: int) -> list[Mutant]:
    """Draw mutants, each file as often as it has places."""
    found: list[Mutant] = []
    for package in PACKAGES:
        for directory, _, names in sorted(os.walk(os.path.join(root, "tilusbuild", package))):
            for name in sorted(name for name in names if name.endswith(".py")):
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    found += mutants(os.path.relpath(path, root), file.read())
    return random.Random(seed).sample(found, number)  # noqa: S311


def run(root: str, tests: Sequence[str], seconds: int, show: bool) -> bool:
    """Run tests until one fails; return whether one did."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not nvcc and not gpu", *tests]
    environment = {**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}
    output = None if show else subprocess.DEVNULL
    try:
        ran = subprocess.run(
            command, cwd=root, env=environment, stdout=output, stderr=output, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return True
    if ran.returncode > 1 and ran.returncode != 2:  # 2: collecting failed, as a kill does
        raise SystemExit(f"error: pytest ended with {ran.returncode} at {' '.join(tests)}")
    return ran.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the mutants that the tests kill.")
    parser.add_argument("--number", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=900, help="for one run of tests")
    parser.add_argument("--only", type=int, help="the mutant of this number alone")
    given = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    drawn = draw(root, given.number, given.seed)
    killed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copy = os.path.join(scratch, "tree")
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build"))
        for number, mutant in enumerate(drawn):
            if given.only not in (None, number):
                continue
            path = os.path.join(copy, mutant.path)
            with open(path, "rb") as file:
                text = file.read()
            package = mutant.path.split("/")[1]
            own = [name for name in os.listdir(f"{copy}/tests") if name.startswith(package)]
            try:
                with open(path, "wb") as file:
                    file.write(mutant.of(text))
                tests = [f"tests/{name}" for name in own]
                show = given.only is not None
                dead = run(copy, tests, given.seconds, show)
                dead = dead or run(copy, WHOLE, given.seconds, show)
            finally:
                with open(path, "wb") as file:
                    file.write(text)
            killed += dead
            old = text[mutant.begin : mutant.end].decode()
            change = f"{old!r} → {mutant.new!r}"
            word = "killed" if dead else "LIVES"
            print(f"{number:4} {word:6} {mutant.path}:{mutant.line}: {change}", flush=True)
    if given.only is None:
        print(f"{killed} of {len(drawn)} killed ({100 * killed / len(drawn):.0f} %)")


if __name__ == "__main__":
    main()
