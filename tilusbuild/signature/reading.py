"""Read the functions that a source or a template declares: its kernels, with their parameters.

tree-sitter parses the text as CUDA C++. Jinja2's own lexer finds the tags before: a character of a
value becomes `$`, one of another tag a blank, so that lines and columns stay the same. No compiler
runs and nothing is rendered. Where the text alone does not decide, nothing is guessed: the kernel
has a `problem`, or a parameter has no `dtype`, and the user writes it down. Price: 1 MB of text a
second.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.signature.parsing import C_TYPES, split_at_commas

if TYPE_CHECKING:
    from jinja2 import Environment
    from tree_sitter import Language, Node

JINJA_EXTENSIONS = ("jinja2.ext.do", "jinja2.ext.loopcontrols")
_VALUE, _TAG = "$", "\x1a"
"""Stand for a character of `{{ … }}`, which a C++ name may contain, and of a tag `{% … %}`."""
_OWN_TYPES = {f"tb::{name}": name for name in ("f16", "bf16", "f8e4m3", "f8e5m2")}
"""The types of the header `tilusbuild/portable`, and their dtypes."""
_INTEGER_WORDS = {"unsigned", "signed", "long", "short", "int", "char"}
_NO_TYPE_WORDS = frozenset(
    ("volatile", "struct", "__restrict__", "__restrict", "TB_RESTRICT", "__grid_constant__")
)
"""Words of a parameter that say nothing of its type."""
_ATTRIBUTES = {"__attribute__", "__launch_bounds__", "__cluster_dims__", "__maxnreg__"}
_C = 'extern "C"'
_MARKS = {"extern", '"C"', "__global__"}
"""The words that make a function a kernel, and that give it C linkage."""
_UNDECIDED, _UNDECIDED_END = "?", "_undecided"
"""The meaning of such a name, and the end that keeps it from being read as the usual type."""
_MAX_ALIASES = 20
"""Aliases that are followed in one parameter, and words that one stands for."""
_AS_LIST, _LIST = "void f({});", slice(3, -2)
"""A declaration with a list of parameters, and the place of that list in its tokens."""
_NOT_READ = {"reference_declarator", "function_declarator", "parenthesized_declarator"}
_ATOMS = {"string_literal", "raw_string_literal", "char_literal", "concatenated_string"}
"""Nodes whose insides do not belong to a declaration."""
_SKIPPED = {"comment", "preproc_include", "preproc_def", "preproc_function_def", "preproc_call"}
_BODIES = ("{", "compound_statement")
_ENDS = (*_BODIES, "}", ";")
"""The nodes that end the head of a declaration."""
_VARIABLES = {"__constant__", "__device__"}
_STORAGE = _VARIABLES | {"static", "extern"}
_CPP_HEAD = {"void", "static", "inline"}
"""The words before the name of a function that is C++ for certain: no macro is among them."""

_Names: TypeAlias = set[tuple[str, bool]]
"""Names of functions, each with whether it is a kernel: a template has one of each."""


class KernelParameter(Struct, frozen=True):
    """A parameter of a kernel.

    `dtype` is the manifest's name for its type or, of a pointer, for the type of its elements;
    "void", or "" if the text does not decide. `text` is the declaration.
    """

    name: str
    dtype: str
    is_pointer: bool
    is_const: bool
    text: str
    is_plain: bool = True
    """Whether it was understood as C++. Otherwise the name is a guess, and it may be several."""

    @property
    def type_name(self) -> str:
        """The name of its type without qualifiers; "" if there is none."""
        words = self.text.replace("*", " ").split()
        return next((word for word in words if word not in ("const", *_NO_TYPE_WORDS)), "")


class DeclaredKernel(Struct, frozen=True):
    """A `__global__` function. `name` is its name in a manifest: a C++ name contains `::`."""

    name: str
    parameters: tuple[KernelParameter, ...]
    line: int
    """The line of `__global__` or of its macro, from 1; of a function of the host, the line of its
    name."""
    column: int
    """The column in characters, from 1."""
    problem: str = ""
    """Why a manifest has to declare the kernel; "" if it was read."""
    template_names: tuple[str, ...] = ()
    """The names of a template's own parameters."""
    has_body: bool = True
    is_global: bool = True
    """False: a function of the host. A `cpu` target may call one of C linkage."""

    @property
    def is_template(self) -> bool:
        return bool(self.template_names)

    @property
    def is_c(self) -> bool:
        """Whether it has C linkage, so that its name in the object is the one in the source."""
        return "::" not in self.name

    @property
    def plain(self) -> str:
        """The name without its namespaces."""
        return self.name.rpartition("::")[2]


class KernelSource:
    """A parsed text. `aliases` are names of types besides those that the text declares."""

    def __init__(self, text: str, *, jinja: bool, aliases: Mapping[str, str] | None = None) -> None:
        # A byte that is not UTF-8 stands in a comment or a string: one character is as good.
        text = text.encode("utf-8", "replace").decode()
        self._lines = (_blank_tags(text) if jinja else text).split("\n")
        self._root = _parse_cuda("\n".join(self._lines))
        self.is_open = False
        """Whether another file of the project, or a macro with parameters, may declare a kernel."""
        self._marks: dict[str, str] = {}
        """Those of `_MARKS` that a macro stands for, by its name."""
        self._aliases = {**(aliases or {}), **self._read_aliases()}
        self.variables: dict[str, KernelParameter] = {}
        """The `__constant__` and `__device__` variables, by name."""
        self.variable_lines: dict[str, int] = {}
        """The line, from 1, of each word in a declaration of variables: of `b` in `int a, b`."""
        functions = list(self._read_functions())
        defined = {function.name for function in functions if function.has_body}
        self.functions = [f for f in functions if f.has_body or f.name not in defined]
        """The kernels, and the host's functions: of C linkage, and of C++ those without a result.
        One with a body stands for its prototypes."""
        self.kernels = [function for function in self.functions if function.is_global]

    def _read_aliases(self) -> dict[str, str]:
        """Return the types and words that the text gives other names, by name. Set `is_open`, and
        add to `_marks`.

        The type is `_UNDECIDED` for a name with several meanings, for one inside of braces, and for
        a macro that the command line may set instead: the text does not decide which one counts.
        """
        aliases: dict[str, str] = {}
        stack = [(self._root, True)]
        while stack:
            node, is_global = stack.pop()
            if node.type in ("preproc_def", "type_definition", "alias_declaration"):
                name, words = _read_alias(node)
                if node.type == "preproc_def":
                    self._add_marks(name, words)
                is_plain = len(words) <= _MAX_ALIASES and all(
                    word.isidentifier() or word == "::" for word in words
                )
                type_ = " ".join(words) if is_plain else _UNDECIDED
                # With `#ifndef T` above `#define T float`, the command line may say what T is.
                # A macro without words guards a header, and means none of the types.
                guard = node.parent.child_by_field_name("name") if node.parent else None
                is_decided = is_global and (not type_ or _text(guard) != name)
                is_same = aliases.get(name, type_) == type_
                aliases[name] = type_ if is_decided and is_same else _UNDECIDED
            elif node.type == "preproc_function_def":
                self.is_open |= "__global__" in _text(node)
            elif node.type == "preproc_include":
                path = node.child_by_field_name("path")
                self.is_open |= path is not None and path.type == "string_literal"
            # What the body of a function declares is not seen outside; one that cannot be parsed
            # may be more than a body.
            elif node.type != "compound_statement" or node.has_error:
                are_global = is_global and not node.type.endswith(
                    ("namespace_definition", "_specifier", "compound_statement")
                )
                stack += [(child, are_global) for child in reversed(node.children)]
        return aliases

    def _add_marks(self, name: str, words: Iterable[str]) -> None:
        """Add the marks of a macro of these words to `_marks`. Set `is_open` where two definitions
        of a kernel's mark differ."""
        marks = " ".join(word for word in _expand_words(words, self._marks) if word in _MARKS)
        other = self._marks.get(name, marks)
        if other != marks:
            # Compilers of C, and of the host, take the definition with fewer marks.
            is_decided = not ("__global__" in marks and "__global__" in other)
            marks = max(other, marks, key=len) if is_decided else _UNDECIDED
            self.is_open |= not is_decided
        if marks not in ("", "extern"):
            self._marks[name] = marks

    def list_assigned_arrays(self) -> set[str]:
        """Return the names of arrays and pointers to whose elements the text assigns a value."""
        changes = {"assignment_expression": "left", "update_expression": "argument"}
        targets = [
            node.child_by_field_name(changes[node.type])
            for node in _walk_nodes(self._root)
            if node.type in changes
        ]
        return {
            next((_text(part) for part in _walk_nodes(target) if part.type == "identifier"), "")
            for target in targets
            if target is not None and target.type in ("subscript_expression", "pointer_expression")
        }

    def _read_functions(self) -> Iterator[DeclaredKernel]:
        scopes: list[str] = []
        c_names: _Names = set()
        head: list[Node] = []
        """The tokens since the last of `_ENDS`."""
        for token in _list_tokens(self._root):
            if token.type not in _ENDS:
                head.append(token)
                continue
            words = [_text(token) for token in head]
            if not _VARIABLES.isdisjoint(words) and "(" not in words:
                end = words.index("=") if "=" in words else len(words)
                declaration = " ".join(word for word in words[:end] if word not in _STORAGE)
                # Of `float a[9], b` only the first one has its type beside it.
                for variable in read_parameters(declaration, self._aliases)[:1]:
                    self.variables[variable.name] = variable
                for word in head[:end]:
                    self.variable_lines.setdefault(_text(word), word.end_point[0] + 1)
            elif function := self._read_function(head, scopes, c_names, token.type in _BODIES):
                yield function
            if token.type == "{":
                scopes.append(_name_scope(self._list_words(head)))
            elif token.type == "}" and scopes:
                scopes.pop()
            head = []

    def _read_function(
        self, head: Sequence[Node], scopes: Sequence[str], c_names: _Names, has_body: bool
    ) -> DeclaredKernel | None:
        """Return the function that the tokens `head` declare, inside of `scopes`; None if it is not
        one of `self.functions`. Its name is added to `c_names` if it has C linkage."""
        # Behind a word that the parser does not know, `__global__` has the type of a name.
        words = self._list_words(head)
        is_global = "__global__" in words
        is_c = _C in scopes or _name_scope(words) == _C
        opening, closing = _find_parameters(head)
        is_cpp = not scopes and has_body and _CPP_HEAD.issuperset(map(_text, head[: opening - 1]))
        if not is_global and (not (is_c or is_cpp) or opening < 2 or "" in scopes):
            return None
        template = _list_template_words(head)
        if (template is not None and not template) or "friend" in words:
            return None  # a specialization, an instantiation, a friend: declared elsewhere
        marks = (token for token in head if "__global__" in self._list_words([token]))
        start = next(marks, head[opening - 1])
        name = _text(head[opening - 1]) if opening > 0 else ""
        # A namespace without a name is not a part of the names in it.
        names = [scope for scope in scopes if scope not in ("", _C, "namespace")]
        parameters, problem = list[KernelParameter](), ""
        if not name.isidentifier():
            name, problem = "", "the name and the parameters of this kernel are not plain C++"
        else:
            inside = self._cut_text(head[opening], head[closing])
            aliases = {k: v for k, v in self._aliases.items() if k not in (template or ())}
            parameters = read_parameters(inside, aliases)
            if template:
                problem = f'"{name}" is a template'
            elif any(line.lstrip().startswith("#") for line in inside.split("\n")):
                problem = f'the parameters of "{name}" depend on macros'
            elif _TAG in inside or any(not p.is_plain and _VALUE in inside for p in parameters):
                problem = f'the parameters of "{name}" depend on a tag'
        if is_c:
            c_names.add((name, is_global))
        row, column = self._locate(start)
        # A definition has the linkage of its prototype.
        is_c = is_c or (not names and (name, is_global) in c_names)
        return DeclaredKernel(
            name if is_c else "::".join([*names, name]) if names else f"::{name}",
            tuple(parameters),
            row + 1,
            column + 1,
            problem,
            tuple(
                piece.partition("=")[0].split()[-1]
                for _, piece in split_at_commas(" ".join(template or ()), "<(", ">)")
                if piece.strip()
            ),
            has_body,
            is_global,
        )

    def _list_words(self, tokens: Iterable[Node]) -> list[str]:
        """Return the words of a head, with the marks that macros stand for in their place."""
        return list(_expand_words(map(_text, tokens), self._marks))

    def _locate(self, node: Node) -> tuple[int, int]:
        """Return the row and the column of a node, in characters and from 0."""
        row, offset = node.start_point
        return row, len(self._lines[row].encode()[:offset].decode())

    def _cut_text(self, opening: Node, closing: Node) -> str:
        """Return the text between two parentheses."""
        (first, start), (last, end) = self._locate(opening), self._locate(closing)
        lines = self._lines[first : last + 1]
        return "\n".join([*lines[:-1], lines[-1][:end]])[start + 1 :]


def bind_template(kernel: DeclaredKernel, name: str, constants: Collection[str]) -> DeclaredKernel:
    """Return the kernel with the types of its parameters that a manifest's name for an instance
    says: of "k<{{ T }}, 4>" the first is the dtype `T` if that is one of `constants`."""
    inside = name.partition("<")[2].rpartition(">")[0]
    words = (piece.strip(" {}") for _, piece in split_at_commas(inside, "<([{", ">)]}"))
    types = dict(zip(kernel.template_names, words, strict=False))
    parameters = []
    for parameter in kernel.parameters:
        type_ = types.get(parameter.type_name, "")
        # The text around a type is read the same for each.
        aliases = {parameter.type_name: "float" if type_ in constants else type_}
        bound = read_parameter(parameter.text, aliases) if type_ else parameter
        dtype = type_ if bound.dtype and type_ in constants else bound.dtype
        parameters.append(replace(bound, dtype=dtype) if dtype else parameter)
    return replace(kernel, parameters=tuple(parameters))


@cache
def _make_jinja_environment() -> Environment:
    from jinja2 import Environment

    return Environment(extensions=JINJA_EXTENSIONS, autoescape=False)  # noqa: S701 — it makes C++


_PORTABLE = "tilusbuild/portable"


class TemplateTags(Struct, frozen=True):
    """What the tags of a template say of its source."""

    has_cpu: bool = False
    """Whether it asks for the kind of its target, itself or by the library's portable header."""
    has_imports: bool = False
    """Whether another template may write a part of it."""
    mistake: tuple[int, str] | None = None
    """The line and the message of a mistake in Jinja's syntax."""


def read_tags(template: str) -> TemplateTags:
    """Return what a template's tags say, by its words for one with a mistake in Jinja's syntax."""
    from jinja2 import TemplateSyntaxError, nodes

    try:
        tree = _make_jinja_environment().parse(template)
    except TemplateSyntaxError as error:
        # Without the cpu target, an override for it would be a second mistake.
        has_cpu = "target.kind" in template or _PORTABLE in template
        return TemplateTags(has_cpu, mistake=(error.lineno, str(error.message)))
    asks_kind = any(
        isinstance(node.node, nodes.Name) and (node.node.name, node.attr) == ("target", "kind")
        for node in tree.find_all(nodes.Getattr)
    )
    imported_names = [
        name.value if isinstance(name, nodes.Const) else ""
        for node in tree.find_all((nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends))
        for name in node.iter_child_nodes(only=("template",))
    ]
    is_portable = any(_PORTABLE in str(name) for name in imported_names)
    return TemplateTags(asks_kind or is_portable, bool(imported_names))


def _blank_tags(text: str) -> str:
    """Return a template's text with `_VALUE` for its values, `_TAG` for its other tags and for
    values that fill a line, and blanks for its comments. Behind a mistake of Jinja's syntax nothing
    is replaced."""
    from jinja2 import TemplateSyntaxError

    pieces: list[str] = []
    mark, end = "", 0
    try:
        for _, kind, value in _make_jinja_environment().lex(text):
            # The lexer drops blanks, those before "{%-".
            start = text.index(value, end)
            if kind.endswith("_begin"):
                mark = {"variable_begin": _VALUE, "comment_begin": " "}.get(kind, _TAG)
            marked = "\n".join(mark * len(line) for line in value.split("\n"))
            pieces += [text[end:start], marked if mark else value]
            end = start + len(value)
            # The text after "{% raw %}" is plain.
            if kind.endswith("_end") or kind == "raw_begin":
                mark = ""
    except TemplateSyntaxError:
        pass
    # A value that fills a line may be anything, and not only a name.
    return "\n".join(
        _TAG * len(line) if line.strip() and not line.strip("$ \t") else line
        for line in "".join([*pieces, text[end:]]).split("\n")
    )


@cache
def _load_language() -> Language:
    import tree_sitter_cuda
    from tree_sitter import Language

    return Language(tree_sitter_cuda.language())


def _parse_cuda(text: str) -> Node:
    from tree_sitter import Parser

    # Behind `#define A /* … */` and a blank, tree-sitter-cuda reads on into the next line.
    text = re.sub(r"[ \t]+$", "", text.replace(_TAG, " "), flags=re.MULTILINE)
    # A parser for each text: one that threads share is not safe.
    return Parser(_load_language()).parse(text.encode()).root_node


def _text(node: Node | None) -> str:
    return (node.text or b"").decode() if node else ""


def _list_tokens(root: Node) -> Iterator[Node]:
    """Yield the words and signs below a node, in order. The body of a function is one."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_missing or node.type in _SKIPPED:
            continue
        is_body = node.type == "compound_statement" and not node.has_error
        if not node.child_count or node.type in _ATOMS or is_body:
            yield node
            continue
        children = node.children
        if node.type.startswith("preproc_"):
            condition = node.child_by_field_name("condition")
            if _text(condition) == "0":
                children = node.children_by_field_name("alternative")
            names = (condition, node.child_by_field_name("name"))
            children = [c for c in children if c.type[:1] not in ("#", "\n") and c not in names]
        stack += reversed(children)


def _walk_nodes(root: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it, in order."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(node.children)


def _find_parameters(head: Sequence[Node]) -> tuple[int, int]:
    """Return the places of the parentheses around a function's parameters in its head: the last
    ones that do not belong to an attribute. Without any, both are 0."""
    depth, closing = 0, 0
    for index in range(len(head) - 1, 0, -1):
        if head[index].type == ")":
            closing = closing if depth else index
            depth += 1
        elif head[index].type == "(":
            depth -= 1
            if depth == 0 and head[index - 1].type not in _ATTRIBUTES:
                return index, closing
    return 0, 0


def _list_template_words(head: Sequence[Node]) -> list[str] | None:
    """Return the words of a declaration's `template <…>`; None without it."""
    words = [_text(token) for token in head]
    if "template" not in words:
        return None
    start = words.index("template") + 1
    if words[start : start + 1] != ["<"]:
        return []
    depth = 0
    for index in range(start, len(words)):
        depth += (words[index] == "<") - (words[index] == ">")
        if depth == 0:
            return words[start + 1 : index]
    return words[start + 1 :]


def _name_scope(words: Sequence[str]) -> str:
    """Return the scope that a brace opens behind these words: `extern "C"`, the name of a
    namespace ("namespace" without a name), or "" for any other."""
    if ("extern", '"C"') in pairwise(words):
        return _C
    if "namespace" in words:
        return "".join(words[words.index("namespace") + 1 :]) or "namespace"
    return ""


def _read_alias(node: Node) -> tuple[str, list[str]]:
    """Return the name and the words of an alias."""
    field = "declarator" if node.type == "type_definition" else "name"
    name = node.child_by_field_name(field)
    if node.type == "preproc_def":
        value = node.child_by_field_name("value")
        tokens = list(_list_tokens(_parse_cuda(_text(value))))
    elif node.type == "alias_declaration":
        value = node.child_by_field_name("type")
        tokens = list(_list_tokens(value)) if value else []
    else:
        tokens = [t for child in node.children[1:-1] if child != name for t in _list_tokens(child)]
    words = [_text(token) for token in tokens]
    return _text(name), [word for word in words if word and word not in _NO_TYPE_WORDS]


def _expand_words(words: Iterable[str], aliases: Mapping[str, str]) -> Iterator[str]:
    """Yield the words of a declaration with the source's own names replaced by their words."""
    pending = [*words][::-1]
    replaced = 0
    while pending:
        word = pending.pop()
        # The bound ends a macro that stands for itself.
        if aliases.get(word, _UNDECIDED) != _UNDECIDED and replaced < _MAX_ALIASES:
            pending += reversed(aliases[word].split())
            replaced += 1
        elif word not in _NO_TYPE_WORDS:
            yield f"{word}{_UNDECIDED_END}" if word in aliases and word in C_TYPES else word


def read_parameters(text: str, aliases: Mapping[str, str]) -> list[KernelParameter]:
    """Return the parameters of a list as C++ has it between the parentheses. `aliases` has the
    source's own names of types and macros."""
    # The text without its comments, which may hold commas.
    plain_text, end = "", 0
    for token in list(_list_tokens(_parse_cuda(_AS_LIST.format(text))))[_LIST]:
        plain_text += " " * (token.start_byte > end) + _text(token)
        end = token.end_byte
    pieces = [piece for _, piece in split_at_commas(plain_text.strip(), "([{<", ")]}>")]
    return (
        [] if pieces in ([""], ["void"]) else [read_parameter(piece, aliases) for piece in pieces]
    )


def read_parameter(text: str, aliases: Mapping[str, str]) -> KernelParameter:
    """Return the parameter of a C++ declaration. `aliases` has the source's own names of types and
    macros."""
    shown = " ".join(text.replace(_VALUE, "").split())
    words = [_text(token) for token in _list_tokens(_parse_cuda(_AS_LIST.format(text)))][_LIST]
    root = _parse_cuda(_AS_LIST.format(" ".join(_expand_words(words, aliases))))
    list_node = next((node for node in _walk_nodes(root) if node.type == "parameter_list"), root)
    nodes = [child for child in list_node.children if child.type.endswith("parameter_declaration")]
    if root.has_error or len(nodes) != 1:
        name = next((word for word in reversed(words) if word.isidentifier()), "")
        return KernelParameter(name, "", "*" in words, False, shown, is_plain=False)
    declarator = nodes[0].child_by_field_name("declarator")
    parts = list(_walk_nodes(declarator)) if declarator else []
    kinds = [part.type.removeprefix("abstract_") for part in parts]
    depth = kinds.count("pointer_declarator") + kinds.count("array_declarator")
    no_type_nodes = (declarator, nodes[0].child_by_field_name("default_value"))
    type_words = [
        _text(token)
        for child in nodes[0].children
        if child not in no_type_nodes and not child.type.startswith("attribute_")
        for token in _list_tokens(child)
        if token.type != "="
    ]
    dtype = _find_dtype([word for word in type_words if word != "const"])
    if depth > 1 or not _NOT_READ.isdisjoint(kinds) or (dtype == "void" and not depth):
        dtype = ""
    name = next((_text(part) for part in parts if part.type == "identifier"), "")
    name = name if name.isidentifier() else ""
    # A value alone may be several parameters.
    is_plain = bool(name) or _VALUE not in text
    return KernelParameter(name, dtype, depth > 0, "const" in type_words, shown, is_plain)


def _find_dtype(words: Sequence[str]) -> str:
    """Return the dtype of a C++ type; "void" for that, "" for any other type."""
    words = " ".join(words).replace(" :: ", "::").split()
    words = [word.removeprefix("std::") for word in words]
    if _INTEGER_WORDS.issuperset(words) and len(words) > 1:
        significant_words = [word for word in words if word not in ("int", "signed")]
        words = sorted(significant_words, key=lambda word: word != "unsigned") or ["int"]
    name = "int" if words == ["signed"] else " ".join(words)
    return "void" if name == "void" else C_TYPES.get(name, "") or _OWN_TYPES.get(name, "")
