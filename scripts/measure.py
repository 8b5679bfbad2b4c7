"""What the tree costs a reader: its size, its surface, its circles, the walk of a build.

    python scripts/measure.py                     the working tree, beside its budget
    python scripts/measure.py --rev v1 --rev .    side by side; `.` is the working tree
    python scripts/measure.py --write             the numbers of today become the budget

The budget, `scripts/budget.json`, is a ratchet: a number above it fails CI, so that a change that
adds to the tree edits the budget in the same commit, where a reviewer sees it. Nothing is run or
imported: files are read from git and parsed. The price: calls are followed by names and
annotations, so that the walk is an estimate, and comparable only with itself.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

START = ("tilusbuild.builder.build", "build")
BUDGET = "scripts/budget.json"
_WANTED = ("tilusbuild/", "tests/", "docs/manifest.md", "docs/formats.md")
_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip

Graph: TypeAlias = Mapping[str, set[str]]
Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


class Source:
    """One Python file of the product, and what its names mean."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.tree = ast.parse(text, path)
        self.module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.nodes = list(ast.walk(self.tree))
        self.classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @property
    def code_lines(self) -> int:
        """Lines that are not blank, not a comment, and not a string that stands alone."""
        prose: set[int] = set()
        for node in self.nodes:
            if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
                continue
            if isinstance(node.value.value, str):
                prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NOT_CODE:
                code.update(range(token.start[0], token.end[0] + 1))
        return len(code - prose)

    @cached_property
    def names(self) -> dict[str, str]:
        """What each name that is imported anywhere in the file stands for, dotted."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {a.asname or a.name: a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        return found


class Tree:
    """The files of a revision."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        python = {p: t for p, t in texts.items() if p.endswith(".py")}
        product = (Source(p, t) for p, t in python.items() if p.startswith("tilusbuild/"))
        self.product = {source.module: source for source in product}
        self.test_lines = sum(t.count("\n") for p, t in python.items() if p.startswith("tests/"))

    @cached_property
    def imports(self) -> Graph:
        """The modules that each one imports, also inside functions and for types only."""
        graph: dict[str, set[str]] = {}
        for module, source in self.product.items():
            # `from a.b import c` imports the module a.b.c, or a name of the module a.b.
            found = {
                n if n in self.product else n.rpartition(".")[0] for n in source.names.values()
            }
            graph[module] = {name for name in found if name in self.product} - {module}
        return graph

    @cached_property
    def floors(self) -> dict[str, int]:
        """How high each package stands above those that it imports."""
        graph: dict[str, set[str]] = defaultdict(set)
        for module, imported in self.imports.items():
            graph[_package(module)] |= {_package(name) for name in imported}
        floors: dict[str, int] = {}

        def floor(package: str, above: frozenset[str]) -> int:
            if package not in floors:
                below = graph.get(package, set()) - above - {package}
                floors[package] = 1 + max((floor(p, above | {package}) for p in below), default=0)
            return floors[package]

        for package in sorted(graph):
            floor(package, frozenset())
        return floors

    def subclasses(self, *roots: str) -> set[str]:
        """The classes below these, by name."""
        found = set(roots)
        while True:
            more = {
                node.name
                for source in self.product.values()
                for node in source.classes
                if found & {ast.unparse(base).split("[")[0] for base in node.bases}
            }
            if more <= found:
                return found - set(roots)
            found |= more


class Walk:
    """The functions that a build calls, in the order in which the code is written, each once."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.visited: list[tuple[str, str]] = []
        self._seen: set[int] = set()
        self._functions: dict[str, tuple[Source, Function]] = {}
        self._classes: dict[str, tuple[Source, ast.ClassDef]] = {}
        methods: dict[str, list[str]] = defaultdict(list)
        for module, source in tree.product.items():
            for node in source.tree.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._functions[f"{module}.{node.name}"] = (source, node)
                elif isinstance(node, ast.ClassDef):
                    self._classes[f"{module}.{node.name}"] = (source, node)
                    for part in node.body:
                        if isinstance(part, ast.FunctionDef):
                            name = f"{module}.{node.name}.{part.name}"
                            self._functions[name] = (source, part)
                            methods[part.name].append(name)
        self._only = {name: found[0] for name, found in methods.items() if len(found) == 1}
        start = ".".join(START)
        if start in self._functions:
            self._follow(start)

    def _follow(self, name: str) -> None:
        source, function = self._functions[name]
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        self.visited.append((source.module, name))
        holder = name.rpartition(".")[0]
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
            called = self._called(source, holder, function, call.func)
            if called is not None:
                self._follow(called)

    def _called(
        self, source: Source, holder: str, function: Function, called: ast.expr
    ) -> str | None:
        """Return the dotted name of the function or method that a call means, if it is ours."""
        if isinstance(called, ast.Name):
            name = source.names.get(called.id, f"{source.module}.{called.id}")
            return self._entered(name)
        if not isinstance(called, ast.Attribute):
            return None
        if isinstance(called.value, ast.Name):
            owner = called.value.id
            if owner in ("self", "cls") and holder in self._classes:
                found = self._entered(f"{holder}.{called.attr}")
            else:
                arguments = [*function.args.args, *function.args.kwonlyargs]
                kinds = {a.arg: ast.unparse(a.annotation) for a in arguments if a.annotation}
                kind = kinds.get(owner, owner).strip("'\"").split(" | ")[0]
                base = source.names.get(kind, f"{source.module}.{kind}")
                found = self._entered(f"{base}.{called.attr}")
            if found is not None:
                return found
        return self._only.get(called.attr)

    def _entered(self, name: str) -> str | None:
        if name in self._classes:
            name = f"{name}.__init__"
        return name if name in self._functions else None

    @property
    def rooms(self) -> int:
        """How many modules the calls enter."""
        return len({module for module, _ in self.visited})

    @property
    def climbs(self) -> int:
        """How often the next function stands on a higher floor than the last."""
        floors = [self._tree.floors.get(_package(module), 0) for module, _ in self.visited]
        return sum(after > before for before, after in pairwise(floors))


def measure(tree: Tree) -> dict[str, int]:
    """Every number, by what it is called. All of them are better when they are lower."""
    sources = list(tree.product.values())
    classes = [node for source in sources for node in source.classes]
    circles = cycles(tree.imports)
    walk = Walk(tree)
    texts = "".join(source.text for source in sources)
    return {
        "lines": sum(source.text.count("\n") for source in sources),
        "code lines": sum(source.code_lines for source in sources),
        "files": len(sources),
        "classes": len(classes),
        "JSON line classes": len(tree.subclasses("JsonLine", "Event")),
        "options": sum(_is_option(source, node) for source in sources for node in source.nodes),
        "manifest keys": _rows(tree.texts.get("docs/manifest.md", "")),
        "environment variables": len(set(re.findall(r"\bTILUSBUILD_[A-Z_]*[A-Z]\b", texts))),
        "formats on disk": _rows(tree.texts.get("docs/formats.md", "")),
        "circles of imports": len(circles),
        "files in circles": sum(map(len, circles)),
        "largest class, attributes": max((len(_attributes(node)) for node in classes), default=0),
        "rooms that a build enters": walk.rooms,
        "climbs of a build": walk.climbs,
        "lines of tests": tree.test_lines,
    }


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


def _attributes(node: ast.ClassDef) -> set[str]:
    """The fields that a class declares and those that its methods set on themselves."""
    found = {
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for part in ast.walk(node):
        if not isinstance(part, ast.Attribute) or not isinstance(part.ctx, ast.Store):
            continue
        if isinstance(part.value, ast.Name) and part.value.id == "self":
            found.add(part.attr)
    return found


def _is_option(source: Source, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    declares = name in ("option", "flag", "repeated", "many") and node.args + node.keywords
    return name == "add_argument" or bool(declares and "Args" in source.text)


def _rows(page: str) -> int:
    """Rows of a page's tables that begin with a name in code."""
    return sum(line.startswith("| `") for line in page.splitlines())


def _package(module: str) -> str:
    """`tilusbuild.cli.build` → `cli`."""
    return ".".join(module.split(".")[1:2]) or module


def read_tree(root: str, revision: str) -> Tree:
    """Read the files of a revision; `.` is the working tree."""
    if revision == ".":
        listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = [path for path in _wanted(listed) if os.path.isfile(os.path.join(root, path))]
        texts = {}
        for path in names:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                texts[path] = file.read()
        return Tree(texts)
    names = _wanted(_git(root, "ls-tree", "-r", "-z", "--name-only", revision))
    given = "".join(f"{revision}:{path}\n" for path in names).encode()
    stream = io.BytesIO(_git(root, "cat-file", "--batch", given=given))
    texts = {}
    for path in names:
        size = int(stream.readline().split()[-1])
        texts[path] = stream.read(size).decode()
        stream.read(1)  # each ends in a newline of its own
    return Tree(texts)


def _git(root: str, *words: str, given: bytes = b"") -> bytes:
    command = ["git", "-C", root, *words]
    return subprocess.run(command, input=given, capture_output=True, check=True).stdout


def _wanted(listed: bytes) -> list[str]:
    paths = sorted(set(listed.decode().split("\0")))
    return [p for p in paths if p.startswith(_WANTED) and p.endswith((".py", ".md"))]


def _table(columns: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    rows = list(next(iter(columns.values())))
    first = max(map(len, rows))
    widths = {name: max(len(name), 9) for name in columns}
    yield " " * first + "".join(f"  {name:>{widths[name]}}" for name in columns)
    for row in rows:
        cells = (f"  {column.get(row, 0):>{widths[name]},}" for name, column in columns.items())
        yield f"{row:<{first}}" + "".join(cells)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the tree of tilusbuild.")
    parser.add_argument("--rev", action="append", help="a git revision, or `.`; may be repeated")
    parser.add_argument("--write", action="store_true", help="make today's numbers the budget")
    parser.add_argument("-C", dest="root", default=".", help="the repository (default: here)")
    given = parser.parse_args(words)
    if given.rev:
        columns = {
            "working tree" if name == "." else name: measure(read_tree(given.root, name))
            for name in given.rev
        }
        print("\n".join(_table(columns)))
        return 0
    numbers = measure(read_tree(given.root, "."))
    path = os.path.join(given.root, BUDGET)
    if given.write:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(numbers, indent=2) + "\n")
    with open(path, encoding="utf-8") as file:
        budget: dict[str, int] = json.load(file)
    print("\n".join(_table({"now": numbers, "budget": budget})))
    over = [name for name, number in numbers.items() if number > budget.get(name, number)]
    for name in over:
        print(
            f"error: {name}: {numbers[name]:,} is over the budget of {budget[name]:,}; remove what "
            f"the change replaces, or edit {BUDGET} in the same commit and say why",
            file=sys.stderr,
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
