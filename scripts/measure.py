"""What the tree costs a reader: its size, its surface, its circles, the walk of a build.

    python scripts/measure.py                     the working tree, beside its budget
    python scripts/measure.py --rev v1 --rev .    side by side; `.` is the working tree
    python scripts/measure.py --write             the numbers of today become the budget

The budget, `scripts/budget.json`, is a ratchet: a number that is worse than it fails CI, so that a
change that adds to the tree edits the budget in the same commit, where a reviewer sees it. Fewer is
better, except in the two rows of `MORE_IS_BETTER`. Nothing is run or
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
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

START = ("tilusbuild.builder.build", "build_project")
BUDGET = "scripts/budget.json"
_WANTED = ("tilusbuild/", "tests/", "docs/manifest", "docs/formats.md")
_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip

MORE_IS_BETTER = ("words in 100 names", "comments in 1,000 lines")
"""Rows whose budget is a minimum: names that say more, and code that says why."""

# Names of functions that a class must have, and not names that their author chose.
_PROPERTIES = {"property", "cached_property", "classmethod", "setter", "getter"}
# Participles without the ending -ed; and words that end in -ed and are verbs in the imperative.
_IRREGULAR = {
    "found", "kept", "known", "made", "left", "given", "taken", "chosen", "written", "drawn",
    "shown", "said", "told", "brought", "built",
}  # fmt: skip
_VERBS_IN_ED = {"need", "feed", "add"}

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

    @property
    def comment_lines(self) -> int:
        """Lines with nothing but a comment."""
        return sum(line.lstrip().startswith("#") for line in self.text.splitlines())

    @property
    def ignored_errors(self) -> int:
        """Handlers of `OSError` that raise nothing, and `suppress(OSError)`."""
        handlers = (
            node.type
            for node in self.nodes
            if isinstance(node, ast.ExceptHandler)
            and not any(isinstance(part, ast.Raise) for part in ast.walk(node))
        )
        suppressors = (
            node.context_expr
            for node in self.nodes
            if isinstance(node, ast.withitem) and "suppress" in ast.unparse(node.context_expr)
        )
        exceptions = (ast.unparse(node) for node in (*handlers, *suppressors) if node is not None)
        return sum(bool(re.search(r"\bOSError\b", text)) for text in exceptions)

    @property
    def chosen_names(self) -> list[str]:
        """The names of functions and methods; no dunders, properties and class methods."""
        return [
            node.name
            for node in self.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("__")
            and not _PROPERTIES & {_last_name(decorator) for decorator in node.decorator_list}
        ]

    @cached_property
    def names(self) -> dict[str, str]:
        """What each name that is imported anywhere in the file stands for, dotted."""
        origin_by_name: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                origin_by_name |= {a.asname or a.name: a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                origin_by_name |= {
                    a.asname or a.name: f"{node.module}.{a.name}" for a in node.names
                }
        return origin_by_name


class Tree:
    """The files of a revision."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        python = {p: t for p, t in texts.items() if p.endswith(".py")}
        product = (Source(p, t) for p, t in python.items() if p.startswith("tilusbuild/"))
        self.product = {source.module: source for source in product}
        self.test_lines = sum(t.count("\n") for p, t in python.items() if p.startswith("tests/"))

    @cached_property
    def optional_rooms(self) -> set[str]:
        """The packages that the core does not know: those with a `room.py`."""
        return {_package(module) for module in self.product if module.endswith(".room")}

    @cached_property
    def imports(self) -> Graph:
        """The modules that each one imports, also inside functions and for types only."""
        graph: dict[str, set[str]] = {}
        for module, source in self.product.items():
            # `from a.b import c` imports the module a.b.c, or a name of the module a.b.
            modules = {
                n if n in self.product else n.rpartition(".")[0] for n in source.names.values()
            }
            graph[module] = {name for name in modules if name in self.product} - {module}
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
        classes = set(roots)
        while True:
            more = {
                node.name
                for source in self.product.values()
                for node in source.classes
                if classes & {ast.unparse(base).split("[")[0] for base in node.bases}
            }
            if more <= classes:
                return classes - set(roots)
            classes |= more


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
        self._only = {
            name: candidates[0] for name, candidates in methods.items() if len(candidates) == 1
        }
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
                callee = self._entered(f"{holder}.{called.attr}")
            else:
                arguments = [*function.args.args, *function.args.kwonlyargs]
                kinds = {a.arg: ast.unparse(a.annotation) for a in arguments if a.annotation}
                kind = kinds.get(owner, owner).strip("'\"").split(" | ")[0]
                base = source.names.get(kind, f"{source.module}.{kind}")
                callee = self._entered(f"{base}.{called.attr}")
            if callee is not None:
                return callee
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
    """Return every number by its name in the table."""
    sources = list(tree.product.values())
    classes = [node for source in sources for node in source.classes]
    circles = cycles(tree.imports)
    walk = Walk(tree)
    texts = "".join(source.text for source in sources)
    lines = {source.module: source.text.count("\n") for source in sources}
    core = (n for name, n in lines.items() if _package(name) not in tree.optional_rooms)
    comments = sum(source.comment_lines for source in sources)
    return {
        "lines": sum(lines.values()),
        "lines of the core": sum(core),
        "code lines": sum(source.code_lines for source in sources),
        "files": len(sources),
        "classes": len(classes),
        "JSON line classes": len(tree.subclasses("JsonLine", "Event")),
        "options": sum(_is_option(source, node) for source in sources for node in source.nodes),
        "manifest keys": sum(
            _rows(text) + _count_shared_keys(text)
            for path, text in tree.texts.items()
            if path.startswith("docs/manifest")
        ),
        "environment variables": len(_find_variables(texts)),
        "formats on disk": _rows(tree.texts.get("docs/formats.md", "")),
        "circles of imports": len(circles),
        "files in circles": sum(map(len, circles)),
        "largest class, attributes": max((len(_attributes(node)) for node in classes), default=0),
        "rooms that a build enters": walk.rooms,
        "climbs of a build": walk.climbs,
        "lines of tests": tree.test_lines,
        "OSErrors that are ignored": sum(source.ignored_errors for source in sources),
        **measure_names([name for source in sources for name in source.chosen_names]),
        "comments in 1,000 lines": 1000 * comments // max(sum(lines.values()), 1),
    }


def measure_names(names: Sequence[str]) -> dict[str, int]:
    """Count how the functions with these names are called."""
    words = [name.strip("_").split("_") for name in names]
    single = sum(len(parts) == 1 for parts in words)
    count = max(len(names), 1)
    return {
        "one-word names in 1,000": 1000 * single // count,
        "participles in 1,000 names": 1000 * sum(map(_is_participle, words)) // count,
        "names defined five times": sum(n >= 5 for n in Counter(names).values()),
        "words in 100 names": 100 * sum(map(len, words)) // count,
    }


def _is_participle(words: Sequence[str]) -> bool:
    first = words[0]
    if first.endswith("ed") and first not in _VERBS_IN_ED:
        return True
    return len(words) == 1 and first in _IRREGULAR


def _last_name(expression: ast.expr) -> str:
    """`functools.cached_property` → `cached_property`."""
    return ast.unparse(expression).rpartition(".")[2]


def cycles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that all reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

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
            index = stack.index(node)
            if len(stack) - index > 1:
                components.append(sorted(stack[index:]))
            del stack[index:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return components


def _attributes(node: ast.ClassDef) -> set[str]:
    """The fields that a class declares and those that its methods set on themselves."""
    attributes = {
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for part in ast.walk(node):
        if not isinstance(part, ast.Attribute) or not isinstance(part.ctx, ast.Store):
            continue
        if isinstance(part.value, ast.Name) and part.value.id == "self":
            attributes.add(part.attr)
    return attributes


def _is_option(source: Source, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    declares = name in ("option", "flag", "repeated", "many") and node.args + node.keywords
    return name == "add_argument" or bool(declares and "Args" in source.text)


def _rows(page: str) -> int:
    """Return how many rows of tables, and items of lists, begin with a name in code."""
    return sum(line.startswith(("| `", "- `")) for line in page.splitlines())


def _count_shared_keys(page: str) -> int:
    """Return how many keys of another table a page of the manifest names as its own, too."""
    return sum(line.count("`, `") + 1 for line in page.splitlines() if line.startswith("As in ["))


def _find_variables(texts: str) -> set[str]:
    """Return the environment variables: those in code, and the rest of `runtime/option.py`'s."""
    declared = " ".join(re.findall(r'(?ms)^_NAMES = """(.*?)"""', texts)).split()
    literals = re.findall(r"\bTILUSBUILD_[A-Z_]*[A-Z]\b", texts)
    return {*literals, *("TILUSBUILD_" + name for name in declared)}


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
    stdin = "".join(f"{revision}:{path}\n" for path in names).encode()
    stream = io.BytesIO(_git(root, "cat-file", "--batch", stdin=stdin))
    texts = {}
    for path in names:
        size = int(stream.readline().split()[-1])
        texts[path] = stream.read(size).decode()
        stream.read(1)  # each ends in a newline of its own
    return Tree(texts)


def _git(root: str, *words: str, stdin: bytes = b"") -> bytes:
    command = ["git", "-C", root, *words]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


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
    options = parser.parse_args(words)
    if options.rev:
        columns = {
            "working tree" if name == "." else name: measure(read_tree(options.root, name))
            for name in options.rev
        }
        print("\n".join(_table(columns)))
        return 0
    numbers = measure(read_tree(options.root, "."))
    path = os.path.join(options.root, BUDGET)
    if options.write:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(numbers, indent=2) + "\n")
    with open(path, encoding="utf-8") as file:
        budget: dict[str, int] = json.load(file)
    print("\n".join(_table({"now": numbers, "budget": budget})))
    worse = [name for name, number in numbers.items() if _is_worse(name, number, budget)]
    for name in worse:
        remedy = "remove what the change replaces"
        side = "over"
        if name in MORE_IS_BETTER:
            remedy, side = "say more in the names and comments of the change", "under"
        print(
            f"error: {name}: {numbers[name]:,} is {side} the budget of {budget[name]:,}; {remedy}, "
            f"or edit {BUDGET} in the same commit and say why",
            file=sys.stderr,
        )
    return 1 if worse else 0


def _is_worse(name: str, number: int, budget: Mapping[str, int]) -> bool:
    limit = budget.get(name, number)
    return number < limit if name in MORE_IS_BETTER else number > limit


if __name__ == "__main__":
    sys.exit(main())
