"""A part of a package as a package by itself: what one target has, and what it asks of a host."""

from __future__ import annotations

import re
from dataclasses import replace

from tilusbuild.binary import read_needs
from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.coherent import digest_of_inputs, is_table
from tilusbuild.package.contents import Contents
from tilusbuild.package.listing import FileList, ProgramEntry
from tilusbuild.package.needs import Together

MENTION = re.compile(rb"include/([0-9a-f]{64})")
"""How a `compile.sh` names a folder of headers."""


def only_target(contents: Contents, target: str) -> Contents:
    """The package NAME-TARGET, without attestations: those are about another list. Raises
    `CannotPack`."""
    listed = contents.listed
    scripts = tuple(script for script in listed.scripts if script.target == target)
    programs: dict[str, ProgramEntry] = {}
    for script in scripts:
        for digest in script.programs:
            owned = replace(listed.programs[digest], script=script.script, target=target)
            programs.setdefault(digest, owned)
    kept = {script.hash for script in scripts} | programs.keys() | _headers(contents, programs)
    files = {path: f for path, f in listed.files.items() if names.root_of(path)[2] in kept}
    tables = {path: file.sha256 for path, file in files.items() if is_table(path)}
    part = replace(
        listed,
        name=f"{listed.name}-{target}",
        inputs=digest_of_inputs([script.hash for script in scripts], programs, tables),
        targets={target: listed.targets[target]},
        scripts=scripts,
        programs=programs,
        files=files,
    )
    part = replace(part, needs=_needs(contents, part).needs())
    return Contents(part, part.encode(), contents.origins, {})


def _headers(contents: Contents, programs: dict[str, ProgramEntry]) -> set[str]:
    paths = (f"{layout.PROGRAMS}/{program}/module/compile.sh" for program in programs)
    texts = (contents.read(path) for path in paths if path in contents.listed.files)
    return {digest.decode() for text in texts for digest in MENTION.findall(text)}


def _needs(contents: Contents, part: FileList) -> Together:
    together = Together()
    for path in part.files:
        if path.endswith(".so"):
            options = path.removesuffix(layout.LIBRARY) + layout.OPTIONS_TXT
            text = contents.read(options) if options in part.files else b""
            library = read_needs(contents.read(path))
            together.add(path, library, text.decode("utf-8", "replace"))
    return together
