"""What a name means in a cache: instances, and programs by name or by the first digits of a hash.

A name means what the last build of some project made; only where none is of that name, an older
directory. What means several things is refused, and listed as it can be typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tilusbuild.cache.index import find_programs, read_index, script_listings
from tilusbuild.errors import InputError, did_you_mean, input_error
from tilusbuild.runtime.naming import Name, NameSyntaxError, listed, parse_name, typed
from tilusbuild.runtime.sealed import CorruptFileError

if TYPE_CHECKING:
    from tilusbuild.cache.index import ScriptListing
    from tilusbuild.cache.tree import Tree

_DIGITS = re.compile("[0-9a-f]{1,64}")


def instances(cache: Tree, word: str, target: str | None = None) -> list[ScriptListing]:
    """Return the instances that a name means, at least one; of a program's name those that have the
    program. Raises `InputError`."""
    known = script_listings(cache)
    name = named(word)
    of_script = [each for each in known if name.is_of(each.script)]
    # A script with kernels stands for the scripts NAME.KERNEL, and is none itself.
    of_script = of_script or [each for each in known if each.script.startswith(f"{name.script}.")]
    if not of_script:
        hint = did_you_mean(name.script, {each.script for each in known})
        raise input_error(f'no script "{name.script}" in {cache.root}', hint=hint)
    fitting = [each for each in of_script if _fits(name, each, target)]
    if not fitting:
        raise input_error(
            f'no "{name}" in {cache.root}',
            hint="there are:\n" + listed(_with_range(each) for each in current(cache, of_script)),
        )
    return current(cache, fitting)


def program(cache: Tree, word: str, target: str | None = None) -> str:
    """Return the hash of the one program that is meant. Raises `InputError`."""
    try:
        scripts = instances(cache, word, target)
    except InputError:
        if not _DIGITS.fullmatch(word):
            raise
        return _by_hash(cache, word)
    number = named(word).program
    found: dict[str, str] = {}
    for script in scripts:
        for index, digest in enumerate(script.programs):
            if number in (None, index):
                found.setdefault(digest, script.label_of(index))
    if len(found) == 1:
        return next(iter(found))
    hint = "name one of them:\n" + listed(sorted(_apart(found)))
    raise input_error(f'"{word}" names {len(found)} programs', hint=hint)


def current(cache: Tree, scripts: list[ScriptListing]) -> list[ScriptListing]:
    """Return those that a project or a package has; all of them when none does."""
    try:
        roots = {pair for project in read_index(cache).values() for pair in project.scripts}
    except CorruptFileError:
        roots = set()
    return [each for each in scripts if (each.directory, each.hash) in roots] or scripts


def named(word: str) -> Name:
    """Return what a name of the command line says. Raises `InputError`."""
    try:
        return parse_name(word)
    except NameSyntaxError as error:
        raise input_error(f'"{word}": {error}') from None


def _fits(name: Name, script: ScriptListing, target: str | None) -> bool:
    """Return whether an instance has the name; `target`, a name or an architecture, is for a name
    without one."""
    there = name.program is None or name.program < len(script.programs)
    if not name.is_of(script.script):
        name = name._replace(script=script.script)
    known = (script.target, *script.head.get("arch", "").split("+"))
    wanted = name.target is not None or target is None or target in known
    return there and wanted and name.fits(script.script, script.params, script.target)


def _by_hash(cache: Tree, digits: str) -> str:
    found = find_programs(cache, digits)
    if len(found) == 1:
        return found[0]
    count = (
        f"{len(found)} programs start" if found else "no script is called so, and no program starts"
    )
    raise input_error(
        f'{count} with "{digits}"',
        hint="name one as SCRIPT/I, or by the first digits of its hash",
    )


def _with_range(script: ScriptListing) -> str:
    return f"{typed(script.label)}  # programs 0 to {len(script.programs) - 1}"


def _apart(found: dict[str, str]) -> Iterable[str]:
    """Yield what to type for each program, by hash: its name, or where two projects have programs
    of one name, its hash."""
    names = list(found.values())
    for digest, name in found.items():
        yield typed(name) if names.count(name) == 1 else f"{digest[:12]}  # {name}"
