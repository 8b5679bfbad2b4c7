"""Measure the code: its size, its shape and its habits, now or at any revision.

    python scripts/measure.py                          the working tree
    python scripts/measure.py --rev v1 --rev HEAD      side by side; `.` is the working tree
    python scripts/measure.py --details                also name what is counted

Nothing is run or imported: files are read from git and parsed.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import statistics
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

PRODUCT = "tilusbuild"
TESTS = "tests"

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
Graph: TypeAlias = Mapping[str, set[str]]

DOUBLE = re.compile(r"_?(Fake|Faulty|Mock|Stub|Dummy)")
# What tools are told is no comment for readers.
DIRECTIVE = re.compile(r"#\s*(!|noqa|type:|fmt:|pragma:|ruff:|mypy:)")


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def functions(self) -> list[Function]:
        return [n for n in self.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def comment_lines(self) -> int:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        comments = [token for token in tokens if token.type == tokenize.COMMENT]
        return len({t.start[0] for t in comments if not DIRECTIVE.match(t.string)})

    @property
    def docstring_lines(self) -> int:
        """Lines of strings that stand alone: docstrings, and those that describe an attribute."""
        texts = [
            node
            for node in self.nodes
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]
        return sum(_length(text) for text in texts)

    def imports(self, modules: Mapping[str, Source]) -> Iterator[str]:
        """Every module of these that it imports, also inside functions and for types only."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parts = self.path.removesuffix(".py").split("/")
                above = parts[: len(parts) - node.level] if node.level else []
                base = ".".join([*above, *filter(None, [node.module])])
                names = [f"{base}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                # `from a.b import c` imports the module a.b.c, or a name of the module a.b.
                found = name if name in modules else name.rpartition(".")[0]
                if found in modules and found != self.module:
                    yield found


@dataclass(frozen=True)
class Tree:
    """The Python files of a revision."""

    product: Sequence[Source]
    tests: Sequence[Source]

    @cached_property
    def class_places(self) -> dict[str, set[str]]:
        """The modules that define a class, by its name."""
        places: dict[str, set[str]] = defaultdict(set)
        for source in self.product:
            for node in source.classes:
                places[node.name].add(source.module)
        return places

    @property
    def repeated_classes(self) -> dict[str, set[str]]:
        return {name: found for name, found in self.class_places.items() if len(found) > 1}

    @cached_property
    def lengths(self) -> list[int]:
        """The lengths of all functions, the shortest first."""
        return sorted(_length(f) for source in self.product for f in source.functions) or [0]

    @cached_property
    def module_graph(self) -> Graph:
        modules = {source.module: source for source in self.product}
        return {name: set(source.imports(modules)) for name, source in modules.items()}

    @cached_property
    def package_graph(self) -> Graph:
        graph: dict[str, set[str]] = defaultdict(set)
        for module, imported in self.module_graph.items():
            own = _package(module)
            graph[own] |= {_package(name) for name in imported} - {own}
        return graph

    @property
    def doubles(self) -> list[str]:
        """Classes of the product that are named as doubles for tests."""
        return [
            f"{source.module}.{node.name}"
            for source in self.product
            for node in source.classes
            if DOUBLE.match(node.name)
        ]

    def count(self, matches: Callable[[ast.AST], bool]) -> int:
        """How many nodes of the product match."""
        return sum(matches(node) for source in self.product for node in source.nodes)


def measure(tree: Tree) -> dict[str, str]:
    """Every number, by what it is called."""
    product, lengths = tree.product, tree.lengths
    lines = sum(source.lines for source in product)
    comments = sum(source.comment_lines for source in product)
    test_functions = [
        function
        for source in tree.tests
        for function in source.functions
        if function.name.startswith("test_")
    ]
    numbers: dict[str, str | int] = {
        "files": len(product),
        "lines": lines,
        "lines per file, median": _median([source.lines for source in product]),
        "longest file, lines": max((source.lines for source in product), default=0),
        "packages and top modules": len(tree.package_graph),
        "classes": sum(len(source.classes) for source in product),
        "class names in several modules": len(tree.repeated_classes),
        "functions": sum(len(source.functions) for source in product),
        "function length, median": _median(lengths),
        "function length, p95": lengths[int(0.95 * (len(lengths) - 1))],
        "function length, longest": lengths[-1],
        "comment lines": comments,
        "comment lines, share": f"{100 * comments / lines:.1f} %" if lines else "0.0 %",
        "docstring lines": sum(source.docstring_lines for source in product),
        "uses of Any": tree.count(_is_any),
        "imports in functions": sum(_imports_in_functions(source) for source in product),
        "import cycles of modules": len(cycles(tree.module_graph)),
        "import cycles of packages": len(cycles(tree.package_graph)),
        "doubles for tests, shipped": len(tree.doubles),
        "JSON printed directly": tree.count(_prints_json),
        "decisions on the pipeline": tree.count(_asks_for_pipeline),
        "test files and lines": f"{len(tree.tests)} / {sum(s.lines for s in tree.tests)}",
        "tests": len(test_functions),
        "assertions": sum(_is_assertion(node) for source in tree.tests for node in source.nodes),
    }
    return {name: str(number) for name, number in numbers.items()}


def details(tree: Tree, most: int = 10) -> Iterator[str]:
    """What the numbers count, by name."""
    longest = sorted(tree.product, key=lambda source: -source.lines)[:most]
    yield from (f"long file: {source.path} {source.lines}" for source in longest)
    functions = [
        (_length(f), source.path, f.name) for source in tree.product for f in source.functions
    ]
    for length, path, name in sorted(functions, reverse=True)[:most]:
        yield f"long function: {path} {name} {length}"
    for name, places in sorted(tree.repeated_classes.items()):
        yield f"class in several modules: {name}: {', '.join(sorted(places))}"
    for what, graph in (("modules", tree.module_graph), ("packages", tree.package_graph)):
        for members in cycles(graph):
            yield f"cycle of {what}: {', '.join(members)}"
    yield from (f"double: {name}" for name in tree.doubles)


def cycles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that all reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def read_tree(root: str, revision: str) -> Tree:
    """Read the Python files of a revision; `.` is the working tree."""
    if revision == ".":
        listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        paths = [path for path in _wanted(listed) if os.path.isfile(os.path.join(root, path))]
        texts = [_text(os.path.join(root, path)) for path in paths]
    else:
        paths = _wanted(_git(root, "ls-tree", "-r", "-z", "--name-only", revision))
        texts = _contents(root, [f"{revision}:{path}" for path in paths])
    sources = [Source(path, text) for path, text in zip(paths, texts, strict=True)]
    return Tree(
        [source for source in sources if source.path.startswith(f"{PRODUCT}/")],
        [source for source in sources if source.path.startswith(f"{TESTS}/")],
    )


def _git(root: str, *words: str, given: bytes = b"") -> bytes:
    command = ["git", "-C", root, *words]
    return subprocess.run(command, input=given, capture_output=True, check=True).stdout


def _wanted(listed: bytes) -> list[str]:
    paths = sorted(set(listed.decode("utf-8", "surrogateescape").split("\0")))
    return [p for p in paths if p.endswith(".py") and p.startswith((f"{PRODUCT}/", f"{TESTS}/"))]


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _contents(root: str, names: Sequence[str]) -> list[str]:
    """The contents of many blobs with one process."""
    given = "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
    stream = io.BytesIO(_git(root, "cat-file", "--batch", given=given))
    texts = []
    for _ in names:
        size = int(stream.readline().split()[-1])
        texts.append(stream.read(size).decode())
        stream.read(1)  # each ends in a newline of its own
    return texts


def _length(node: ast.expr | ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _median(numbers: Sequence[int]) -> int:
    return int(statistics.median(numbers)) if numbers else 0


def _package(module: str) -> str:
    """`tilusbuild.cli.build` → `cli`."""
    return ".".join(module.split(".")[1:2]) or module


def _is_any(node: ast.AST) -> bool:
    named = isinstance(node, ast.Name) and node.id == "Any"
    return named or (isinstance(node, ast.Attribute) and node.attr == "Any")


def _imports_in_functions(source: Source) -> int:
    inside = {
        node
        for function in source.functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return len(inside)


def _called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _prints_json(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or _called(node) not in ("print", "sys.stdout.write"):
        return False
    return any(_called(part) in ("json.dumps", "dumps") for a in node.args for part in ast.walk(a))


def _asks_for_pipeline(node: ast.AST) -> bool:
    """A comparison with a pipeline's name, or the question whether it goes through NVRTC."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return node.attr == "through_nvrtc"
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    return any(
        isinstance(side, ast.Name | ast.Attribute)
        and ast.unparse(side).rpartition(".")[2] == "pipeline"
        for side in sides
    )


def _is_assertion(node: ast.AST) -> bool:
    """An assert statement, or a call that asserts: `pytest.raises`, `assert_array_equal`."""
    name = _called(node).rpartition(".")[2]
    return isinstance(node, ast.Assert) or name in ("raises", "warns") or name.startswith("assert_")


def _table(columns: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    rows = list(next(iter(columns.values())))
    first = max(map(len, rows))
    widths = {name: max(len(name), *map(len, column.values())) for name, column in columns.items()}
    yield " " * first + "".join(f"  {name:>{widths[name]}}" for name in columns)
    for row in rows:
        cells = (f"  {column[row]:>{widths[name]}}" for name, column in columns.items())
        yield f"{row:<{first}}" + "".join(cells)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the code of tilusbuild.")
    parser.add_argument("--rev", action="append", help="a git revision, or `.`; may be repeated")
    parser.add_argument("--details", action="store_true", help="name what is counted")
    parser.add_argument("-C", dest="root", default=".", help="the repository (default: here)")
    given = parser.parse_args(words)
    trees = {revision: read_tree(given.root, revision) for revision in given.rev or ["."]}
    named = {"working tree" if name == "." else name: tree for name, tree in trees.items()}
    for line in _table({name: measure(tree) for name, tree in named.items()}):
        print(line)
    if given.details:
        for name, tree in named.items():
            print(f"\n{name}:")
            for line in details(tree):
                print(f"  {line}")


if __name__ == "__main__":
    main()
