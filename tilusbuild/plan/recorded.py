"""From the texts of a program to the files of its directory, and to a recipe that compiles it
again.

No command of `options.txt` is run, and none of `compile.sh`: a stranger may have written them. A
comment of `compile.sh` has the values of the manifest as fields. They are checked as a manifest's
are, and this machine's own pipeline makes its commands of them. These must equal the commands of
`options.txt`, whose hash is the program's name, word for word. Generated code (launcher, constants)
is taken as it is, if it has the digest that `options.txt` names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

import msgspec

from tilusbuild.arch import parse_arch
from tilusbuild.compile.model import (
    LINK_INPUTS,
    LINK_OPTIONS,
    STAND_IN,
    Includes,
    Link,
    Options,
    PartOptions,
    Pipeline,
    Recipe,
)
from tilusbuild.compile.module import GIVEN, RecipeInputs, format_command_lines
from tilusbuild.compile.pipelines import find_pipeline_by_name
from tilusbuild.compile.steps import LAUNCHER
from tilusbuild.manifest.denied_flags import find_denied_flags, names_march
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.plan.identity import parse_section
from tilusbuild.render.closure import Header, format_manifest
from tilusbuild.signature.model import Signature
from tilusbuild.state.files import sha256_bytes, sha256_text

_GENERATED = ("program.s", STAND_IN, LAUNCHER, LINK_OPTIONS, LINK_INPUTS)
_PLAIN_WORD = re.compile(r"[\w$/.~][\w.+$/{}~=:-]*")
"""Words of a link that no shell, linker or compiler takes for more than a name."""
_COMMON_FILES = (
    "meta.json",
    "program.txt",
    "options.txt",
    "module/compile.sh",
    "module/nvcc_output.txt",
)


class ForeignTextsError(ValueError):
    """The texts are not what a build of this tilusbuild writes."""


def find_pipeline(options_txt: str, compiler: str | None = None) -> Pipeline | None:
    """Return the pipeline that an `options.txt` names, or None."""
    return find_pipeline_by_name(parse_section(options_txt, "").get("pipeline", ""), compiler)


def list_header_digests(program_txt: str) -> tuple[str | None, Mapping[str, str]]:
    """Return the name of the directory of a program's headers (None without headers), and the
    digests of its files."""
    digests = parse_section(program_txt, "headers")
    headers = [Header(name, digest, None) for name, digest in digests.items()]
    return (sha256_text(format_manifest(headers)) if headers else None), digests


def list_program_files(program_txt: str, options_txt: str) -> dict[str, str | None]:
    """Return the files that a program's directory can have, by its two texts, with their
    digests where these follow from the texts. Strangers may have written both texts."""
    files: dict[str, str | None] = dict.fromkeys(_COMMON_FILES)
    if (pipeline := find_pipeline(options_txt)) is None:
        return files
    files[f"module/{pipeline.product}"] = None
    digests = {name: sha256_text(text) for name, text in pipeline.fixed_files.items()}
    digests |= _list_source_digests(program_txt, options_txt, pipeline)
    # The launcher is in a directory of its own.
    digests.pop(LAUNCHER, None)
    return files | {f"module/{name}": digest for name, digest in digests.items()}


def _list_source_digests(program_txt: str, options_txt: str, pipeline: Pipeline) -> dict[str, str]:
    """Return the sha256 of the source and of the generated files, as the texts name them, by
    name."""
    digests = parse_section(options_txt, "generated")
    if pipeline.has_source:
        source = parse_section(program_txt, "").get("source", "")
        digests[pipeline.source_name] = source.removeprefix("sha256:")
    return digests


def restore_recipe(
    program_txt: str, options_txt: str, files: Mapping[str, bytes], compile_sh: str
) -> Recipe:
    """Return the recipe that compiles a recorded program again.

    `files` are the source and the generated files, by name. Raises `ForeignTextsError` if the texts
    are malformed, or if this tilusbuild would run other commands than `options_txt` has.
    """
    try:
        # A line of it is `# given: {"std": "c++17", …}`.
        inputs_json = compile_sh.partition(f"\n{GIVEN}")[2].partition("\n")[0]
        inputs = msgspec.json.decode(inputs_json, type=RecipeInputs)
        recipe = _make_recipe(program_txt, options_txt, files, inputs)
        # `parse_section` would drop blank lines, and the commands must be equal word for word.
        commands = options_txt.partition("\n[commands]\n")[2].partition("\n\n[generated]\n")[0]
        has_same_commands = "\n".join(format_command_lines(recipe)) == commands
        if recipe.link is not None and recipe.recorded is not None:
            words = recipe.pipeline.generate_files(recipe)
            has_same_commands &= words.items() <= recipe.recorded.items()
    # Whatever is missing or malformed in texts that a stranger may have written.
    except (ValueError, LookupError) as error:
        raise ForeignTextsError(f"its texts cannot be read: {error}") from None
    if not has_same_commands:
        raise ForeignTextsError("its commands differ from those of this tilusbuild")
    return recipe


def _make_recipe(
    program_txt: str, options_txt: str, files: Mapping[str, bytes], inputs: RecipeInputs
) -> Recipe:
    """Return the recipe that the texts describe. Raises `ValueError` and `LookupError`."""
    options = parse_section(options_txt, "")
    program = parse_section(program_txt, "")
    if (pipeline := find_pipeline(options_txt, inputs.compiler)) is None:
        raise ValueError("its pipeline is unknown")
    _check_inputs(inputs, pipeline)
    digests = _list_source_digests(program_txt, options_txt, pipeline)
    # The program's name covers the digests only: the files themselves are checked against them.
    if any(sha256_bytes(files[name]) != digest for name, digest in digests.items()):
        raise ValueError("the source, or what was generated, is not what the texts name")
    texts = {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()}
    # The target is the architectures and, if PTX is embedded, `ptx`: `sm_80 sm_90a ptx`.
    archs = options["target"].split(" ")
    link = inputs.link
    if link is not None:
        # The objects come from `program.txt`, whose hash is the program's name: `inputs` are from a
        # comment, which no hash covers.
        objects = tuple(parse_section(program_txt, "objects").values())
        link = msgspec.structs.replace(link, objects=objects)
    source_names = (*_GENERATED, pipeline.source_name)
    return Recipe(
        pipeline=pipeline,
        archs=tuple(parse_arch(name) for name in archs if name != "ptx"),
        ptx="ptx" in archs,
        source=texts.get(pipeline.source_name, ""),
        symbol=json.loads(program.get("kernel", '""')),
        # The launcher is one of the recorded files, and nothing else depends on these three.
        signature=Signature(()),
        launch=None,
        constants={},
        includes=Includes(list_header_digests(program_txt)[0], inputs.roots),
        options=msgspec.convert(inputs, Options, from_attributes=True),
        unit=inputs.unit,
        headers={name: texts[name] for name in digests if name not in source_names},
        part=inputs.part or PartOptions(),
        link=link,
        recorded={name: texts[name] for name in digests if name in _GENERATED},
    )


def _check_inputs(inputs: RecipeInputs, pipeline: Pipeline) -> None:
    """Raise `ValueError` for a value that no manifest may have: pipelines take it unchecked.

    Such values are a flag that the manifest allows with `unsafe-flags` only, an unknown
    architecture of the host or language, a word that is more than a name to a shell or a linker,
    and a header directory outside the private one.
    """
    flags = inputs.flags if pipeline.has_source else ()
    for flag in find_denied_flags(flags, cpu=pipeline.compiler == "g++"):
        raise ValueError(f"{flag.text} is for unsafe-flags: its own project compiles it again")
    march = inputs.host_march
    part = inputs.part or PartOptions()
    link = inputs.link or Link()
    if (march and not names_march(march)) or part.language not in LANGUAGES.values():
        raise ValueError(f"-march={march} -x {part.language}")
    link_words = (link.soname, *link.inputs, *link.dirs, *link.libs, *link.rpath, *link.needed)
    for word in (inputs.std, *filter(None, link_words)):
        if not _PLAIN_WORD.fullmatch(word):
            raise ValueError(f'"{word}" is in a command')
    for name, _ in inputs.roots:
        # These become `-I` below the private directory: they must not lead out of it.
        if os.path.isabs(name) or os.pardir in name.split("/"):
            raise ValueError(f'headers of "{name}"')
