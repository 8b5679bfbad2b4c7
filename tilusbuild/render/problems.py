"""From Jinja2's exceptions to located diagnostics.

The place is the innermost template line that was running. The lines that included, imported or
called it follow in the hint, innermost first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, TemplateNotFound, TemplateSyntaxError
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError, TemplatesNotFound
from jinja2.utils import internal_code, missing

from tilusbuild.errors import Diagnostic, InputError, Location, did_you_mean
from tilusbuild.render.cuda import RaisedError
from tilusbuild.render.environment import (
    NOT_USABLE,
    SHARED_NAMES,
    SHIPPED,
    BadTemplateError,
    Environment,
    ProjectLoader,
    UndefinedNameError,
)


class Problem(NamedTuple):
    """What an error means to the template's author. `word` is shown where it stands in the line."""

    message: str
    hint: str | None = None
    word: str | None = None


class UndefinedVariableError(InputError):
    """A template reads the variable `name`, which it does not see."""

    def __init__(self, name: str, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.name = name


def explain_error(
    error: Exception,
    template: str,
    context: Mapping[str, Any],
    environment: Environment,
) -> InputError:
    """Return `error`, which a rendering of `template` raised, as a located mistake.

    An undefined variable gives an `UndefinedVariableError`.
    """
    loader = environment.templates
    stack = _list_template_lines(error.__traceback__)
    if isinstance(error, TemplateSyntaxError):
        location: Location | None = Location(error.name or template, error.lineno)
        callers = stack
    elif isinstance(error, BadTemplateError) and error.bad_line is not None:
        location, callers = Location(str(error.name or template), error.bad_line), stack
    elif stack:
        location, callers = stack[-1], stack[:-1]
    else:
        location, callers = None, []
    if isinstance(error, RaisedError):
        # If a shipped macro refuses an argument, the line to correct is the project's line that
        # called the macro.
        while location and callers and location.path.startswith(SHIPPED):
            location = callers.pop()
    inner = location.path if location else template
    try:
        problem = _describe_error(error, inner, template, context, environment)
    except Exception:  # a value of the template's does what it likes in a message
        problem = Problem(f"{type(error).__name__} in the template")
    hints = [problem.hint] if problem.hint else []
    hints += [f"from {line}" for line in reversed(callers)]
    diagnostic = Diagnostic(
        problem.message,
        _locate_word(location, problem.word, loader) if location else Location(template),
        "\n".join(hints) or None,
    )
    if isinstance(error, UndefinedNameError) and error.name is not None and error.owner is missing:
        return UndefinedVariableError(error.name, diagnostic)
    return InputError(diagnostic)


def _list_template_lines(traceback: TracebackType | None) -> list[Location]:
    """Return the template lines that were running, outermost first."""
    lines: list[Location] = []
    # Jinja2 compiles a template to Python code, whose globals name the template.
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        # Jinja2 has functions of its own at a block's start, as for a filter that is missing.
        is_internal = traceback.tb_frame.f_code in internal_code
        if isinstance(template, Template) and template.name is not None and not is_internal:
            line = Location(template.name, template.get_corresponding_lineno(traceback.tb_lineno))
            if not lines or lines[-1] != line:
                lines.append(line)
        traceback = traceback.tb_next
    return lines


def _locate_word(line: Location, word: str | None, loader: ProjectLoader) -> Location:
    """Return where `word` stands, in `line` or in the lines that the same tag goes on over."""
    lines, start = _read_lines(loader, line.path), line.line or 0
    number = start
    pattern = re.escape(word or "")
    # A name must not match within a longer name.
    if word and word.isidentifier():
        pattern = rf"\b{pattern}\b"
    while word and number <= len(lines):
        text = lines[number - 1]
        matches = list(re.finditer(pattern, text))
        if matches:
            # If there are several, it is not known which one was reached.
            column = matches[0].start() + 1 if len(matches) == 1 else None
            return Location(line.path, number, column, text, len(word))
        if re.search(r"[%}]\}", text):
            break
        number += 1
    return Location(line.path, start, None, lines[start - 1] if 1 <= start <= len(lines) else None)


def _read_lines(loader: ProjectLoader, template: str) -> list[str]:
    try:
        return loader.read_text(template).split("\n")
    except NOT_USABLE:
        return []


def _describe_error(
    error: Exception,
    inner: str,
    outer: str,
    context: Mapping[str, Any],
    environment: Environment,
) -> Problem:
    """Return what an error means; `inner` is the template at fault, `outer` the rendered one."""
    if isinstance(error, UndefinedNameError) and error.name is not None:
        return _describe_undefined(error, error.name, inner, outer, context, environment)
    if isinstance(error, BadTemplateError):
        hint = None if error.bad_line else "templates lie in the project's directory"
        return Problem(str(error.message), hint, str(error.name))
    if isinstance(error, TemplateNotFound):
        return _describe_not_found(error, environment)
    # Raised when the template is read, or in a branch that it takes.
    if missing_match := re.match(r"No (filter|test) named '(.*)'", str(error)):
        kind, missing_name = missing_match.groups()
        known = [name for name in getattr(environment, f"{kind}s") if not name.startswith("_")]
        hint = did_you_mean(missing_name, known)
        return Problem(f'there is no {kind} "{missing_name}"', hint, missing_name)
    if isinstance(error, TemplateSyntaxError):
        lines = _read_lines(environment.templates, error.name or inner)
        return _describe_syntax_error(error, "".join(lines[error.lineno - 1 : error.lineno]))
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, SecurityError):
        message = f"not allowed in a template: {error}"
    elif isinstance(error, RecursionError):
        message = "templates or macros call each other without end, or are nested too deeply"
    elif isinstance(error, MemoryError):
        message = "the template needs more memory than there is"
    elif isinstance(error, ZeroDivisionError):
        message = "division by zero"
    elif isinstance(error, (TemplateError, TypeError, ValueError, OverflowError, AttributeError)):
        message = str(error)
    return Problem(message)


def _describe_undefined(
    error: UndefinedNameError,
    name: str,
    inner: str,
    outer: str,
    context: Mapping[str, Any],
    environment: Environment,
) -> Problem:
    """Return what is wrong with a name, or an attribute, that does not exist."""
    if error.owner is not missing:
        near = did_you_mean(name, _list_members(error.owner))
        return Problem(f'{_describe_owner(error.owner)} has no "{name}"', near, name)
    if name in context and inner != outer:
        shared = ", ".join(SHARED_NAMES)
        hint = (
            f"an imported template sees {shared}, and not the schedule: "
            'pass the value to the macro, or import "with context"'
        )
        return Problem(f'"{name}" is undefined here', hint, name)
    # Only a similar name is suggested: a list of all names would have all of the language's, too.
    near = did_you_mean(name, [*context, *environment.globals], max_listed=0)
    script = context.get("script", {}).get("name", "…")
    declare = f"or declare it in [script.{script}.params] or [script.{script}.space]"
    if near is None:
        names = ", ".join(sorted(context))
        near = f"a template sees {names}" if names else "the context is empty"
    return Problem(f'"{name}" is undefined', f"{near}\n{declare}", name)


def _describe_owner(owner: object) -> str:
    """Return the words for the object whose attribute does not exist."""
    if isinstance(owner, TemplateModule):
        return f'the template "{owner.__name__}"'
    if isinstance(owner, (str, int, float)):
        return f"the value {owner!r:.60}"
    return "the mapping" if isinstance(owner, Mapping) else f"the {type(owner).__name__.lower()}"


def _list_members(owner: object) -> Iterable[str]:
    """Return the names to suggest for a missing attribute of `owner`."""
    if isinstance(owner, Mapping):
        return [str(key) for key in owner]
    if isinstance(owner, (str, int, float, list, tuple)):
        return []
    return [name for name in dir(owner) if not name.startswith("_")]


def _describe_not_found(error: TemplateNotFound, environment: Environment) -> Problem:
    """Return which templates are missing, with a similar name."""
    names = error.templates if isinstance(error, TemplatesNotFound) else [error.name or ""]
    if not names:
        return Problem("there is no template in an empty list, or in none")
    quoted = " or ".join(f'"{name}"' for name in names)
    known = environment.list_templates()
    hint = did_you_mean(str(names[0]), known) or "names are relative to the project's directory"
    return Problem(f"no template {quoted}", hint)


_OR_UNRENDERED = "\nor set render = false, which compiles the file byte for byte"


def _describe_syntax_error(error: TemplateSyntaxError, line: str) -> Problem:
    """Return what is wrong in a line, with a hint for C++ text that Jinja2 reads as its own."""
    # Jinja2's errors have no fields for the mistake and the word, so the message is searched.
    message = error.message or "syntax error"
    if message == "tag name expected":
        advice = 'in C++ text write "{ %", as in asm("… { %0, %1 }")'
        return Problem('a tag has no name: "{%" starts a tag', advice + _OR_UNRENDERED)
    if block_match := re.search(r"Unexpected end of template.*closed is '(\w+)'", message):
        block = block_match[1]
        return Problem(f'"{block}" without "end{block}"', word=block)
    token_match = re.search(r"(?:got|[Uu]nexpected|unknown tag) '([^']+)'", message)
    word, hint = token_match[1] if token_match else None, None
    if word in ("}", ",", ";", "{", "end of print statement"):
        # Such tokens follow if an end is not complete, or if `{{` in C++ text
        # (`int a[2][2] = {{1, 2}, …`) is read as an expression.
        hint = 'a tag that "{%" starts ends with "%}"'
        word = "{%"
        if "{{" in line or word not in line:
            hint = (
                '"{{" starts an expression, which ends with "}}"\n'
                'in C++ text write "{ {", as in int a[2][2] = { {1, 2}, …'
            ) + _OR_UNRENDERED
            word = "{{"
    return Problem(message[0].lower() + message[1:], hint, word)
