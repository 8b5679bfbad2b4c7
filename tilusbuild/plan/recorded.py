"""A recipe read back from the texts of a program, to compile the program again.

No command of `options.txt` is run and no word of `compile.sh` is: a stranger may have written them.
What a manifest had said is in a comment of `compile.sh` as fields; it is held to what a manifest
may say, and this machine's own pipeline makes its commands of it. These must be those of
`options.txt`, which the program's name is a hash of, word for word. Code that was generated
(launcher, constants) is taken as it is, if it has the digest that `options.txt` names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

import msgspec

from tilusbuild.arch import parse_arch
from tilusbuild.compile import Link, Recipe
from tilusbuild.compile.model import STAND_IN, Includes, PartOptions, Pipeline
from tilusbuild.compile.module import GIVEN, Given, command_lines
from tilusbuild.compile.pipelines import pipeline_named
from tilusbuild.compile.steps import LAUNCHER
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.manifest.pure_flags import impure, names_march
from tilusbuild.plan.identity import section_of
from tilusbuild.render.closure import Header, manifest_of
from tilusbuild.signature import Signature
from tilusbuild.state.files import sha256_bytes, sha256_text

_OURS = ("program.s", STAND_IN, LAUNCHER)
_PLAIN = re.compile(r"[\w$/.~][\w.+$/{}~=:-]*")
"""Words of a link that no shell, linker or compiler takes for more than a name."""


class UnlikeOursError(ValueError):
    """The texts say what no build of this tilusbuild would have written."""


def recorded(
    program_txt: str, options_txt: str, files: Mapping[str, bytes], compile_sh: str
) -> Recipe:
    """Return the recipe of a program. `files` are the source and what was generated, launcher
    included, by name. Raises `UnlikeOursError`."""
    try:
        written = compile_sh.partition(f"\n{GIVEN}")[2].partition("\n")[0]
        given = msgspec.json.decode(written, type=Given)
        recipe = _read(program_txt, options_txt, files, given)
        commands = options_txt.partition("\n[commands]\n")[2].partition("\n\n[generated]\n")[0]
        same = "\n".join(command_lines(recipe)) == commands
    except (ValueError, LookupError) as error:
        raise UnlikeOursError(f"its texts cannot be read: {error}") from None
    if not same:
        raise UnlikeOursError("its commands are not those that this tilusbuild makes")
    return recipe


def _read(program_txt: str, options_txt: str, files: Mapping[str, bytes], given: Given) -> Recipe:
    head, program = section_of(options_txt, ""), section_of(program_txt, "")
    pipeline = pipeline_named(head["pipeline"], given.compiler)
    if pipeline is None:
        raise ValueError(f"pipeline {head['pipeline']} is unknown")
    _check(given, pipeline)
    digests = section_of(options_txt, "generated")
    if pipeline.has_source:
        digests["source.cu"] = program["source"].removeprefix("sha256:")
    if any(sha256_bytes(files[name]) != digest for name, digest in digests.items()):
        raise ValueError("the source, or what was generated, is not what the texts name")
    texts = {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()}
    archs = head["target"].split(" ")
    headers = [Header(n, d, None) for n, d in section_of(program_txt, "headers").items()]
    objects = tuple(section_of(program_txt, "objects").values())
    return Recipe(
        pipeline=pipeline,
        archs=tuple(parse_arch(name) for name in archs if name != "ptx"),
        ptx="ptx" in archs,
        source=texts.get("source.cu", ""),
        symbol=json.loads(program.get("kernel", '""')),
        signature=Signature(()),
        launch=None,
        constants={},
        includes=Includes(sha256_text(manifest_of(headers)) if headers else None, given.roots),
        flags=given.flags,
        defines=given.defines,
        std=given.std,
        host_march=given.host_march,
        cudart=given.cudart,
        unit=given.unit,
        headers={n: texts[n] for n in digests if n not in (*_OURS, "source.cu")},
        assembled=given.assembled,
        part=given.part or PartOptions(),
        link=given.link and msgspec.structs.replace(given.link, objects=objects),
        recorded={name: texts[name] for name in digests if name in _OURS},
    )


def _check(given: Given, pipeline: Pipeline) -> None:
    """Raise `ValueError` for what no manifest may say: the pipelines take it as it is."""
    flags = given.flags if pipeline.has_source else ()
    for _, flag in impure(flags, cpu=pipeline.compiler == "g++"):
        raise ValueError(f"{flag} is for unsafe-flags: its own project compiles it again")
    march, part, link = given.host_march, given.part or PartOptions(), given.link or Link()
    if (march and not names_march(march)) or part.language not in LANGUAGES.values():
        raise ValueError(f"-march={march} -x {part.language}")
    words = (link.soname, *link.inputs, *link.dirs, *link.libs, *link.rpath, *link.needed)
    for word in (given.std, *(word for word in words if word)):
        if not _PLAIN.fullmatch(word):
            raise ValueError(f'"{word}" is in a command')
    for name, _ in given.roots:
        if os.path.isabs(name) or os.pardir in name.split("/"):
            raise ValueError(f'headers of "{name}"')
