"""Would the tests notice? One operator, constant or condition of the product is changed at a time.

    python scripts/mutants.py --number 150 --seed 1           of the working tree
    python scripts/mutants.py --seed 1 --only 17              one again, with what pytest says

Mutants are drawn at random, with the seed, over the packages where a mistake costs most. The tests
of these packages run once, with pytest-cov, to know which of them execute which line, and for how
long. Then each mutant runs, in a copy of the tree, against the tests that execute its line; where
none does (what runs at import, or in a child process), against its package's. The quickest come
first, and only as many as take `--seconds` together. The first failure kills the mutant; so does a
run that takes five times as long, as an endless loop would. The price: the slow tests, those that
run nvcc and those of other packages do not run, so that the share is a lower bound, to be compared
with that of another revision under the same seed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import coverage

PACKAGES = ("cache", "engine", "plan", "compile", "runtime", "package")
TESTS = (*PACKAGES, "package_read", "builder")
_CHOSEN = ("-m", "not slow and not nvcc and not gpu", "-p", "no:cacheprovider", "-q")
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
            offset = text.find(old.encode(), end(left), begin(right)) if old else -1
            if offset >= 0:
                yield Mutant(path, left.end_lineno or left.lineno, offset, offset + len(old), new)
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
    candidates: list[Mutant] = []
    for package in PACKAGES:
        for directory, _, names in sorted(os.walk(os.path.join(root, "tilusbuild", package))):
            for name in sorted(name for name in names if name.endswith(".py")):
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    candidates += mutants(os.path.relpath(path, root), file.read())
    return random.Random(seed).sample(candidates, number)  # noqa: S311


class Trial(NamedTuple):
    """The results of the tests without a mutant."""

    lines: coverage.CoverageData
    """Which test executes which line."""
    seconds: dict[str, float]
    """How long each test takes, by its name."""
    failed: list[str]
    """The tests that fail, which are left out."""


def try_tests(root: str) -> Trial:
    """Run the tests of a tree once, without a mutant."""
    tests = [f"tests/{name}" for name in TESTS if os.path.isdir(f"{root}/tests/{name}")]
    command = [sys.executable, "-m", "pytest", "-n", "2", *_CHOSEN, "--cov=tilusbuild"]
    command += ["--cov-context=test", "--cov-report=", "-rfE"]
    command += ["--durations=0", "--durations-min=0", *tests]
    environment = {**os.environ, "PYTHONPATH": root, "COVERAGE_FILE": f"{root}/lines"}
    ran = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    seconds: dict[str, float] = {}
    for number, name in re.findall(r"^([0-9.]+)s \w+ +(.+)$", ran.stdout, re.MULTILINE):
        seconds[name] = seconds.get(name, 0) + float(number)
    data = coverage.CoverageData(f"{root}/lines")
    data.read()
    return Trial(data, seconds, failed)


def select_tests(mutant: Mutant, root: str, trial: Trial, most: float) -> list[str]:
    """Return the tests that execute a mutant's line, or those of its package: the quickest, of
    `most` seconds together."""
    contexts = trial.lines.contexts_by_lineno(os.path.join(root, mutant.path)).get(mutant.line, [])
    tests = {context.partition("|")[0] for context in contexts if context}
    if not tests:
        package = mutant.path.split("/")[1]
        tests = {name for name in trial.seconds if name.startswith(f"tests/{package}")}
    tests -= {*trial.failed}
    ordered = sorted(tests, key=lambda name: (trial.seconds.get(name, 0), name))
    sums = accumulate(trial.seconds.get(name, 0) for name in ordered)
    return [name for name, total in zip(ordered, sums, strict=True) if total <= most]


def run(root: str, tests: Sequence[str], seconds: float, show: bool) -> bool:
    """Run tests until one fails; return whether one did."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(tests))
        file.flush()
        command = [sys.executable, "-m", "pytest", "-x", *_CHOSEN, f"@{file.name}"]
        environment = {**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}
        output = None if show else subprocess.DEVNULL
        try:
            ran = subprocess.run(
                command, cwd=root, env=environment, stdout=output, stderr=output, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return True
    # 2 and 4: a mutant that cannot be imported.
    return ran.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the mutants that the tests kill.")
    parser.add_argument("--number", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="of tests, for each mutant")
    parser.add_argument("--only", type=int, help="the mutant of this number alone")
    parser.add_argument("--first", type=int, default=0, help="go on from the mutant of this number")
    options = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    drawn = draw(root, options.number, options.seed)
    killed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copy = os.path.join(scratch, "tree")
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build"))
        trial = try_tests(copy)
        note = f"{len(trial.failed)} tests fail without a mutant and are left out"
        print(note, *trial.failed, sep="\n  ")
        for number, mutant in enumerate(drawn):
            if options.only not in (None, number) or number < options.first:
                continue
            path = os.path.join(copy, mutant.path)
            with open(path, "rb") as file:
                text = file.read()
            try:
                with open(path, "wb") as file:
                    file.write(mutant.of(text))
                show = options.only is not None
                tests = select_tests(mutant, copy, trial, options.seconds)
                dead = bool(tests) and run(copy, tests, 5 * options.seconds, show)
            finally:
                with open(path, "wb") as file:
                    file.write(text)
            killed += dead
            old = text[mutant.begin : mutant.end].decode()
            change = f"{old!r} → {mutant.new!r}"
            word = "killed" if dead else "LIVES"
            print(f"{number:4} {word:6} {mutant.path}:{mutant.line}: {change}", flush=True)
    if options.only is None:
        print(f"{killed} of {len(drawn)} killed ({100 * killed / len(drawn):.0f} %)")


if __name__ == "__main__":
    main()
